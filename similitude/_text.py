"""Text tables for ``print``, text that is safe to print, and the same text in a notebook."""

import difflib
from collections.abc import Iterable, Sequence
from html import escape
from itertools import zip_longest


def columns(rows: Iterable[Sequence[object]], left: int = 1, gap: int = 2) -> str:
    """Lines of text with the cells of each row in aligned columns.

    Args:
        rows: cells of each row, written by ``str``; a short row ends early.
        left: number of leading columns that are aligned to the left; the others are aligned to the right.
        gap: spaces between two columns.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip_longest(*cells, fillvalue="")]
    lines = []
    for row in cells:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append((" " * gap).join(padded).rstrip())
    return "\n".join(lines)


def as_html(shown: object) -> str:
    """What ``print`` shows, for a notebook: a class takes it as its ``_repr_html_``."""
    return f"<pre>{escape(str(shown))}</pre>"


def printable(text: str) -> str:
    """The text with escapes in place of what a terminal would obey or cannot show."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def nearest(wanted: str, known: Iterable[str]) -> list[str]:
    """Up to three names to suggest; among many names, only those of nearly this length that begin or end alike."""
    names = list(known)
    if len(names) > 10_000:
        start, end = wanted[:2], wanted[-2:]
        alike = (name for name in names if name[:2] == start or name[-2:] == end)
        names = [name for name in alike if abs(len(name) - len(wanted)) < 3]
    return difflib.get_close_matches(wanted, names, n=3)
