"""The k best documents of each query, and the certificate: what no bound can rule out is compared exactly.

Equal values are in the order of the documents, so that the answer is that of comparing all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from .bounds import Asked, Reach, bounds, bracket, is_bracketed, linear_weights, needed, sum_weights, upper_weights
from .codes import Weights
from .flat import Flat
from .lists import Lists

Block = Flat | Lists
Progress = Callable[[int, int], None]

# Measures of pairs that are compared exactly at once; so few that one thread takes them all; a multiple of how many any
# processor takes in one step.
AT_ONCE, ALONE, STEP = 2**21, 2**15, 64
# Documents with the highest bounds that are compared first, and share of a block's documents from which on a walk over
# all of them is quicker than comparing them.
FIRST, MANY = 64, 1 / 16


class Estimate(NamedTuple):
    """What S is at least and at most: ``low`` and ``high [Q, n]`` with the offsets ``[Q]`` added.

    ``low`` is None where nothing useful is known.
    """

    low: np.ndarray | None
    high: np.ndarray
    low_offset: np.ndarray
    high_offset: np.ndarray

    @property
    def exact(self) -> bool:
        return self.low is self.high and self.low_offset is self.high_offset


class Pool:
    """Documents that may be among the k best, of each query, and the value that they have to reach.

    Attributes:
        floor: the k-th best of what values are at least, ``[Q]``: a document below it is out.
        dropped: the most that a document can have that was left out for want of room, ``[Q]``.
    """

    def __init__(self, Q: int, k: int, most: int | None):
        self.k, self.most = k, most
        self.floor, self.dropped = np.full(Q, -np.inf), np.full(Q, -np.inf)
        self._lows = np.full((Q, k), -np.inf)
        self._entries: list[tuple[np.ndarray, ...]] = []  # queries, rows, highs, values

    def raise_floor(self, queries: np.ndarray, lows: np.ndarray) -> None:
        """Takes what some documents, each new, have at least."""
        for q in np.unique(queries):
            both = np.concatenate([self._lows[q], lows[queries == q]])
            self._lows[q] = np.partition(both, len(both) - self.k)[-self.k :]
            self.floor[q] = self._lows[q].min()

    def take(self, queries: np.ndarray, rows: np.ndarray, highs: np.ndarray, values: np.ndarray | None = None) -> None:
        self._entries.append((queries, rows, highs, np.full(len(rows), np.nan) if values is None else values))

    def result(self, exact: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> tuple[np.ndarray, ...]:
        """Values and rows ``[Q, k]`` in order, and whether each query's are certified; ``exact`` compares pairs."""
        queries, rows, highs, values = (np.concatenate(column) for column in zip(*self._entries, strict=True))
        left = highs >= self.floor[queries]
        queries, rows, highs, values = (column[left] for column in (queries, rows, highs, values))
        unknown = np.isnan(values)
        if self.most is not None:
            unknown, left = self._within(queries, highs, unknown)
            queries, rows, values, unknown = (column[left] for column in (queries, rows, values, unknown))
        values[unknown] = exact(queries[unknown], rows[unknown])
        order = np.lexsort((rows, -values, queries))
        first = np.searchsorted(queries[order], np.arange(len(self.floor)))
        best = order[first[:, None] + np.arange(self.k)]
        return values[best], rows[best], self.dropped < values[best[:, -1]]

    def _within(self, queries: np.ndarray, highs: np.ndarray, unknown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which entries are compared, those with the highest bounds, and which are left with the known ones."""
        assert self.most is not None
        order = np.lexsort((-highs, queries))
        order = order[unknown[order]]
        place = np.arange(len(order)) - np.searchsorted(queries[order], queries[order])
        over = order[place >= max(self.most, self.k)]
        np.maximum.at(self.dropped, queries[over], highs[over])
        left = np.ones(len(queries), dtype=bool)
        left[over] = False
        return unknown, left


def best(
    blocks: Sequence[Block],
    asked: Asked,
    k: int,
    reach: Reach,
    most: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> tuple[np.ndarray, ...]:
    """Values and rows of the k best documents ``[Q, k]``, and whether they are certified, ``[Q]``.

    Args:
        blocks: the documents.
        asked: the queries.
        k: how many, up to the number of documents.
        reach: of all documents.
        most: how many documents are compared exactly for a query at most; None for as many as it takes.
        progress: called with the number of documents after each block.
    """
    pool, offset, linear = Pool(len(asked.a), k, most), 0, linear_weights(asked)
    starts = np.cumsum([0, *map(len, blocks)])

    def exact(queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
        out, owner = np.empty(len(rows)), np.searchsorted(starts, rows, side="right") - 1
        for number in np.unique(owner):
            own = owner == number
            out[own] = compared(blocks[number], asked, queries[own], rows[own] - starts[number])
        return out

    for block in blocks:
        if len(block):
            estimate = estimated(block, asked, reach, linear)
            if estimate.low is None and most is None:
                estimate = _narrowed(pool, block, asked, reach, estimate, offset)
            if estimate is not None:
                _select(pool, estimate, offset)
        offset += len(block)
        if progress is not None:
            progress(len(block))
    return pool.result(exact)


def compared(block: Block, asked: Asked, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
    """S of some pairs by the law, in float64: the same of the same measures, whatever pairs are beside them.

    What is left when numbers are taken in steps gets another logarithm: for softmin measures are padded to whole steps.
    """
    soft, K = asked.form.intersection == "softmin", asked.a.shape[1]
    wide = K + -K % STEP if soft else K
    out, rows = np.empty(len(places)), max(1, (ALONE if soft and asked.form.level == "feature" else AT_ONCE) // wide)
    for start in range(0, len(places), rows):
        part = slice(start, start + rows)
        a, b = asked.a[torch.from_numpy(queries[part])], block.rows(torch.from_numpy(places[part]))
        if soft:
            a, b = (torch.nn.functional.pad(x, (0, wide - K, 0, -len(x) % STEP)) for x in (a, b))
        out[part] = asked.law(a, b)[: len(out[part])].numpy()
    return out


def estimated(block: Block, asked: Asked, reach: Reach, linear: Weights | None = None, tight: bool = False) -> Estimate:
    """What S of all queries and documents is at least and at most.

    Args:
        block: the documents.
        asked: the queries.
        reach: of all documents.
        linear: the queries' code, if the form is one inner product.
        tight: whether a walk by feature is taken for it.
    """
    zero = np.zeros(len(asked.a))
    if isinstance(block, Lists):
        values = block.values(asked).numpy()
        return Estimate(values, values, zero, zero)
    if linear is not None:
        values, errors = block.products(linear, reach)
        constant = linear.constant.numpy()
        if errors.shape[1] == 1:
            return Estimate(values, values, constant - errors[:, 0], constant + errors[:, 0])
        return Estimate(values - errors, values + errors, constant, constant)
    above = None if tight else upper_weights(asked, reach)
    if above is not None:
        values, errors = block.products(above, reach)
        offset = above.constant.numpy()
        high = (values, offset + errors[:, 0]) if errors.shape[1] == 1 else (values + errors, offset)
        return Estimate(None, high[0], zero, high[1])
    low, high, wide = {}, {}, False
    for name in needed(asked.form):
        if name == "least" and not tight:
            wide = True
            for end, w, sign in zip((low, high), bracket(asked, reach).values(), (-1, 1), strict=True):
                values, errors = block.products(w, reach)
                end[name] = torch.from_numpy(values + sign * errors)
            continue
        walks = name in ("least", "soft")
        values, errors = block.walked(asked, name) if walks else block.products(sum_weights(asked, name), reach)
        low[name], high[name] = torch.from_numpy(values - errors), torch.from_numpy(values + errors)
    bottom, top = bounds(asked, low, high)
    if wide:
        # S is monotone in Σ min(a, b), also as a quotient, so that it is largest at one of the ends.
        ends = [bounds(asked, low | {"least": e["least"]}, high | {"least": e["least"]})[1] for e in (low, high)]
        top = torch.maximum(*ends).masked_fill(top == torch.inf, torch.inf)
    return Estimate(None if wide else bottom.numpy(), top.numpy(), zero, zero)


def _select(pool: Pool, estimate: Estimate, offset: int) -> None:
    """Takes the documents of a block that are not below the floor, after raising it."""
    low, high = estimate.low, estimate.high
    n, k = high.shape[1], pool.k
    if low is not None and np.isinf(pool.floor).any():
        lows = torch.from_numpy(low).topk(min(k, n)).values.double().numpy() + estimate.low_offset[:, None]
        pool.raise_floor(np.repeat(np.arange(len(lows)), lows.shape[1]), lows.ravel())
        fresh = False
    else:
        fresh = True
    if low is None and pool.most is not None and n > max(pool.most, k):
        ends = torch.from_numpy(high).topk(max(pool.most, k) + 1)
        np.maximum(pool.dropped, ends.values[:, -1].double().numpy() + estimate.high_offset, out=pool.dropped)
        places = ends.indices[:, :-1].numpy()
        queries = np.repeat(np.arange(len(high)), places.shape[1])
        places = places.ravel()
    else:
        least = (pool.floor - estimate.high_offset)[:, None].astype(high.dtype)
        queries, places = np.nonzero(high >= np.nextafter(least, -np.inf, dtype=high.dtype))
    highs = high[queries, places].astype(np.float64) + estimate.high_offset[queries]
    if low is not None and fresh:
        pool.raise_floor(queries, low[queries, places].astype(np.float64) + estimate.low_offset[queries])
    pool.take(queries, places + offset, highs, highs if estimate.exact else None)


def _narrowed(pool: Pool, block: Block, asked: Asked, reach: Reach, estimate: Estimate, offset: int) -> Estimate | None:
    """Compares what an upper bound alone leaves, the highest first; where much is left, an estimate by a walk."""
    for q in range(len(asked.a)):
        high, own = estimate.high[q].astype(np.float64) + estimate.high_offset[q], asked.part(q, q + 1)
        count = min(len(high), max(4 * pool.k, FIRST))
        first = np.argpartition(-high, count - 1)[:count]
        first = first[high[first] >= pool.floor[q]]
        _know(pool, block, own, q, first, offset)
        left = high >= pool.floor[q]
        left[first] = False
        rest = np.flatnonzero(left)
        if len(rest) > max(count, MANY * len(high)) and is_bracketed(asked.form):
            walk = estimated(block, own, reach, tight=True)
            assert walk.low is not None
            most = walk.high[0, rest].astype(np.float64) + walk.high_offset[0]
            rest = rest[most >= pool.floor[q]]
        _know(pool, block, own, q, rest, offset)
    return None


def _know(pool: Pool, block: Block, own: Asked, q: int, places: np.ndarray, offset: int) -> None:
    """Compares some documents with a query."""
    if len(places):
        values, queries = compared(block, own, np.zeros(len(places), dtype=np.int64), places), np.full(len(places), q)
        pool.raise_floor(queries, values)
        pool.take(queries, places + offset, values, values)
