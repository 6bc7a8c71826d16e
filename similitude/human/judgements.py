"""What people said about pairs of objects, in one form: cells, a pair and what was answered, and questions of cells.

Three likelihoods cover all kinds. ``same``: each cell was answered yes or no (confusions). ``choice``: each answer
chose one cell of its question (identification, association, odd-one-out, rankings). ``rating``: each cell got a number.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Array = np.ndarray
# Answers to a cell whose number is not known, where a noise ceiling is asked for.
MOST_ANSWERS = 1e9


@dataclass(frozen=True)
class Judgements:
    """Cells: ``first`` and ``second`` are the places of a pair's objects in ``objects``.

    Attributes:
        kind: same, choice or rating.
        objects: Names of the objects.
        first: First object of each cell, ``[M]``.
        second: Second object of each cell.
        value: Share of "same" answers, number of answers that chose the cell, or rating.
        answers: Answers behind each cell; of a choice, those to its question.
        question: Which question each cell belongs to.
        rater: Who rated each cell, or None.
        symmetric: Whether the order of the two objects was not asked.
        counted: Whether ``answers`` are known numbers of answers, and not weights.
        scale: Lowest and highest possible rating, or None.
    """

    kind: str
    objects: tuple[str, ...]
    first: Array
    second: Array
    value: Array
    answers: Array
    question: Array
    rater: Array | None = None
    symmetric: bool = False
    counted: bool = False
    scale: tuple[float, float] | None = None

    def __len__(self) -> int:
        return len(self.first)

    def __repr__(self) -> str:
        asked = "" if self.kind != "choice" else f" in {len(np.unique(self.question)):,} questions"
        order = "without order" if self.symmetric else "with order"
        return f"Judgements of {len(self.objects):,} objects: {len(self):,} cells{asked}, {self.kind}, {order}"

    def table(self, values: Array | None = None) -> Array:
        """What was said as a table, first objects × second objects, NaN where nothing was; ``values`` for the cells."""
        values = self.value if values is None else values
        total, count = np.zeros((2, len(self.objects), len(self.objects)))
        np.add.at(total, (self.first, self.second), values)
        np.add.at(count, (self.first, self.second), 1)
        if self.symmetric:
            off = ~np.eye(len(total), dtype=bool)
            total, count = np.where(off, total + total.T, total), np.where(off, count + count.T, count)
        return np.divide(total, count, out=np.full_like(total, math.nan), where=count > 0)

    def only(self, keep: Array) -> Judgements:
        """The cells of a mask, or of an array of places."""
        rater = None if self.rater is None else self.rater[keep]
        parts = {name: getattr(self, name)[keep] for name in ("first", "second", "value", "answers", "question")}
        return replace(self, rater=rater, **parts)


def confusions(
    table: Any, n: Any = None, task: str = "same-different", objects: Sequence[str] | None = None
) -> Judgements:
    """Judgements from a table of confusions: row = first object or signal, column = second object or answer.

    Args:
        table: Square, ``[N, N]``: an array or a pandas frame, whose names are used. NaN is a cell that was not asked.
            Same–different: shares in [0, 1], or numbers of "same" answers if ``n`` is given and a value exceeds 1.
            Identification: numbers of answers, or shares with ``n``.
        n: Answers to each cell (same–different) or row (identification): a number, or a table or column of numbers.
        task: same-different (each pair was judged) or identification (each row was answered by one of the columns).
        objects: Names, where the table has none.
    """
    if task not in ("same-different", "identification"):
        raise ValueError(f"task={task!r} is neither same-different nor identification.")
    values, objects = _square(table, objects)
    N = len(values)
    _check_negative(values, "confusions")
    first, second = np.nonzero(~np.isnan(values))
    said = values[first, second]
    if task == "identification":
        rows = np.nansum(values, 1)
        if n is not None and np.nanmax(values) <= 1:
            said, rows = said * _per(n, (N,), "n")[first], rows * _per(n, (N,), "n")
        keep = rows[first] > 0
        cells = first[keep], second[keep], said[keep], rows[first][keep], first[keep]
        return _checked(Judgements("choice", objects, *cells, counted=n is not None or np.nanmax(values) > 1))
    answers = np.ones(len(first)) if n is None else _per(n, (N, N), "n")[first, second]
    if said.max(initial=0) > 1:
        if n is None:
            raise ValueError(
                f"a table of confusions holds shares from 0 to 1, and here {said.max():g}; numbers of answers need n=, "
                "the answers to each cell."
            )
        said = said / np.maximum(answers, 1e-300)
        if said.max() > 1 + 1e-9:
            raise ValueError(f"a cell has more answers than were asked: {said.max():.3g} times n.")
    asked = answers > 0
    first, second, said, answers = first[asked], second[asked], said[asked].clip(0, 1), answers[asked]
    order = np.arange(len(first))
    return _checked(Judgements("same", objects, first, second, said, answers, order, counted=n is not None))


def similarities(table: Any, objects: Sequence[str] | None = None, scale: Any = None) -> Judgements:
    """Judgements from a square table of similarities in any unit; a symmetric one counts each pair once.

    Args:
        table: Square, ``[N, N]``: an array or a pandas frame. NaN is a cell that was not asked.
        objects: Names, where the table has none.
        scale: Lowest and highest possible similarity, such as (0, 1): the link is then logistic between them.
    """
    values, objects = _square(table, objects)
    symmetric = bool(np.allclose(values, values.T, equal_nan=True))
    asked = ~np.isnan(values)
    np.fill_diagonal(asked, False)
    if symmetric:
        asked &= np.triu(np.ones_like(asked))
    first, second = np.nonzero(asked)
    ones, order = np.ones(len(first)), np.arange(len(first))
    said = Judgements("rating", objects, first, second, values[first, second], ones, order, symmetric=symmetric)
    return _on_scale(_checked(said), scale)


def ratings(
    a: Any, b: Any, value: Any, rater: Any = None, objects: Sequence[Any] | None = None, scale: Any = None
) -> Judgements:
    """Judgements from ratings of pairs.

    Args:
        a, b: Names or numbers of both objects of each pair.
        value: The number given to it.
        rater: Who gave it, if known.
        objects: All names, in the order of their numbers.
        scale: Lowest and highest possible rating, such as (1, 7): the link is then logistic between them.
    """
    a, b, value = _columns(a=a, b=b, value=value)
    value = _numbers(value, "ratings")
    first, second, names = _places(objects, a, b)
    who = None if rater is None else np.unique(np.asarray(_columns(rater=rater)[0]), return_inverse=True)[1]
    keep = ~np.isnan(value)
    order = np.arange(int(keep.sum()))
    raters = None if who is None else who[keep]
    cells = first[keep], second[keep], value[keep], np.ones(len(order)), order
    return _on_scale(_checked(Judgements("rating", names, *cells, raters)), scale)


def directed(cue: Any, target: Any, count: Any = None, objects: Sequence[Any] | None = None) -> Judgements:
    """Judgements from associations: which target was answered to a cue, and by how many people.

    Each cue is one question whose choices are all objects but the cue.

    Args:
        cue, target: Names or numbers of the cue and of the answer, a row each.
        count: How many people gave this answer; by default one.
        objects: All names, in the order of their numbers.
    """
    cue, target = _columns(cue=cue, target=target)
    count = np.ones(len(cue)) if count is None else _numbers(_columns(count=count)[0], "counts")
    _check_negative(count, "counts")
    first, second, names = _places(objects, cue, target)
    N = len(names)
    table = np.zeros((N, N))
    np.add.at(table, (first, second), np.nan_to_num(count))
    np.fill_diagonal(table, 0)
    rows = np.nonzero(table.sum(1))[0]
    a = np.repeat(rows, N - 1)
    b = np.concatenate([np.delete(np.arange(N), row) for row in rows]) if len(rows) else np.zeros(0, int)
    return _checked(Judgements("choice", names, a, b, table[a, b], table.sum(1)[a], a, counted=True))


def triplets(a: Any, b: Any, odd: Any, objects: Sequence[Any] | None = None, rater: Any = None) -> Judgements:
    """Judgements from odd-one-out choices among three objects.

    Args:
        a, b: Names or numbers of the two that were kept, which are the most alike.
        odd: The one that was left out.
        objects: All names, in the order of their numbers.
        rater: Who chose, if known, so that raters can be held out.
    """
    a, b, odd = _columns(a=a, b=b, odd=odd)
    a, b, odd, names = _places(objects, a, b, odd)
    for one, other in ((a, b), (a, odd), (b, odd)):
        if (one == other).any():
            where = int(np.flatnonzero(one == other)[0])
            raise ValueError(f"triplet {where} has {names[one[where]]!r} twice; three different objects are expected.")
    first, second = np.stack([a, a, b], 1), np.stack([b, odd, odd], 1)
    chosen = np.tile([1.0, 0.0, 0.0], len(a))
    question = np.repeat(np.arange(len(a)), 3)
    cells = first.ravel(), second.ravel(), chosen, np.ones(3 * len(a)), question
    who = None if rater is None else np.repeat(_who(rater, len(a)), 3)
    return _checked(Judgements("choice", names, *cells, who, symmetric=True, counted=True))


def rankings(
    query: Any, ranked: Sequence[Sequence[Any]], objects: Sequence[Any] | None = None, rater: Any = None
) -> Judgements:
    """Judgements from rankings. Each place is a choice among the candidates that are left.

    Args:
        query: The objects that were compared with, one a ranking.
        ranked: The candidates of each, the most similar first.
        objects: All names, in the order of their numbers.
        rater: Who made each ranking, if known, so that raters can be held out.
    """
    queries = _columns(query=query)[0]
    if len(queries) != len(ranked):
        raise ValueError(f"{len(queries)} queries have {len(ranked)} rankings; one each is expected.")
    a = [q for q, order in zip(queries, ranked, strict=True) for _ in order]
    b = [candidate for order in ranked for candidate in order]
    left, right, names = _places(objects, a, b)
    each = None if rater is None else _who(rater, len(queries))
    cells, at, raters = [], 0, []
    for i, order in enumerate(ranked):
        for k in range(len(order) - 1):
            cells.append((np.arange(at + k, at + len(order)), len(cells)))
            raters += [] if each is None else [np.full(len(order) - k, each[i])]
        at += len(order)
    rows = np.concatenate([where for where, _ in cells]) if cells else np.zeros(0, int)
    question = np.concatenate([np.full(len(where), q) for where, q in cells]) if cells else np.zeros(0, int)
    chosen = np.concatenate([np.arange(len(where)) == 0 for where, _ in cells]).astype(float) if cells else np.zeros(0)
    who = np.concatenate(raters) if raters else None
    said = Judgements("choice", names, left[rows], right[rows], chosen, np.ones(len(rows)), question, who, counted=True)
    return _checked(said)


def _who(rater: Any, count: int) -> Array:
    """A number for each rater."""
    names = _columns(rater=rater)[0]
    if len(names) != count:
        raise ValueError(f"rater has {len(names)} entries for {count} judgements; one each is expected.")
    return np.unique(names, return_inverse=True)[1]


def _on_scale(said: Judgements, scale: Any) -> Judgements:
    if scale is None:
        return said
    ends = _numbers(scale, "scale")
    if ends.shape != (2,) or not np.isfinite(ends).all() or not ends[0] < ends[1]:
        raise ValueError(f"scale={scale!r} is not the lowest and the highest possible rating, such as (1, 7).")
    low, high = map(float, ends)
    if said.value.min() < low or said.value.max() > high:
        worst = said.value.min() if said.value.min() < low else said.value.max()
        raise ValueError(f"a rating of {worst:g} is outside the scale from {low:g} to {high:g}.")
    return replace(said, scale=(low, high))


def _checked(said: Judgements) -> Judgements:
    if len(said.objects) < 3:
        raise ValueError(f"{len(said.objects)} objects are too few to compare; at least 3 are expected.")
    if not len(said):
        raise ValueError("nobody said anything about these objects: every cell is missing or was asked 0 times.")
    bad = ~np.isfinite(said.value) | ~np.isfinite(said.answers)
    if bad.any():
        raise ValueError(f"{int(bad.sum())} of {len(said):,} judgements are infinite; numbers or NaN are expected.")
    if said.answers.max() > MOST_ANSWERS:
        raise ValueError(
            f"{said.answers.max():.3g} answers to one cell are more than people give; give shares and no n=."
        )
    return said


def _square(table: Any, objects: Sequence[str] | None) -> tuple[Array, tuple[str, ...]]:
    """The table as numbers, and the names of its rows."""
    named = getattr(table, "index", None)
    if named is not None and hasattr(table, "columns"):
        if objects is None:
            objects = [str(name) for name in named]
        if [str(name) for name in table.columns] != list(map(str, objects)):
            raise ValueError("the names of rows and columns differ; the same objects in the same order are expected.")
    values = _numbers(np.asarray(table), "a table")
    if values.ndim != 2 or values.shape[0] != values.shape[1]:
        raise ValueError(f"a table of shape {values.shape} is not square; a row and a column an object are expected.")
    names = tuple(map(str, range(len(values)) if objects is None else objects))
    if len(names) != len(values):
        raise ValueError(f"{len(names)} names are given for {len(values)} objects.")
    if len(set(names)) < len(names):
        raise ValueError(f"the name {max(names, key=names.count)!r} is given to several objects.")
    return values, names


def _numbers(values: Any, what: str) -> Array:
    try:
        return np.asarray(values, dtype=np.float64).copy()
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be numbers; {np.asarray(values).dtype} is given.") from None


def _columns(**columns: Any) -> list[Array]:
    arrays = {name: np.asarray(column).reshape(-1) for name, column in columns.items()}
    lengths = {name: len(column) for name, column in arrays.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"columns of one length are expected; {said}.")
    return list(arrays.values())


def _places(objects: Sequence[Any] | None, *columns: Any) -> list[Any]:
    """Columns of names as places in the list of names, and this list."""
    said = [[_plain(item) for item in column] for column in columns]
    if objects is None:
        names: list[Hashable] = sorted(
            {item for column in said for item in column}, key=lambda x: (isinstance(x, str), x)
        )
        if names and all(isinstance(name, int) for name in names) and names[0] >= 0:  # type: ignore[operator]
            names = list(range(int(names[-1]) + 1))  # type: ignore[arg-type]
    else:
        names = [_plain(item) for item in objects]
    at: dict[Any, int] = {name: place for place, name in enumerate(names)}
    if objects is not None and all(isinstance(item, int) for column in said for item in column) and not set(at) & {0}:
        at = {place: place for place in range(len(names))}
    for column in said:
        for item in column:
            if item not in at:
                raise ValueError(f"{item!r} is not among the {len(names)} objects.")
    return [*(np.array([at[item] for item in column], dtype=np.int64) for column in said), tuple(map(str, names))]


def places(names: Sequence[str], pairs: Any) -> tuple[Array, Array]:
    """Places of the first and second objects of pairs, ``[M, 2]``, which are given by place or by name."""
    at = {name: i for i, name in enumerate(names)}
    pairs = np.asarray(pairs, dtype=object)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise ValueError(f"pairs of shape {pairs.shape} are given; [M, 2] is expected, two objects in each row.")

    def place(item: Any) -> int:
        if not isinstance(item, str) and item in range(len(names)):
            return int(item)
        if str(item) not in at:
            near = difflib.get_close_matches(str(item), names, n=1)
            raise ValueError(f"{item!r} is not among the {len(at)} objects{f'; {near[0]!r} is.' if near else '.'}")
        return at[str(item)]

    found = np.array([[place(item) for item in pair] for pair in pairs], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _plain(item: Any) -> Hashable:
    item = item.item() if isinstance(item, np.generic) else item
    return int(item) if isinstance(item, float) and item.is_integer() else item


def _per(n: Any, shape: tuple[int, ...], name: str) -> Array:
    counts = _numbers(np.asarray(n), name)
    if counts.shape not in ((), shape):
        raise ValueError(f"{name} of shape {counts.shape} is neither one number nor of shape {shape}.")
    if not (counts >= 0).all():
        raise ValueError(f"{name} must be 0 or more everywhere; {np.nanmin(counts):g} is given.")
    return np.broadcast_to(counts, shape)


def _check_negative(values: Array, what: str) -> None:
    if (values < 0).any():
        raise ValueError(f"{what} must be 0 or more; {np.nanmin(values):g} is given.")
