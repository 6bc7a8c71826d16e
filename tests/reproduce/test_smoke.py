"""Numbers of a smoke run are never shown as results."""

import re
import shutil

import pytest

pytest.importorskip("matplotlib")

from similitude.reproduce.figures import gallery
from similitude.reproduce.figures import xor as figures_xor
from similitude.reproduce.figures.runs import MADE_UP
from similitude.reproduce.record import RunError
from similitude.reproduce.run import run

PERPLEXITY = "PTB: validation perplexity against K, scratch, tied prototypes"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name in ("mnist", "ptb"):
        run(name, out=folder / name, device="cpu", smoke=True)
    return folder


@pytest.mark.parametrize(("name", "beside"), [("mnist", []), ("ptb", [PERPLEXITY])])
def test_all_headings_of_a_smoke_run_say_that_its_numbers_mean_nothing(name, beside, runs, tmp_path):
    _, missing = gallery.make(runs / name, tmp_path)
    page = (tmp_path / "index.html").read_text()
    headings = re.findall(r"<figure.*?<h2>(.*?)</h2>", page)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(headings) == len(captions) == len(list(tmp_path.glob("*.png"))) > 1
    assert all(text.endswith(f"({MADE_UP})") for text in headings + captions)
    assert f"<strong>{MADE_UP.capitalize()}.</strong>" in page
    assert "paper recipe, changed by --smoke, seed 0" in page
    assert [item.title for item in missing if MADE_UP in item.why] == beside


def test_a_smoke_run_on_real_points_is_told_from_a_run_of_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(figures_xor, "SIZES", (2, 4))
    monkeypatch.setattr(figures_xor, "TRIES", 2)
    assert run("xor", out=tmp_path / "run", device="cpu", smoke=True)["smoke"]
    _, missing = gallery.make(tmp_path / "run", tmp_path / "out")
    assert "XOR: share of models that converge, by factor" in [item.title for item in missing]
    assert "<strong>Smoke run: the numbers mean nothing.</strong>" in (tmp_path / "out" / "index.html").read_text()


def test_a_smoke_run_among_results_is_one_sentence(runs, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    shutil.copy(runs / "mnist" / "result.json", results / "mnist-paper-seed0.json")
    with pytest.raises(RunError, match=r"mnist-paper-seed0\.json was measured on made-up data; remove it, or make it"):
        gallery.make(results, tmp_path / "out")
    assert not (tmp_path / "out").exists()
