"""What ``similitude fields`` prints: a field of an expression, and its tables."""

from __future__ import annotations

import re
from typing import Any

from .._text import printable
from .expression import ExpressionError
from .sets import FeatureSet, Universe


def field_of(of: Universe, expression: str, strongest: int | None = None, words: int | None = None) -> FeatureSet:
    """The set that an expression means; the error for an unknown name says if only the first ``words`` were read."""
    try:
        return of(expression, strongest)
    except ExpressionError as error:
        if len(of) == words and error.problem.startswith("no object"):
            problem = f"{error.problem} (the first {words:,} words were read; --words takes more)"
            raise ExpressionError(problem, error.text, error.position) from None
        raise


def tables(
    of: Universe, field: FeatureSet, top: int = 20, named: bool = True, strongest: int | None = None
) -> list[Any]:
    """What ``similitude fields`` prints: sizes of the named sets and of the field, and the highest scores in it."""
    from rich.markup import escape
    from rich.table import Table

    shown = lambda text: escape(printable(text))  # noqa: E731
    sizes = Table("set", title=f"{len(of):,} names, {len(of.features):,} features")
    sizes.add_column("features", justify="right")
    for number in field.named:
        size = len(of[number] if strongest is None else of[number].top(strongest))
        sizes.add_row(shown(of.names[number]), f"{size:,}")
    if field.label not in (of.names[number] for number in field.named):
        sizes.add_section()
        sizes.add_row(shown(field.label), f"{len(field):,}")
    if not field:
        return [sizes, f"no feature is left: every name scores 0 in an empty field; {_more(field, strongest)}."]
    ranking = Table("", "name", title="highest in this field")
    ranking.add_column("score", justify="right")
    for place, (name, score) in enumerate(field.rank(top, named), 1):
        ranking.add_row(str(place), shown(name), f"{score:.2f}")
    return [sizes, ranking, *([shown(of.note)] if of.note else [])]


def _more(field: FeatureSet, strongest: int | None) -> str:
    """What would leave a feature in an empty field."""
    marks = set(re.sub(r'"(?:\\.|[^"\\])*"', "", field.label))
    if "-" in marks:
        return "take fewer names away"
    if strongest is not None:
        return "count more than the strongest"
    return "join fewer names by &" if "&" in marks else "ask for another name"
