"""The page's arithmetic is Python's: on random layers of every form, and on random expressions."""

import itertools
import random

import pytest
import torch

from similitude import FeatureBank, TverskyProjection
from similitude.explain import decision, explain, pair
from similitude.explore.page import read
from similitude.form import DIFFERENCES, INTERSECTIONS, LEVELS, MODELS
from similitude.interpret.expression import ExpressionError, evaluate
from similitude.interpret.graph import field_graph
from similitude.interpret.sets import Universe
from similitude.shares import measures

FORMS = [
    dict(zip(("intersection", "difference", "level", "model"), options))
    for options in itertools.product(INTERSECTIONS, DIFFERENCES, LEVELS, MODELS)
]
SUMS = [form for form in FORMS if (form["level"], form["model"]) == ("feature", "contrast")]
N, P, K, D = 6, 4, 13, 5
ids = lambda form: "-".join(form.values())  # noqa: E731


@pytest.fixture(scope="module")
def module(browser):
    """A function that runs JavaScript with a module of the page, which imports no other."""
    page = browser.new_page()

    def run(name, code, argument):
        source = """async ([text, code, argument]) => {
          const m = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
          return new Function("m", "argument", code)(m, argument);
        }"""
        return page.evaluate(source, [read(name), code, argument])

    yield run
    page.close()


def layer_of(form, seed, **more):
    torch.manual_seed(seed)
    layer = TverskyProjection(D, P, K, **form, init="unit", bias=True, dtype=torch.float64, **more)
    with torch.no_grad():
        layer.alpha, layer.beta, layer.theta = 0.7, 0.3, 1.3
        layer.bias.normal_()
        layer.features.weight[3].zero_()  # had by nothing: a measure of 0 is not above 0
        if layer.features.threshold is not None:
            layer.features.threshold.normal_(std=0.3)
        layer.prototypes[0].zero_()
    # An object with no feature at all: ratios of nothing, sums of nothing.
    return layer.eval(), torch.cat([torch.randn(N - 1, D, dtype=torch.float64), torch.zeros(1, D, dtype=torch.float64)])


def described(layer):
    constants = {name: getattr(layer, name).item() for name in ("alpha", "beta", "theta")}
    options = {name: getattr(layer, name) for name in ("intersection", "difference", "level", "model")}
    return {**constants, **options, "scale": 1.0 if layer.scale is None else layer.scale.item()}


def given(layer, x):
    rows = measures(layer, layer.prototypes, of_prototypes=True)
    return {
        "layer": described(layer),
        "a": measures(layer, x).tolist(),
        "rows": rows.tolist(),
        "bias": layer.bias.tolist(),
    }


@pytest.mark.parametrize("form", FORMS, ids=ids)
@pytest.mark.parametrize("more", [{}, {"presence": 0.4}, {"normalize": True}], ids=["plain", "thresholds", "normalize"])
def test_answers_are_those_of_the_layer(module, form, more):
    scaled = {"scale": 3.0} if form["model"] == "ratio" else {}
    layer, x = layer_of(form, 1, **more, **scaled)
    found = module(
        "arithmetic.js",
        "return argument.a.map((a) => m.outputsOf(a, argument.rows, argument.bias, argument.layer));",
        given(layer, x),
    )
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), layer(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_a_feature_that_is_off_is_a_feature_that_the_layer_has_not(module, form):
    layer, x = layer_of(form, 2, presence=0.4)
    off = [0, 5, 6]
    kept = [k for k in range(K) if k not in off]
    code = """
    const { a, rows, bias, layer, off } = argument;
    return a.map((x) => m.outputsOf(x, rows, bias, layer, new Set(off)));"""
    found = module("arithmetic.js", code, {**given(layer, x), "off": off})
    fewer = TverskyProjection(D, P, len(kept), **form, bias=True, presence=0.4, dtype=torch.float64)
    with torch.no_grad():
        fewer.alpha, fewer.beta, fewer.theta = (getattr(layer, name).item() for name in ("alpha", "beta", "theta"))
        fewer.prototypes.copy_(layer.prototypes)
        fewer.bias.copy_(layer.bias)
        fewer.features.weight.copy_(layer.features.weight[kept])
        fewer.features.threshold.copy_(layer.features.threshold[kept])
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), fewer.eval()(x).detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", SUMS, ids=ids)
def test_explanations_and_decisions_are_those_of_python(module, form):
    layer, x = layer_of(form, 3, presence=0.4)
    code = """
    const {layer, a, rows, bias} = argument;
    return a.map((x) => {
      const mine = m.explained(x, rows[1], bias[1], layer), theirs = m.explained(x, rows[2], bias[2], layer);
      const d = m.differenceOf(mine, theirs), list = (v) => Array.from(v);
      const parts = {common: list(mine.common), aOnly: list(mine.aOnly), bOnly: list(mine.bOnly)};
      return {...parts, similarity: mine.similarity, shares: list(d.shares), difference: d.difference};
    });"""
    for x_n, found in zip(x, module("arithmetic.js", code, given(layer, x)), strict=True):
        e, d = explain(layer, x_n, 1), decision(layer, x_n, 1, 2)
        pairs = [
            (found["common"], e.common),
            (found["aOnly"], e.input_only),
            (found["bOnly"], e.prototype_only),
            (found["shares"], d.shares),
        ]
        for ours, theirs in pairs:
            torch.testing.assert_close(torch.tensor(ours, dtype=torch.float64), theirs, atol=1e-5, rtol=1e-5)
        assert found["similarity"] == pytest.approx(e.similarity, abs=1e-5)
        assert found["difference"] == pytest.approx(d.difference, abs=1e-5)
        total = sum(found["common"]) + sum(found["aOnly"]) + sum(found["bOnly"]) + layer.bias[1].item()
        assert total == pytest.approx(e.similarity, abs=1e-5)


@pytest.mark.parametrize("form", SUMS, ids=ids)
def test_two_objects_are_as_similar_as_in_python_both_ways_round(module, form):
    layer, x = layer_of(form, 4)
    code = """
    const { a, layer } = argument;
    return [m.similarity(a[0], a[1], layer), m.similarity(a[1], a[0], layer)];"""
    there, back = module("arithmetic.js", code, given(layer, x))
    expected = pair(layer, x[0], x[1])
    assert (there, back) == pytest.approx((expected.similarity, expected.reverse), abs=1e-5)


def test_scores_and_likeness_are_those_of_python(module):
    torch.manual_seed(5)
    bank = FeatureBank(K, D, presence=0.4, dtype=torch.float64)
    u = Universe(bank, None, torch.randn(N, D, dtype=torch.float64))
    rows = torch.stack([u.measures(i) for i in range(N)])
    field = u["0"] & u["1"] | u["2"]
    code = """
    const { rows, members } = argument;
    return [rows.map((a) => m.score(a, members)), rows.map((a) => m.likeness(a, rows[0]))];"""
    scores, likeness = module("arithmetic.js", code, {"rows": rows.tolist(), "members": list(field)})
    assert scores == pytest.approx(field.scores().tolist(), abs=1e-5)
    assert {str(i): value for i, value in enumerate(likeness)} == pytest.approx(dict(u["0"].nearest(N)), abs=1e-5)


NAMES = ["a", "b", "ice-cream", "don't", "new york", "é", "🍋"]
PIECES = [
    *NAMES,
    '"ice-cream"',
    "'new york'",
    '"don\'t"',
    '"',
    "'",
    "(",
    ")",
    "&",
    "∩",
    "|",
    "-",
    "−",
    "^",
    "~",
    "∁",
    " ",
    "zz",
    "\\",
    "\x1f",
    '"\\""',
]


def random_expressions(count, seed):
    draw = random.Random(seed)
    texts = [
        "".join(draw.choice(PIECES) + draw.choice(["", " "]) for _ in range(draw.randint(1, 9))) for _ in range(count)
    ]
    return [
        *texts,
        "",
        "a" * 10_001,
        "(" * 101 + "a" + ")" * 101,
        "a & b - (é | ~a)",
        "a b",
        "a)",
        "(a",
        "~~~a - b ^ é",
        "''",
    ]


def test_expressions_and_their_errors_are_those_of_python(module):
    """The same sets, and for the others the same sentence at the same character."""
    members = {name: [int((i + k) % 3 == 0) for k in range(8)] for i, name in enumerate(NAMES)}

    class Bits(list):
        def with_(self, other, combine):
            return Bits(combine(x, y) for x, y in zip(self, other, strict=True))

        __or__ = lambda self, other: self.with_(other, lambda x, y: x | y)  # noqa: E731
        __xor__ = lambda self, other: self.with_(other, lambda x, y: x ^ y)  # noqa: E731
        __and__ = lambda self, other: self.with_(other, lambda x, y: x & y)  # noqa: E731
        __sub__ = lambda self, other: self.with_(other, lambda x, y: x & (1 - y))  # noqa: E731
        __invert__ = lambda self: Bits(1 - x for x in self)  # noqa: E731

    def lookup(name, quoted):
        if name not in members:
            raise KeyError(f"no object is named {name}")
        return Bits(members[name])

    def expected(text):
        try:
            return list(evaluate(text, lookup))
        except ExpressionError as error:
            return [error.problem, error.position]

    texts = random_expressions(3000, 6)
    code = """
    const [texts, members] = argument;
    const lookup = (name) => {
      if (!(name in members)) throw `no object is named ${name}`;
      return members[name];
    };
    return texts.map((text) => {
      try {
        return Array.from(m.evaluate(text, lookup));
      } catch (error) {
        if (!(error instanceof m.ExpressionError)) throw error;
        return [error.problem, error.position];
      }
    });"""
    wrong = [
        (text, ours, theirs)
        for text, ours in zip(texts, module("expression.js", code, [texts, members]), strict=True)
        if ours != (theirs := expected(text))
    ]
    assert wrong[:3] == []
    assert sum(isinstance(expected(text)[0], int) for text in texts) > 100


@pytest.mark.parametrize("top", [3, 20])
def test_fields_are_those_of_the_graph_of_fields(module, top):
    torch.manual_seed(0)
    rows = torch.randn(5, 40)
    rows[2] = rows[1]  # fields of equal size in pairs, and measures that are equal
    rows[3].round_()
    graph = field_graph("abcde", rows, top)
    code = "return m.fieldsOf(argument[0].map((row) => Float32Array.from(row)), argument[1])"
    found = module("arithmetic.js", code, [rows.tolist(), top])
    ours = [(tuple(n for n, one in zip("abcde", f["has"], strict=True) if one), tuple(f["features"])) for f in found]
    assert ours == [(f.members, f.features) for f in graph.fields]
    assert len(ours) > 5
