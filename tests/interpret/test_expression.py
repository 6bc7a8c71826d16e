"""The grammar of set expressions: what binds, what is a name, and where an error points."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from similitude.interpret.expression import DEEPEST, LONGEST, ExpressionError, evaluate, quote, tokens

SETS = {"a": {1, 2, 3, 4}, "b": {3, 4, 5, 6}, "c": {1, 3, 5, 7}, "d": {2, 3, 6, 7}}


class Value:
    """A set with a complement, as FeatureSet has it."""

    def __init__(self, elements):
        self.elements = frozenset(elements)

    def __and__(self, other):
        return Value(self.elements & other.elements)

    def __or__(self, other):
        return Value(self.elements | other.elements)

    def __xor__(self, other):
        return Value(self.elements ^ other.elements)

    def __sub__(self, other):
        return Value(self.elements - other.elements)

    def __invert__(self):
        return Value(frozenset(range(9)) - self.elements)


def lookup(name, quoted=False):
    if name not in SETS:
        raise KeyError(f"no object is named {name!r}")
    return Value(SETS[name])


def value(text):
    return evaluate(text, lookup).elements


operands = st.sampled_from("abcd")
expressions = st.recursive(
    operands,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("&|-^"), inner).map(" ".join),
        inner.map("({})".format),
        inner.map("~({})".format),
    ),
    max_leaves=12,
)


@given(expressions)
def test_text_means_what_the_same_python_means(text):
    names = {name: Value(elements) for name, elements in SETS.items()}
    assert value(text) == eval(text, {"__builtins__": {}}, names).elements


@given(st.lists(st.tuples(st.sampled_from("&-"), operands), max_size=8))
def test_a_chain_of_and_and_minus_reads_from_left_to_right(chain):
    expected = SETS["a"]
    for sign, name in chain:
        expected = expected & SETS[name] if sign == "&" else expected - SETS[name]
    assert value("a" + "".join(f" {sign} {name}" for sign, name in chain)) == expected


def test_the_papers_signs_are_taken():
    assert value("a∩b−c") == value("a & b - c") == {4}
    assert value("a ∪ b △ c ∖ ∁d") == value("a | b ^ c - ~d")


def test_names_are_runs_of_anything_else_or_stand_in_quotes():
    kinds = [(t.kind, t.name) for t in tokens("""u.s.&Ġgood "ice-cream" 'don"t' "don't" "a\\"b\\\\" x\\y""")]
    assert kinds == [
        ("name", "u.s."),
        ("&", "&"),
        ("name", "Ġgood"),
        ("quoted", "ice-cream"),
        ("quoted", 'don"t'),
        ("quoted", "don't"),
        ("quoted", 'a"b\\'),
        ("name", "x\\y"),
        ("end", ""),
    ]


@given(st.text(min_size=1))
def test_a_quoted_name_comes_back(name):
    assert [t.name for t in tokens(quote(name))] == [name, ""]


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "the expression ends"),
        ("a &", 3, "the expression ends"),
        ("a & & b", 4, "there is '&'"),
        ("a b", 2, "expected an operator (| ^ & -) before 'b'"),
        ("a & nobody - b", 4, "no object is named 'nobody'"),
        ("(a & (b - c)", 0, "the parenthesis is not closed"),
        ("(a b)", 3, "expected an operator or ')' before 'b'"),
        ("a)", 1, "closes nothing"),
        ("()", 1, "there is ')'"),
        ("a - 'b", 4, "the quote ' is not closed"),
        ('a - ""', 4, "no name in the quotes"),
        ("~", 1, "the expression ends"),
        ("(" * (DEEPEST + 1) + "a" + ")" * (DEEPEST + 1), DEEPEST, f"at most {DEEPEST} deep"),
        ("a" * (LONGEST + 1), LONGEST, f"at most {LONGEST:,} characters"),
    ],
)
def test_an_error_points_at_the_character(text, position, says):
    with pytest.raises(ExpressionError) as caught:
        value(text)
    assert caught.value.position == position
    assert caught.value.text == text
    problem, shown, arrow = str(caught.value).split("\n")
    assert says in problem
    assert problem.startswith(f"character {position + 1}: ")
    # Under the arrow stands the character itself.
    assert shown[2:][arrow.index("^") - 2 :][:1] == text[position : position + 1]
    assert len(shown) <= 80


def test_what_is_allowed_reaches_the_limits():
    assert value("(" * DEEPEST + "a" + ")" * DEEPEST) == SETS["a"]
    assert value("(a) | " * (DEEPEST + 1) + "a") == value("~~a") == SETS["a"]
    assert value("~" * (LONGEST - 1) + "a") == frozenset(range(9)) - SETS["a"]
    assert value(("a - b & c | " * (LONGEST // 12))[:-3]) == value("a - b & c")


def test_only_text_is_an_expression():
    with pytest.raises(TypeError, match=r"must be text.*got int"):
        evaluate(3, lookup)  # pyright: ignore[reportArgumentType]


def test_random_strings_give_a_value_or_our_error_with_a_position():
    draw = random.Random(0)
    pieces = [*"abcd", *"&|-^~()∩∪−∁", *"\"'\\ \t\n\0", "nobody", "Ġ", "😀", "__import__('os')", "1", "and", "\ud800"]
    values = 0
    for _ in range(10_000):
        # Any characters at all, the right characters in any order, or an expression, mostly.
        kind, length = draw.randrange(3), draw.randrange(25)
        if kind == 0:
            text = "".join(chr(draw.randrange(0x110000)) for _ in range(length))
        elif kind == 1:
            text = "".join(draw.choice(pieces) for _ in range(length))
        else:
            text = "a" + "".join(draw.choice("&|-^∩") + draw.choice([*"abcd", "~b", "(c)"]) for _ in range(length))
            text = text if draw.random() < 0.5 else text.replace(draw.choice(text), draw.choice(pieces), 1)
        position, lines = 0, 3
        try:
            values += isinstance(value(text), frozenset)
        except ExpressionError as error:
            position, lines = error.position, len(str(error).split("\n"))
        assert 0 <= position <= len(text)
        assert lines == 3
    assert values > 1000
