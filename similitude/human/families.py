"""Models of similarity judgements: functions of parameters with an axis of fits, ``[R, ...]`` -> S, ``[R, M]``.

A family says how its parameters start and what S of a pair is; fitting.py trains all fits of a family as one program.
Names of parameters: X, Y objects; F bank or matrix; A measures; w, v weights; r, s biases; c the intercept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from ..functional import tversky_projection, tversky_similarity

Params = dict[str, Tensor]
# Parameters that weight decay shrinks; biases are left free, for shrunken ones leave asymmetry to α and β.
SHRUNK = ("X", "Y", "F", "A", "v", "v2", "f", "g", "z")
TINY = 1e-6


@dataclass(frozen=True)
class Pairs:
    """The pairs that S is asked for: all of N × N (then results are ``[R, N, N]``), or a list of M."""

    first: Tensor | None = None
    second: Tensor | None = None

    def of_first(self, t: Tensor) -> Tensor:
        return t.unsqueeze(2) if self.first is None else t[:, self.first]

    def of_second(self, t: Tensor) -> Tensor:
        return t.unsqueeze(1) if self.second is None else t[:, self.second]

    def tversky(self, x: Tensor, bank: Tensor, alpha: Tensor, beta: Tensor, theta: Tensor, **form: Any) -> Tensor:
        """Tversky similarities by the library's door, in one program; ``x`` is ``[R, N, D]`` or ``[N, D]``."""
        ratio = form.get("model") == "ratio"
        first, second = self.first, self.second

        def similarity(x: Tensor, *rest: Any) -> Tensor:
            if first is None or second is None:
                return tversky_projection(x, x, *rest, **form)
            return tversky_similarity(x[first], x[second], *rest, **form)

        # The ratio model has no θ, and no weights below 0: θ is its gain here.
        constants = (alpha.abs(), beta.abs(), torch.ones_like(theta)) if ratio else (alpha, beta, theta)
        S: Any = vmap(similarity, (0 if x.dim() == 3 else None, 0, 0, 0, 0))(x, bank, *constants)
        return each(theta, self) * S if ratio else S


@dataclass(frozen=True)
class Start:
    """What a start may use: numbers of fits and objects, random numbers, the intercept of each fit."""

    fits: int
    objects: int
    generator: torch.Generator
    intercept: Tensor

    def normal(self, *shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(self.fits, *shape, generator=self.generator) * scale

    def full(self, value: float, *shape: int) -> Tensor:
        return torch.full((self.fits, *shape), float(value))


@dataclass(frozen=True)
class Family:
    """A model: its name, the start of its parameters, S of pairs, and weight decays to choose from."""

    name: str
    start: Callable[[Start], Params]
    score: Callable[[Params, Pairs], Tensor]
    l2: tuple[float, ...] = (3e-4,)
    # What is measured of the objects is given, so that S of an object that nobody judged is known.
    given: bool = field(default=False)
    # Factor of the learning rate, for parameters that end far from where they start.
    rate: float = 1.0

    def parameters(self, objects: int) -> int:
        """How many numbers one fit learns."""
        start = self.start(Start(1, objects, torch.Generator().manual_seed(0), torch.zeros(1)))
        return sum(t.numel() for t in start.values())


def with_bias(family: Family, bias: str) -> Family:
    """The family with a response bias: one number an object, added for the first and taken for the second, or two."""
    if bias == "none":
        return family
    if bias not in ("object", "row+column"):
        raise ValueError(f"bias={bias!r} is none of none, object, row+column.")

    def start(make: Start) -> Params:
        biases = {"r": make.full(0, make.objects)} | ({"s": make.full(0, make.objects)} if bias != "object" else {})
        return family.start(make) | biases

    def score(p: Params, pairs: Pairs) -> Tensor:
        r, s = p["r"].unsqueeze(-1), p.get("s", -p["r"]).unsqueeze(-1)
        return family.score(p, pairs) + (pairs.of_first(r) + pairs.of_second(s)).squeeze(-1)

    name = f"{family.name} + {'one bias' if bias == 'object' else 'row and column bias'}"
    return Family(name, start, score, family.l2, family.given, family.rate)


# Tversky's model, with objects and features learned, or features learned directly; given.py has the given ones.


def tversky(
    num_features: int = 24, dim: int = 4, *, symmetric: bool = False, l2: tuple[float, ...] = (3e-4, 1e-3), **form: Any
):
    """Objects in ``dim`` dimensions and a bank of features, both learned."""

    def start(make: Start) -> Params:
        scale = 1 / math.sqrt(dim)
        objects = {"X": make.normal(make.objects, dim, scale=scale), "F": make.normal(num_features, dim, scale=0.7)}
        return objects | constants(make, symmetric)

    def score(p: Params, pairs: Pairs) -> Tensor:
        return each(p["c"], pairs) + pairs.tversky(p["X"], p["F"], *weights(p), **form)

    return Family("Tversky", start, score, l2)


def direct(num_features: int = 8, *, symmetric: bool = False, l2: tuple[float, ...] = (1e-3,), **form: Any) -> Family:
    """Every object's measures are learned themselves: the bank is the identity."""

    def start(make: Start) -> Params:
        return {"A": make.normal(make.objects, num_features, scale=0.6)} | constants(make, symmetric)

    def score(p: Params, pairs: Pairs) -> Tensor:
        bank = torch.eye(num_features).to(p["A"]).expand(len(p["A"]), -1, -1)
        return each(p["c"], pairs) + pairs.tversky(p["A"], bank, *weights(p), **form)

    return Family("Tversky, direct features", start, score, l2)


def constants(make: Start, symmetric: bool) -> Params:
    """The intercept, θ, α and, unless the judgements are symmetric, β."""
    both = {"c": make.intercept.clone(), "theta": make.full(1.0)}
    if symmetric:
        return {**both, "alpha": make.full(0.5)}
    # Every second fit starts the other way round: what restarts agree on is not their start.
    turn = 0.1 * (1 - 2 * (torch.arange(make.fits) % 2))
    return {**both, "alpha": 0.5 + turn, "beta": 0.5 - turn}


def weights(p: Params) -> tuple[Tensor, Tensor, Tensor]:
    return p["alpha"], p.get("beta", p["alpha"]), p["theta"]


def each(t: Tensor, pairs: Pairs) -> Tensor:
    """A number a fit, to be added to S."""
    return t[:, None, None] if pairs.first is None else t[:, None]


# Rivals.


def common_only(num_features: int = 24, dim: int = 4, **form: Any) -> Family:
    """Tversky's model with common features alone: α = β = 0."""

    def start(make: Start) -> Params:
        scale = 1 / math.sqrt(dim)
        objects = {"X": make.normal(make.objects, dim, scale=scale), "F": make.normal(num_features, dim, scale=0.7)}
        return objects | {"c": make.intercept.clone(), "theta": make.full(1.0)}

    def score(p: Params, pairs: Pairs) -> Tensor:
        zero = torch.zeros_like(p["theta"])
        return each(p["c"], pairs) + pairs.tversky(p["X"], p["F"], zero, zero, p["theta"], **form)

    return Family("common only", start, score, (3e-4, 1e-3))


def metric(dim: int = 4, decay: bool = True, shift: str = "none") -> Family:
    """Distances in ``dim`` dimensions: c − d, or shares that fall as e^−d; ``shift`` is none, slide or unfold."""

    def start(make: Start) -> Params:
        scale = (1.5 if decay else 1.0) / math.sqrt(dim)
        p = {"X": make.normal(make.objects, dim, scale=scale), "c": make.full(2.0) if decay else make.intercept + 2}
        if shift == "slide":
            p["z"] = make.normal(dim, scale=0.1)
        if shift == "unfold":
            p["Y"] = p["X"] + make.normal(make.objects, dim, scale=0.1)
        return p

    def score(p: Params, pairs: Pairs) -> Tensor:
        second = p["Y"] if shift == "unfold" else p["X"] + p["z"].unsqueeze(1) if shift == "slide" else p["X"]
        d = ((pairs.of_first(p["X"]) - pairs.of_second(second)).square().sum(-1) + TINY).sqrt()
        if not decay:
            return each(p["c"], pairs) - d
        # The logit of σ(c)·e^−d.
        log_share = torch.nn.functional.logsigmoid(each(p["c"], pairs)) - d
        return log_share - (-log_share.exp()).log1p()

    names = {"none": "mds", "slide": "slide vector", "unfold": "unfolding"}
    return Family(names[shift] + (", exponential decay" if decay else ""), start, score, (3e-5, 2e-4))


def cosine(dim: int = 4) -> Family:
    def start(make: Start) -> Params:
        return {"X": make.normal(make.objects, dim), "gain": make.full(2.0), "c": make.intercept.clone()}

    def score(p: Params, pairs: Pairs) -> Tensor:
        x = torch.nn.functional.normalize(p["X"], dim=-1)
        return each(p["c"], pairs) + each(p["gain"], pairs) * (pairs.of_first(x) * pairs.of_second(x)).sum(-1)

    return Family("cosine", start, score, (3e-5, 1e-4))


def dot(dim: int = 4, floor: float | None = None) -> Family:
    """a · b; with ``floor=0`` of vectors without negative numbers, as in additive clustering and NMF."""

    def start(make: Start) -> Params:
        return {"X": make.normal(make.objects, dim, scale=0.7), "c": make.intercept.clone()}

    def score(p: Params, pairs: Pairs) -> Tensor:
        x = p["X"] if floor is None else torch.nn.functional.softplus(p["X"] * 4) / 4
        return each(p["c"], pairs) + (pairs.of_first(x) * pairs.of_second(x)).sum(-1)

    return Family("dot" if floor is None else "nmf", start, score, (1e-4, 1e-3))


def bilinear(dim: int = 4) -> Family:
    """aᵀ W b."""

    def start(make: Start) -> Params:
        W = torch.eye(dim) + make.normal(dim, dim, scale=0.3)
        return {"X": make.normal(make.objects, dim, scale=0.7), "F": W, "c": make.intercept.clone()}

    def score(p: Params, pairs: Pairs) -> Tensor:
        return each(p["c"], pairs) + (pairs.of_first(p["X"] @ p["F"]) * pairs.of_second(p["X"])).sum(-1)

    return Family("bilinear", start, score, (1e-4, 1e-3))


def constant() -> Family:
    """The same S for all pairs; with a bias, the bias alone."""

    def start(make: Start) -> Params:
        return {"c": make.intercept.clone()}

    def score(p: Params, pairs: Pairs) -> Tensor:
        if pairs.first is not None:
            return p["c"].unsqueeze(-1).expand(-1, len(pairs.first))
        raise ValueError("a constant needs the list of pairs.")

    return Family("constant", start, score, (3e-4,))
