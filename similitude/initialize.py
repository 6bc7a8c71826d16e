"""Starting values of feature banks, prototypes and α, β, θ; docs/initialisation.md derives them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor, nn

from .ops import pairwise

INITS = ("calibrated", "unit", "uniform", "normal", "orthogonal")
PAPER = (0.5, 0.5, 1.0)
# Standard deviation of outputs for inputs of unit variance: a little above nn.Linear's 0.58, so that it is 0.5 behind a
# ReLU, where that has 0.41. Of two prototypes more, since what they have in common moves both outputs alike. Over a
# single feature less: cross entropy is then 9 % above ln 2, and not 12 %.
SPREAD, OF_TWO, OF_TWO_OVER_ONE = 0.705, 0.82, 0.51
# Of the inputs that constants are tried on; not a seed that anybody else takes.
SEED = 0x1977_0084
# Length of a prototype, as nn.Linear's rows have it.
LENGTH = 1 / math.sqrt(3)
# The part of f(A∩B) that f(A−B) takes away at the start; f(B−A) takes the rest. With few features it is less.
SHARE = 0.5
# Sum of a single feature's elements, in few dimensions less; found by trial. Inputs behind a ReLU then have it about as
# often and as much as standard normal ones.
LEAN = 0.6
# Mean of each coordinate of a leaning model's hidden states and prototypes, in standard deviations.
TILT = 0.25
# Times its mean that P prototypes have in common, divided by P.
COMMON = 3


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
    """``weight``, ``[P, D]``, filled in place as prototypes: as a bank, or, calibrated, with nearly orthogonal rows.

    Those have and lack the first of ``features`` in turn, so that no feature is had by all, however few there are. Few
    of them, two above all, have a part in common: it moves their outputs together, which a softmax does not see.
    """
    if init != "calibrated" or weight.is_meta:
        return fill_(weight, init)
    rows, P = _bases_(weight).to(torch.promote_types(weight.dtype, torch.float32)), len(weight)
    first = nn.functional.normalize(features[0].to(rows), dim=0)
    turn = torch.arange(P, device=rows.device) % 2 == 0
    rows = rows * torch.where((rows @ first > 0) == turn, 1, -1)[:, None]
    if P > 1:
        common = rows.mean(0)
        # Without the first feature, whose turns it would change.
        rows += COMMON / P * (common - common @ first * first)
    return weight.copy_(LENGTH * nn.functional.normalize(rows, dim=-1))


def frame_(weight: Tensor) -> Tensor:
    """``weight``, ``[K, D]``, of orthonormal bases one after the other, the second half being the first's opposites.

    Of each pair of opposites an object has exactly one, so that every object has half of the features; and summed over
    such a bank, products of measures give back the scalar product of the vectors. A single feature has no opposite, and
    is turned so that inputs behind a ReLU are on either side of it.
    """
    K, D = weight.shape
    half = -(-K // 2)
    _bases_(weight[:half])
    if K == 1 and D > 1:
        away = nn.functional.normalize(weight - weight.mean(), dim=-1)
        total = LEAN * (1 - 1 / D) ** 2
        weight.copy_(away * math.sqrt(1 - total**2 / D) + total / D)
    weight[half:] = -weight[: K - half]
    return weight


@torch.no_grad()
def lean_(bank: Tensor, presence: float) -> Tensor:
    """Features turned to the diagonal (1, …, 1) until objects have ``presence`` of them, each at the length it had.

    Objects whose coordinates have the mean TILT in deviations, as behind a layer norm with that bias.
    """
    D = bank.shape[1]
    far = NormalDist().inv_cdf(presence)
    rows = bank.to(torch.promote_types(bank.dtype, torch.float32))
    length = rows.norm(dim=-1, keepdim=True)
    across = nn.functional.normalize(rows - rows.mean(-1, keepdim=True), dim=-1)
    return bank.copy_(nn.functional.normalize(across + far / (TILT * D), dim=-1) * length)


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
    alpha_share: float = SHARE,
    x: Tensor | None = None,
) -> tuple[Sequence[float], Sequence[float]]:
    """α, β, θ with which S has the mean 0 and the standard deviation ``spread`` for inputs like ``x``, and their units.

    Without x for standard normal ones; without prototypes for other such objects. A unit is what a constant would be if
    it were to balance f(A∩B) alone: α starts as ``alpha_share`` of its unit, β as the rest of its own. S is linear in
    the three, so that its three parts, computed for some inputs and prototypes, tell them. Where nothing is shared or
    nothing distinctive there is nothing to balance, and only the size is set; the ratio model has none to choose and
    starts as in the paper.
    """
    if model == "ratio" or features.is_meta or (prototypes is not None and prototypes.is_meta):
        return PAPER, PAPER
    generator = torch.Generator().manual_seed(SEED)
    K, D = features.shape
    # In 64 bits, so that the number of threads does not show in the constants.
    bank = features.to(torch.float32 if features.device.type == "mps" else torch.float64)
    if prototypes is None:
        prototypes = torch.randn(256, D, generator=generator, device="cpu")
    P = len(prototypes)
    most = max(64, min(256, 2**28 // (D * K)))
    chosen = torch.randperm(P, generator=generator, device="cpu")[:most]
    few = prototypes[chosen.to(prototypes.device)].to(bank)
    if x is None:
        # On the CPU, whatever the default device, and not from the generator that everybody draws from: other numbers
        # stay what they are.
        n = max(64, min(4096, 2**25 // (len(few) * K), 2**31 // (D * K)))
        x = torch.randn(n, D, generator=generator, device="cpu")
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
    # Of one feature next to nothing, but not nothing: its logarithm may be learned.
    share = alpha_share * (1 - 0.99 / K)
    shares = (share, 1 - share, 1.0)
    units = [means[0] / mean for mean in (*means[1:], means[0])] if min(means) > 0 else PAPER
    size = (common - shares[0] * units[0] * a_only - shares[1] * units[1] * b_only).std().item()
    if not size > 0 or not math.isfinite(size):
        return PAPER, PAPER
    if spread is None:
        spread = SPREAD if P != 2 else OF_TWO if K > 1 else OF_TWO_OVER_ONE
    units = [unit * spread / size for unit in units]
    return [unit * part for unit, part in zip(units, shares, strict=True)], units
