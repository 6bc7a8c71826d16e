"""Set expressions as text, ``bad & good - worse``: read by the grammar below, never evaluated as Python.

    expression = sum, {("|" | "∪"), sum}
    sum        = product, {("^" | "△"), product}
    product    = rest, {("&" | "∩"), rest}
    rest       = operand, {("-" | "−" | "∖"), operand}
    operand    = {"~" | "∁"}, (name | quoted | "(", expression, ")")

So ``~`` binds tightest, then ``-``, ``&``, ``^``, ``|``, as in Python, and equal operators group from left to right. A
chain of ``&`` and ``-`` alone may be read from left to right: ``a & b - c`` is the same set either way.

A name is a run of characters other than operators, parentheses, quotes and spaces. Other names stand in quotes of
either kind, with ``\\`` before a quote or a ``\\`` within the name: ``"ice-cream"``, ``'new york'``, ``"don't"``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

__all__ = ["ExpressionError"]

# From the loosest to the tightest.
LEVELS = (("|∪", operator.or_), ("^△", operator.xor), ("&∩", operator.and_), ("-−∖", operator.sub))
COMPLEMENT = "~∁"
OPERATORS = "".join(signs for signs, _ in LEVELS)
QUOTES = "\"'"
MARKS = OPERATORS + COMPLEMENT + "()"

LONGEST, DEEPEST = 10_000, 100
# Columns of the text that an error shows.
SHOWN = 72


class ExpressionError(ValueError):
    """An expression that cannot be read: the problem, and its ``position`` in ``text``, counted from 0."""

    problem: str
    text: str
    position: int

    def __init__(self, problem: str, text: str, position: int):
        start = max(0, min(position - SHOWN // 2, len(text) - SHOWN))
        # Characters without a column, or with more than one line, would move the arrow.
        shown = "".join(c if c.isprintable() else " " for c in text[start : start + SHOWN])
        super().__init__(f"character {position + 1}: {problem}.\n  {shown}\n  {' ' * (position - start)}^")
        self.problem, self.text, self.position = problem, text, position


class Token(NamedTuple):
    """A mark, or a name without its quotes; ``kind`` is the mark itself, ``name``, ``quoted`` or ``end``."""

    kind: str
    name: str
    position: int


def evaluate(text: str, lookup: Callable[[str, bool], Any]) -> Any:
    """The value of an expression, combined from the values of its names by their ``&``, ``|``, ``-``, ``^`` and ``~``.

    Args:
        text: the expression.
        lookup: called as ``lookup(name, quoted)``, returns the value of a name. If it raises a LookupError, an
            ExpressionError points at the name.
    """
    if not isinstance(text, str):
        raise TypeError(f"an expression must be text, such as 'bad & good - worse'; got {type(text).__name__}.")
    if len(text) > LONGEST:
        raise ExpressionError(
            f"an expression has at most {LONGEST:,} characters; this has {len(text):,}", text, LONGEST
        )
    return _Reader(text, lookup).read()


def tokens(text: str) -> list[Token]:
    """Marks and names of the text in their order, then an ``end``."""
    found, i = [], 0
    while i < len(text):
        c, start = text[i], i
        if c.isspace():
            i += 1
        elif c in MARKS:
            found.append(Token(c, c, start))
            i += 1
        elif c in QUOTES:
            name, i = _quoted(text, start)
            found.append(Token("quoted", name, start))
        else:
            while i < len(text) and not text[i].isspace() and text[i] not in MARKS + QUOTES:
                i += 1
            found.append(Token("name", text[start:i], start))
    return [*found, Token("end", "", len(text))]


def quote(name: str) -> str:
    """The name as an expression writes it, in quotes if it needs them."""
    if name and not any(c.isspace() or c in MARKS + QUOTES for c in name):
        return name
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _quoted(text: str, start: int) -> tuple[str, int]:
    """The name in the quotes that open at ``start``, and the position after them."""
    characters, i = [], start + 1
    while i < len(text) and text[i] != text[start]:
        if text[i] == "\\" and text[i + 1 : i + 2] in ("\\", *QUOTES):
            i += 1
        characters.append(text[i])
        i += 1
    if i >= len(text):
        raise ExpressionError(f"the quote {text[start]} is not closed", text, start)
    if not characters:
        raise ExpressionError("there is no name in the quotes", text, start)
    return "".join(characters), i + 1


class _Reader:
    """Recursive descent over the tokens. Values are combined as they are read, so a long chain does not nest."""

    def __init__(self, text: str, lookup: Callable[[str, bool], Any]):
        self.text, self.lookup = text, lookup
        self.tokens, self.at, self.depth = tokens(text), 0, 0

    def read(self) -> Any:
        value = self.expression()
        if self.next.kind == ")":
            self.fail("this parenthesis closes nothing")
        if self.next.kind != "end":
            self.fail(f"expected an operator ({' '.join(signs[0] for signs, _ in LEVELS)}) before {self.next.name!r}")
        return value

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def expression(self, level: int = 0) -> Any:
        if level == len(LEVELS):
            return self.operand()
        signs, combine = LEVELS[level]
        value = self.expression(level + 1)
        while self.next.kind in signs:
            self.at += 1
            value = combine(value, self.expression(level + 1))
        return value

    def operand(self) -> Any:
        flips = 0
        while self.next.kind in COMPLEMENT:
            self.at, flips = self.at + 1, flips + 1
        token = self.next
        if token.kind == "(":
            value = self.parenthesis()
        elif token.kind in ("name", "quoted"):
            self.at += 1
            value = self.value(token)
        else:
            found = "the expression ends" if token.kind == "end" else f"there is {token.name!r}"
            self.fail(f"expected a name or a parenthesis, and {found}")
        return ~value if flips % 2 else value

    def parenthesis(self) -> Any:
        opened = self.next
        if self.depth == DEEPEST:
            self.fail(f"parentheses may stand at most {DEEPEST} deep")
        self.at, self.depth = self.at + 1, self.depth + 1
        value = self.expression()
        if self.next.kind == "end":
            self.fail("the parenthesis is not closed", opened)
        if self.next.kind != ")":
            self.fail(f"expected an operator or ')' before {self.next.name!r}")
        self.at, self.depth = self.at + 1, self.depth - 1
        return value

    def value(self, token: Token) -> Any:
        try:
            return self.lookup(token.name, token.kind == "quoted")
        except LookupError as error:
            problem = str(error.args[0] if error.args else error).rstrip(".")
            raise ExpressionError(problem, self.text, token.position) from None

    def fail(self, problem: str, token: Token | None = None) -> NoReturn:
        raise ExpressionError(problem, self.text, (token or self.next).position)
