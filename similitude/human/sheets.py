"""CSV files of what people said, the features that they listed, and the table of Morse signals that ships."""

from __future__ import annotations

import csv
import difflib
import io
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from ..files import read_text
from .judgements import Array, Judgements, confusions, directed, rankings, ratings, similarities, triplets

# The columns of each kind's file, those that may be missing last; a square table has none.
SQUARE = ("confusions", "identification", "similarities")
COLUMNS = {
    "ratings": (("first", "second", "value"), ("rater",)),
    "directed": (("cue", "target"), ("count",)),
    "triplets": (("first", "second", "odd"), ("rater",)),
    "rankings": (("query", "candidate", "rank"), ("rater",)),
}
KINDS = (*SQUARE, *COLUMNS)
# People asked about each pair of signals; Rothkopf's paper has about so many, and his table does not say.
MORSE_ANSWERS = 150
MISSING = ("", "na", "nan", "-", "–")


class SheetError(ValueError):
    """A CSV file that cannot be read as what it is said to be."""


def morse() -> Judgements:
    """Rothkopf's (1957) confusions of 36 Morse signals: share of "same" of a first and a second signal."""
    names, table = square(resources.files("similitude.human").joinpath("morse.csv").read_text(), "morse.csv")
    return confusions(table, n=MORSE_ANSWERS, objects=names)


def read_csv(
    path: str | Path, kind: str, n: float | None = None, scale: tuple[float, float] | None = None
) -> Judgements:
    """Judgements from a CSV file.

    Args:
        path: Confusions, identification and similarities are a square table with names in its first row and column:
            row = first object or signal, column = second object or answer. Ratings have the columns first, second,
            value and, if known, rater; directed associations cue, target and, if counted, count; triplets first,
            second and odd, the one that was left out; rankings query, candidate and rank, 1 for the most similar. An
            empty cell was not asked.
        kind: confusions, identification, similarities, ratings, directed, triplets or rankings.
        n: Of confusions and identification: answers to each cell or row.
        scale: Of similarities and ratings: the lowest and the highest possible number.
    """
    if kind not in KINDS:
        raise SheetError(f"kind={kind!r} is none of {', '.join(KINDS)}{_near(kind, KINDS)}")
    if n is not None and kind not in ("confusions", "identification"):
        raise SheetError(f"n is the number of answers behind confusions or identification; {kind} have none.")
    if scale is not None and kind not in ("similarities", "ratings"):
        raise SheetError(f"scale is the lowest and highest number of similarities or ratings; {kind} have none.")
    name, text = Path(path).name, _text(path)
    try:
        if kind in SQUARE:
            names, table = square(text, name)
            if kind == "similarities":
                return similarities(table, names, scale)
            return confusions(table, n, "identification" if kind == "identification" else "same-different", names)
        columns = _listed(text, name, kind)
        if kind == "rankings":
            return _ranked(columns)
        more: dict[str, Any] = {"rater": columns.pop("rater")} if "rater" in columns else {}
        if kind == "ratings":
            return ratings(*columns.values(), **more, scale=scale)
        return {"directed": directed, "triplets": triplets}[kind](*columns.values(), **more)
    except SheetError:
        raise
    except (ValueError, TypeError) as error:
        raise SheetError(f"{name}: {error}") from None


def _ranked(columns: dict[str, list[str] | list[float]]) -> Judgements:
    """Rankings from a line for each candidate; those of one query and rater are one ranking."""
    orders: dict[tuple[str, ...], list[tuple[float, str]]] = {}
    for query, candidate, rank, *rater in zip(*columns.values(), strict=True):
        orders.setdefault((str(query), *map(str, rater)), []).append((float(rank), str(candidate)))
    for (query, *_), order in orders.items():
        ranks = [rank for rank, _ in order]
        if len(set(ranks)) < len(ranks):
            twice = max(ranks, key=ranks.count)
            raise ValueError(f"two candidates of {query!r} have rank {twice:g}; each needs a rank of its own.")
    ranked = [[candidate for _, candidate in sorted(order)] for order in orders.values()]
    who = [key[1] for key in orders] if "rater" in columns else None
    return rankings([key[0] for key in orders], ranked, rater=who)


def read_features(path: str | Path, objects: tuple[str, ...]) -> tuple[Array, list[str]]:
    """Features that people listed, ``[N, J]``, in the order of the objects, and their names.

    The file has a row for each object, with its name first, and a column for each feature: numbers of 0 or more, such
    as how many people listed it. Objects that nobody judged are left out.
    """
    name = Path(path).name
    head, rows = _rows(_text(path), name)
    _unique([row[0] for row in rows], f"{name}: the object")
    _unique(head[1:], f"{name}: the feature")
    at = {row[0]: row for row in rows}
    for one in objects:
        if one not in at:
            raise SheetError(f"{name} has no row for {one!r}, which was judged{_near(one, at)}")
    table = np.array([_numbers(at[one][1:], head[1:], f"{name}, row {one!r}") for one in objects])
    table = np.nan_to_num(table)
    if not len(head) > 1 or (table < 0).any():
        given = "none" if not len(head) > 1 else f"{table.min():g}"
        raise SheetError(f"{name} must have a column of numbers of 0 or more for each feature; {given} is given.")
    return table, head[1:]


def square(text: str, name: str) -> tuple[list[str], Array]:
    """Names and numbers of a square table whose first row and first column are the same names."""
    head, rows = _rows(text, name)
    rowed, columned = [row[0] for row in rows], head[1:]
    _unique(rowed, f"{name}: the row")
    _unique(columned, f"{name}: the column")
    if rowed != columned:
        if len(rowed) != len(columned):
            raise SheetError(f"{name} has {len(rowed)} rows and {len(columned)} columns; a square table is expected.")
        where = next(i for i, (a, b) in enumerate(zip(rowed, columned, strict=True)) if a != b)
        raise SheetError(
            f"{name}: row {where + 1} is {rowed[where]!r} and column {where + 1} is {columned[where]!r}; the same "
            "names in the same order are expected."
        )
    return rowed, np.array([_numbers(row[1:], columned, f"{name}, row {row[0]!r}") for row in rows])


def _listed(text: str, name: str, kind: str) -> dict[str, list[str] | list[float]]:
    """The columns of a list of judgements, in the order of the function that takes them."""
    needed, possible = COLUMNS[kind]
    head, rows = _rows(text, name)
    for column in needed:
        if column not in head:
            wanted = ", ".join(needed) + "".join(f"[, {one}]" for one in possible)
            raise SheetError(f"{name} has the columns {', '.join(head)}; {kind} need {wanted}.")
    known = (*needed, *possible)
    for column in head:
        if column not in known:
            raise SheetError(f"{name}: {kind} have no column {column!r}; there are {', '.join(known)}.")
    out: dict[str, list[str] | list[float]] = {}
    for column in (one for one in known if one in head):
        cells = [row[head.index(column)] for row in rows]
        if column in ("value", "count", "rank"):
            out[column] = [_number(cell, f"{name}, line {i + 2}", column) for i, cell in enumerate(cells)]
            continue
        if "" in cells:
            raise SheetError(f"{name}, line {cells.index('') + 2}: {column} is empty; a name is expected.")
        out[column] = cells
    return out


def _text(path: str | Path) -> str:
    try:
        return read_text(Path(path)).removeprefix("\ufeff")
    except ValueError as error:
        raise SheetError(f"cannot read {path}: {error}.") from None


def _rows(text: str, name: str) -> tuple[list[str], list[list[str]]]:
    """The first row and the others, all of one length; commas, semicolons or tabs part the cells."""
    first = text.lstrip().partition("\n")[0]
    mark = max(",;\t", key=first.count)
    try:
        lines = [[cell.strip() for cell in line] for line in csv.reader(io.StringIO(text), delimiter=mark)]
    except csv.Error as error:
        raise SheetError(f"{name} is not a CSV file: {error}.") from None
    lines = [line for line in lines if any(line)]
    if len(lines) < 2:
        count = f"{len(lines)} line{'s' * (len(lines) != 1)}"
        raise SheetError(f"{name} has {count}; a line of names and at least one of judgements are expected.")
    head, rows = lines[0], lines[1:]
    for i, row in enumerate(rows):
        if len(row) != len(head):
            raise SheetError(f"{name}: row {i + 1} ({row[0]!r}) has {len(row)} cells, and the first line {len(head)}.")
    if mark != ",":  # a comma is then the mark of decimals, or part of a name
        rows = [[_point(cell) for cell in row] for row in rows]
    return head, rows


def _point(cell: str) -> str:
    dotted = cell.replace(",", ".", 1)
    try:
        float(dotted)
    except ValueError:
        return cell
    return dotted


def _numbers(cells: list[str], columns: list[str], where: str) -> list[float]:
    return [_number(cell, where, column) for cell, column in zip(cells, columns, strict=True)]


def _number(cell: str, where: str, column: str) -> float:
    if cell.lower() in MISSING:
        return np.nan
    try:
        return float(cell)
    except ValueError:
        raise SheetError(f"{where}, column {column!r}: {cell!r} is no number.") from None


def _unique(names: list[str], what: str) -> None:
    for i, name in enumerate(names):
        if not name:
            raise SheetError(f"{what} {i + 1} has no name.")
        if names.index(name) < i:
            raise SheetError(f"{what} {name!r} stands there twice.")


def _near(name: str, names: object) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)  # type: ignore[call-overload]
    return f"; {near[0]!r} is near." if near else "."
