"""The page in a real browser, as a file: every screen, by mouse and keyboard; its numbers are Python's."""

import json
from pathlib import Path

import pytest
import torch
from shown import ANSWERING, EXPRESSIONS, SCREENS, converted, digits, go, looks, network, number, until, words

from similitude import TverskyProjection
from similitude.explain import decision, explain, pair
from similitude.explore import explore
from similitude.explore.content import content
from similitude.explore.page import whole_page
from similitude.interpret.graph import field_graph
from similitude.interpret.legibility import legibility

# The converted model is not trained.
pytestmark = pytest.mark.filterwarnings("ignore:the layer is right on")


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder, (x, y) = tmp_path_factory.mktemp("pages"), digits()
    model, inputs, labels = converted()
    explore(network(x, y), x, y, classes=list("0123456789"), title="Digits", out=folder / "digits.html")
    explore(words(), title="Words", out=folder / "words.html")
    other = network(x, y)
    with torch.no_grad():
        other.bias.zero_()
    explore(network(x, y), x, y, beside=other, title="Two", out=folder / "two.html")
    explore(
        model,
        inputs,
        labels,
        classes=["<i>a</i>", "b", "c"],
        title="A <converted> model",
        beside=converted(seed=3)[0],
        out=folder / "converted.html",
    )
    return {path.stem: path.as_uri() for path in folder.iterdir()}


@pytest.mark.parametrize("size", [(1280, 800, "light"), (390, 844, "dark")], ids=["desk", "phone"])
@pytest.mark.parametrize("name", ["digits", "words", "converted"])
def test_every_screen_is_shown_from_a_file(pages, visit, name, size):
    with visit(pages[name], *size) as page:
        for screen in SCREENS + ([] if name == "words" else ANSWERING):
            go(page, screen.replace("NAMES", EXPRESSIONS[name]))
            looks(page)
        assert page.locator("main b, main i").count() == 0


def test_the_page_of_the_docs_shows_every_screen(visit):
    with visit((Path(__file__).parents[2] / "docs" / "explore" / "digits.html").as_uri()) as page:
        assert "200 of 1,000 examples" in page.locator("footer").inner_text()
        for screen in SCREENS + ANSWERING:
            go(page, screen.replace("NAMES", "7%20%26%209"))
            looks(page)


def test_numbers_are_those_of_python(pages, visit):
    x, y = digits()
    net = network(x, y)
    with visit(pages["digits"]) as page:
        right = (net(x).argmax(-1) == y).double().mean().item()
        assert f"{100 * right:.1f} %" in page.locator("main").inner_text()
        for i in range(4):
            e = explain(net, x[i])
            go(page, f"why/{i}")
            assert number(page.locator("#similarity").inner_text()) == pytest.approx(e.similarity, abs=1.1e-4)
            assert page.locator("h1").inner_text() == f"Why {e.prototype}?"
            bars = [number(text) for text in page.locator(".bars .heading .number").all_inner_texts()]
            kinds = [e.common.sum(), e.input_only.sum(), e.prototype_only.sum(), e.bias, e.similarity]
            assert bars == pytest.approx([float(v) for v in kinds], abs=1.1e-4)
            d = decision(net, x[i], 4, 9)
            go(page, f"why/{i}/4/9")
            assert number(page.locator("#difference").inner_text()) == pytest.approx(d.difference, abs=1.1e-4)
        layer, vectors = net.as_projection(), net.encode(x)
        go(page, "pair/e2/e5")
        both = pair(layer, vectors[2], vectors[5])
        assert number(page.locator("#forth").inner_text()) == pytest.approx(both.similarity, abs=1.1e-4)
        assert number(page.locator("#back").inner_text()) == pytest.approx(both.reverse, abs=1.1e-4)


def test_sets_are_those_of_python(pages, visit):
    u = words()
    with visit(pages["words"]) as page:
        for text in ("good & bad - worse", '~good | "ice-cream"', "été ^ 'don\\'t'"):
            go(page, "sets")
            page.locator("#expression").fill(text)
            page.wait_for_selector("#size")
            assert page.locator("#size").inner_text().startswith(f"{len(u(text))} of 16 features")
            shown = page.locator(".tile .caption").all_inner_texts()
            assert [number(t) for t in shown] == pytest.approx([s for _, s in u(text).rank(60)], abs=0.006)


def test_a_set_has_the_graph_of_the_fields_of_its_names(pages, visit):
    u = words()
    graph = field_graph(["good", "bad", "<b>bold</b>"], u)
    with visit(pages["words"]) as page:
        go(page, "sets")
        page.locator("#expression").fill("good & bad - '<b>bold</b>'")
        page.wait_for_selector("canvas.graph")
        listed = page.locator(".fields li").all_inner_texts()
        sizes = [len(f.features) for f in graph.fields]
        expressions = [" - ".join([" & ".join(f.members), *f.others]) for f in graph.fields]
        assert [text.strip() for text in listed] == [f"{e} {n}" for e, n in zip(expressions, sizes, strict=True)]
        # It is drawn, and pointing at a node says what it is.
        painted = """() => {
          const c = document.querySelector("canvas.graph");
          const { data } = c.getContext("2d").getImageData(0, 0, c.width, c.height);
          return data.filter((v, i) => i % 4 === 3 && v > 0).length;
        }"""
        before = page.evaluate(painted)
        assert before > 1000
        box = page.locator("canvas.graph").bounding_box()
        scale = min(box["width"], box["height"]) / 2.6
        # Three objects: the second is at the bottom.
        page.locator("canvas.graph").hover(position={"x": box["width"] / 2, "y": box["height"] / 2 + scale})
        assert page.locator(".tip").inner_text() == "bad"
        page.locator(".fields a").nth(1).click()
        page.wait_for_selector(f"#size:text('{sizes[1]} of 16 features')")
        assert page.locator("main b").count() == 0


def test_the_page_of_a_graph_runs_under_its_policy(visit, tmp_path):
    graph = field_graph(["good", "bad", "worse", "<b>bold</b>"], words())
    graph.save(tmp_path / "graph.html", "Words & <i>fields</i>")
    for size in ((1280, 800, "light"), (390, 844, "dark")):
        with visit((tmp_path / "graph.html").as_uri(), *size) as page:
            assert page.title() == page.locator("h1").inner_text() == "Words & <i>fields</i>"
            buttons = page.locator("#list button")
            assert buttons.count() == 4 + len(graph.fields)
            assert buttons.nth(3).inner_text() == "<b>bold</b>"
            buttons.nth(0).click()
            assert buttons.nth(0).get_attribute("aria-pressed") == "true"
            page.keyboard.press("Escape")
            assert page.locator("[aria-pressed=true]").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            # The theme is that of all pages.
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert paper == {"light": "rgb(251, 250, 248)", "dark": "rgb(22, 24, 27)"}[size[2]]


def test_two_models_are_compared_by_their_answers(pages, visit):
    x, y = digits()
    first, second = network(x, y), network(x, y)
    with torch.no_grad():
        second.bias.zero_()
        differ = (first(x).argmax(-1) != second(x).argmax(-1)).sum().item()
    assert differ
    with visit(pages["two"]) as page:
        go(page, "compare")
        looks(page)
        assert f"{differ} of {len(x)}: A is right in" in page.locator("main").inner_text()
        assert "12 of 12 features of A have a partner" in page.locator("main").inner_text()


def test_the_overview_shows_constants_over_the_training_and_the_report_on_legibility(visit, tmp_path):
    torch.manual_seed(4)
    layer, x = TverskyProjection(6, 3, 8, presence=0.4).eval(), torch.randn(300, 6)
    has = torch.stack([x @ layer.features.weight[2] > 0, torch.rand(300) < 0.3], dim=1)
    traces = {"step": [1, 2, 3], "alpha": [0.5, 0.4, 0.2], "beta": [0.5, 0.6, 0.7], "theta": [1.0, 1.5, 2.25]}
    report = legibility(layer, x, (has, ["<i>up</i>", "chance"]))
    path = tmp_path / "page.html"
    path.write_text(whole_page(content(layer, x, traces=traces, report=report)))
    explore(layer, x, attributes=(has, ["<i>up</i>", "chance"]), out=tmp_path / "same.html")
    for size in ((1280, 800, "light"), (390, 844, "dark")):
        with visit(path.as_uri(), *size) as page:
            looks(page)
            label = "Over the training: α from 0.5000 to 0.2000, β from 0.5000 to 0.7000, θ from 1.0000 to 2.2500."
            assert page.locator(f"svg[aria-label='{label}'] polyline").count() == 3
            for row, (name, found) in enumerate(report.compared().items()):
                cells = page.locator("#legibility tbody tr").nth(row)
                assert cells.locator("th").inner_text() == name
                assert number(cells.locator("td").nth(0).inner_text()) == pytest.approx(
                    found.mcc.mean().item(), abs=6e-4
                )
                assert number(cells.locator("td").nth(2).inner_text()) == pytest.approx(
                    found.auc.mean().item(), abs=6e-4
                )
            first = report.rows()[0]
            shown = page.locator("#attributes tbody tr").first
            assert shown.locator("th").inner_text() == first["attribute"]
            assert shown.locator("a").get_attribute("href") == f"#/feature/{first['feature']}"
            assert page.locator("main i").count() == 0
    with visit((tmp_path / "same.html").as_uri()) as page:
        assert page.locator("#legibility tbody tr").count() == len(report.compared())
        assert page.locator("polyline").count() == 0


def test_words_are_compared_both_ways_round_with_weights_that_move(pages, visit):
    u = words()
    with visit(pages["words"]) as page:
        go(page, "pair/e0/e1")
        page.locator("#beta").fill("0.5")
        a, b = u["good"], u["bad"]
        there = len(a & b) / (len(a & b) + len(a - b) + 0.5 * len(b - a))
        assert number(page.locator("#forth").inner_text()) == pytest.approx(there, abs=6e-5)
        back = len(a & b) / (len(a & b) + len(b - a) + 0.5 * len(a - b))
        assert number(page.locator("#back").inner_text()) == pytest.approx(back, abs=6e-5)


def test_an_error_in_an_expression_is_shown_under_its_character(pages, visit):
    with visit(pages["words"]) as page:
        go(page, "sets")
        page.locator("#expression").fill("good & goood")
        until(page, "document.querySelector('#problem').textContent != ''")
        assert "no object is named 'goood'; nearest names: good" in page.locator("#problem").inner_text()
        assert page.evaluate("document.querySelector('.marker').textContent") == " " * 7 + "↑"


def test_tab_completes_a_name(pages, visit):
    with visit(pages["words"]) as page:
        go(page, "sets")
        page.locator("#expression").press_sequentially("good & bes")
        page.keyboard.press("Tab")
        assert page.locator("#expression").input_value() == "good & best"
        assert page.locator("#size").count() == 1


def test_a_feature_that_is_switched_off_moves_the_answer(pages, visit):
    x, y = digits()
    layer = network(x, y).as_projection()
    with visit(pages["digits"]) as page:
        go(page, "why/0/3")
        before = number(page.locator("#similarity").inner_text())
        button = page.locator("button[aria-label$=' off']").first
        k = int(button.get_attribute("aria-label").split()[2])
        share = explain(layer, layer_input(x, 0), 3).shares()[k].item()
        button.click()
        page.wait_for_selector("text=Switched off")
        after = number(page.locator("#similarity").inner_text())
        assert after == pytest.approx(before - share, abs=2.1e-4)
        page.get_by_role("button", name="Switch all on").click()
        page.wait_for_timeout(60)
        assert number(page.locator("#similarity").inner_text()) == before


def layer_input(x, i):
    return x[i].flatten()


def test_keys_and_the_buttons_of_the_browser_lead_through_examples(pages, visit):
    with visit(pages["digits"]) as page:
        go(page, "why/0")
        page.keyboard.press("ArrowRight")
        until(page, "location.hash == '#/why/1'")
        page.go_back()
        until(page, "location.hash == '#/why/0'")
        page.go_forward()
        until(page, "location.hash == '#/why/1'")
        page.get_by_role("link", name="Features", exact=True).click()
        page.wait_for_selector("h1:text('Features')")
        # The first thing that Tab meets leads past the screens.
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "content"


def test_a_name_given_in_a_file_is_kept_by_the_browser(pages, visit):
    with visit(pages["digits"]) as page:
        go(page, "feature/2")
        page.locator("#name").fill("<b>stroke</b>")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('<b>stroke</b>')")
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        assert page.locator("h1").inner_text() == "<b>stroke</b>"
        go(page, "feature/3")
        page.locator("#name").fill("<b>stroke</b>")
        page.keyboard.press("Enter")
        page.wait_for_selector("#status:text('already')")


def test_names_are_saved_as_a_file_that_python_reads(visit, tmp_path):
    x, y = digits()
    model = network(x, y)
    explore(model, x, y, title="Names", out=tmp_path / "page.html")
    # A notebook's frame has no storage; it may answer forms, and save.
    around = tmp_path / "notebook.html"
    around.write_text(f"<!doctype html><html data-ready='yes'>{explore(model, x, y)._repr_html_()}")
    own = ("file:", "blob:", "data:", "about:")
    for address in (tmp_path / "page.html").as_uri(), around.as_uri():
        with visit(address, own=own) as page:
            shown = page if address != around.as_uri() else page.frame_locator("iframe")
            shown.get_by_role("link", name="Features", exact=True).click()
            shown.locator(".feature").first.wait_for()
            assert shown.get_by_role("button", name="Save the names").count() == 0
            for k, name in ((2, "<b>loop</b>"), (11, 'été " &')):
                shown.locator(".feature .name").get_by_text(f"feature {k}", exact=True).click()
                shown.locator("#name").fill(name)
                shown.get_by_role("button", name="Save the name").click()
                shown.locator("h1").get_by_text(name).wait_for()
                shown.get_by_role("link", name="Features", exact=True).first.click()
            with page.expect_download() as download:
                shown.get_by_role("button", name="Save the names").click()
            assert download.value.suggested_filename == "names.json"
            download.value.save_as(tmp_path / "names.json")
        bank = TverskyProjection(784, 10, 12).features
        for k, name in json.loads((tmp_path / "names.json").read_text()).items():
            bank.name(name, feature=int(k))
        assert bank.names == {2: "<b>loop</b>", 11: 'été " &'}


def test_a_notebook_shows_the_page_in_a_frame(visit, tmp_path):
    """The frame has no origin: its links and addresses must not lead to the notebook around it."""
    x, y = digits()
    around = tmp_path / "notebook.html"
    around.write_text(f"<!doctype html><html data-ready='yes'>{explore(network(x, y), x, y)._repr_html_()}")
    with visit(around.as_uri(), own=("file:", "blob:", "data:", "about:")) as page:
        frame = page.frame_locator("iframe")
        frame.locator("h1").wait_for()
        frame.get_by_role("link", name="Features", exact=True).click()
        frame.locator("h1:text('Features')").wait_for()
        frame.get_by_role("link", name="Sets", exact=True).click()
        frame.locator("#expression").fill("#1 & #2")
        frame.locator("#size").wait_for()
        assert page.url == around.as_uri()


def test_a_hundred_thousand_measures_are_listed_as_quickly_as_ten(visit, tmp_path):
    torch.manual_seed(3)
    layer = TverskyProjection(16, 5, 8192, presence=0.1)
    path = tmp_path / "large.html"
    page_ = explore(layer, torch.randn(300, 16), out=path)
    assert any("of 300 examples" in s or "rounded" in s for s in page_.content.about["left_out"])
    with visit(path.as_uri()) as page:
        go(page, "features")
        page.wait_for_selector(".feature")
        assert page.locator(".feature").count() < 120
        page.mouse.wheel(0, 100_000)
        until(page, "[...document.querySelectorAll('.feature .name')].some(e => Number(e.textContent.slice(8)) > 2000)")
        assert page.locator(".feature").count() < 120
