"""TverskyIndex: documents in memory, searched exactly by the similarity of a layer, in either direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import check_sizes
from ..explain import TOP, Pair
from ..ops import pairwise
from ..ops.modes import wide
from ..reach import comparison
from ..shares import check_explained, measures, names_of, shares_of
from .codes import Vectors, constants, vectors_of

# Documents whose measures are compared at once.
ROWS = 2**14


class Hits(NamedTuple):
    """What a search found, best first; equal values in the order in which the documents were added.

    Attributes:
        values: S(query, document), or S(document, query) of a reversed search, in float64: ``[k]``, ``[Q, k]``.
        ids: the documents' ids, a list for each query.
        certified: whether no other document has a larger value, ``[]`` or ``[Q]`` of bool.
    """

    values: Tensor
    ids: list[Any]
    certified: Tensor


class TverskyIndex:
    """Documents that are searched by the similarity of a layer.

    Args:
        layer: a TverskySimilarity, a TverskyProjection, or a model with one. Its bank, thresholds, constants and
            options compare; a projection's prototypes have no part in it.

    Example:
        >>> index = TverskyIndex(TverskySimilarity(dim=8, num_features=32))
        >>> index.add(torch.randn(100, 8), range(100))
        >>> index.search(torch.randn(8), k=3).ids
    """

    def __init__(self, layer: Any):
        self.layer = comparison(layer)
        self.dtype = wide(self.layer.features.weight.dtype)
        self._rows: dict[str | int, int] = {}
        self._measures = torch.empty(0, self.layer.features.num_features, dtype=self.dtype)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, vectors: Vectors, ids: Sequence[str] | Sequence[int] | np.ndarray) -> None:
        """Adds documents ``[N, D]`` under their ids, whole numbers or texts that are not in the index yet."""
        b = self._measured(vectors, "vectors").relu()
        names: list[Any] = [i.item() if isinstance(i, np.generic | Tensor) else i for i in ids]
        if len(names) != len(b):
            raise ValueError(f"ids must be {len(b)}, one for each vector; got {len(names)}.")
        taken = [i for i in names if i in self._rows]
        if taken or len(set(names)) < len(names):
            again = taken[0] if taken else next(i for n, i in enumerate(names) if i in names[:n])
            raise ValueError(f"ids must be unique; {again!r} is there already.")
        self._rows |= {name: len(self) + n for n, name in enumerate(names)}
        self._measures = torch.cat([self._measures, b])

    def search(
        self,
        queries: Vectors,
        k: int = 10,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
    ) -> Hits:
        """The k documents that are most similar to each query, ``[D]`` or ``[Q, D]``.

        Args:
            queries: a query, or several.
            k: how many documents.
            reverse: whether documents are ranked by S(document, query) instead of S(query, document).
            alpha, beta, theta: other constants than the layer's.
        """
        check_sizes(k=k)
        if k > len(self):
            raise ValueError(f"k must be up to {len(self)}, the number of documents; got {k}.")
        one = vectors_of(queries, "queries").dim() == 1
        a = self._measured(queries[None] if one else queries, "queries").double()
        alpha, beta, theta = constants(self.layer, alpha, beta, theta)
        if reverse:
            alpha, beta = beta, alpha
        form = self.layer.form.but(backend="auto", leak=0.0)
        parts = [pairwise.similarity(a, b.double(), alpha, beta, theta, form) for b in self._measures.split(ROWS)]
        values, rows = torch.cat(parts, -1).sort(stable=True, dim=-1, descending=True)
        names = list(self._rows)
        ids = [[names[row] for row in found] for found in rows[:, :k].tolist()]
        certified = torch.ones(len(a), dtype=torch.bool)
        hits = Hits(values[:, :k], ids, certified)
        return Hits(hits.values[0], ids[0], certified[0]) if one else hits

    def explain(
        self,
        query: Vectors,
        id: str | int,
        top: int = TOP,
        name: str = "query",
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
    ) -> Pair:
        """Why a document is as similar to the query as it is, feature by feature. Print it.

        Its ``similarity`` is S(query, document), its ``reverse`` S(document, query). A feature that one of them lacks
        has the measure 0: more of a document is not kept.

        Args:
            query: the query, ``[D]``.
            id: the document's id.
            top: how many features of each kind are printed.
            name: what to call the query.
            alpha, beta, theta: other constants than the layer's, as in the search.
        """
        check_explained(self.layer, top, None)
        if id not in self._rows:
            raise KeyError(f"no document has the id {id!r}.")
        a = self._measured(query[None], "query")[0].relu().double()
        b = self._measures[self._rows[id]].double()
        by = constants(self.layer, alpha, beta, theta)
        forth, back = shares_of(self.layer, a, b, by), shares_of(self.layer, b, a, by)
        value, reverse = ((common + first + second).sum().item() for common, first, second in (forth, back))
        return Pair(value, reverse, *forth, a, b, top, (name, str(id)), names_of(self.layer, None))

    def _measured(self, vectors: Vectors, name: str) -> Tensor:
        """Measures of vectors ``[N, D]``, in the index's dtype."""
        x, D = vectors_of(vectors, name), self.layer.features.dim
        if x.dim() != 2 or x.shape[-1] != D:
            raise ValueError(f"{name} must be [N, {D}], as wide as the layer's features; got shape {list(x.shape)}.")
        if not x.isfinite().all():
            raise ValueError(f"{name} must be finite; some have NaN or infinite numbers.")
        return measures(self.layer, x.to(self.layer.features.weight.device, self.dtype)).cpu()
