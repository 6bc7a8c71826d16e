"""Documents in a table of PostgreSQL: pgvector finds candidates by their codes, which are then compared exactly.

The table is plain: ``id``, ``code`` and, where the code is rounded, ``measures``. What made it is in its comment.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import check_sizes
from ..explain import TOP, Pair
from ..form import check_choice
from ..reach import comparison
from .codes import Vectors, constants, has_roots, query_codes, vectors_of
from .engines import code_blocks, compared
from .hits import Hits, Progress, checked, explained, measured
from .saved import bank_digest

if TYPE_CHECKING:
    from .index import TverskyIndex

__all__ = ["PgTable"]

KINDS = ("vector", "halfvec", "sparsevec")
# Numbers of a code that an index of pgvector takes; of sparse ones those that are not 0.
WIDEST = {"vector": 2000, "halfvec": 4000, "sparsevec": 1000}
SPARSE_WIDEST = 10**9
# Candidates that are compared for each document asked for, and at least.
FACTOR, LEAST = 10, 100
VERSION = 1


class Made(NamedTuple):
    """What a table was made of, as its comment has it."""

    kind: str
    num_features: int
    roots: bool
    even: bool
    longest: float
    bank: str
    similitude: int = VERSION


class PgTable:
    """A table of documents that ``TverskyIndex.to_pgvector`` made, searched by the similarity of a layer.

    Args:
        layer: what compares. It must have the bank that measured the documents; its α, β, θ may differ.
        dsn: where the server is, as psycopg takes it: "postgresql://user@host/database".
        table: name of the table.
        schema: its schema; by default the first of the search path that has it.
    """

    def __init__(self, layer: Any, dsn: str, table: str, schema: str | None = None):
        from psycopg import sql

        self.layer = comparison(layer)
        self.table = sql.Identifier(*([] if schema is None else [schema]), table)
        self.connection = _connect(dsn)
        try:
            self.made = self._read(table)
        except Exception:
            self.close()
            raise

    def __enter__(self) -> PgTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; as a context manager a table does so itself."""
        self.connection.close()

    def __len__(self) -> int:
        from psycopg import sql

        return self._fetch(sql.SQL("SELECT count(*) FROM {}").format(self.table))[0][0]

    @property
    def query(self) -> str:
        """The SQL of a search, with ``%s`` for the query's code, see ``literal``, and for the number of rows."""
        return self._select("code").as_string(self.connection)

    def literal(
        self,
        query: Vectors,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
    ) -> str:
        """A query's code as pgvector reads it, for SQL of your own."""
        codes = query_codes(self.layer, query[None], reverse, alpha, beta, theta, sparse=self.made.kind == "sparsevec")
        code = codes.codes.to_dense() if isinstance(codes.codes, Tensor) else torch.as_tensor(_dense(codes.codes))
        return _text(self.made.kind, torch.cat([code[0], code.new_zeros(int(self.made.even))]).tolist())

    def search(
        self,
        queries: Vectors,
        k: int = 10,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        candidates: int | None = None,
        exact: bool = False,
    ) -> Hits:
        """The k documents that are most similar to each query, ``[D]`` or ``[Q, D]``, of those that pgvector finds.

        Values are exact, in float64. Whether no other document is better is not certified.

        Args:
            queries: a query, or several.
            k: how many documents.
            reverse: whether documents are ranked by S(document, query) instead of S(query, document).
            alpha, beta, theta: other constants than the layer's.
            candidates: how many documents pgvector finds for each query, to be compared exactly; by default ten times
                k, and 100 at least. More find more of the best.
            exact: whether pgvector walks over all documents instead of its index.
        """
        check_sizes(k=k, **({} if candidates is None else {"candidates": candidates}))
        x = vectors_of(queries, "queries")
        one, x = x.dim() == 1, x[None] if x.dim() == 1 else x
        by = constants(self.layer, alpha, beta, theta)
        wanted = max(k, candidates or max(LEAST, FACTOR * k))
        values, ids = [], []
        with self.connection.transaction():
            self.connection.execute(f"SET LOCAL hnsw.ef_search = {min(1000, max(40, wanted))}")
            for row, a in zip(x, self._measured(x)):
                code = self.literal(row, reverse, *by)
                rows = [] if exact else self._candidates(code, wanted)
                if k > len(rows):  # a graph may lead to fewer, such as after many were deleted
                    self.connection.execute("SET LOCAL enable_indexscan = off; SET LOCAL enable_seqscan = on")
                    rows = self._candidates(code, wanted)
                    self.connection.execute("SET LOCAL enable_indexscan = on")
                if k > len(rows):
                    raise ValueError(f"k must be up to {len(self):,}, the number of documents; got {k:,}.")
                b = self._measures([held for _, held in rows])
                S = compared(self.layer, a, b, by, reverse)
                best = S.sort(descending=True, stable=True)
                values.append(best.values[:k])
                ids.append([rows[i][0] for i in best.indices[:k].tolist()])
        unknown = torch.zeros(len(x), dtype=torch.bool)
        return Hits(values[0], ids[0], unknown[0]) if one else Hits(torch.stack(values), ids, unknown)

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
        """Why a document is as similar to the query as it is, feature by feature; see ``TverskyIndex.explain``."""
        from psycopg import sql

        ask = sql.SQL("SELECT id, {} FROM {} WHERE id = %s").format(sql.Identifier(self._kept_in), self.table)
        rows = self._fetch(ask, (id,), binary=True)
        if not rows:
            raise KeyError(f"no document has the id {id!r}.")
        a, b = self._measured(vectors_of(query, "query")[None])[0], self._measures([rows[0][1]])[0]
        return explained(self.layer, a, b, constants(self.layer, alpha, beta, theta), top, (name, str(id)))

    def add(self, index: TverskyIndex, progress: Progress | None = None) -> None:
        """Adds the documents of an index of the same bank; if one of their ids is there, none.

        pgvector may find a document less often that is longer than all of the first ones.
        """
        if bank_digest(index.layer) != self.made.bank:
            raise ValueError("the documents of this index were measured by another bank than those of the table.")
        with self.connection.transaction():
            _copy(self.connection, self.table, self.made, index, progress)

    @property
    def _kept_in(self) -> str:
        return "measures" if self.made.kind == "halfvec" else "code"

    def _select(self, column: str) -> Any:
        from psycopg import sql

        ask = "SELECT id, {column} FROM {table} ORDER BY code <#> %s::{kind} LIMIT %s"
        return sql.SQL(ask).format(
            column=sql.Identifier(column),
            table=self.table,
            kind=sql.Identifier(self.made.kind),
        )

    def _candidates(self, code: str, wanted: int) -> list[Any]:
        return self._fetch(self._select(self._kept_in), (code, wanted), binary=True)

    def _fetch(self, ask: Any, values: Sequence[Any] = (), binary: bool = False) -> list[Any]:
        return self.connection.execute(ask, values, binary=binary).fetchall()

    def _measured(self, x: Tensor) -> Tensor:
        """Measures of queries ``[Q, D]``, in float64 and 0 where they lack a feature."""
        return measured(self.layer, checked(self.layer, x, "queries"), "queries").double()

    def _measures(self, found: list[bytes]) -> Tensor:
        """Measures ``[n, K]`` of what the table holds of some documents."""
        read = _read_sparse if self.made.kind == "sparsevec" else _read_dense
        return torch.from_numpy(np.stack([read(row)[: self.made.num_features] for row in found]).astype(np.float64))

    def _read(self, table: str) -> Made:
        """What the table was made of, checked against the layer."""
        name = self.table.as_string(self.connection)
        kept = self._fetch("SELECT obj_description(to_regclass(%s)::oid, 'pg_class'), to_regclass(%s)", (name, name))[0]
        if kept[1] is None:
            raise ValueError(f"there is no table {name}; make it with TverskyIndex.to_pgvector(dsn, {table!r}).")
        try:
            made = Made(**json.loads(kept[0]))
        except (TypeError, ValueError):
            raise ValueError(f"the table {name} was not made by TverskyIndex.to_pgvector.") from None
        if made.similitude != VERSION:
            raise ValueError(f"the table {name} is of another version of similitude, {made.similitude}.")
        if made.bank != bank_digest(self.layer):
            raise ValueError(f"the documents of {name} were measured by another bank than this layer's.")
        if made.roots != has_roots(self.layer.form):
            raise ValueError(f"the codes of {name} have {'' if made.roots else 'no '}roots, for gmean: make it again.")
        return made


def to_pgvector(
    index: TverskyIndex,
    dsn: str,
    table: str,
    schema: str | None = None,
    kind: str = "vector",
    even: bool | None = None,
    hnsw: bool = True,
    replace: bool = False,
    progress: Progress | None = None,
) -> PgTable:
    """The table that holds the documents of an index from now on.

    Args:
        index: the documents.
        dsn: where the server is, as psycopg takes it: "postgresql://user@host/database".
        table, schema: what to call the table, and where; by default in the first schema of the search path.
        kind: pgvector's type of the codes. "vector": up to 999 features with pgvector's index. "halfvec": up to 1,999;
            the table has the exact measures too. "sparsevec": for large banks of which a document has up to 500.
        even: whether codes get one number more, which makes all equally long, since graphs lose hits where lengths
            differ much. By default for all but "sparsevec".
        hnsw: whether to make pgvector's index, a graph; it takes minutes for 100,000 documents.
        replace: whether a table of this name may go.
        progress: called with (documents so far, documents).
    """
    from psycopg import sql

    check_choice("kind", kind, KINDS)
    if not len(index):
        raise ValueError("the index is empty: add documents first.")
    even = kind != "sparsevec" if even is None else even
    longest = max(float(block.square().sum(-1).max()) for _, block in code_blocks(index, kind == "sparsevec"))
    K, roots = index.layer.features.num_features, has_roots(index.layer.form)
    made = Made(kind, K, roots, even, longest, bank_digest(index.layer))
    _check_widths(index, made, hnsw)
    connection = _connect(dsn)
    try:
        name = sql.Identifier(*([] if schema is None else [schema]), table)
        with connection.transaction():
            _check_extension(connection, kind)
            if replace:
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(name))
            elif connection.execute("SELECT to_regclass(%s)", (name.as_string(connection),)).fetchone()[0]:
                raise ValueError(f"there is a table {name.as_string(connection)} already: say replace=True.")
            connection.execute(_create(name, index, made))
            connection.execute(
                sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(json.dumps(made._asdict())))
            )
            _copy(connection, name, made, index, progress)
            if hnsw:
                # A graph that does not fit into this memory takes many times as long.
                connection.execute("SET LOCAL maintenance_work_mem = '1GB'")
                ways = sql.Identifier(f"{kind}_ip_ops")
                connection.execute(sql.SQL("CREATE INDEX ON {} USING hnsw (code {})").format(name, ways))
    finally:
        connection.close()
    return PgTable(index.layer, dsn, table, schema)


def _connect(dsn: str) -> Any:
    try:
        import psycopg
    except ImportError:
        raise ImportError("PostgreSQL needs psycopg: pip install 'similitude[pgvector]'.") from None
    try:
        # Not prepared: a plan that is kept would not follow the settings of a search.
        return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)
    except psycopg.OperationalError as error:
        raise ConnectionError(f"no server of PostgreSQL answers: {str(error).strip().splitlines()[-1]}") from None


def _check_extension(connection: Any, kind: str) -> None:
    import psycopg

    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as error:
        why = str(error).strip().splitlines()[0]
        raise RuntimeError(f"this PostgreSQL has no pgvector, or does not let you use it: {why}") from None
    version = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()[0]
    if kind != "vector" and tuple(map(int, version.split(".")[:2])) < (0, 7):
        raise RuntimeError(f"kind={kind!r} needs pgvector 0.7 or later; this server has {version}: use kind='vector'.")


def _width(index: TverskyIndex, made: Made) -> int:
    return made.num_features * (3 if made.roots else 2) + (made.kind == "sparsevec") + made.even


def _check_widths(index: TverskyIndex, made: Made, hnsw: bool) -> None:
    width = _width(index, made)
    if made.kind == "sparsevec":
        width = max(int((block != 0).sum(-1).max()) for _, block in code_blocks(index, True)) + made.even
    if hnsw and width > WIDEST[made.kind]:
        other = "" if made.kind == "sparsevec" else ", or kind='sparsevec' for features that few documents have"
        hint = "kind='halfvec'" if made.kind == "vector" and width <= WIDEST["halfvec"] else "hnsw=False"
        raise ValueError(
            f"a {made.kind} of {width:,} numbers has no index in pgvector, which takes {WIDEST[made.kind]:,}: "
            f"use {hint}{other}."
        )


def _create(name: Any, index: TverskyIndex, made: Made) -> Any:
    from psycopg import sql

    measures = ", measures vector({K}) NOT NULL" if made.kind == "halfvec" else ""
    return sql.SQL("CREATE TABLE {name} (id {of} PRIMARY KEY, code {kind}({width}) NOT NULL" + measures + ")").format(
        name=name,
        of=sql.SQL("bigint" if isinstance(index.ids[0], int) else "text"),
        kind=sql.Identifier(made.kind),
        width=sql.Literal(_width(index, made)),
        K=sql.Literal(made.num_features),
    )


def _copy(connection: Any, name: Any, made: Made, index: TverskyIndex, progress: Progress | None) -> None:
    """Writes all documents of an index into the table, in PostgreSQL's binary form."""
    from psycopg import sql

    half = made.kind == "halfvec"
    columns = sql.SQL("id, code, measures" if half else "id, code")
    done = 0
    with connection.cursor().copy(sql.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(name, columns)) as copy:
        copy.set_types(["int8" if isinstance(index.ids[0], int) else "text", "bytea", *(["bytea"] if half else [])])
        for ids, codes in code_blocks(index, made.kind == "sparsevec"):
            if made.even:
                # A graph of codes of very different lengths leads to the long ones.
                rest = (made.longest - codes.double().square().sum(-1)).clamp(min=0).sqrt()
                codes = torch.cat([codes, rest[:, None].to(codes)], -1)
            rows = codes.numpy()
            written = _written(made.kind, rows)
            more = _written("vector", rows[:, : made.num_features]) if half else None
            for n, (id, code) in enumerate(zip(ids, written)):
                copy.write_row((id, code, more[n]) if more is not None else (id, code))
            done += len(ids)
            if progress is not None:
                progress(done, len(index))


def _written(kind: str, rows: np.ndarray) -> list[bytes]:
    """Codes as pgvector sends and receives them."""
    if kind == "sparsevec":
        return [_sparse(row) for row in rows]
    head = np.array([rows.shape[1], 0], dtype=">u2").tobytes()
    return [head + row.tobytes() for row in rows.astype(">f2" if kind == "halfvec" else ">f4")]


def _sparse(row: np.ndarray) -> bytes:
    places = np.flatnonzero(row)
    head = np.array([len(row), len(places), 0, *places], dtype=">i4")
    return head.tobytes() + row[places].astype(">f4").tobytes()


def _read_dense(row: bytes) -> np.ndarray:
    return np.frombuffer(row, ">f4", offset=4)


def _read_sparse(row: bytes) -> np.ndarray:
    width, count = np.frombuffer(row, ">i4", 2)
    out = np.zeros(width, dtype=np.float32)
    out[np.frombuffer(row, ">i4", count, offset=12)] = np.frombuffer(row, ">f4", count, offset=12 + 4 * count)
    return out


def _text(kind: str, code: Iterable[float]) -> str:
    if kind == "sparsevec":
        code = list(code)
        return "{" + ",".join(f"{i + 1}:{v!r}" for i, v in enumerate(code) if v) + "}/" + str(len(code))
    return "[" + ",".join(map(repr, code)) + "]"


def _dense(codes: Any) -> Any:
    return codes.toarray() if hasattr(codes, "toarray") else codes
