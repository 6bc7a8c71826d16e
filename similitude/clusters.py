"""Directions that data clusters around, or that tell classes apart: where a feature bank can start."""

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
# Draws of groups of classes in a row that bring no new group, after which there are no more.
IN_VAIN = 20


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


@torch.no_grad()
def whitened_means(
    x: Tensor,
    count: int,
    shrink: float,
    classes: Tensor | None = None,
    seed: int | torch.Generator = 0,
    progress: Callable[..., object] | None = None,
) -> Tensor:
    """Directions of length 1 that rows cluster around once all directions vary alike, ``[count, D]`` or fewer.

    K-means of data follows the directions in which they vary most, which need not be those that tell objects apart.
    Here rows lose their mean and are whitened first; a measure x · f is then one of the whitened rows.

    Args:
        x: Objects, ``[N, D]``.
        count: How many directions; there are fewer if fewer objects differ from the mean.
        shrink: How far the covariance goes to a multiple of the identity, above 0 and up to 1, where it is ignored.
        classes: Class of each object, ``[N]``: rows are then whitened by their covariance within classes.
        seed, progress: As in ``spherical_means``.
    """
    mean = x.mean(0)
    within = x - (mean if classes is None else _means_of(x, classes)[classes])
    turn = whitening(within, shrink)
    rows = (x - mean) @ turn
    rows = rows[rows.any(-1)]
    if not len(rows):
        return rows
    return normalize(spherical_means(rows, min(count, len(rows)), seed=seed, progress=progress) @ turn, dim=-1)


@torch.no_grad()
def class_directions(x: Tensor, classes: Tensor, count: int, shrink: float, seed: int | torch.Generator = 0) -> Tensor:
    """Directions of length 1 that tell classes, and groups of alike classes, from all others, ``[count, D]`` or fewer.

    They are linear discriminants. Groups are those that k-means finds among the classes' means, drawn again with
    other numbers of groups until there are enough; the classes' own directions come first.

    Args:
        x: Objects, ``[N, D]``.
        classes: Class of each object, 0 to C − 1, ``[N]``.
        count: How many directions; there are fewer if no other groups are found.
        shrink: How far the covariance within classes goes to a multiple of the identity, above 0 and up to 1.
        seed: A whole number, or a generator on the CPU.
    """
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    means = _means_of(x, classes)
    turn = whitening(x - means[classes], shrink)
    means = (means - x.mean(0)) @ turn
    means = means[means.any(-1)]
    C = len(means)
    found = dict.fromkeys((c,) for c in range(C))
    in_vain = 0
    while len(found) < count and in_vain < IN_VAIN and C > 3:
        parts = int(torch.randint(2, C // 2 + 1, (), generator=generator))
        nearest = _nearest(normalize(means, dim=-1), spherical_means(means, parts, seed=generator))[0]
        groups = [tuple((nearest == k).nonzero()[:, 0].tolist()) for k in range(parts)]
        before = len(found)
        found.update(dict.fromkeys(group for group in groups if 1 < len(group) < C))
        in_vain = 0 if len(found) > before else in_vain + 1
    rows = [means[list(group)].mean(0) for group in list(found)[:count]]
    return normalize(torch.stack(rows) @ turn, dim=-1) if rows else means.new_empty(0, x.shape[1])


def whitening(rows: Tensor, shrink: float) -> Tensor:
    """The symmetric matrix ``[D, D]`` that takes rows of mean 0 to equal variance in all directions.

    Their covariance goes a part ``shrink`` of the way to the multiple of the identity that has its trace.
    """
    with without_autocast(rows.device.type):
        variances, axes = torch.linalg.eigh(rows.mT @ rows / len(rows))
        mean = variances.mean()
        if not mean > 0:
            return torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
        variances = variances.clamp(min=0).lerp(mean, shrink)
        return (axes / variances.sqrt()) @ axes.mT


def _means_of(x: Tensor, classes: Tensor) -> Tensor:
    """The mean object of each class, ``[C, D]``; zeros for a class without objects."""
    counts = torch.bincount(classes)
    sums = x.new_zeros(len(counts), x.shape[1]).index_add_(0, classes, x)
    return sums / counts[:, None].clamp(min=1)


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
