"""Thresholds of a feature bank: where they start, and how they follow the objects so that a presence is held.

The presence of a feature is the fraction of objects that have it: those for which x · f_k exceeds its threshold t_k.
"""

from __future__ import annotations

import warnings
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed import ReduceOp, all_reduce, get_world_size, is_available, is_initialized

from .ops.modes import wide, without_autocast

if TYPE_CHECKING:
    from .bank import FeatureBank
    from .models.data_domain import DataDomain

# Objects of a batch that a held threshold is computed from, and the part of the way that it goes at each of them.
SAMPLE, RATE = 1024, 0.1
# Objects that a threshold is set from at the start, and measures that are in memory at once.
LOOKED_AT, AT_ONCE = 16384, 2**24
# Multiples of it fall evenly into all parts of [0, 1).
GOLDEN = (5**0.5 - 1) / 2
# Share of the passes for which thresholds are held; during the rest they are fixed.
HELD = 0.9
# The number of passes of a bank whose thresholds are held no more.
FIXED = -1
# Share of objects without any feature from which on holding is worth a warning.
FEATURELESS = 0.01


def normal_threshold(weight: Tensor, presence: float) -> Tensor:
    """Thresholds ``[K]`` that this fraction of standard normal objects exceeds."""
    return weight.to(wide(weight.dtype)).norm(dim=-1) * -NormalDist().inv_cdf(presence)


def upper(measures: Tensor, presence: float) -> Tensor:
    """The value that a fraction of the rows exceeds, by column: ``[N, K]`` -> ``[K]``, between two rows' measures."""
    N = len(measures)
    above = min(max(round(presence * N), 1), N)
    # Of so many rows the least, and the greatest of the others.
    highest = measures.topk(min(above + 1, N), dim=0).values
    return highest[-1] if above == N else highest[-2:].mean(0)


def upper_of(objects: Tensor, weight: Tensor, presence: float) -> Tensor:
    """The value that this fraction of the objects' measures x · f_k exceeds, ``[N, D]``, ``[K, D]`` -> ``[K]``.

    Of many objects a part is looked at. Where many have the same measure the fraction cannot be had: then more exceed
    the value, and not none.
    """
    rows = scattered(objects, LOOKED_AT)
    found = []
    for part in weight.to(rows).split(max(1, AT_ONCE // len(rows))):
        measures = rows @ part.mT
        value = upper(measures, presence)
        near = torch.finfo(rows.dtype).eps * 8 * measures.abs().amax(0)
        below = measures.masked_fill(measures >= value - near, -torch.inf).amax(0)
        tied = ((measures > value + near).double().mean(0) < presence / 2) & below.isfinite()
        found.append(torch.where(tied, (value + below) / 2, value))
    return torch.cat(found) if found else rows.new_empty(0)


def scattered(rows: Tensor, most: int) -> Tensor:
    """About so many of the rows at most, from all of them; even steps could meet the same token of each text."""
    if len(rows) <= most:
        return rows
    places = torch.arange(most, device=rows.device, dtype=torch.float64) * GOLDEN % 1
    return rows[(places * len(rows)).long()]


def held(bank: FeatureBank | DataDomain, seen: Tensor, weight: Tensor) -> Tensor:
    """The bank's thresholds for a batch ``[..., D]`` of training, after a step towards the batch's own.

    They have the gradient of the batch's mean measures, so that a shift of all objects changes no set and has none.
    ``weight`` are the bank's features as the batch is measured by them.
    """
    threshold = bank.threshold
    assert threshold is not None
    assert bank.presence is not None
    rows = seen.reshape(-1, seen.shape[-1])
    if not rows.shape[0]:
        return threshold  # no rows have no mean
    with without_autocast(rows.device.type):
        rows = rows.to(wide(weight.dtype))
        mean = rows.mean(0) @ weight.to(rows).mT  # [K]
        # Activation checkpointing computes a forward again inside the backward; its batch has been counted.
        again = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1
        if not again:
            _follow(bank, rows.detach(), weight.detach())
        follows = mean - mean.detach()
        if bank.unheld is not None:
            follows = follows.masked_fill(bank.unheld, 0.0)
        return (threshold + follows).to(threshold.dtype)


@torch.no_grad()
def _follow(bank: FeatureBank | DataDomain, rows: Tensor, weight: Tensor) -> None:
    threshold, passes = bank.threshold, bank.passes
    assert threshold is not None
    assert passes is not None
    assert bank.presence is not None
    rows = scattered(rows, SAMPLE)
    measures = rows @ weight.to(rows).mT
    batch = upper(measures, bank.presence)
    if is_available() and is_initialized() and get_world_size() > 1:
        all_reduce(batch, ReduceOp.SUM)
        batch /= get_world_size()
    # Thresholds that no data has set go all the way at once. There is no branch on values, which would stop a compiler
    # and wait for a GPU.
    part = torch.where(passes == 0, 1.0, RATE)
    part = torch.where(passes == FIXED, 0.0, part)
    if bank.hold is not True:
        part = torch.where(passes < HELD * bank.hold, part, 0.0)
    if bank.unheld is not None:
        part = torch.where(bank.unheld, 0.0, part)
    # A batch with an element that is not finite says nothing, and would be remembered for ever.
    part = torch.where(batch.isfinite(), part, 0.0)
    threshold.lerp_(batch.nan_to_num(0.0, 0.0, 0.0).to(threshold), part.to(threshold))
    passes.add_(passes != FIXED)
    bank.featureless = (measures <= threshold).all(-1).float().mean()


def warn_of_holding(bank: FeatureBank | DataDomain) -> None:
    """Warns once, when training ends, of what holding does to these objects, and of thresholds that would go on."""
    if bank.warned or bank.passes is None or bank.passes <= 0:
        return
    bank.warned = True
    if bank.featureless is not None and bank.featureless > FEATURELESS:
        warnings.warn(
            f"{bank.featureless:.0%} of the objects have no feature: a presence of {bank.presence} is held, which in "
            "few dimensions leaves those in the middle without any; use hold=False or a larger presence.",
            stacklevel=3,
        )
    if bank.hold is True:
        warnings.warn(
            "thresholds follow the objects for as long as the bank trains: call .fix() for the last tenth of training, "
            "or make the bank with hold=<number of forward passes>.",
            stacklevel=3,
        )
    bank.featureless = None


def warn_of_no_bias(layer: Any) -> None:
    """Warns once of a presence that is held behind an encoder that learns, by a layer without a bias."""
    if not layer.__dict__.get("_warned"):
        layer.__dict__["_warned"] = True
        warnings.warn(
            "a presence is held behind an encoder that learns, and the layer has no bias: what the outputs have in "
            "common, such as the frequency of classes, would be learned as a shift of the inputs, which thresholds "
            "undo; make the layer with bias=True.",
            stacklevel=5,
        )
