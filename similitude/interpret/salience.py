"""Salience, f(A) of Eq. 2, over a data set: who has the most features, and whether that goes with form.

All of interpret's views of examples take a layer and the vectors that it sees; ``seen`` gives both for a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .. import functional as F
from ..bank import evaluating
from ..checks import check_vectors, check_width
from ..explain import objects
from ..models.data_domain import DataDomain
from ..nn import TverskyProjection

# Inputs that go through a network at once, and elements of a matrix that are made at once.
ROWS, ELEMENTS = 1000, 2**24


@torch.no_grad()
def seen(model: Any, inputs: Any, layer: str | None = None) -> tuple[TverskyProjection, Tensor]:
    """The model's Tversky layer, and the vectors ``[N, D]`` that it sees in ``eval()`` when the model gets the inputs.

    model: a TverskyProjection; a DataDomain network; a TverskyClassifier; or any module with such a layer, a
    converted one for example. ``layer`` names it where there are several.
    inputs: a tensor of N inputs, rows for a classifier, keyword arguments as a mapping, or a loader: batches of these,
    or tuples of which they are the first.
    """
    if not isinstance(model, nn.Module):
        if not (hasattr(model, "layer_") and hasattr(model, "objects")):
            raise TypeError(
                "model must be a TverskyProjection, a module that has one, or a TverskyClassifier that was fitted; "
                f"got {type(model).__name__}."
            )
        return model.layer_, model.objects(inputs)
    if isinstance(model, DataDomain):
        head = model.materialize()
        if not isinstance(head, TverskyProjection):
            raise TypeError("a linear head has no features, and its objects no salience; use a TverskyProjection.")
        return head.eval(), _joined([model.encode(x) for x in _batches(inputs, model.prototypes.device)])
    chosen = _chosen(model, layer)
    device = chosen.prototypes.device
    if chosen is model:
        return chosen, _joined([_rows(x, chosen) for x in _batches(inputs, device)])
    found: list[Tensor] = []
    hook = chosen.register_forward_pre_hook(
        lambda _, given, named: found.append(_rows([*given, *named.values()][0], chosen)), with_kwargs=True
    )
    try:
        with evaluating(model):
            for x in _batches(inputs, device):
                model(**x) if isinstance(x, Mapping) else model(x)
    finally:
        hook.remove()
    if not found:
        raise ValueError("the layer was not called on the inputs: some have none, or a fused loss went around it.")
    return chosen, torch.cat(found)


@dataclass(frozen=True)
class Ranking:
    """A data set from low to high salience. Print it.

    salience: ``[N]``, in the data set's order. order: ``[N]``, its indices from the lowest to the highest. labels:
    ``[N]``, if there are classes.
    """

    salience: Tensor
    order: Tensor
    labels: Tensor | None = None

    def of(self, label: int | None = None) -> Tensor:
        """Indices from low to high, of one class or of all."""
        if label is None:
            return self.order
        found = self.order[self._labels()[self.order] == label]
        if not len(found):
            raise ValueError(f"no example has label {label}; there are {self.classes()}.")
        return found

    def lowest(self, n: int = 10, label: int | None = None) -> Tensor:
        """Indices of the n least salient, from the lowest."""
        return self.of(label)[:n]

    def highest(self, n: int = 10, label: int | None = None) -> Tensor:
        """Indices of the n most salient, from the highest."""
        return self.of(label).flip(0)[:n]

    def strip(self, n: int = 10, label: int | None = None) -> Tensor:
        """n indices at even steps from the lowest to the highest, as in the paper's figure."""
        if n < 1:
            raise ValueError(f"n must be 1 or more; got {n}.")
        order = self.of(label)
        steps = torch.linspace(0, len(order) - 1, min(n, len(order))).round().long()
        return order[steps.to(order.device)]

    def classes(self) -> list[int]:
        return [] if self.labels is None else self.labels.unique().tolist()

    def _labels(self) -> Tensor:
        if self.labels is None:
            raise ValueError("the ranking has no labels; give them to rank(layer, vectors, labels).")
        return self.labels

    def __str__(self) -> str:
        rows = [("all", self.salience)] + [(str(c), self.salience[self.of(c)]) for c in self.classes()]
        lines = [f"{'class':<8}{'examples':>9}{'lowest':>10}{'median':>10}{'mean':>10}{'highest':>10}"]
        for name, s in rows:
            values = (s.min(), s.median(), s.mean(), s.max())
            lines.append(f"{name:<8}{len(s):>9,}" + "".join(f"{v.item():>10.3f}" for v in values))
        return "\n".join(lines)


@torch.no_grad()
def rank(layer: TverskyProjection, vectors: Tensor, labels: Tensor | None = None) -> Ranking:
    """The vectors ``[N, D]`` by their salience in the layer's bank; equal ones keep their order.

    Equivalent to: ``F.salience(vectors, layer.features.weight).argsort()``.
    """
    x = objects(layer, vectors)
    if x.dim() != 2 or not len(x):
        raise ValueError(f"vectors must be [N, D] with one row or more; got shape {list(vectors.shape)}.")
    if labels is not None:
        labels = torch.as_tensor(labels, device=x.device)
        if labels.shape != x.shape[:1]:
            raise ValueError(f"labels must be [{len(x)}], one for each vector; got shape {list(labels.shape)}.")
    bank = layer.features.weight.detach().to(x.dtype)
    parts = x.split(max(1, ELEMENTS // len(bank)))
    salience = torch.cat([F.salience(part, bank) for part in parts])
    return Ranking(salience, salience.argsort(stable=True), labels)


def ink(images: Tensor) -> Tensor:
    """Mean brightness of each image, ``[N, ..., H, W]`` -> ``[N]``: how much was drawn."""
    return _pictures(images).mean((1, 2))


def stroke_width(images: Tensor) -> Tensor:
    """Width in pixels of the strokes of each image, ``[N, ..., H, W]`` -> ``[N]``: twice the ink over its outline.

    A bar of length L and width w has ink Lw and outline 2L + 2w: long strokes give w. The outline is the sum of the
    gradient's lengths, which needs no threshold. An image that is all of one brightness gives 0.
    """
    x = nn.functional.pad(_pictures(images), (1, 1, 1, 1))
    down, right = x[:, 1:, :-1] - x[:, :-1, :-1], x[:, :-1, 1:] - x[:, :-1, :-1]
    outline = (down.square() + right.square()).sqrt().sum((1, 2))
    return torch.where(outline > 0, 2 * x.sum((1, 2)) / outline.clamp(min=1e-12), 0.0)


def typicality(images: Tensor, labels: Tensor) -> Tensor:
    """Cosine of each image with the mean image of its class, ``[N, ..., H, W]``, ``[N]`` -> ``[N]``."""
    x, out = _pictures(images).flatten(1), torch.zeros(len(images), device=images.device)
    for c in labels.unique():
        rows = labels == c
        out[rows] = nn.functional.cosine_similarity(x[rows], x[rows].mean(0, keepdim=True)).to(out.dtype)
    return out


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two ``[N]``, ties sharing their mean rank; NaN where one of them is constant."""
    if a.dim() != 1 or a.shape != b.shape:
        raise ValueError(f"both must be [N] and of one length; got shapes {list(a.shape)} and {list(b.shape)}.")
    ranks = torch.stack([_ranks(a), _ranks(b)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    length = ranks.norm(dim=1)
    return (ranks[0] @ ranks[1] / length.prod()).item() if length.all() else math.nan


@dataclass(frozen=True)
class Form:
    """Rank correlation of salience with measures of form: over all examples, and within each class. Print it.

    Over all, a measure may go with salience only because classes differ in both; within a class it cannot.
    """

    overall: dict[str, float]
    by_class: dict[int, dict[str, float]]

    def within(self, measure: str) -> float:
        """Mean over the classes of the correlation within each."""
        found = [of[measure] for of in self.by_class.values() if not math.isnan(of[measure])]
        return sum(found) / len(found) if found else math.nan

    def __str__(self) -> str:
        width = max(24, *(len(name) + 2 for name in self.overall))
        lines = [f"{'Spearman with salience':<{width}}{'all':>7}"]
        if self.by_class:
            lines[0] += f"{'within':>8}" + "".join(f"{c:>7}" for c in self.by_class)
        for name, value in self.overall.items():
            lines.append(f"{name:<{width}}{_signed(value):>7}")
            if self.by_class:
                lines[-1] += f"{_signed(self.within(name)):>8}"
                lines[-1] += "".join(f"{_signed(of[name]):>7}" for of in self.by_class.values())
        return "\n".join(lines)


def form(ranking: Ranking, images: Tensor, **more: Tensor) -> Form:
    """How salience goes with ink, stroke width and, where there are labels, typicality: "goodness of form", checked.

    images: ``[N, ..., H, W]``, dark is 0. more: other measures of the images by name, ``[N]`` each.
    """
    N, labels = len(ranking.salience), ranking.labels
    if len(images) != N:
        raise ValueError(f"images must be as many as were ranked, {N}; got {len(images)}.")
    found = {"ink": ink(images), "stroke width": stroke_width(images)}
    if labels is not None:
        found["typicality"] = typicality(images, labels.to(images.device))
    found |= {name.replace("_", " "): values for name, values in more.items()}
    salience = ranking.salience.cpu()
    found = {name: values.cpu() for name, values in found.items()}
    overall = {name: spearman(salience, values) for name, values in found.items()}
    members = {c: ranking.of(c).cpu() for c in ranking.classes()}
    by_class = {
        c: {name: spearman(salience[rows], values[rows]) for name, values in found.items()}
        for c, rows in members.items()
    }
    return Form(overall, by_class)


def _ranks(x: Tensor) -> Tensor:
    """Ranks in float64, the mean of their ranks for equal values."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1).double() / 2)[inverse]


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.2f}"


def _pictures(images: Tensor) -> Tensor:
    if not isinstance(images, Tensor) or images.dim() < 3:
        raise ValueError(f"images must be a tensor [N, ..., H, W]; got {_shown(images)}.")
    x = images.float()
    return x if x.dim() == 3 else x.flatten(1, -3).mean(1)


def _shown(value: object) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _chosen(model: nn.Module, name: str | None) -> TverskyProjection:
    layers = {n: m for n, m in model.named_modules() if isinstance(m, TverskyProjection)}
    if name is None and len(layers) == 1:
        return next(iter(layers.values()))
    if not layers:
        raise ValueError(f"there is no TverskyProjection in this {type(model).__name__}.")
    if name not in layers:
        given = "this model has several Tversky layers" if name is None else f"no Tversky layer is named {name!r}"
        raise ValueError(f"{given}; name one of them with layer=: {', '.join(layers)}.")
    return layers[name]


def _batches(inputs: Any, device: torch.device) -> Iterator[Any]:
    """Inputs on the device, in parts that fit."""
    if isinstance(inputs, Tensor):
        yield from inputs.to(device).split(ROWS)
    elif isinstance(inputs, Mapping):
        yield {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    elif isinstance(inputs, Iterable) and not hasattr(inputs, "__array__"):
        for batch in inputs:
            yield from _batches(batch[0] if isinstance(batch, list | tuple) else batch, device)
    else:
        given = type(inputs).__name__ + (": give torch.as_tensor(it)" if hasattr(inputs, "__array__") else "")
        raise TypeError(f"inputs must be a tensor, a mapping or a loader of these; got {given}.")


def _rows(x: Tensor, layer: TverskyProjection) -> Tensor:
    check_vectors("inputs", x)
    check_width("inputs", x, layer.features.weight)
    return x.reshape(-1, x.shape[-1])


def _joined(parts: list[Tensor]) -> Tensor:
    if not parts:
        raise ValueError("there are no inputs: the loader is empty, or was used up before.")
    return torch.cat(parts)
