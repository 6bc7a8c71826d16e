"""Models of objects that are known beforehand: by features that people listed, or as vectors.

Their parameters belong to features or dimensions, so that S of an object that nobody judged is known.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .families import TINY, Family, Pairs, Params, Start, constants, each, weights


def listed(
    X: Tensor, own: str = "one", *, symmetric: bool = False, l2: tuple[float, ...] = (1e-4, 1e-3, 1e-2), **form: Any
):
    """Features that people listed, ``[N, J]``, none below 0, each with a weight that is not negative.

    ``own`` is one (a weight for common and distinctive), common+distinctive (a weight for each), or common.
    """
    J, total = X.shape[1], max(float(X.sum(1).mean()), TINY)

    def start(make: Start) -> Params:
        shares = {"v": make.full(0, J), "scale": make.full(-math.log(total))}
        if own == "common+distinctive":
            shares |= {"v2": make.full(0, J), "scale2": make.full(-math.log(total))}
        return shares | constants(make, symmetric)

    def score(p: Params, pairs: Pairs) -> Tensor:
        alpha, beta, theta = weights(p)
        zero = torch.zeros_like(theta)
        bank = torch.diag_embed(weights_of(p, "v", "scale"))
        if own == "one":
            return each(p["c"], pairs) + pairs.tversky(X, bank, alpha, beta, theta, **form)
        common = pairs.tversky(X, bank, zero, zero, theta, **form)
        if own == "common":
            return each(p["c"], pairs) + common
        bank = torch.diag_embed(weights_of(p, "v2", "scale2"))
        return each(p["c"], pairs) + common + pairs.tversky(X, bank, alpha, beta, zero, **form)

    names = {"one": "one weight", "common": "common only"}
    name = f"given features, {names.get(own, 'own weights for common and distinctive')}"
    return Family(name, start, score, l2, given=True)


def alike(X: Tensor, by: str = "cosine", *, l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)) -> Family:
    """A rival on given features with a weight w ≥ 0 for each: their weighted dot, cosine, city-block or Euclid.

    dot is Σ w a b, cosine the same over the lengths, city block −Σ w |a − b|, and Euclid −Σ w (a − b)².
    """
    J, total = X.shape[1], max(float(X.sum(1).mean()), TINY)

    def start(make: Start) -> Params:
        gain = {"gain": make.full(2.0)} if by == "cosine" else {}
        return {"v": make.full(0, J), "scale": make.full(-math.log(total)), "c": make.intercept.clone()} | gain

    def score(p: Params, pairs: Pairs) -> Tensor:
        w = weights_of(p, "v", "scale")
        if by in ("dot", "cosine"):
            x = X * w.sqrt().unsqueeze(1)
            x = torch.nn.functional.normalize(x, dim=-1) if by == "cosine" else x
            dot = x @ x.mT if pairs.first is None else (pairs.of_first(x) * pairs.of_second(x)).sum(-1)
            return each(p["c"], pairs) + (each(p["gain"], pairs) * dot if by == "cosine" else dot)
        first, second = (X[:, None], X[None]) if pairs.first is None else (X[pairs.first], X[pairs.second])
        apart = (first - second).abs() if by == "city block" else (first - second).square()
        return each(p["c"], pairs) - torch.einsum("...j,rj->r...", apart, w)

    return Family(f"given features, weighted {by}", start, score, l2, given=True, rate=6.0)


def weights_of(p: Params, v: str, scale: str) -> Tensor:
    """Weights ≥ 0 of given features, equal where ``v`` is 0."""
    return p[scale].exp().unsqueeze(-1) * torch.nn.functional.softplus(p[v]) / math.log(2)


def vectors(
    V: Tensor,
    num_features: int = 32,
    *,
    sides: bool = True,
    symmetric: bool = False,
    l2: tuple[float, ...] = (1e-4, 1e-3),
    **form: Any,
):
    """Objects given as vectors, ``[N, D]``; the bank is learned, and with ``sides`` a linear term of each object."""
    D = V.shape[1]
    ones = torch.cat([V, torch.ones(len(V), 1)], 1)

    def start(make: Start) -> Params:
        bank = {"F": make.normal(num_features, D + 1, scale=0.7)}
        linear = {"f": make.full(0, D), "g": make.full(0, D)} if sides else {}
        return bank | linear | constants(make, symmetric)

    def score(p: Params, pairs: Pairs) -> Tensor:
        S = each(p["c"], pairs) + pairs.tversky(ones, p["F"], *weights(p), **form)
        return S + _sides(p, V, pairs) if sides else S

    return Family("Tversky on vectors" + (" with sides" if sides else ""), start, score, l2, given=True)


def _sides(p: Params, V: Tensor, pairs: Pairs) -> Tensor:
    first, second = (torch.einsum("nd,rd->rn", V, p[side]).unsqueeze(-1) for side in "fg")
    return (pairs.of_first(first) + pairs.of_second(second)).squeeze(-1)


def linear(V: Tensor, *, cosine: bool = False, sides: bool = True, l2: tuple[float, ...] = (1e-4, 1e-3)) -> Family:
    """A rival on vectors: linear terms of both objects, their cosine, or both."""
    D, unit = V.shape[1], torch.nn.functional.normalize(V, dim=-1)

    def start(make: Start) -> Params:
        p = {"c": make.intercept.clone()} | ({"gain": make.full(1.0)} if cosine else {})
        return p | ({"f": make.full(0, D), "g": make.full(0, D)} if sides else {})

    def score(p: Params, pairs: Pairs) -> Tensor:
        S = each(p["c"], pairs)
        if cosine:
            alike = (unit @ unit.T) if pairs.first is None else (unit[pairs.first] * unit[pairs.second]).sum(-1)
            S = S + each(p["gain"], pairs) * alike
        return S + _sides(p, V, pairs) if sides else S.expand(-1, *_shape(V, pairs))

    names = {(True, False): "cosine of vectors", (True, True): "cosine with sides", (False, True): "sides only"}
    return Family(names[cosine, sides], start, score, l2, given=True)


def turned(
    V: Tensor, rank: int = 16, *, way: str = "bilinear", sides: bool = True, l2: tuple[float, ...] = (1e-4, 1e-3)
) -> Family:
    """A rival on vectors: aᵀLᵀRb (bilinear), or the distance of La and Lb (metric)."""
    D = V.shape[1]

    def start(make: Start) -> Params:
        L = make.normal(rank, D, scale=1 / math.sqrt(rank))
        p = {"F": L, "c": make.intercept.clone(), "gain": make.full(1.0)}
        p |= {"A": L + make.normal(rank, D, scale=0.1 / math.sqrt(rank))} if way == "bilinear" else {}
        return p | ({"f": make.full(0, D), "g": make.full(0, D)} if sides else {})

    def score(p: Params, pairs: Pairs) -> Tensor:
        a, b = V @ p["F"].mT, V @ p.get("A", p["F"]).mT
        if way == "bilinear":
            S = (a @ b.mT) if pairs.first is None else (pairs.of_first(a) * pairs.of_second(b)).sum(-1)
        else:
            S = -((pairs.of_first(a) - pairs.of_second(b)).square().sum(-1) + TINY).sqrt()
        S = each(p["c"], pairs) + each(p["gain"], pairs) * S
        return S + _sides(p, V, pairs) if sides else S

    name = "bilinear on vectors" if way == "bilinear" else "distance of vectors"
    return Family(name + (" with sides" if sides else ""), start, score, l2, given=True)


def network(V: Tensor, hidden: int = 16, *, l2: tuple[float, ...] = (1e-4, 1e-3)) -> Family:
    """A rival on vectors: a network with one hidden layer that reads both objects."""
    D = V.shape[1]
    ones = torch.cat([V, torch.ones(len(V), 1)], 1)

    def start(make: Start) -> Params:
        both = {name: make.normal(hidden, D + 1, scale=1 / math.sqrt(D)) for name in ("F", "A")}
        return both | {"v": make.normal(hidden, scale=1 / math.sqrt(hidden)), "c": make.intercept.clone()}

    def score(p: Params, pairs: Pairs) -> Tensor:
        first, second = ones @ p["F"].mT, ones @ p["A"].mT
        shown = (pairs.of_first(first) + pairs.of_second(second)).relu()
        return each(p["c"], pairs) + torch.einsum("r...h,rh->r...", shown, p["v"])

    return Family("network on both vectors", start, score, l2, given=True)


def _shape(V: Tensor, pairs: Pairs) -> tuple[int, ...]:
    return (len(V), len(V)) if pairs.first is None else (len(pairs.first),)
