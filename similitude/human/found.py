"""What a fitted model found, as values that print themselves: features, the contrast of two objects, a summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..ops import reference
from .fitting import Told, fit, pair_scores, predict
from .judgements import Array, Judgements

if TYPE_CHECKING:
    from .model import TverskySimilarityModel

# Resampled fits from which on 95 % of them are told; of fewer, the lowest and the highest.
MANY = 20


@dataclass(frozen=True)
class Found:
    """A feature: its name and place, how many objects have it, and those with the largest measures."""

    name: str
    place: int
    count: int
    objects: list[tuple[str, float]]

    def __str__(self) -> str:
        return f"{self.name} ({self.count}): " + ", ".join(f"{name} {measure:.2f}" for name, measure in self.objects)


@dataclass(frozen=True)
class Contrasted:
    """S(a, b): what features of both and of one only add to it, and the rest, which is the intercept and biases."""

    a: str
    b: str
    S: float
    back: float
    rest: float
    parts: dict[str, list[tuple[str, float]]]
    sums: dict[str, float]

    def __str__(self) -> str:
        lines = [f"S({self.a}, {self.b}) = {self.S:.3f}    S({self.b}, {self.a}) = {self.back:.3f}"]
        titles = {"both": "both", "first only": f"{self.a} only", "second only": f"{self.b} only"}
        for part, title in titles.items():
            terms = ", ".join(f"{name} {value:+.2f}" for name, value in self.parts[part])
            lines.append(f"  {title:24s} {self.sums[part]:+8.3f}  {terms}")
        return "\n".join([*lines, f"  {'intercept and biases':24s} {self.rest:+8.3f}"])


@dataclass(frozen=True)
class Summary:
    """α, β, θ of the best restart, their intervals over fits to resampled pairs, and warnings."""

    constants: dict[str, tuple[float, float, float]]
    agree: float
    judgements: str
    parameters: int
    warnings: list[str]
    ordered: bool = True  # whether α and β are two numbers
    fits: int = MANY

    @property
    def interval(self) -> str:
        """What the intervals are; few fits have no 95 % of them."""
        return "95 % of resampled fits" if self.fits >= MANY else f"range of {self.fits} resampled fits"

    def __str__(self) -> str:
        lines = [f"{self.judgements}; {self.parameters} parameters"]
        for name, (value, low, high) in self.constants.items():
            lines.append(f"  {name:8s} {value:8.3f}   {self.interval}: {low:.3f} to {high:.3f}")
        if self.ordered:
            lines.append(f"  α > β in {self.agree:.0%} of resampled fits")
        return "\n".join([*lines, *(f"  ! {sentence}" for sentence in self.warnings)])


def summarise(
    model: TverskySimilarityModel, bootstrap: int, progress: Callable[[int, int], None] | None = None
) -> Summary:
    """The summary of a fitted model; each of ``bootstrap`` fits is to pairs drawn with replacement."""
    if bootstrap < 2:
        raise ValueError(f"bootstrap={bootstrap} is too few; 2 or more resampled fits are expected.")
    said = model.judgements_
    counts, held = drawn(np.unique(_pairs(said), return_inverse=True)[1], bootstrap)
    settings = {**model._settings(), "restarts": 1, "progress": progress, "l2": (float(model.fitted_.l2[0]),)}
    p = fit(model.family_, said, counts, held, seed=1, **settings).params
    alpha, theta = p["alpha"][:, 0].numpy(), p["theta"][:, 0].numpy()
    beta = p["beta"][:, 0].numpy() if "beta" in p else alpha
    found = {"alpha": (model.alpha_, alpha), "beta": (model.beta_, beta), "theta": (model.theta_, theta)}
    constants = {name: (value, *_interval(fits)) for name, (value, fits) in found.items()}
    agree = float((alpha > beta).mean())
    sentences = model.warnings()
    if "beta" in p and 0.025 < agree < 0.975 and not any("α" in sentence for sentence in sentences):
        sentences.append(f"α > β in {agree:.0%} of resampled fits, so the judgements do not tell which is larger.")
    return Summary(
        constants, agree, repr(said), model.family_.parameters(len(said.objects)), sentences, "beta" in p, bootstrap
    )


def answered(model: TverskySimilarityModel, said: Judgements) -> tuple[Array, Array]:
    """What was said of each cell, and what the model expects: shares, or ratings."""
    if said.kind != "choice":
        return said.value, model.predict(np.stack([said.first, said.second], 1))
    return said.value / said.answers, predict(model.family_, model.fitted_, said, Told.of(said))


def _interval(values: Array) -> tuple[float, float]:
    low, high = np.quantile(values, (0.025, 0.975) if len(values) >= MANY else (0, 1))
    return float(low), float(high)


def contrasted(model: TverskySimilarityModel, a: int, b: int, top: int) -> Contrasted:
    """What each feature adds to S of two objects by the best restart, by the equations."""
    objects = torch.tensor(model.objects_[[a, b]])
    A, B = objects @ torch.tensor(model.features_).T
    A2, B2 = objects @ torch.tensor(model.distinctive_).T
    alpha, beta = (0.0, 0.0) if model.features is not None and model.own == "common" else (model.alpha_, model.beta_)
    parts = {
        "both": model.theta_ * reference.common_terms(A, B, model.intersection),
        "first only": -alpha * reference.distinctive_terms(A2, B2, model.difference),
        "second only": -beta * reference.distinctive_terms(B2, A2, model.difference),
    }
    best = model.best_restart_
    one = {name: t[0, best : best + 1] for name, t in model.fitted_.params.items()}
    N = len(model.names_)
    with torch.no_grad():
        S, back = pair_scores(model.family_, one, torch.tensor([a, b]), torch.tensor([b, a]), N, False)[0].tolist()
    names, terms = model._feature_names(len(A)), {}
    for part, values in parts.items():
        order = values.abs().argsort(descending=True)[:top].tolist()
        terms[part] = [(names[k], float(values[k])) for k in order if values[k] != 0]
    sums = {part: float(values.sum()) for part, values in parts.items()}
    return Contrasted(model.names_[a], model.names_[b], S, back, S - sum(sums.values()), terms, sums)


def drawn(group: Array, count: int, seed: int = 0) -> tuple[Array, Array]:
    """How often each cell is drawn when groups are drawn with replacement, and masks of those that never are."""
    random = np.random.default_rng(seed)
    groups = int(group.max()) + 1
    times = np.stack([np.bincount(random.integers(groups, size=groups), minlength=groups) for _ in range(count)])
    counts = times[:, group].astype(np.float32)
    held = counts == 0
    return counts, np.where(held.any(1, keepdims=True), held, True)


def _pairs(said: Judgements) -> Array:
    if said.kind == "choice":
        return said.question
    return np.minimum(said.first, said.second) * len(said.objects) + np.maximum(said.first, said.second)
