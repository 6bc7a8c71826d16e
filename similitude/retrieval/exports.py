"""Documents' codes as files that other engines take: .npy, .npz, Parquet, JSON lines; dense and sparse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from ..files import whole
from .engines import code_blocks
from .hits import Progress

if TYPE_CHECKING:
    from .index import TverskyIndex

__all__ = ["Exported"]

DENSE, SPARSE = (".npy", ".parquet", ".jsonl"), (".npz", ".parquet", ".jsonl")

Part = tuple[list[Any], np.ndarray]


class Exported(NamedTuple):
    """What was written.

    Attributes:
        path: the file; ``.npy`` and ``.npz`` have the ids beside them, in a file that ends in ``.ids.npy``.
        documents: how many.
        width: numbers of a code.
        most: with ``positive``, what the last number of a document is subtracted from.
    """

    path: Path
    documents: int
    width: int
    most: float | None


def export(
    index: TverskyIndex,
    path: str | Path,
    sparse: bool = False,
    positive: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """See ``TverskyIndex.export``."""
    path = Path(path)
    kinds = SPARSE if sparse else DENSE
    if path.suffix not in kinds:
        which = "sparse" if sparse else "dense"
        raise ValueError(f"{which} codes are written to {', '.join(kinds)}; got {path.name!r}.")
    if positive and not sparse:
        raise ValueError("positive=True is for sparse codes: dense queries have numbers below 0.")
    if not len(index):
        raise ValueError("the index is empty: add documents first.")
    write = {".npy": _npy, ".npz": _npz, ".parquet": _parquet, ".jsonl": _json_lines}[path.suffix]
    most = max(float(codes[:, -1].max()) for _, codes in code_blocks(index, True)) if positive else None
    width = next(code_blocks(index, sparse))[1].shape[1]

    def parts() -> Iterator[Part]:
        done = 0
        for ids, codes in code_blocks(index, sparse):
            yield ids, _rows(codes, most)
            done += len(ids)
            if progress is not None:
                progress(done, len(index))

    with whole(path) as half:
        write(half, parts(), len(index), width, sparse)
    if path.suffix in (".npy", ".npz"):
        with whole(path.with_suffix(".ids.npy")) as half, open(half, "wb") as file:
            np.save(file, np.array([index.ids[row] for row in range(len(index))]), allow_pickle=False)
    return Exported(path, len(index), width, most)


def _rows(codes: Tensor, most: float | None) -> np.ndarray:
    if most is not None:
        codes = codes.clone()
        codes[:, -1] = most - codes[:, -1]
    return codes.float().numpy()


def _npy(path: Path, parts: Iterator[Part], N: int, width: int, sparse: bool) -> None:
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (N, width)})
        for _, rows in parts:
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)


def _npz(path: Path, parts: Iterator[Part], N: int, width: int, sparse: bool) -> None:
    """As scipy.sparse.load_npz reads it."""
    found = [(rows[rows != 0], np.nonzero(rows)[1].astype(np.int32), (rows != 0).sum(1)) for _, rows in parts]
    data, indices, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    indptr = np.concatenate([[0], counts.cumsum()])
    with open(path, "wb") as file:
        np.savez_compressed(file, data=data, indices=indices, indptr=indptr, shape=(N, width), format=b"csr")


def _json_lines(path: Path, parts: Iterator[Part], N: int, width: int, sparse: bool) -> None:
    line = _sparse_line if sparse else lambda row: {"code": _short(row)}
    with open(path, "w", encoding="utf-8") as file:
        for ids, rows in parts:
            for id, row in zip(ids, rows):
                file.write(json.dumps({"id": id, **line(row)}, ensure_ascii=False) + "\n")


def _sparse_line(row: np.ndarray) -> dict[str, Any]:
    places = np.flatnonzero(row)
    return {"indices": places.tolist(), "values": _short(row[places])}


def _short(row: np.ndarray) -> list[float]:
    """The shortest decimals that are read as the same float32."""
    return [float(str(number)) for number in row]


def _parquet(path: Path, parts: Iterator[Part], N: int, width: int, sparse: bool) -> None:
    try:
        import pyarrow as arrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise ImportError("Parquet needs pyarrow: pip install pyarrow, or write .npy or .jsonl.") from None
    first = next(parts)
    floats, ids_of = arrow.float32(), arrow.int64() if isinstance(first[0][0], int) else arrow.string()
    if sparse:
        schema = {"id": ids_of, "indices": arrow.list_(arrow.int32()), "values": arrow.list_(floats)}
    else:
        schema = {"id": ids_of, "code": arrow.list_(floats, width)}
    schema = arrow.schema(schema)
    with ParquetWriter(path, schema) as writer:
        for ids, rows in chain([first], parts):
            if sparse:
                starts = np.concatenate([[0], (rows != 0).sum(1).cumsum()]).astype(np.int32)
                lists = (np.nonzero(rows)[1].astype(np.int32), rows[rows != 0])
                columns = [arrow.ListArray.from_arrays(starts, column) for column in lists]
            else:
                columns = [arrow.FixedSizeListArray.from_arrays(rows.ravel(), width)]
            writer.write_table(arrow.Table.from_arrays([arrow.array(ids, ids_of), *columns], schema=schema))
