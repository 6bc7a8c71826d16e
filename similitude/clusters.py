"""Directions that data clusters around, by spherical k-means: where a feature bank can start."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from . import checks
from .ops.modes import wide, without_autocast

# Numbers of cosines that are in memory at once.
AT_ONCE = 2**24
# Rows for each direction in the first rounds, and the part of the rounds that see no more: means of few rows are soon
# good enough to go on from, and the last rounds see all rows.
FEW, FIRST = 8, 0.6
# The mean cosine with the nearest direction has settled when a round raises it by less.
SETTLED = 1e-4


@torch.no_grad()
def spherical_means(
    x: Tensor,
    count: int,
    steps: int = 12,
    seed: int | torch.Generator = 0,
    progress: Callable[..., object] | None = None,
) -> Tensor:
    """Directions of length 1 that rows of data cluster around, ``[count, D]``: spherical k-means.

    A row belongs to the direction with which its cosine is largest; a direction is that of the mean of its rows, each
    taken at length 1. The start is rows drawn at random. A direction without rows becomes one of the rows that have the
    smallest cosine with theirs. On a CPU one seed gives one result; on a GPU up to the order of sums.

    Args:
        x: Objects, ``[..., D]``; each has a direction, so none is all zeros. Subtract their mean before, if directions
            are to tell how objects differ from it.
        count: How many directions, at most as many as objects.
        steps: Rounds at most; they end early when the mean cosine of rows with their direction has settled.
        seed: A whole number, or a generator on the CPU.
        progress: Called after each round as ``progress(done, steps, "k-means", cosine=…)`` with the rows' mean cosine.

    Example:
        >>> spherical_means(torch.randn(1000, 16), 32).norm(dim=-1).allclose(torch.ones(32))
        True
    """
    rows = _directions(x)
    checks.check_sizes(count=count, steps=steps)
    N = len(rows)
    if count > N:
        raise ValueError(f"{count} directions need as many rows; got {N}: give more rows, or ask for {N} at most.")
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    order = torch.randperm(N, generator=generator).to(rows.device)
    means = rows[order[:count]]
    seen = rows if FEW * count >= N else rows[order[: FEW * count]]
    before, settled = -1.0, False
    with without_autocast(rows.device.type):
        for done in range(1, steps + 1):
            if seen is not rows and (settled or done > FIRST * steps):
                seen, before = rows, -1.0
            nearest, cosines = _nearest(seen, means)
            means, cosine = _means(seen, nearest, cosines, count), cosines.mean().item()
            settled, before = cosine - before < SETTLED, cosine
            ended = settled and seen is rows
            if progress is not None:
                progress(steps if ended else done, steps, "k-means", cosine=cosine)
            if ended:
                break
    return means.to(x.dtype)


def _directions(x: Tensor) -> Tensor:
    checks.check_vectors("x", x)
    rows = x.reshape(-1, x.shape[-1]).to(wide(x.dtype))
    if not rows.isfinite().all():
        raise ValueError("x must be finite; some rows have NaN or infinite elements.")
    # By the largest element first, so that the length of very short or long rows is right.
    largest = rows.abs().amax(-1, keepdim=True)
    if not largest.all():
        zero = (largest[:, 0] == 0).nonzero()[:, 0]
        raise ValueError(
            f"a row of zeros has no direction; {len(zero)} of {len(rows)} rows are zeros, such as row "
            f"{zero[0].item()}: leave them out."
        )
    return normalize(rows / largest, dim=-1)


def _nearest(rows: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """For each row the direction with the largest cosine, and that cosine."""
    nearest = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
    cosine = rows.new_empty(len(rows))
    step = max(1, AT_ONCE // len(means))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        torch.max(rows[part] @ means.mT, dim=-1, out=(cosine[part], nearest[part]))
    return nearest, cosine


def _means(rows: Tensor, nearest: Tensor, cosine: Tensor, count: int) -> Tensor:
    sums = rows.new_zeros(count, rows.shape[1]).index_add_(0, nearest, rows)
    # Opposite rows, which only a single direction can have, may sum to nothing.
    empty = (sums.norm(dim=-1) < 1e-6).nonzero()[:, 0]
    if len(empty):
        sums[empty] = rows[cosine.topk(len(empty), largest=False).indices]
    return normalize(sums, dim=-1)
