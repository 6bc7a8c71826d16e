"""Graphs of semantic fields: fields are the distinct intersections, places are quick and the same, files are whole."""

import itertools
import json
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from similitude.interpret import layout
from similitude.interpret.figures.base import printable
from similitude.interpret.graph import Field, field_graph, top_tokens
from similitude.interpret.layout import force_layout
from similitude.interpret.sets import Universe

# What is markup in one of the formats, mathematics in another, or cannot be written at all.
NAMES = ["</script><script>alert(1)</script>", "\"quoted\" & 'too'", "Ġgood 😀", "$x_1$ --> {n}", "nul\x00\x1f\ud800"]


def measures(T: int, K: int, D: int = 16, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(T, D, generator=generator) @ torch.randn(K, D, generator=generator).T


@pytest.fixture(scope="module")
def nasty():
    notes = {tuple(NAMES[:2]): NAMES * 8, NAMES[2]: ["great", "fine"], NAMES[4]: ["W" * 200, *NAMES]}
    has = torch.rand(5, 200, generator=torch.Generator().manual_seed(0)) > 0.5
    return field_graph(NAMES, has, notes=notes, iterations=30)


def test_a_field_is_what_its_tokens_share_and_no_other_has():
    m = measures(4, 60)
    graph = field_graph("abcd", m)
    found = {frozenset(f.members): set(f.features) for f in graph.fields}
    for r in range(1, 5):
        for inside in itertools.combinations(range(4), r):
            expected = {k for k in range(60) if {t for t in range(4) if m[t, k] > 0} == set(inside)}
            assert found.get(frozenset("abcd"[t] for t in inside), set()) == expected
    assert all(set(f.members) | set(f.others) == set("abcd") for f in graph.fields)
    sizes = [len(f.features) for f in graph.fields]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == len(graph.features) == (m > 0).any(0).sum()


def test_edges_join_features_to_their_tokens_and_their_field():
    m = measures(3, 40)
    graph = field_graph("abc", m)
    T, F = 3, len(graph.features)
    edges = {tuple(edge) for edge in graph.edges.tolist()}
    assert len(edges) == len(graph.edges) == int((m > 0).sum()) + F
    for i, k in enumerate(graph.features):
        assert {t for t in range(T) if (t, T + i) in edges} == set(torch.nonzero(m[:, k] > 0)[:, 0].tolist())
        assert (T + F + graph.field_of[i], T + i) in edges
        assert k in graph.fields[graph.field_of[i]].features


def test_a_token_has_its_strongest_features_only():
    m = measures(3, 100)
    graph = field_graph("abc", m, top=7)
    for t, name in enumerate("abc"):
        own = {k for f in graph.fields if name in f.members for k in f.features}
        assert own == set(m[t].topk(7).indices.tolist())
    # Fewer than that are positive.
    few = torch.tensor([[1.0, -1.0, 0.0, 2.0]])
    assert field_graph("a", few, top=3).features.tolist() == [0, 3]


def test_memberships_are_taken_as_they_are():
    m = measures(4, 50)
    a, b = field_graph("abcd", m), field_graph("abcd", (m > 0).numpy(), top=1)
    assert a.fields == b.fields
    assert np.array_equal(a.positions, b.positions)


def test_colours_are_one_a_field_and_fields_of_interest_get_the_best():
    graph = field_graph("abcdefg", measures(7, 300), notes={("a", "e"): ["x"], ("d", "f", "g"): ["x"]}, iterations=5)
    own = graph.colours()[-len(graph.fields) :]
    assert len(set(own)) == len(graph.fields) > 60
    noted = [f for f, field in enumerate(graph.fields) if field.top]
    assert noted != [0, 1]
    assert [own[f] for f in noted] == ["#0072b2", "#d55e00"]
    for i, f in enumerate(graph.field_of):
        assert graph.colours()[7 + i] == own[f]


def test_notes_may_be_a_function():
    graph = field_graph("ab", measures(2, 30), notes=lambda f: ["x", "y"] if len(f.members) == 2 else None)
    assert {f.members: f.top for f in graph.fields} == {("a", "b"): ("x", "y"), ("a",): (), ("b",): ()}


def test_top_tokens_are_those_of_the_highest_semantic_score():
    generator = torch.Generator().manual_seed(0)
    vectors, features = torch.randn(50, 8, generator=generator), torch.randn(40, 8, generator=generator)
    names = [f"t{i}" for i in range(50)]
    notes = top_tokens(names, vectors, features, top=5, of=[("t0", "t1"), "t2"])
    graph = field_graph(names[:3], vectors[:3] @ features.T, notes=notes)
    noted = [field for field in graph.fields if field.top]
    assert {field.members for field in noted} == {("t0", "t1"), ("t2",)}
    for field in noted:
        scores = [sum(float(features[k] @ x) for k in field.features) for x in vectors]
        assert list(field.top) == [names[i] for i in np.argsort(scores)[::-1][:5]]


def test_a_universe_gives_the_graph_of_its_measures():
    generator = torch.Generator().manual_seed(0)
    vectors, features = torch.randn(50, 8, generator=generator), torch.randn(40, 8, generator=generator)
    names = ["Ġgood", *(f"t{i}" for i in range(49))]
    u, of = Universe(features, names, vectors), [("good", "t0"), "t4"]
    ours = field_graph(["good", "t0", "t4"], u, top=9, notes=top_tokens(u, top=5, of=of))
    notes = top_tokens(names, vectors, features, top=5, of=of)
    by_hand = field_graph(["good", "t0", "t4"], vectors[[0, 1, 5]] @ features.T, top=9, notes=notes)
    assert ours.fields == by_hand.fields
    assert np.array_equal(ours.positions, by_hand.positions)
    assert {field.members: len(field.top) for field in ours.fields if field.top} == {("good", "t0"): 5, ("t4",): 5}
    with pytest.raises(KeyError, match="no object is named 'bad'"):
        field_graph(["bad"], u)
    with pytest.raises(TypeError, match="takes a Universe, or names with their vectors"):
        top_tokens(names)


def test_more_notes_than_there_is_room_for_leave_the_page_in_order():
    pytest.importorskip("matplotlib")
    from overlaps import overlapping

    has = torch.rand(6, 400, generator=torch.Generator().manual_seed(0)) > 0.5
    graph = field_graph("abcdef", has, notes=lambda _: ["word"] * 50, iterations=5)
    assert len(graph.fields) == 63
    assert overlapping(graph.figure()) == []


def test_an_expression_is_that_of_the_paper():
    assert Field(("bad", "good"), ("worse", "better"), (1,)).expression == "bad ∩ good − worse − better"


def test_places_are_the_same_each_time_and_within_the_circle():
    a, b = (field_graph("abcd", measures(4, 200)).positions for _ in range(2))
    assert np.array_equal(a, b)
    assert np.hypot(*a.T).max() == pytest.approx(1)
    assert len(np.unique(a.round(6), axis=0)) == len(a)


def test_a_field_keeps_its_features_around_it():
    graph = field_graph("abc", measures(3, 400))
    T, F = 3, len(graph.features)
    features, fields = graph.positions[T : T + F], graph.positions[T + F :]
    nearest = np.hypot(*(features[:, None] - fields).transpose(2, 0, 1)).argmin(1)
    assert (nearest == graph.field_of).mean() > 0.9


def test_the_push_on_the_mesh_is_that_of_all_pairs():
    generator = np.random.default_rng(0)
    # On the mesh nodes within a cell or two push each other less; these are ten apart or more.
    at = np.stack(np.meshgrid(np.arange(16.0), np.arange(16.0)), axis=-1).reshape(-1, 2)
    at += generator.uniform(-0.2, 0.2, at.shape)
    mass, cells = generator.uniform(1, 5, len(at)), 256
    apart = at[:, None] - at
    exact = (mass[:, None] * apart / ((apart**2).sum(-1) + np.eye(len(at)))[..., None]).sum(1)
    error = layout._push(at, mass, cells, layout._kernel(cells)) - exact
    assert np.abs(error).max() < 0.01 * np.abs(exact).max()


def test_what_no_edge_holds_stays_in_the_picture():
    has = np.zeros((3, 40), dtype=bool)
    has[0, :20] = has[1, 20:] = True
    positions = field_graph("abc", has).positions
    assert np.hypot(*positions[2]) < 1.01
    assert np.hypot(*(positions[0] - positions[1])) > 0.2


def test_five_thousand_nodes_take_less_than_ten_seconds():
    generator = np.random.default_rng(0)
    edges, start = generator.integers(0, 5000, (20_000, 2)), generator.normal(size=(5000, 2))
    # The time of this process on its core, whatever others do meanwhile.
    before = time.process_time()
    positions = force_layout(edges, start)
    assert time.process_time() - before < 10
    assert np.isfinite(positions).all()


class Reader(HTMLParser):
    """Tags of a page, and the text of its scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data


def test_the_page_holds_every_name_and_asks_for_nothing(nasty):
    page = nasty.html(title=NAMES[0])
    reader = Reader()
    reader.feed(page)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not [a for _, attrs in reader.tags for a in attrs if a in ("src", "href") or a.startswith("on")]
    assert not re.search(r"https?:|//[a-z]|url\(|import\s*\(|fetch\(|XMLHttp|innerHTML", page.replace("alert(1)", ""))
    assert any("default-src 'none'" in attrs.get("content", "") for _, attrs in reader.tags)
    content = json.loads(reader.scripts[0])
    assert content["names"] == nasty.labels()
    assert content["names"][:5] == [*NAMES[:4], "nul␀␟�"]
    assert content["edges"] == nasty.edges.tolist()
    assert len(content["kinds"]) == len(content["x"]) == len(nasty)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_the_script_of_the_page_runs(nasty, tmp_path):
    reader = Reader()
    reader.feed(nasty.html())
    stub = """
const made = () => ({style: {}, append() {}, set textContent(t) {}, clientWidth: 800, clientHeight: 600,
  setAttribute(name, value) { this[name] = value; }, dataset: {},
  getContext: () => new Proxy({}, {get: () => () => {}, set: () => true}), setPointerCapture() {},
  getBoundingClientRect: () => ({left: 0, top: 0})});
const board = made(), buttons = [];
globalThis.window = globalThis;
globalThis.matchMedia = () => ({addEventListener() {}});
globalThis.getComputedStyle = () => ({getPropertyValue: () => "#000"});
globalThis.document = {getElementById: id => id === "graph" ? {textContent: DATA} : id === "canvas" ? board : made(),
  documentElement: made(), createElement: kind => { const m = made(); if (kind === "button") buttons.push(m);
  return m; }};
"""
    try_it = """
const {g, shown} = modules["main.js"], canvas = board;
const px = i => shown.place(i)[0], py = i => shown.place(i)[1];
buttons[0].onclick();
if (shown.chosen() !== 0 || shown.lit().size < 3) throw Error("token");
if ([...shown.lit()].some(i => g.kinds[i] === "token" && i !== 0)) throw Error("token");
if (buttons[0]["aria-pressed"] !== "true" || buttons[1]["aria-pressed"] !== "false") throw Error("pressed");
window.onkeydown({key: "Escape"});
if (shown.chosen() !== -1) throw Error("escape");
const at = {clientX: px(1), clientY: py(1), pointerId: 1};
canvas.onpointerdown(at); canvas.onpointerup(at);
if (shown.chosen() !== 1) throw Error("click");
const before = [px(2), py(2)];
canvas.onwheel({preventDefault() {}, clientX: px(2), clientY: py(2), deltaY: -300});
if (Math.abs(px(2) - before[0]) > 1e-6 || Math.abs(py(2) - before[1]) > 1e-6) throw Error("zoom");
canvas.onpointerdown(at); canvas.onpointermove({clientX: at.clientX + 30, clientY: at.clientY});
if (Math.abs(px(2) - before[0] - 30) > 1e-6) throw Error("drag");
console.log(buttons.length);
"""
    code = f"const DATA = {json.dumps(reader.scripts[0])};\n{stub}\n{reader.scripts[1]}\n{try_it}"
    (tmp_path / "page.js").write_text(code)
    done = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(nasty.tokens) + len(nasty.fields)


def test_graphml_is_read_back(nasty, tmp_path):
    networkx = pytest.importorskip("networkx")
    nasty.save(tmp_path / "graph.graphml")
    read = networkx.read_graphml(tmp_path / "graph.graphml")
    assert read.number_of_nodes() == len(nasty)
    assert read.number_of_edges() == len(nasty.edges)
    assert [read.nodes[f"n{i}"]["name"] for i in range(len(nasty))] == nasty.labels()
    assert read.nodes["n0"]["kind"] == "token"
    assert read.nodes["n3"]["x"] == pytest.approx(nasty.positions[3, 0])


def test_pictures_are_whole_and_no_text_overlaps(nasty, tmp_path):
    pytest.importorskip("matplotlib")
    image = pytest.importorskip("PIL.Image")
    from overlaps import overlapping, texts_of

    figure = nasty.figure(title="fields of $x$")
    assert overlapping(figure) == []
    # The emoji may be missing in the font, and is a box then; its place is kept all the same.
    seen = {text.get_text() for text in texts_of(figure)}
    assert {printable(name) for name in NAMES} <= seen
    assert any("great, fine" in text for text in seen)
    for name in ("a.png", "a.svg"):
        nasty.save(tmp_path / name)
    with image.open(tmp_path / "a.png") as picture:
        picture.load()
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert not [e for e in root.iter() if e.tag.endswith("script")]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_names_of_tokens_in_one_place_are_moved_apart():
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    from overlaps import overlapping

    graph = field_graph(["first", "second", "third"], measures(3, 30), iterations=5)
    positions = graph.positions.copy()
    positions[:3] = [[0, 0], [0.001, 0], [0, 0.001]]
    assert overlapping(replace(graph, positions=positions).figure()) == []


def test_a_name_does_not_cover_the_circle_of_another_token():
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    graph = field_graph(["lower", "upper"], measures(2, 30), iterations=5)
    positions = graph.positions.copy()
    span = np.ptp(positions, axis=0).max()
    positions[0] = positions[1] - [0.0, 0.03 * span]  # the place above the first is that of the second's circle
    figure = replace(graph, positions=positions).figure()
    figure.canvas.draw()
    name = next(text for text in figure.axes[0].texts if text.get_text() == "lower")
    x, y = figure.axes[0].transData.transform(positions[1])
    assert not name.get_window_extent().contains(x, y)


def test_boxes_stand_at_the_height_of_their_fields_as_far_as_others_let_them():
    pytest.importorskip("matplotlib")
    from similitude.interpret.figures.graph import GAP, _apart

    assert _apart([7.0, 3.0], [1.0, 2.0], 10.0, 0.0) == [7.5, 4.0]
    for centres in ([9.9, 9.8, 9.7], [0.3, 0.2, 0.1], [5.0, 5.0, 5.0]):
        tops = _apart(centres, [1.0, 2.0, 1.0], 10.0, 0.0)
        ends = [(top, top - height) for top, height in zip(tops, [1.0, 2.0, 1.0], strict=True)]
        assert ends[0][0] <= 10
        assert ends[-1][1] >= 0
        assert all(above[1] - below[0] >= GAP - 1e-9 for above, below in itertools.pairwise(ends))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: field_graph("ab", torch.rand(3, 4)), r"measures must be \[2, K\], a row a name; got shape \[3, 4\]"),
        (lambda: field_graph("aa", torch.rand(2, 4)), "names must be distinct; 'a' is there twice"),
        (lambda: field_graph([], torch.rand(0, 4)), "one token or more; got none"),
        (lambda: field_graph("a", -torch.rand(1, 4)), "no token has any feature"),
        (lambda: field_graph("a", torch.full((1, 4), float("nan"))), "some are NaN"),
        (lambda: field_graph("a", torch.rand(1, 4), top=0), "top must be a whole number of 1 or more; got 0"),
        (lambda: field_graph("a", torch.rand(1, 4), notes={"b": []}), "no field of 'b': 'b' is not in the graph"),
        (
            lambda: field_graph("ab", torch.eye(2), notes={("a", "b"): []}),
            r"no field of \('a', 'b'\): no feature is shared by just these",
        ),
        (lambda: field_graph("a", torch.rand(1, 4), feature_names="x"), "feature_names must have 4 names; got 1"),
        (lambda: field_graph("a", torch.rand(1, 4)).save("graph.pdf"), "written as .png, .svg, .html or .graphml"),
        (lambda: force_layout(np.array([[0, 5]]), np.zeros((3, 2))), "edges must be from 0 to 2; got 0 to 5"),
        (lambda: force_layout(np.array([[0, 1]]), np.full((3, 2), np.nan)), "start must be finite places"),
    ],
)
def test_wrong_input_gets_one_sentence(make, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        make()
    assert "\n" not in str(error.value)


def test_nodes_with_the_same_edges_do_not_hide_each_other():
    """Six nodes that hang on the same two, and start in one place."""
    edges = [(i, j) for i in range(2, 8) for j in (0, 1)]
    start = np.concatenate([[[0.0, 1.0], [0.0, -1.0]], np.full((6, 2), 0.3)])
    at = force_layout(np.array(edges), start)
    apart = np.hypot(*(at[:, None] - at).transpose(2, 0, 1)) + np.eye(8)
    assert apart.min() > 1e-3
    assert np.hypot(*at.T).max() == pytest.approx(1)
