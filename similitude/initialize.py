"""Starting values of feature banks, prototypes and α, β, θ; docs/initialisation.md derives them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .ops import pairwise

INITS = ("calibrated", "unit", "uniform", "normal", "orthogonal")
PAPER = (0.5, 0.5, 1.0)
# Standard deviation of outputs, as nn.Linear has it. Of two prototypes it is less: a cross entropy of two classes is
# then 9 % above ln 2, and would be 12 %.
SPREAD, OF_TWO = 1 / math.sqrt(3), 0.51
# Of the inputs that constants are tried on; not a seed that anybody else takes.
SEED = 0x1977_0084
# Length of a prototype, as nn.Linear's rows have it.
LENGTH = 1 / math.sqrt(3)
# The part of f(A∩B) that f(A−B) takes away at the start; f(B−A) takes the rest. With few features it is less.
SHARE = 0.8


@torch.no_grad()
def fill_(weight: Tensor, init: str = "calibrated") -> Tensor:
    """``weight``, ``[rows, D]``, filled in place as a feature bank.

    ``calibrated``: orthonormal directions and their opposites, see ``frame_``. ``unit``: U(±√(3/D)), rows of about unit
    length and of every direction. The paper's three: ``uniform`` U[0, 1), ``normal`` N(0, 1), ``orthogonal``
    orthonormal rows or, where there are more rows than D, columns.
    """
    match init:
        case "calibrated":
            return frame_(weight)
        case "unit":
            bound = math.sqrt(3 / weight.shape[-1])
            return weight.uniform_(-bound, bound)
        case "uniform":
            return weight.uniform_(0, 1)
        case "normal":
            return weight.normal_(0, 1)
        case "orthogonal":
            return weight.copy_(_orthogonal(weight))
    raise ValueError(f"no starting values named {init!r}")


@torch.no_grad()
def fill_prototypes_(weight: Tensor, init: str, features: Tensor) -> Tensor:
    """``weight``, ``[P, D]``, filled in place as prototypes: as a bank, or, calibrated, with orthogonal rows.

    Those have and lack the first of ``features`` in turn, so that no feature is had by all, however few there are.
    """
    if init != "calibrated" or weight.is_meta:
        return fill_(weight, init)
    _bases_(weight).mul_(LENGTH)
    has = (weight.float() @ features[0].to(weight.device, torch.float32)) > 0
    return weight.mul_(torch.where(has == (torch.arange(len(weight), device=weight.device) % 2 == 0), 1, -1)[:, None])


def frame_(weight: Tensor) -> Tensor:
    """``weight``, ``[K, D]``, of orthonormal bases one after the other, the second half being the first's opposites.

    Of each pair of opposites an object has exactly one, so that every object has half of the features; and summed over
    such a bank, products of measures give back the scalar product of the vectors.
    """
    half = -(-len(weight) // 2)
    _bases_(weight[:half])
    weight[half:] = -weight[: len(weight) - half]
    return weight


def _bases_(weight: Tensor) -> Tensor:
    for part in weight.split(weight.shape[1]):
        part.copy_(_orthogonal(part))
    return weight


def _orthogonal(like: Tensor) -> Tensor:
    # The QR decomposition behind it has no half precision.
    wide = torch.promote_types(like.dtype, torch.float32)
    return nn.init.orthogonal_(torch.empty_like(like, dtype=wide)).to(like.dtype)


@torch.no_grad()
def linear_spread(weight: Tensor) -> float | None:
    """Standard deviation of a linear layer's outputs for inputs of unit variance; None where it would be 0."""
    return weight.norm(dim=-1).square().mean().sqrt().item() or None


@torch.no_grad()
def constants(
    prototypes: Tensor | None,
    features: Tensor,
    intersection: str,
    difference: str,
    level: str,
    model: str,
    normalize: bool = False,
    spread: float | None = None,
    x: Tensor | None = None,
) -> tuple[Sequence[float], Sequence[float]]:
    """α, β, θ with which S has the mean 0 and the standard deviation ``spread`` for inputs like ``x``, and their units.

    Without x for standard normal ones; without prototypes for other such objects. A unit is what a constant would be if
    it were to balance f(A∩B) alone. S is linear in the three, so that its three parts, computed for some inputs and
    prototypes, tell them. Where nothing is shared or nothing distinctive there is nothing to balance, and only the
    size is set; the ratio model has none to choose and starts as in the paper.
    """
    if model == "ratio" or features.is_meta or (prototypes is not None and prototypes.is_meta):
        return PAPER, PAPER
    generator = torch.Generator().manual_seed(SEED)
    K, D = features.shape
    # In 64 bits, so that the number of threads does not show in the constants.
    bank = features.to(torch.float32 if features.device.type == "mps" else torch.float64)
    if prototypes is None:
        prototypes = torch.randn(256, D, generator=generator)
    P = len(prototypes)
    few = prototypes[torch.randperm(P, generator=generator)[:256].to(prototypes.device)].to(bank)
    if x is None:
        # On the CPU, and not from the generator that everybody draws from: other numbers stay what they are.
        n = max(64, min(4096, 2**25 // (len(few) * K), 2**31 // (D * K)))
        x = torch.randn(n, D, generator=generator)
    x = x.to(bank)
    if normalize:
        x, few = nn.functional.normalize(x, dim=-1), nn.functional.normalize(few, dim=-1)
    a, b = x @ bank.mT, few @ bank.mT
    zero, one = a.new_zeros(()), a.new_ones(())
    common, a_only, b_only = (
        pairwise.similarity(a, b, *units, intersection, difference, level, model, kernels=False)
        for units in ((zero, zero, one), (-one, zero, zero), (zero, -one, zero))
    )
    means = [t.mean().item() for t in (common, a_only, b_only)]
    share = SHARE * (1 - 1 / K)
    shares = (share, 1 - share, 1.0)
    units = [means[0] / mean for mean in (*means[1:], means[0])] if min(means) > 0 else PAPER
    size = (common - shares[0] * units[0] * a_only - shares[1] * units[1] * b_only).std().item()
    if not size > 0 or not math.isfinite(size):
        return PAPER, PAPER
    spread = spread if spread is not None else OF_TWO if P == 2 else SPREAD
    units = [unit * spread / size for unit in units]
    return [unit * part for unit, part in zip(units, shares, strict=True)], units
