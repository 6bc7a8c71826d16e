"""Documents' measures as a table, ``[n, K]``, walked whole; beside it perhaps smaller codes, which are walked instead.

Which features a document has follows from its measures, 0 for those that it lacks, so that the other half of its code
is made while it is walked and not kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .bounds import Asked, Reach, rounding
from .codes import Weights

SMALL = {"float16": torch.float16, "int8": torch.uint8}
# Rows at once: with what is made of them they fit a core's cache. Fewer if they are wide.
TILE, NUMBERS = 4096, 2**19
# Sizes of sums from which on float32 could overflow.
LARGE = 1e36
STEPS = 255

Estimates = tuple[np.ndarray, np.ndarray]  # values [Q, n]; errors [Q, 1] or [Q, n]


class Flat:
    """A block of documents.

    Attributes:
        measures: of the features that each has, 0 for others, ``[n, K]``.
        codes: the measures as parts of the row's largest, in float16 or 255ths, ``[n, K]``; more than 0 where they are.
        scales: what a code is multiplied by, ``[n]``.
        missing: length of what the codes leave of the measures, and of their roots, ``[n, 2]``.
    """

    def __init__(self, measures: Tensor, codes: Tensor | None = None, scales: Any = None, missing: Any = None):
        self.measures, self.codes, self.scales, self.missing = measures, codes, scales, missing

    @classmethod
    def of(cls, b: Tensor, kind: str = "full") -> Flat:
        """Of measures ``[n, K]``, 0 where a document lacks a feature."""
        if kind == "full":
            return cls(b)
        largest = b.amax(-1)
        scales = torch.where(largest > 0, largest, 1.0).float()
        parts = b.float() / scales[:, None]
        if kind == "int8":
            scales = scales / STEPS
            codes = (parts * STEPS).round_().clamp_(0, STEPS).to(torch.uint8)
        else:
            codes = parts.to(torch.float16)
        least = torch.tensor(1 if kind == "int8" else 2**-24, dtype=codes.dtype)
        codes = torch.where(b > 0, codes.maximum(least), torch.zeros_like(codes))
        rebuilt = codes.double() * scales[:, None].double()
        pairs = ((b.double(), rebuilt), (b.double().sqrt(), rebuilt.sqrt()))
        missing = torch.stack([(one - other).norm(dim=-1) for one, other in pairs], -1)
        return cls(b, codes, scales, (missing * (1 + 1e-6)).float() + 1e-30)

    def __len__(self) -> int:
        return len(self.measures)

    @property
    def stored(self) -> dict[str, Tensor]:
        """The tensors, of one row for each document."""
        found = {name: getattr(self, name) for name in ("measures", "codes", "scales", "missing")}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @classmethod
    def joined(cls, blocks: Sequence[Flat]) -> Flat:
        names = blocks[0].stored
        return cls(**{name: torch.cat([block.stored[name] for block in blocks]) for name in names})

    def kept(self, keep: Tensor) -> Flat:
        """The block of the documents that are marked, ``[n]`` of bool."""
        return type(self)(**{name: tensor[keep] for name, tensor in self.stored.items()})

    def rows(self, places: Tensor) -> Tensor:
        """Measures of some documents in float64."""
        return self.measures[places].double()

    def having(self, feature: int) -> Tensor:
        """Measures of a feature, ``[n]``, 0 where a document lacks it."""
        return self.measures[:, feature]

    def products(self, weights: Weights, reach: Reach) -> Estimates:
        """Products of queries' codes with those of all documents, and how far they may be off."""
        (Q, K), n = weights.measured.shape, len(self)
        parts = (weights.measured, weights.had, weights.roots)
        lengths = (reach.longest, math.sqrt(K), math.sqrt(reach.total))
        norms = np.stack([np.zeros(Q) if part is None else part.norm(dim=-1).numpy() for part in parts])
        size = np.array(lengths) @ norms
        dtype = torch.float64 if self.measures.dtype == torch.float64 or size.max() > LARGE else torch.float32
        sides = [part.to(dtype).numpy() if part is not None and part.any() else None for part in parts]
        out = np.zeros((Q, n), sides[0].dtype if sides[0] is not None else np.dtype(str(dtype)[6:]))
        for rows, tile, other in self._tiles(dtype):
            scales = None if self.codes is None else self.scales[rows].numpy()
            roots = None if scales is None else np.sqrt(scales)
            _add(out[:, rows], tile, sides[0], scales)
            if sides[1] is not None:
                _add(out[:, rows], torch.sign(tile, out=other), sides[1], None)
            if sides[2] is not None:
                np.sqrt(tile.numpy(), out=other.numpy())  # torch's is slow at 0
                _add(out[:, rows], other, sides[2], roots)
        errors = (rounding(K, dtype) * size + K * 1e-36)[:, None]
        if self.codes is not None:
            missing = self.missing.double().numpy()
            errors = errors + norms[0][:, None] * missing[:, 0] + norms[2][:, None] * missing[:, 1]
        return out, errors

    def walked(self, asked: Asked, name: str) -> Estimates:
        """Σ min(a, b), or Σ softmin(a, b) over shared features, of all documents, and how far they may be off."""
        (Q, K), dtype = asked.a.shape, torch.promote_types(self.measures.dtype, torch.float32)
        if asked.a.max() > LARGE:
            dtype = torch.float64
        a = asked.a.to(dtype)
        out = torch.empty(Q, len(self), dtype=dtype)
        has = [row.nonzero()[:, 0] for row in a]
        for rows, tile, other in self._tiles(dtype):
            b = tile if self.codes is None else tile.mul_(self.scales[rows, None])
            for q in range(Q):
                if name == "least":
                    out[q, rows] = torch.minimum(b, a[q], out=other).sum(-1)
                else:
                    out[q, rows] = _soft(a[q, has[q]], b[:, has[q]]).sum(-1)
        count = (a > 0).sum(-1, keepdim=True)
        errors = rounding(K, dtype) * (asked.all + count * math.log(2)).numpy() + K * 1e-36
        if self.codes is not None:
            errors = errors + math.sqrt(K) * self.missing[:, 0].double().numpy()
        return out.numpy(), errors

    def _tiles(self, dtype: torch.dtype) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows with their codes in the dtype, and room for as many numbers. Codes may be overwritten, measures not."""
        source = self.measures if self.codes is None else self.codes
        n, K = source.shape
        size = max(1, min(TILE, NUMBERS // K, n))
        other = torch.empty(size, K, dtype=dtype)
        copies = None if source.dtype == dtype else torch.empty(size, K, dtype=dtype)
        for start in range(0, n, size):
            rows = slice(start, min(start + size, n))
            m = rows.stop - start
            yield rows, source[rows] if copies is None else copies[:m].copy_(source[rows]), other[:m]


def _add(out: np.ndarray, tile: Tensor, side: np.ndarray | None, scales: np.ndarray | None) -> None:
    """Adds the products of the tile's rows with each query's side, ``[m, K]``, ``[Q, K]``, to ``out [Q, m]``."""
    if side is None:
        return
    for_all = (tile.numpy() @ side[0])[None] if len(side) == 1 else side @ tile.numpy().T
    out += for_all if scales is None else for_all * scales


def _soft(a: Tensor, b: Tensor) -> Tensor:
    return (torch.minimum(a, b) - (a - b).abs().neg().exp().log1p()) * (b > 0)
