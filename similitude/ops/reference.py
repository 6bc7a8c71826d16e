"""The law: Eq. 1–7 of "Tversky Neural Networks", in broadcasting torch that reads like the paper.

Everything here works on *measures*, ``a = x · f_k`` for every feature ``f_k`` of the bank, ``[..., K]``, and broadcasts
``a`` against ``b``. An object has a feature when its measure is positive. All other paths are tested against this
file; it makes tensors of the broadcast size times K, so it is for small sizes and for paired objects.

A tie is a fork: ``minimum`` and ``maximum`` give each side half of the gradient, as torch does.
"""

from typing import Any

import torch
from torch import Tensor

Scalar = Tensor | float
Scalars = tuple[Scalar, Scalar, Scalar]  # α, β, θ


def salience_terms(a: Tensor) -> Tensor:
    """Measure of each feature that the object has (inside the sum of Eq. 2)."""
    return a * (a > 0)


def common_terms(a: Tensor, b: Tensor, intersection: str) -> Tensor:
    """Ψ(a·f_k, b·f_k) of each feature that both objects have (inside the sum of Eq. 3)."""
    both = (a > 0) & (b > 0)
    if intersection == "gmean":
        # The root's slope is infinite at 0: features that are not shared are kept out before it.
        return both * (torch.where(both, a, 1.0).sqrt() * torch.where(both, b, 1.0).sqrt())
    return both * pooled(a, b, intersection)


def distinctive_terms(a: Tensor, b: Tensor, difference: str) -> Tensor:
    """Measure of each feature that the first object has and the second lacks (inside the sums of Eq. 4 and 5)."""
    only = a * ((a > 0) & (b <= 0))
    if difference == "ignorematch":
        return only
    # (a − b) where a > b, for features of both.
    excess = (a - torch.minimum(a, b)) * ((a > 0) & (b > 0))
    return only + excess


def pooled(a: Tensor, b: Tensor, intersection: str) -> Tensor:
    """Ψ of two measures; the paper names these functions and prints no formula."""
    match intersection:
        case "product":
            return a * b
        case "mean":
            return (a + b) / 2
        case "min":
            return torch.minimum(a, b)
        case "max":
            return torch.maximum(a, b)
        case "softmin" if torch.compiler.is_exporting():
            # The same; ONNX would spell logaddexp as log(e^−a + e^−b), which overflows.
            return torch.minimum(a, b) - (a - b).abs().neg().exp().log1p()
        case "softmin":
            return -torch.logaddexp(-a, -b)
    raise ValueError(f"no Ψ named {intersection!r}")


def salience(a: Tensor) -> Tensor:
    """f(A), Eq. 2."""
    return salience_terms(a).sum(-1)


def shared_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """u and v: how much of the shared features the first and the second object have."""
    both = (a > 0) & (b > 0)
    return (a * both).sum(-1), (b * both).sum(-1)


def common(a: Tensor, b: Tensor, intersection: str, level: str) -> Tensor:
    """f(A∩B), Eq. 3: Ψ inside the sum (``feature``), or Ψ of the two sums over shared features (``set``)."""
    if level == "feature" or intersection in ("product", "mean"):
        return common_terms(a, b, intersection).sum(-1)
    u, v = shared_sums(a, b)
    if intersection == "gmean":
        shared = u > 0
        return shared * (torch.where(shared, u, 1.0).sqrt() * torch.where(shared, v, 1.0).sqrt())
    return pooled(u, v, intersection)


def distinctive(a: Tensor, b: Tensor, difference: str, level: str) -> Tensor:
    """f(A−B), Eq. 4 (``ignorematch``) and 5 (``subtractmatch``, whose excess is of the two sums at ``set`` level)."""
    only = distinctive_terms(a, b, "ignorematch").sum(-1)
    if difference == "ignorematch":
        return only
    if level == "feature":
        return distinctive_terms(a, b, "subtractmatch").sum(-1)
    u, v = shared_sums(a, b)
    return only + (u - torch.minimum(u, v))


def contrast(common: Tensor, a_only: Tensor, b_only: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> Tensor:
    """Tversky's contrast model, Eq. 1 and 6."""
    return theta * common - alpha * a_only - beta * b_only


def ratio(common: Tensor, a_only: Tensor, b_only: Tensor, alpha: Scalar, beta: Scalar) -> Tensor:
    """Tversky's ratio model: the shared part of all there is; 0 where there is nothing."""
    whole = common + alpha * a_only + beta * b_only
    something = whole != 0
    return something * (common / torch.where(something, whole, 1.0))


def similarity(
    a: Tensor,
    b: Tensor,
    alpha: Scalar,
    beta: Scalar,
    theta: Scalar,
    intersection: str,
    difference: str,
    level: str,
    model: str,
) -> Tensor:
    """S(a, b), Eq. 6, of measures that broadcast: ``[..., K]``, ``[..., K]`` -> ``[...]``."""
    shared = common(a, b, intersection, level)
    a_only = distinctive(a, b, difference, level)
    b_only = distinctive(b, a, difference, level)
    if model == "ratio":
        return ratio(shared, a_only, b_only, alpha, beta)
    return contrast(shared, a_only, b_only, alpha, beta, theta)


def pairwise(a: Tensor, b: Tensor, *options: Any) -> Tensor:
    """S of all pairs, Eq. 7: ``[..., N, K]``, ``[..., P, K]`` -> ``[..., N, P]``, by an N×P×K tensor."""
    return similarity(a.unsqueeze(-2), b.unsqueeze(-3), *options)
