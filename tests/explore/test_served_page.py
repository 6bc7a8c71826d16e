"""The page of a server in a real browser: every screen, names, edits of a network and of a layer, and what is saved."""

import json

import pytest
import torch
from safetensors.torch import load_file
from shown import ANSWERING, EXPRESSIONS, SCREENS, TOKEN, digits, go, looks, network, session_of

pytest.importorskip("uvicorn")

from similitude.explore.content import content
from similitude.explore.session import Session
from similitude.interpret.edit import load_state
from similitude.reproduce import editing

EVIL = [
    "<script>window.evil = 1</script>",
    "</script><script>window.evil = 1</script>",
    "<img src=x onerror=window.evil=1>",
    '"><svg onload=window.evil=1>',
    "javascript:window.evil=1",
    "{{constructor.constructor('window.evil=1')()}}",
    "${window.evil=1}",
    "<!--",
    "]]>",
    "\u2028window.evil=1\u2029 x",
    "&lt;b&gt;\\u003cb\\u003e",
]


@pytest.fixture
def served(serve):
    """The address of a server on the digits, and its session."""
    session = session_of("digits")
    with serve(session) as address:
        yield address, session


@pytest.mark.parametrize("name", ["digits", "words", pytest.param("converted", marks=pytest.mark.slow)])
def test_every_screen_is_shown_by_a_server(name, serve, visit):
    with serve(session_of(name)) as address, visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        assert TOKEN not in page.url
        for screen in SCREENS + ([] if name == "words" else ANSWERING):
            go(page, screen.replace("NAMES", EXPRESSIONS[name]))
            looks(page)
        assert page.locator("main b, main i").count() == 0
        page.reload()
        page.wait_for_selector("html[data-ready=yes]")
        page.go_back()
        page.go_forward()
        looks(page)


@pytest.mark.parametrize("name", ["digits", "words", "converted"])
def test_a_name_given_in_the_browser_is_there_in_python(name, serve, visit, tmp_path):
    session = session_of(name, tmp_path / "names.json")
    with serve(session) as address, visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "features")
        page.locator(".feature").nth(3).click()
        page.locator("#name").fill("a stroke & more")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('a stroke & more')")
        assert "names.json" in page.locator("main form").inner_text()
        go(page, "features")
        assert page.locator(".feature .name").nth(3).inner_text() == "a stroke & more"
        with page.expect_download() as download:
            page.locator("#names").click()
        assert json.loads(download.value.path().read_text()) == {"3": "a stroke & more"}
    assert session_of(name, tmp_path / "names.json").about()["features"] == {"3": "a stroke & more"}
    if session.bank is not None:
        assert session.bank.names == {3: "a stroke & more"}


def test_without_the_token_there_is_nothing_to_see(served, visit):
    address, _ = served
    with visit(address, own=(address, "blob:", "data:"), quiet=False) as page:
        assert "it holds the token" in page.locator("main").inner_text()


def test_names_of_all_kinds_are_shown_as_text_and_do_nothing(serve, visit):
    """Of features, prototypes and examples, on every screen that shows them."""
    x, y = digits(11)
    net = network(*digits())
    show = lambda: content(net, x, y, names=EVIL, classes=EVIL[:10], title=EVIL[0])  # noqa: E731
    session = Session(show, net, edited=net, inputs=x, labels=y)
    for k, name in enumerate(EVIL):
        session.name({"feature": k, "name": name})
    with serve(session) as address, visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        for screen in ["", "features", *(f"feature/{k}" for k in range(11)), "prototypes", "why", "why/1", "why/2/1/0"]:
            go(page, screen)
            looks(page)
        for screen in ("pair/e0/e1", "sets", "search/e2", "edit"):
            go(page, screen)
            looks(page)
        assert page.evaluate("window.evil") is None
        assert page.locator("script").count() == 1
        assert page.locator("main img, main b, main svg[onload]").count() == 0
        go(page, "feature/2")
        assert page.locator("h1").inner_text() == EVIL[2]
        assert page.locator("#title").inner_text() == EVIL[0]


def test_drawing_previews_applies_undoes_and_saves(served, visit, tmp_path):
    address, session = served
    before = session.model.prototypes.detach().clone()
    with visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:"), accept_downloads=True) as page:
        go(page, "edit")
        page.wait_for_selector("#preview:enabled")
        page.locator("#index").select_option("7")
        page.wait_for_selector("#preview:enabled")
        box = page.locator("canvas").bounding_box()
        page.mouse.move(box["x"] + 40, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        page.locator("#preview").click()
        page.wait_for_selector("#outcome")
        assert "answers flip" in page.locator("#outcome").inner_text()
        assert torch.equal(session.model.prototypes, before)
        page.locator("#apply").click()
        page.wait_for_selector("#undo:text('Undo (1)')")
        edited = session.model.prototypes.detach().clone()
        changed = (edited != before).flatten(1).sum(1)
        assert changed[7] > 10
        assert changed.sum() == changed[7]
        with page.expect_download() as download:
            page.locator("#save").click()
        download.value.save_as(tmp_path / "edited.safetensors")
        page.locator("#undo").click()
        page.wait_for_selector("#undo:text('Undo (0)')")
    assert torch.equal(session.model.prototypes, before)
    again = load_state(network(*digits()), load_file(tmp_path / "edited.safetensors"))
    assert torch.equal(again.prototypes, edited)
    for name in ("features", "alpha", "beta", "theta", "bias"):
        assert torch.equal(again.state_dict()[name], session.model.state_dict()[name])


def test_a_threshold_that_is_moved_is_saved_in_the_whole_converted_model(serve, visit, tmp_path):
    session = session_of("converted")
    layer, before = session.edited, {k: t.clone() for k, t in session.model.state_dict().items()}
    with (
        serve(session) as address,
        visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:"), accept_downloads=True) as page,
    ):
        go(page, "edit")
        page.locator("#feature").select_option("5")
        page.locator("#threshold").fill("1.25")
        page.locator("#preview-threshold").click()
        page.wait_for_selector("#outcome")
        assert all(torch.equal(before[k], t) for k, t in session.model.state_dict().items())
        page.locator("#apply-threshold").click()
        page.wait_for_selector("#undo-threshold:text('Undo (1)')")
        assert layer.features.threshold[5] == 1.25
        with page.expect_download() as download:
            page.locator("#save").first.click()
        download.value.save_as(tmp_path / "edited.safetensors")
        page.locator("#undo-threshold").click()
        page.wait_for_selector("#undo-threshold:text('Undo (0)')")
    assert all(torch.equal(before[k], t) for k, t in session.model.state_dict().items())
    other = session_of("converted").model
    other.load_state_dict(load_file(tmp_path / "edited.safetensors"))
    for key, tensor in other.state_dict().items():
        changed = (tensor != before[key]).sum()
        assert changed == (1 if key.endswith("threshold") else 0), key


def test_a_straight_stroke_is_the_one_that_python_paints(served, visit):
    """Soft edges, and no pixel becomes fainter: paint(image, line(...), strength)."""
    address, session = served
    before = session.model.prototypes[7].detach().clone()
    with visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "edit/prototype/7")
        page.wait_for_selector("#preview:enabled")
        page.locator("#pen").select_option("3")
        page.locator("#ink").select_option("0.75")
        box = page.locator("canvas.draw").bounding_box()
        place = lambda row, column: (  # noqa: E731
            box["x"] + (column + 0.5) * box["width"] / 28,
            box["y"] + (row + 0.5) * box["height"] / 28,
        )
        page.keyboard.down("Shift")
        page.mouse.move(*place(16, 8))
        page.mouse.down()
        page.mouse.move(*place(3, 20))  # where it went meanwhile does not count
        page.mouse.move(*place(14, 21))
        page.mouse.up()
        page.keyboard.up("Shift")
        page.locator("#apply").click()
        page.wait_for_selector("#undo:text('Undo (1)')")
    expected = editing.paint(before, editing.line(16, 8, 14, 21, 3), 0.75)
    # A mouse is at whole pixels of the screen, eleven to a pixel of the image.
    torch.testing.assert_close(session.model.prototypes[7].detach(), expected, atol=0.08, rtol=0)
    assert (expected != before).sum() > 30
    assert torch.equal(session.model.prototypes[7][expected == before], before[expected == before])


def test_a_drawing_becomes_a_feature_and_the_preview_says_what_it_costs(served, visit):
    address, session = served
    before = session.model.prototypes[7].detach().clone()
    with visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "edit/prototype/7")
        page.wait_for_selector("#preview:enabled")
        x, y = digits()
        wrong = ((session.model(x).argmax(-1) != y) & (y == 7)).sum().item()
        page.locator("#edit").get_by_text(f"Answered wrongly now: {wrong} of {(y == 7).sum()} ").wait_for()
        page.locator("#factor").select_option("1.5")
        page.locator("#add").click()
        page.locator("#add").click()
        assert page.locator("#drawn .chip").count() == 2
        page.locator("canvas.draw").focus()
        page.keyboard.press(" ")
        page.locator("#preview").click()
        page.wait_for_selector("#outcome")
        said = page.locator("#balance").inner_text()
        assert "7: " in said
        assert "all others: " in said
        assert f"These {len(x)} examples" in said
        page.locator("#apply").click()
        page.wait_for_selector("#undo:text('Undo (1)')")
    assert len(session.model.features) == 14
    for k in (12, 13):
        torch.testing.assert_close(session.model.features[k].detach(), 1.5 * before)


def test_several_drawings_are_one_edit(served, visit):
    address, session = served
    x, _ = digits()
    with visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "edit/prototype/7")
        page.wait_for_selector("#preview:enabled")
        for kind, index in (("prototype", "7"), ("added", "0"), ("added", "1"), ("feature", "3")):
            if kind != page.locator("#kind").input_value():
                page.locator("#kind").select_option(kind)
            page.wait_for_selector("#preview:enabled")
            page.locator("#index").select_option(index=int(index))
            page.wait_for_selector("#preview:enabled")
            page.locator("#from").fill(index)
            page.get_by_role("button", name="Copy", exact=True).click()
            page.wait_for_selector("#preview:enabled")
        page.get_by_role("button", name="leave out new feature 1").click()
        page.wait_for_selector("#preview:enabled")
        page.locator("#apply").click()
        page.wait_for_selector("#undo:text('Undo (1)')")
    assert torch.equal(session.model.prototypes[7], x[7])
    assert torch.equal(session.model.features[3], x[3])
    assert len(session.model.features) == 13
    assert torch.equal(session.model.features[12], x[1])
