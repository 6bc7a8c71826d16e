"""What a page holds of a model, as Python has it, and what it says that it leaves out."""

import io
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from similitude import FeatureBank, TverskyProjection, page
from similitude.explore import explore
from similitude.explore.beside import beside, partners
from similitude.explore.content import content, content_of_words
from similitude.explore.page import bundle, files, read, whole_page
from similitude.explore.pictures import SIDE, of_images, of_weights, png
from similitude.interpret import graph
from similitude.interpret.sets import Universe
from similitude.page import safe_json
from similitude.shares import measures

DOCS = Path(__file__).parents[2] / "docs" / "explore"


def layer(**more):
    return TverskyProjection(6, 3, 8, presence=0.4, bias=True, **more).eval()


def test_measures_presence_and_confusion_are_those_of_the_layer():
    net, x, y = layer(normalize=True), torch.randn(50, 6), torch.arange(50) % 3
    made = content(net, x, y)
    torch.testing.assert_close(torch.tensor(made.arrays["measures"]), measures(net, x))
    torch.testing.assert_close(torch.tensor(made.arrays["prototypes"]), measures(net, net.prototypes, True).detach())
    has = (measures(net, x) > 0).double().mean(0)
    torch.testing.assert_close(torch.tensor(made.arrays["presence"]).double(), has, atol=1e-6, rtol=0)
    answers = net(x).argmax(-1)
    assert made.about["accuracy"] == (answers == y).double().mean().item()
    assert made.arrays["confusion"][1, 2] == ((y == 1) & (answers == 2)).sum()
    assert made.about["left_out"] == []


def test_a_page_says_what_it_leaves_out_and_rounds():
    net, x = layer(), torch.randn(50, 6)
    few = content(net, x, objects=10)
    assert len(few.arrays["measures"]) == 10
    assert "10 of 50 examples" in few.about["left_out"][0]
    rounded = content(net, x, exact=0, rounded=2 * 8 * 20)
    assert rounded.arrays["measures"].dtype == np.float16
    assert len(rounded.arrays["measures"]) == 20
    assert any("rounded" in said for said in rounded.about["left_out"])
    assert rounded.arrays["answers"].tolist() == net(x).argmax(-1)[:20].tolist()


def test_a_universe_is_shown_with_its_own_sets():
    u = Universe(FeatureBank(8, 5, presence=0.3), ["a", "b", "c"], torch.randn(3, 5))
    made = content_of_words(u)
    for i in range(3):
        assert set(np.flatnonzero(made.arrays["measures"][i] > 0)) == set(u[str("abc"[i])])
    assert made.about["names"] == ["a", "b", "c"]


def test_the_nearest_features_are_others():
    net = layer()
    with torch.no_grad():
        net.features.weight[5] = net.features.weight[2] * 3
    made = content(net, torch.randn(9, 6))
    assert made.arrays["nearest"][5, 0] == 2
    assert made.arrays["cosines"][5, 0] == pytest.approx(1)
    assert all(k not in made.arrays["nearest"][k] for k in range(8))
    assert made.about["duplicates"][0][:2] == [5, 2]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"labels": [0, 1]}, r"labels must be \[9\]"),
        ({"labels": [3] * 9}, "indices of prototypes, from 0 to 2; got 3 to 3"),
        ({"classes": ["a"]}, "classes must be 3, one for each; got 1"),
        ({"names": ["a"]}, "names must be 9, one for each; got 1"),
        ({"images": torch.zeros(9, 2, 4, 4)}, "one or three channels"),
        ({"beside": TverskyProjection(5, 3, 8)}, "5"),
    ],
)
def test_what_does_not_fit_is_one_sentence(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        explore(layer(), torch.randn(9, 6), **given)


def test_a_model_that_diverged_is_refused():
    net = layer()
    with torch.no_grad():
        net.features.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match="must be finite to be shown"):
        explore(net, torch.randn(9, 6))


def test_a_page_is_written_as_html(tmp_path):
    with pytest.raises(ValueError, match=r"written as \.html; got 'page\.png'"):
        explore(layer(), torch.randn(9, 6), out=tmp_path / "page.png")
    with pytest.raises(ValueError, match="give inputs"):
        explore(layer())


def tiles(sprite):
    image = np.array(Image.open(io.BytesIO(sprite.png)))
    parts = []
    for i in range(sprite.count):
        row, column = divmod(i, sprite.columns)
        parts.append(
            image[row * sprite.height : (row + 1) * sprite.height, column * sprite.width : (column + 1) * sprite.width]
        )
    return np.stack(parts)


def test_a_sprite_has_each_image_in_its_place():
    grey, colour = torch.rand(7, 5, 4), torch.rand(3, 3, 6, 6)
    assert np.abs(tiles(of_images(grey)) / 255 - grey.numpy()).max() <= 0.5 / 255 + 1e-6
    assert np.abs(tiles(of_images(colour)) / 255 - colour.permute(0, 2, 3, 1).numpy()).max() <= 0.5 / 255 + 1e-6
    assert of_images(torch.rand(2, 3, 200, 100))[1:3] == (SIDE // 2, SIDE)


def test_weights_of_zero_are_white_and_signs_have_two_colours():
    found = tiles(of_weights(torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])))[0].astype(int)
    assert found[0, 1].tolist() == [247, 247, 247]
    assert found[0, 0, 2] > found[0, 0, 0]
    assert found[1, 0, 0] > found[1, 0, 2]


def test_png_is_read_by_others():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    assert (np.array(Image.open(io.BytesIO(png(pixels)))) == pixels).all()


def test_no_text_can_end_the_element_that_holds_it():
    evil = "</script><script>alert(1)</script>\u2028<!--&amp;"
    assert json.loads(safe_json([evil])) == [evil]
    net = layer()
    net.features.name(evil, feature=0)
    page = whole_page(content(net, torch.randn(9, 6), classes=[evil, "b", "c"], names=[evil] * 9, title=evil), evil)
    assert "alert(1)</script>" not in page
    assert page.count("<script") == page.count("</script>")


def test_a_page_asks_for_nothing():
    page = whole_page(content(layer(), torch.randn(9, 6)))
    markup = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=\"(?!data:)", markup)
    assert "default-src 'none'" in page
    assert "unsafe" not in page[: page.index("<style>")]


def test_every_module_is_in_the_page_that_is_one_file():
    """And comes after those that it imports."""
    script = bundle()
    modules = [name for name in files() if name.endswith(".js")]
    for name in modules:
        assert f'modules["{name}"] = ' in script
        for other in re.findall(r'from "\./([\w-]+\.js)"', read(name)):
            assert script.index(f'modules["{other}"] = ') < script.index(f'modules["{name}"] = ')
    assert "import {" not in script
    assert not re.search(r"^export ", script, re.MULTILINE)


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_every_module_is_javascript(tmp_path):
    scripts = {name: read(name) for name in files() if name.endswith(".js")}
    scripts["graph-main.js"] = page.read(graph.FILES, "main.js")
    for name, text in scripts.items():
        (tmp_path / name).with_suffix(".mjs").write_text(text)
        done = subprocess.run(
            ["node", "--check", (tmp_path / name).with_suffix(".mjs")], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_the_page_of_the_docs_is_small_and_as_the_package_makes_it():
    made = runpy.run_path(str(DOCS / "make.py"))
    found = (DOCS / "digits.html").read_text(encoding="utf-8")
    assert len(found.encode()) < 2.5e6
    assert len(made["DATA"].findall(found)) > 10
    assert made["renewed"](found) == found, "make it again: python docs/explore/make.py --page"


def test_features_are_matched_with_those_that_the_same_examples_have():
    net, x = layer(), torch.randn(80, 6)
    other = layer()
    other.load_state_dict(net.state_dict())
    order = torch.randperm(8)
    with torch.no_grad():
        other.features.weight.copy_(net.features.weight[order])
        other.features.threshold.copy_(net.features.threshold[order])
    made = beside(content(net, x), content(other, x))
    assert order[torch.tensor(made.arrays["match"]).long()].tolist() == list(range(8))
    assert made.arrays["likeness"] == pytest.approx([1.0] * 8, abs=1e-4)


def test_of_more_features_some_have_no_partner():
    found = partners(np.array([[0.9, 0.1], [0.95, 0.2], [0.1, 0.8]]))
    assert found.tolist() == [-1, 0, 1]
    assert partners(np.array([[0.9, 0.1, 0.3], [0.95, 0.2, 0.1]])).tolist() == [2, 0]


def test_a_classifier_and_a_converted_model_are_shown():
    pytest.importorskip("sklearn")
    from similitude.estimator import TverskyClassifier

    x, y = torch.randn(60, 4).numpy(), np.array(["cat", "dog", "fox"] * 20)
    made = explore(TverskyClassifier(8, max_iter=5, random_state=0).fit(x, y), x, np.arange(60) % 3).content
    assert made.about["classes"] == ["cat", "dog", "fox"]
    model = nn.Sequential(nn.Linear(4, 6), nn.Flatten(), TverskyProjection(6, 3, 8))
    assert explore(model, torch.randn(9, 4)).content.about["layer"]["dim"] == 6


@pytest.mark.parametrize("shape", [(3, 8, 8), (49, 8, 8), (50, 64)])
def test_images_are_one_for_each_input(shape):
    with pytest.raises(ValueError, match=r"images must be \[50, H, W\] or \[50, C, H, W\], one for each input; got"):
        content(layer(), torch.randn(50, 6), images=torch.rand(shape))


def test_several_prototypes_of_a_class_have_names_of_their_own():
    estimator = pytest.importorskip("similitude.estimator")
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(60, 4)), np.array(["ant", "bee"] * 30)
    model = estimator.TverskyClassifier(8, prototypes_per_class=2, max_iter=2, random_state=0).fit(X, y)
    assert content(model, X).about["classes"] == ["ant (1 of 2)", "ant (2 of 2)", "bee (1 of 2)", "bee (2 of 2)"]
    with pytest.raises(ValueError, match="the page shows prototypes, 2 of each class: leave labels out"):
        content(model, X, y)
