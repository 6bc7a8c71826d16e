"""Rows of a table on the page: their values, and the columns that go with each feature, as Python has them."""

import json
import re

import numpy as np
import pytest
import torch
from shown import go, looks, number
from torch import nn

from similitude import TverskyProjection, convert
from similitude.explore import explore
from similitude.explore.beside import beside
from similitude.explore.content import content
from similitude.explore.page import whole_page
from similitude.explore.table import COLUMNS, STRONGEST, TEXTS
from similitude.shares import measures

EVIL = "<i>up</i>"
# Lines of text in each of some elements.
LINES = """elements => elements.map((element) => {
  const range = document.createRange();
  range.selectNodeContents(element);
  return range.getClientRects().length;
})"""


def layer(dim=6, **more):
    return TverskyProjection(dim, 3, 8, presence=0.4, bias=True, **more).eval()


def correlations_of(made):
    """Correlation of each feature with each column by name, where the page has it."""
    columns, found = made.about["table"]["columns"], zip(made.arrays["columns"], made.arrays["correlations"])
    return [{columns[j]: float(r) for j, r in zip(js, rs)} for js, rs in found]


def frame(N=90):
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    table = pandas.DataFrame(rng.normal(size=(N, 3)), columns=["a", "b", EVIL])
    table["constant"] = 0.1
    table["colour"] = rng.choice(["red", "</script>"], N)
    table["group"] = pandas.Categorical(rng.choice([1, 2], N))
    table["when"] = pandas.date_range("2024-01-01", periods=N)
    table["count"] = pandas.array(rng.integers(0, 9, N), dtype="Int64")
    table["id"] = 2**53 + 1 + np.arange(N)
    table.loc[3, ["a", "colour", "count"]] = None
    return table


def pipeline(table):
    pytest.importorskip("sklearn")
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline

    from similitude.estimator import TverskyClassifier

    chosen = make_column_transformer((SimpleImputer(), ["a", "b", EVIL]))
    return make_pipeline(chosen, TverskyClassifier(8, max_iter=5, random_state=0)).fit(table, np.arange(len(table)) % 3)


@pytest.mark.parametrize("normalize", [False, True])
def test_correlations_are_those_of_numpy(normalize):
    torch.manual_seed(0)
    net, x = layer(normalize=normalize), torch.randn(300, 6) * 5 + 100
    made = content(net, x, columns=list("abcdef"), objects=20)
    right = np.corrcoef(measures(net, x).detach().double().numpy().T, x.double().numpy().T)[:8, 8:]
    for k, found in enumerate(correlations_of(made)):
        assert list(found.values()) == pytest.approx([right[k]["abcdef".index(name)] for name in found], abs=1e-5)
        assert [abs(r) for r in found.values()] == sorted(map(abs, found.values()), reverse=True)
    assert made.arrays["values"].tolist() == x[:20].tolist()
    assert made.arrays["spread"][:, 0] == pytest.approx(x.double().mean(0).numpy())
    assert made.arrays["spread"][:, 1] == pytest.approx(x.double().std(0, correction=0).numpy())


def test_correlations_are_the_same_in_blocks_and_of_objects_that_are_sorted(monkeypatch):
    torch.manual_seed(0)
    net, x = layer(), torch.randn(3000, 6)
    x = x[(x @ net.features.weight[0]).argsort()]
    whole = content(net, x, columns=list("abcdef")).arrays["correlations"]
    monkeypatch.setattr("similitude.explore.table.AT_ONCE", 8 * 7)
    assert content(net, x, columns=list("abcdef")).arrays["correlations"] == pytest.approx(whole, abs=1e-6)
    right = np.corrcoef(measures(net, x)[:, 0].detach().double().numpy(), x.double().numpy().T)[0, 1:]
    assert sorted(abs(whole[0])) == pytest.approx(sorted(abs(right)), abs=1e-5)


def test_only_the_strongest_columns_of_a_feature_are_on_the_page():
    torch.manual_seed(0)
    net, x = layer(40), torch.randn(200, 40)
    made = content(net, x, columns=[f"c{j}" for j in range(40)])
    right = np.corrcoef(measures(net, x).detach().double().numpy().T, x.double().numpy().T)[:8, 8:]
    assert made.arrays["columns"].shape == (8, STRONGEST)
    assert (made.arrays["columns"] == np.argsort(-abs(right), axis=1)[:, :STRONGEST]).all()


def test_what_does_not_vary_goes_with_nothing():
    torch.manual_seed(0)
    net, x = layer(), torch.randn(50, 6)
    x[:, 1] = 0.1
    with torch.no_grad():
        net.features.weight[5] = 0
    found = correlations_of(content(net, x, columns=list("abcdef")))
    assert all(r == 0 for r in found[5].values())
    assert all(each.get("b", 0) == 0 for each in found)
    assert all(abs(r) > 0 for name, r in found[0].items() if name != "b")


def test_texts_categories_and_gaps_are_values_without_correlation():
    table = frame()
    model = pipeline(table)
    made = content(model, table)
    about, values = made.about["table"], made.arrays["values"]
    assert about["columns"] == list(table.columns)
    assert about["gaps"]
    shown = {name: values[:, j] for j, name in enumerate(about["columns"])}
    for name in ("a", "b", EVIL, "constant", "count"):
        assert shown[name] == pytest.approx(table[name].to_numpy(dtype=float, na_value=np.nan), nan_ok=True, abs=0)
    texts = {about["columns"][int(j)]: found for j, found in about["texts"].items()}
    assert set(texts) == {"colour", "group", "when", "id"}
    for name, known in texts.items():
        given = [None if value is None or value != value else str(value) for value in table[name].astype(object)]
        assert [None if np.isnan(c) else known[int(c)] for c in shown[name]] == given
    assert texts["id"][0] == "9007199254740993"
    vectors = model[-1].objects(model[:-1].transform(table))
    found, has = measures(model[-1].layer_, vectors).double().numpy(), table["a"].notna().to_numpy()
    for k, each in enumerate(correlations_of(made)):
        assert set(each) == {"a", "b", EVIL, "constant", "count"}
        assert each["constant"] == 0
        assert each["a"] == pytest.approx(np.corrcoef(found[has, k], table["a"][has])[0, 1], abs=1e-5)
    json.dumps(made.about, allow_nan=False)


def test_columns_are_named_by_the_frame_the_fit_or_the_caller():
    pytest.importorskip("sklearn")
    table = frame()[["a", "b", EVIL]].fillna(0)
    from similitude.estimator import TverskyClassifier

    y = np.arange(len(table)) % 3
    fitted = TverskyClassifier(8, max_iter=2, random_state=0).fit(table, y)
    names = lambda model, x, **more: content(model, x, **more).about["table"]["columns"]  # noqa: E731
    assert names(fitted, table) == ["a", "b", EVIL]
    with pytest.warns(UserWarning, match="valid feature names"):
        assert names(fitted, table.to_numpy()) == ["a", "b", EVIL]
    assert names(fitted, table, columns=[1, "y", "z"]) == ["column 1", "y", "z"]
    bare = TverskyClassifier(8, max_iter=2, random_state=0).fit(table.to_numpy(), y)
    assert "table" not in content(bare, table.to_numpy()).about
    assert names(bare, table.to_numpy().tolist(), columns=["x", "y", "z"]) == ["x", "y", "z"]
    assert "table" not in content(layer(), torch.randn(9, 6)).about
    assert names(layer(), torch.randn(9, 6, dtype=torch.float32), columns="abcdef") == list("abcdef")


def test_a_table_that_is_too_wide_or_too_long_is_left_out_and_the_page_says_so():
    x = torch.randn(9, COLUMNS + 1)
    made = content(layer(COLUMNS + 1), x, columns=[f"c{j}" for j in range(COLUMNS + 1)])
    assert "table" not in made.about
    assert "at most, and the table 201" in made.about["left_out"][0]
    table = frame(60)
    table["colour"] = [f"{i}{'x' * 100}" for i in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("similitude.explore.table.TEXTS", 60 * 79)
        made = content(pipeline(table), table)
    assert made.about["left_out"] == ["Texts of 1 columns are too long for the page; it leaves them out."]
    assert "colour" not in made.about["table"]["columns"]
    made = content(pipeline(table), table)
    assert made.about["table"]["texts"]["4"][7] == "7" + "x" * 78 + "…"
    assert TEXTS <= 2**22


@pytest.mark.parametrize(
    ("inputs", "columns", "sentence"),
    [
        (torch.randn(9, 6), ["a"], "columns must be 6, one for each; got 1"),
        (
            torch.randn(9, 2, 6),
            list("abcdef"),
            r"columns are those of a table, \[18, J\].* got inputs of shape \[9, 2, 6\]",
        ),
        ([torch.randn(9, 6)], list("abcdef"), "got inputs of list"),
    ],
)
def test_columns_that_do_not_fit_are_one_sentence(inputs, columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        explore(layer(), inputs, columns=columns)


def test_two_models_have_the_table_once():
    x, columns = torch.randn(9, 6), list("abcdef")
    made = beside(content(layer(), x, columns=columns), content(layer(), x, columns=columns))
    assert {"values", "columns"} <= set(made.arrays)
    assert not {"beside-values", "beside-columns"} & set(made.arrays)
    assert "table" not in made.about["beside"]


def wide():
    """A converted network on more columns than Why shows."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(15, 12), nn.ReLU(), nn.Linear(12, 3))
    convert(model, "2", num_features=8, start="weights", freeze=True, presence=0.3)
    x = torch.randn(40, 15)
    x[2, 4], x[2, 11] = -123456.75, 2024
    return model.eval(), x, [EVIL, *(f"column {j} of a long name" for j in range(1, 15))]


@pytest.mark.parametrize("size", [(1280, 800, "light"), (390, 844, "dark")], ids=["desk", "phone"])
def test_why_shows_the_values_that_are_farthest_from_the_mean(visit, tmp_path, size):
    model, x, columns = wide()
    explore(model, x, columns=columns, out=tmp_path / "page.html")
    with visit((tmp_path / "page.html").as_uri(), *size) as page:
        go(page, "why/2")
        looks(page)
        assert page.locator("#farthest").inner_text().startswith("12 of 15 columns, farthest from the mean")
        z = ((x - x.mean(0)) / x.std(0, correction=0))[2]
        order = z.abs().argsort(descending=True)[:12].tolist()
        assert page.locator("#values th").all_inner_texts() == [columns[j] for j in order]
        cells = page.locator("#values td").all_inner_texts()
        assert [number(text) for text in cells[::2]] == pytest.approx([x[2, j].item() for j in order], rel=1e-5)
        assert [number(text) for text in cells[1::2]] == pytest.approx([z[j].item() for j in order], abs=0.051)
        assert {"−123456.75", "2024"} <= set(cells)
        # A number stays on one line, and a name breaks between words.
        assert set(page.locator("#values td").evaluate_all(LINES)) == {1}
        assert max(page.locator("#values th").evaluate_all(LINES)) <= 3
        assert page.locator("main i").count() == 0


@pytest.mark.parametrize("size", [(1280, 800, "light"), (390, 844, "dark")], ids=["desk", "phone"])
def test_a_feature_shows_its_columns_and_without_a_name_they_are_its_hint(visit, tmp_path, size):
    model, x, columns = wide()
    made = explore(model, x, columns=columns, out=tmp_path / "page.html").content
    found = correlations_of(made)
    with visit((tmp_path / "page.html").as_uri(), *size) as page:
        go(page, "feature/3")
        looks(page)
        assert page.locator("#columns .label").all_inner_texts() == list(found[3])
        shown = [number(text) for text in page.locator("#columns .value").all_inner_texts()]
        assert shown == pytest.approx(list(found[3].values()), abs=0.0051)
        go(page, "features")
        looks(page)
        told = page.locator(".feature").nth(3).locator(".soft").first.inner_text()
        first, second = [(name, r) for name, r in found[3].items() if abs(r) >= 0.3][:2]
        assert told == " ".join(f"{'−' if r < 0 else '+'}{name}" for name, r in (first, second))
        go(page, "feature/3")
        page.locator("#name").fill("mine")
        page.keyboard.press("Enter")
        page.wait_for_selector("h1:text('mine')")
        go(page, "features")
        assert "column" not in page.locator(".feature").nth(3).inner_text()
        assert page.locator("main i").count() == 0


def test_values_of_a_few_columns_are_all_shown_with_gaps_empty(visit, tmp_path):
    table = frame()
    table["colour"] = table["colour"].where(table.index != 0, "x" * 300)
    path = tmp_path / "page.html"
    text = whole_page(content(pipeline(table), table))
    assert text.count("<script") == text.count("</script>")
    path.write_text(text)
    with visit(path.as_uri()) as page:
        go(page, "why/0")
        looks(page)
        assert page.evaluate("innerWidth - document.querySelector('#values').getBoundingClientRect().right") > 700
        go(page, "why/3")
        looks(page)
        assert page.locator("#values th").all_inner_texts() == list(table.columns)
        cells = page.locator("#values td").all_inner_texts()
        assert [cells[0], cells[4], cells[7]] == ["", "", ""]
        assert number(cells[1]) == pytest.approx(table["b"][3], rel=1e-5)
        assert cells[6].startswith("2024-01-04")
        go(page, "feature/1")
        assert "90 examples that have a value" in re.sub(r"\s+", " ", page.locator("main").inner_text())
        assert page.locator("main i").count() == 0
