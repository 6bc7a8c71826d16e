"""Documents as inverted lists: for each feature, the documents that have it and its measures.

A query reads the lists of its own features, in float64, so that what it finds needs no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..ops.reference import contrast, ratio
from .bounds import Asked, linear_weights, needed, parts


class Lists:
    """A block of documents.

    Attributes:
        starts: where each feature's list begins, and where the last one ends, ``[K + 1]``.
        documents: places of the documents in the block, ``[entries]``, increasing within a list.
        measures: beside them, all above 0.
        totals: sum of each document's measures in float64, ``[n]``.
    """

    def __init__(self, starts: Tensor, documents: Tensor, measures: Tensor, totals: Tensor):
        self.starts, self.documents, self.measures, self.totals = starts, documents, measures, totals

    @classmethod
    def of(cls, b: Tensor, kind: str = "sparse") -> Lists:
        """Of measures ``[n, K]``, 0 where a document lacks a feature."""
        features, documents = b.T.nonzero(as_tuple=True)
        measures = b[documents, features]
        starts = torch.zeros(b.shape[1] + 1, dtype=torch.int64)
        torch.cumsum(torch.bincount(features, minlength=b.shape[1]), 0, out=starts[1:])
        found = cls(starts, documents.int(), measures, torch.empty(len(b)))
        return found._with_totals(len(b))

    def __len__(self) -> int:
        return len(self.totals)

    @property
    def stored(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("starts", "documents", "measures", "totals")}

    @classmethod
    def joined(cls, blocks: Sequence[Lists]) -> Lists:
        lengths = torch.stack([block.starts.diff() for block in blocks])  # [blocks, K]
        starts = torch.zeros(lengths.shape[1] + 1, dtype=torch.int64)
        torch.cumsum(lengths.sum(0), 0, out=starts[1:])
        documents = torch.empty(int(starts[-1]), dtype=torch.int32)
        measures = torch.empty(len(documents), dtype=blocks[0].measures.dtype)
        before, offset = starts[:-1].clone(), 0
        for block, own in zip(blocks, lengths, strict=True):
            # Where each entry of the block goes: as far behind its list's start there as here.
            places = torch.arange(len(block.documents)) + (before - block.starts[:-1]).repeat_interleave(own)
            documents[places], measures[places] = block.documents + offset, block.measures
            before, offset = before + own, offset + len(block)
        return cls(starts, documents, measures, torch.cat([block.totals for block in blocks]))

    def kept(self, keep: Tensor) -> Lists:
        """The block of the documents that are marked, ``[n]`` of bool."""
        entries = keep[self.documents]
        starts = torch.zeros_like(self.starts)
        features = torch.arange(len(starts) - 1).repeat_interleave(self.starts.diff())[entries]
        torch.cumsum(torch.bincount(features, minlength=len(starts) - 1), 0, out=starts[1:])
        places = keep.cumsum(0).int() - 1
        return Lists(starts, places[self.documents[entries]], self.measures[entries], self.totals[keep])

    def rows(self, places: Tensor) -> Tensor:
        """Measures of some documents in float64."""
        out = torch.zeros(len(places), len(self.starts) - 1, dtype=torch.float64)
        for i, place in enumerate(places.tolist()):
            entries = (self.documents == place).nonzero()[:, 0]
            out[i, torch.searchsorted(self.starts, entries, right=True) - 1] = self.measures[entries].double()
        return out

    def having(self, feature: int) -> Tensor:
        """Measures of a feature, ``[n]``, 0 where a document lacks it."""
        own = slice(int(self.starts[feature]), int(self.starts[feature + 1]))
        out = torch.zeros(len(self), dtype=self.measures.dtype)
        out[self.documents[own].long()] = self.measures[own]
        return out

    def values(self, asked: Asked) -> Tensor:
        """S of all queries and documents, ``[Q, n]`` in float64."""
        weights = linear_weights(asked)
        out = torch.empty(len(asked.a), len(self), dtype=torch.float64)
        for q, a in enumerate(asked.a):
            has, lengths, documents, b = self._read(a)
            if weights is not None:
                w, v = (part[q, has].numpy() for part in (weights.measured - weights.lacked, weights.had))
                entries = np.repeat(w, lengths) * b + np.repeat(v, lengths)
                if weights.roots is not None:
                    entries += np.repeat(weights.roots[q, has].numpy(), lengths) * np.sqrt(b)
                row = out[q].numpy()
                row[:] = np.bincount(documents, entries, len(self))
                row += weights.lacked * self.totals.numpy() + float(weights.constant[q])
                continue
            sums = self._sums(needed(asked.form), np.repeat(a[has].numpy(), lengths), documents, b)
            shared, a_only, b_only = parts(asked.form, asked.all[q], sums, sums)
            if asked.form.model == "ratio":
                out[q] = ratio(shared, a_only, b_only, *asked.scalars[:2])
            else:
                out[q] = contrast(shared, a_only, b_only, *asked.scalars)
        return out

    def _read(self, a: Tensor) -> tuple[Tensor, np.ndarray, np.ndarray, np.ndarray]:
        """The lists of the features that a query has: the features, lengths, documents and measures in float64."""
        has = a.nonzero()[:, 0]
        starts, documents, measures = (getattr(self, name).numpy() for name in ("starts", "documents", "measures"))
        ends = list(zip(starts[has.numpy()].tolist(), starts[has.numpy() + 1].tolist(), strict=True))
        lengths = np.array([stop - start for start, stop in ends], dtype=np.int64)
        if not ends:
            return has, lengths, documents[:0], measures[:0].astype(np.float64)
        read = [np.concatenate([array[start:stop] for start, stop in ends]) for array in (documents, measures)]
        return has, lengths, read[0], read[1].astype(np.float64)

    def _sums(self, names: list[str], a: np.ndarray, documents: np.ndarray, b: np.ndarray) -> dict[str, Tensor]:
        entries = {"u": lambda: a, "v": lambda: b, "product": lambda: a * b, "roots": lambda: np.sqrt(a) * np.sqrt(b)}
        entries |= {"least": lambda: np.minimum(a, b), "soft": lambda: -np.logaddexp(-a, -b)}
        sums = {
            name: torch.from_numpy(np.bincount(documents, entries[name](), len(self)).astype(np.float64, copy=False))
            for name in names
            if name != "alone"
        }
        sums["alone"] = (self.totals - sums["v"]).clamp(min=0)
        return sums

    def _with_totals(self, n: int) -> Lists:
        totals = np.bincount(self.documents.numpy(), self.measures.double().numpy(), n)
        return Lists(self.starts, self.documents, self.measures, torch.from_numpy(totals))
