"""TverskyIndex: documents in memory, searched exactly by the similarity of a layer, in either direction."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..checks import check_sizes
from ..explain import TOP, Pair
from ..form import check_choice
from ..ops.modes import wide
from ..reach import comparison
from ..shares import check_explained
from .best import Block, best
from .bounds import Asked, Reach
from .codes import Vectors, constants, vectors_of
from .flat import Flat
from .hits import Hits, Progress, checked, explained, measured
from .ids import Id, Ids
from .lists import Lists

if TYPE_CHECKING:
    from .exports import Exported
    from .faiss import FaissIndex
    from .pgvector import PgTable

CODES = ("full", "float16", "int8", "sparse")
# Numbers in a block at most, and rows: larger ones are not joined. Measures that are made, and similarities that are
# bounded, at once.
BLOCK, LONGEST = 2**23, 2**17
MADE, SEEN, QUERIES = 2**22, 2**24, 64


class TverskyIndex:
    """Documents that are searched by the similarity of a layer, exactly, for any α, β, θ and in both directions.

    It keeps the measures of the features that documents have, and neither their vectors nor α, β, θ.

    Args:
        layer: a TverskySimilarity, a TverskyProjection, or a model with one. Its bank, thresholds, constants and
            options compare; a projection's prototypes have no part in it.
        codes: what a search walks over. "full": the measures. "float16", "int8": smaller codes beside them; what these
            cannot rule out is compared by the measures. "sparse": for each feature the documents that have it, for
            large banks of which a document has a few hundredths.

    Example:
        >>> index = TverskyIndex(TverskySimilarity(dim=8, num_features=32))
        >>> index.add(torch.randn(100, 8), range(100))
        >>> hits = index.search(torch.randn(8), k=3)
    """

    def __init__(self, layer: Any, codes: str = "full"):
        self.layer = comparison(layer)
        self.codes = check_choice("codes", codes, CODES)
        self.dtype = wide(self.layer.features.weight.dtype)
        self._blocks: list[Block] = []
        self._ids = Ids(np.empty(0, dtype=np.int64))
        self._reach = Reach.of(torch.empty(0, self.num_features))

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, id: object) -> bool:
        return self._ids.row_of(id) is not None

    def __repr__(self) -> str:
        of = f"{len(self):,} documents, {self.num_features:,} features, codes={self.codes!r}"
        return f"TverskyIndex({of}, {self.layer.form.described()})"

    @property
    def num_features(self) -> int:
        """K."""
        return self.layer.features.num_features

    @property
    def ids(self) -> Ids:
        """The documents' ids, in the order in which they were added."""
        return self._ids

    @property
    def nbytes(self) -> int:
        """Bytes of the documents' codes, measures and ids."""
        ids = self._ids.numbers.nbytes + (0 if self._ids.letters is None else self._ids.letters.nbytes)
        return ids + sum(t.numel() * t.element_size() for block in self._blocks for t in block.stored.values())

    def add(self, vectors: Vectors, ids: Iterable[Any], progress: Progress | None = None) -> None:
        """Adds documents; where something is wrong, none.

        Args:
            vectors: the documents, ``[N, D]``.
            ids: N whole numbers, or N texts, none of which is in the index.
            progress: called with (documents so far, documents).
        """
        x = self._checked(vectors, "vectors")
        if not isinstance(ids, Iterable):
            raise TypeError(f"ids must be {len(x)} numbers or texts, one for each vector; got {type(ids).__name__}.")
        names = self._ids.and_of(Ids.of(ids, len(x)))
        blocks, reach, done = list(self._blocks), self._reach, 0
        for part in x.split(max(1, MADE // self.num_features)):
            b = self._measured(part, "vectors")
            reach = reach.and_of(Reach.of(b))
            blocks.append(Lists.of(b) if self.codes == "sparse" else Flat.of(b, self.codes))
            _join(blocks, self._rows_of_a_block())
            done += len(part)
            if progress is not None:
                progress(done, len(x))
        self._blocks, self._reach, self._ids = blocks, reach, names

    def remove(self, ids: Iterable[Any]) -> None:
        """Removes documents; if one of the ids is not there, none."""
        rows = [self._row(id) for id in ([ids] if isinstance(ids, str | int) else ids)]
        keep = torch.ones(len(self), dtype=torch.bool)
        keep[rows] = False
        parts = keep.split([len(block) for block in self._blocks])
        blocks = [b if own.all() else b.kept(own) for b, own in zip(self._blocks, parts, strict=True)]
        self._ids = self._ids.kept(keep.numpy())
        self._blocks = [block for block in blocks if len(block)]

    def search(
        self,
        queries: Vectors,
        k: int = 10,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        candidates: int | None = None,
        progress: Progress | None = None,
    ) -> Hits:
        """The k documents that are most similar to each query, ``[D]`` or ``[Q, D]``.

        Args:
            queries: a query, or several.
            k: how many documents.
            reverse: whether documents are ranked by S(document, query) instead of S(query, document).
            alpha, beta, theta: other constants than the layer's.
            candidates: how many documents are compared exactly at most, those with the highest bounds. By default as
                many as it takes to certify the answer, which with a limit may be wrong and then is not certified.
            progress: called with (documents so far, documents), each counted for each query.
        """
        one = vectors_of(queries, "queries").dim() == 1
        a = self._measured(self._checked(queries[None] if one else queries, "queries"), "queries")
        return self._found(a, one, k, reverse, (alpha, beta, theta), candidates, progress)

    def like(
        self,
        id: Id,
        k: int = 10,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        candidates: int | None = None,
    ) -> Hits:
        """The k documents that are most similar to one of them, which is among them if it is; see ``search``."""
        a = self.measures_of(id)[None]
        return self._found(a, True, k, reverse, (alpha, beta, theta), candidates, None)

    def measures_of(self, id: Id) -> Tensor:
        """Measures of the features that a document has, 0 for others, ``[K]`` in float64."""
        row = self._row(id)
        for block in self._blocks:
            if row < len(block):
                return block.rows(torch.tensor([row]))[0]
            row -= len(block)
        raise AssertionError("there are more ids than documents")

    def explain(
        self,
        query: Vectors | Id,
        id: Id,
        top: int = TOP,
        name: str | None = None,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
    ) -> Pair:
        """Why a document is as similar to the query as it is, feature by feature. Print it.

        Its ``similarity`` is S(query, document), to which its parts add up; its ``reverse`` is S(document, query). What
        one of them lacks has the measure 0, since more of a document is not kept.

        Args:
            query: the query, ``[D]``, or the id of a document.
            id: the document's id.
            top: how many features of each kind are printed.
            name: what to call the query.
            reverse: whether the document comes first, as in a reversed search.
            alpha, beta, theta: other constants than the layer's, as in the search.
        """
        check_explained(self.layer, top, None)
        if isinstance(query, str | int):
            a, name = self.measures_of(query), name or str(query)
        else:
            a = self._measured(self._checked(query[None], "query"), "query")[0].double()
        b, by = self.measures_of(id), constants(self.layer, alpha, beta, theta)
        first, second = name or "query", str(id)
        if reverse:
            a, b, first, second = b, a, second, first
        return explained(self.layer, a, b, by, top, (first, second))

    def having(self, feature: int, top: int = 3) -> list[Id]:
        """Ids of the documents that have most of a feature, up to ``top`` of those that have it."""
        if not 0 <= feature < self.num_features:
            raise ValueError(f"feature must be from 0 to {self.num_features - 1}; got {feature}.")
        found, offset = [], 0
        for block in self._blocks:
            values, places = block.having(feature).topk(min(top, len(block)))
            found += [(-v, offset + p) for v, p in zip(values.tolist(), places.tolist(), strict=True) if v > 0]
            offset += len(block)
        return [self._ids[row] for _, row in sorted(found)[:top]]

    def save(self, folder: str | Path, progress: Progress | None = None) -> None:
        """Writes the index to a folder, whole or not at all: an index that was there stays until this one is."""
        from .saved import save

        save(self, Path(folder), progress)

    @classmethod
    def load(cls, folder: str | Path, layer: Any = None) -> TverskyIndex:
        """The index that ``save`` wrote, checked; its documents are read from the disk when a search asks for them.

        Args:
            folder: where it is.
            layer: what compares. It must have the bank that measured the documents; its constants and options may
                differ. By default a TverskySimilarity, as it was saved.
        """
        from .saved import load

        return load(cls, Path(folder), layer)

    def to_faiss(self, kind: str = "ivf", seed: int = 0, progress: Progress | None = None) -> FaissIndex:
        """The documents in an index of faiss: quick and approximate. What it finds is compared exactly.

        Args:
            kind: "ivf": clusters of codes that are quantised to 4 bits; small, and made in seconds. "hnsw": a graph of
                whole codes.
            seed: of the documents that clusters are learned from.
            progress: called with (documents so far, documents).
        """
        from .faiss import to_faiss

        return to_faiss(self, kind, seed, progress)

    def to_pgvector(self, dsn: str, table: str, **options: Any) -> PgTable:
        """Writes the documents to a table of PostgreSQL with pgvector, whole or not at all, and opens it.

        Args:
            dsn: where the server is, as psycopg takes it: "postgresql://user@host/database".
            table: what to call the table.
            options: schema, kind, even, hnsw, replace and progress, as in ``pgvector.to_pgvector``.
        """
        from .pgvector import to_pgvector

        return to_pgvector(self, dsn, table, **options)

    def export(
        self,
        path: str | Path,
        sparse: bool = False,
        positive: bool = False,
        progress: Progress | None = None,
    ) -> Exported:
        """Writes the documents' codes to a file for other engines; whole or not at all.

        Args:
            path: ``.npy``, ``.parquet`` or ``.jsonl``; sparse codes as ``.npz``, which scipy reads, and not ``.npy``.
            sparse: the numbers that are not 0, with a last one, the sum of the measures; see ``document_codes``.
            positive: for engines whose sparse vectors have no number below 0: the last number of a document is the
                largest such sum less its own, and that of a query is β instead of −β. S is less by a constant.
            progress: called with (documents so far, documents).
        """
        from .exports import export

        return export(self, path, sparse, positive, progress)

    def _found(
        self,
        a: Tensor,
        one: bool,
        k: int,
        reverse: bool,
        given: tuple[float | None, float | None, float | None],
        candidates: int | None,
        progress: Progress | None,
    ) -> Hits:
        check_sizes(k=k, **({} if candidates is None else {"candidates": candidates}))
        if not len(self):
            raise ValueError("the index is empty: add documents first.")
        if k > len(self):
            raise ValueError(f"k must be up to {len(self):,}, the number of documents; got {k:,}.")
        alpha, beta, theta = constants(self.layer, *given)
        scalars = (beta, alpha, theta) if reverse else (alpha, beta, theta)
        asked, done = Asked(a.double(), scalars, self.layer.form, reverse), 0
        values, rows = np.empty((len(a), k)), np.empty((len(a), k), dtype=np.int64)
        certified, step = np.empty(len(a), dtype=bool), max(1, min(QUERIES, SEEN // self._rows_of_a_block()))

        def more(documents: int) -> None:
            nonlocal done
            done += documents * len(part.a)
            if progress is not None:
                progress(done, len(self) * len(a))

        for start in range(0, len(a), step):
            own = slice(start, start + step)
            part = asked.part(own.start, own.stop)
            values[own], rows[own], certified[own] = best(self._blocks, part, k, self._reach, candidates, more)
        ids = [[self._ids[row] for row in found] for found in rows]
        hits = Hits(torch.from_numpy(values), ids, torch.from_numpy(certified))
        return Hits(hits.values[0], ids[0], hits.certified[0]) if one else hits

    def _checked(self, vectors: Vectors, name: str) -> Tensor:
        return checked(self.layer, vectors, name)

    def _measured(self, x: Tensor, name: str) -> Tensor:
        """Measures of vectors ``[N, D]``, 0 where they lack a feature, in the index's dtype."""
        return measured(self.layer, x, name)

    def _row(self, id: Any) -> int:
        row = self._ids.row_of(id)
        if row is None:
            raise KeyError(f"no document has the id {id!r}.")
        return row

    def _rows_of_a_block(self) -> int:
        return LONGEST if self.codes == "sparse" else max(1, min(LONGEST, BLOCK // self.num_features))


def _join(blocks: list[Block], most: int) -> None:
    """Joins the last blocks as long as the one before is less than twice as long: each document moves a few times."""
    while len(blocks) > 1:
        last = len(blocks[-1])
        before = len(blocks[-2])
        if before >= 2 * last or before + last > most:
            return
        blocks[-2:] = [type(blocks[-1]).joined(blocks[-2:])]  # pyright: ignore[reportArgumentType]
