"""Search: hits and their parts are Python's, in a file and from an index, in both directions."""

import pytest
import torch
from shown import TOKEN, converted, digits, go, looks, network, number, until, words

from similitude import TverskySimilarity
from similitude.explain import pair
from similitude.explore import explore
from similitude.explore.content import content
from similitude.explore.edits import Refused
from similitude.explore.indexed import content_of_index
from similitude.explore.session import Session
from similitude.retrieval import TverskyIndex

NAMES = [*(f"doc {i}" for i in range(37)), "<b>bold</b>", "a/b & c", "été"]


def index(codes="full", names=NAMES, presence=0.3):
    torch.manual_seed(0)
    layer = TverskySimilarity(6, 24, presence=presence)
    with torch.no_grad():
        layer.alpha, layer.beta, layer.theta = 0.7, 0.1, 1.3
        layer.features.threshold.normal_(std=0.3)
    found = TverskyIndex(layer, codes=codes)
    x = torch.randn(len(names), 6)
    found.add(x, names)
    return found, x


def session(codes="full", names=NAMES, **more):
    found, _ = index(codes, names)
    return Session(lambda: content_of_index(found, "Documents", **more), bank=found.layer.features, index=found)


def shown(page):
    names = page.locator(".hit .name").all_inner_texts()
    return list(zip(names, map(number, page.locator(".hit .value").all_inner_texts()), strict=True))


@pytest.mark.filterwarnings("ignore:the layer is right on")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", ["digits", "converted"])
def test_hits_in_a_file_are_ranked_by_the_similarity_of_python(name, reverse, visit, tmp_path):
    if name == "digits":
        x, y = digits()
        model = network(x, y)
        layer, vectors = model.as_projection(), model.encode(x)
    else:
        model, x, y = converted()
        layer, vectors = model[-1], model[:-1](x)
    explore(model, x, y, out=tmp_path / "page.html")
    pairs = [pair(layer, vectors[3], v) for v in vectors]
    values = torch.tensor([p.reverse if reverse else p.similarity for p in pairs])
    values[3] = -torch.inf
    with visit((tmp_path / "page.html").as_uri()) as page:
        go(page, "search/e3/reverse" if reverse else "search/e3")
        looks(page)
        found = shown(page)
        assert [value for _, value in found] == pytest.approx(values.topk(20).values.tolist(), abs=2e-4)
        for hit, value in found:
            assert value == pytest.approx(values[int(hit[1:])].item(), abs=2e-4)
        assert page.locator("#certified").inner_text() == f"Among all {len(x)}."


def test_words_are_ranked_by_the_features_that_they_share(visit, tmp_path):
    u = words()
    explore(u, out=tmp_path / "page.html")
    with visit((tmp_path / "page.html").as_uri()) as page:
        go(page, "search")
        page.locator("#wanted").fill("don't")
        page.keyboard.press("Enter")
        page.wait_for_selector('#query:text("don\'t")')
        found = dict(u["don't"].nearest(len(u), named=False))
        assert dict(shown(page)) == pytest.approx(found, abs=6e-5)
        assert page.locator("#way").count() == 0


@pytest.mark.parametrize("codes", ["full", "float16", "sparse"])
def test_an_index_is_searched_as_in_python(codes, serve, visit):
    looked_at = session(codes, objects=10)
    found, _ = index(codes)
    with serve(looked_at) as address, visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "search")
        # It is not among the ten that the page holds.
        page.locator("#wanted").fill("a/b & c")
        page.keyboard.press("Enter")
        page.wait_for_selector("#query:text('a/b & c')")
        assert page.evaluate("location.hash") == "#/search/e38"
        for reverse in (False, True):
            hits = found.like("a/b & c", 21, reverse)
            expected = [(name, v) for name, v in zip(hits.ids, hits.values.tolist(), strict=True) if name != "a/b & c"]
            assert [name for name, _ in shown(page)] == [name for name, _ in expected[:20]]
            assert [value for _, value in shown(page)] == pytest.approx([v for _, v in expected[:20]], abs=6e-5)
            assert "Exact: no other of the 40" in page.locator("#certified").inner_text()
            for place in (0, 7):
                why = found.explain("a/b & c", expected[place][0])
                sums = [why.common.sum(), why.a_only.sum(), why.b_only.sum()]
                if reverse:
                    theirs = found.explain(expected[place][0], "a/b & c")
                    sums = [theirs.common.sum(), theirs.b_only.sum(), theirs.a_only.sum()]
                told = page.locator(".hit").nth(place).locator(".part > .soft").all_inner_texts()
                parts = [number(text.split("(")[1].rstrip(")")) for text in told]
                assert parts == pytest.approx([part.item() for part in sums], abs=6e-4)
                assert sum(parts) == pytest.approx(expected[place][1], abs=2e-3)
            looks(page)
            if not reverse:
                page.locator("#way").select_option("reverse")
                until(page, "location.hash.endsWith('/reverse')")
                page.wait_for_timeout(100)
        assert page.evaluate("location.hash") == "#/search/e38/reverse"
        assert page.locator("main b").count() == 0
        page.go_back()
        page.wait_for_timeout(200)
        assert page.locator("#way").input_value() == ""


def test_keys_lead_from_hit_to_hit_and_to_the_comparison(serve, visit):
    with serve(session()) as address, visit(f"{address}#token={TOKEN}", own=(address, "blob:", "data:")) as page:
        go(page, "search/e5")
        page.locator(".hit .name").first.focus()
        page.keyboard.press("ArrowDown")
        second = page.locator(".hit .name").nth(1).inner_text()
        assert page.evaluate("document.activeElement.textContent") == second
        page.keyboard.press("Enter")
        page.wait_for_selector("#forth")
        found, _ = index()
        why = found.explain("doc 5", second)
        assert number(page.locator("#forth").inner_text()) == pytest.approx(why.similarity, abs=1.1e-4)
        assert number(page.locator("#back").inner_text()) == pytest.approx(why.reverse, abs=1.1e-4)
        page.go_back()
        page.locator(".hit .again").first.click()
        page.wait_for_timeout(200)
        assert page.locator("#query").inner_text() != "doc 5"


@pytest.mark.parametrize("codes", ["full", "sparse"])
def test_a_page_of_an_index_has_what_its_documents_have(codes):
    found, x = index(codes)
    made = content_of_index(found, "Documents")
    b = torch.relu(x @ found.layer.features.weight.detach().T - found.layer.features.threshold.detach())
    torch.testing.assert_close(torch.from_numpy(made.arrays["measures"]), b)
    torch.testing.assert_close(torch.from_numpy(made.arrays["presence"]), (b > 0).float().mean(0))
    # Documents that were removed are not counted.
    found.remove(NAMES[:20])
    again = content_of_index(found, "Documents")
    torch.testing.assert_close(torch.from_numpy(again.arrays["presence"]), (b[20:] > 0).float().mean(0))
    assert again.about["names"] == NAMES[20:]


def test_documents_are_found_by_numbers_too():
    looked_at = session(names=list(range(100, 140)))
    assert looked_at.find({"name": "107"}) == {"index": 7}
    assert looked_at.find({"name": "7"}) == {"index": None}
    assert looked_at.find({"name": None}) == {"index": None}
    assert looked_at.about()["names"][:2] == ["100", "101"]


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"index": 40, "k": 3}, "no document 40"),
        ({"index": "0", "k": 3}, "no document"),
        ({"index": True, "k": 3}, "no document"),
        ({"index": 0, "k": 0}, "k must be"),
        ({"index": 0, "k": 101}, "k must be"),
        ({"index": 0}, "k must be"),
        ({"index": 0, "k": 3, "reverse": 1}, "reverse"),
    ],
)
def test_searches_that_cannot_be_are_refused(question, sentence):
    with pytest.raises(Refused, match=sentence):
        session().search(question)


def test_a_session_without_an_index_says_so():
    x, y = digits()
    net = network(x, y)
    looked_at = Session(lambda: content(net, x, y), net)
    with pytest.raises(Refused, match="no index"):
        looked_at.search({"index": 0, "k": 3})


def test_an_empty_index_is_one_sentence():
    with pytest.raises(Refused, match="the index is empty"):
        content_of_index(TverskyIndex(TverskySimilarity(6, 24)), "Documents")
