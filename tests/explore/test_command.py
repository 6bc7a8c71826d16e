"""``similitude explore``: where it reads from, what it writes, and how it fails."""

import json
import re
from importlib import import_module

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from similitude import TverskySimilarity, cli
from similitude.reproduce import demo, editing, explored, run
from similitude.reproduce.data.made_up import synthetic_digits
from similitude.reproduce.figures.runs import MADE_UP
from similitude.retrieval import TverskyIndex


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), ["explore", *map(str, arguments)])


def about(path):
    return json.loads(re.search(r'id="about">(.*?)</script>', path.read_text())[1])


@pytest.fixture
def few_digits(monkeypatch):
    made = synthetic_digits(256)  # as many as the demo has features
    train, test = (x.float().div(255).flatten(1) for x in (made.train_x, made.test_x))
    mean, deviation = train.mean(0), (train - train.mean(0)).std().item()
    x, test_x = ((part - mean) / deviation for part in (train, test))
    digits = demo.Digits(x, made.train_y, test_x, made.test_y, mean, deviation)
    monkeypatch.setattr(demo, "load_digits", lambda seed: digits)
    return digits


def test_the_demo_is_written_as_a_page(few_digits, tmp_path):
    result = invoke("demo", "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    found = about(tmp_path / "page.html")
    assert found["title"] == "MNIST digits"
    assert found["layer"]["num_features"] == 256


def test_the_demo_that_is_shown_is_the_demo(few_digits, tmp_path):
    config = demo.Config()
    layer = demo.tversky(few_digits, config)
    demo.train(layer, few_digits, config, config.tversky_rate, config.tversky_decay)
    session = explored.session_of("demo")
    assert session.about()["accuracy"] == pytest.approx(demo.accuracy(layer, few_digits), abs=1e-6)
    for name, tensor in layer.state_dict().items():
        assert torch.equal(session.model.state_dict()[name], tensor)


@pytest.fixture(scope="module")
def mnist_run(tmp_path_factory):
    from rich.console import Console

    folder = tmp_path_factory.mktemp("runs") / "mnist"
    run.run("mnist", "paper", [], folder, folder.parent / "results", "cpu", True, Console(quiet=True))
    return folder


def test_a_run_is_shown_with_the_accuracy_that_it_reports(mnist_run, tmp_path):
    result = json.loads((mnist_run / "result.json").read_text())["result"]["networks"]
    for name in explored.TVERSKY:
        found = invoke(mnist_run, "--network", name, "--out", tmp_path / "page.html")
        assert found.exit_code == 0, found.output
        assert about(tmp_path / "page.html")["accuracy"] == pytest.approx(result[name]["accuracy"], abs=1e-6)
    found = invoke(mnist_run, "--beside", mnist_run, "--out", tmp_path / "page.html")
    assert about(tmp_path / "page.html")["beside"]["title"] == f"mnist ({MADE_UP})"


def test_the_page_of_a_smoke_run_says_that_its_digits_are_made_up(mnist_run, tmp_path):
    invoke(mnist_run, "--out", tmp_path / "page.html")
    page = about(tmp_path / "page.html")
    assert page["title"] == f"mnist ({MADE_UP})"
    assert page["note_of_page"] == f"The digits are {MADE_UP}."


def test_names_are_kept_in_the_run(mnist_run, tmp_path):
    session = explored.session_of(str(mnist_run))
    session.name({"feature": 1, "name": "stroke"})
    assert json.loads((mnist_run / "names.json").read_text()) == {"1": "stroke"}
    invoke(mnist_run, "--out", tmp_path / "page.html")
    assert about(tmp_path / "page.html")["features"] == {"1": "stroke"}


@pytest.fixture
def words(tmp_path):
    lines = [f"word{i} " + " ".join(f"{v:.3f}" for v in torch.randn(6).tolist()) for i in range(40)]
    (tmp_path / "words.txt").write_text("\n".join(lines))
    return tmp_path / "words.txt"


def test_what_takes_long_tells_how_far_it_is(words, few_digits, monkeypatch):
    told = []
    monkeypatch.setattr(import_module("similitude.explore.content"), "AT_ONCE", 16 * 7)
    explored.session_of(str(words), features=16, progress=lambda *step: told.append(step))
    for what, steps in (("fitting a bank", 16), ("counting who has each feature", 40), ("comparing features", 16)):
        found = [(done, all_) for done, all_, name in told if name == what]
        assert found[-1] == (steps, steps)
        assert found == sorted(found)
        assert len(found) > 2 or what == "fitting a bank"
    told.clear()
    explored.session_of("demo", progress=lambda *step: told.append(step))
    trained = [(done, all_) for done, all_, name in told if "training" in name]
    assert [done for done, _ in trained] == list(range(1, trained[-1][1] + 1))


def test_word_vectors_are_shown_as_a_page(words, tmp_path):
    assert invoke(words, "--features", 16, "--out", tmp_path / "page.html").exit_code == 0
    found = about(tmp_path / "page.html")
    assert found["layer"]["objects_only"]
    assert found["names"][:2] == ["word0", "word1"]


def test_an_index_is_shown_as_a_page_that_searches(tmp_path):
    layer = TverskySimilarity(6, 24)
    index = TverskyIndex(layer)
    index.add(torch.randn(50, 6), [f"doc {i}" for i in range(50)])
    index.save(tmp_path / "index")
    assert invoke(tmp_path / "index", "--out", tmp_path / "page.html").exit_code == 0
    found = about(tmp_path / "page.html")
    assert found["names"][7] == "doc 7"
    assert found["layer"]["alpha"] == pytest.approx(layer.alpha.item())
    session = explored.session_of(str(tmp_path / "index"))
    session.name({"feature": 1, "name": "wing"})
    assert json.loads((tmp_path / "index" / "names.json").read_text()) == {"1": "wing"}
    for path in (tmp_path / "index").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    result = invoke(tmp_path / "index", "--out", tmp_path / "other.html")
    assert result.exit_code == 1
    assert "damaged" in result.output
    assert not (tmp_path / "other.html").exists()


@pytest.mark.parametrize("name", explored.TVERSKY)
def test_a_run_shows_its_constants_over_the_training(mnist_run, name):
    session = explored.session_of(str(mnist_run), name)
    traces = session.about()["traces"]
    assert traces["step"] == [1, 2]
    owner = session.model if hasattr(session.model, "alpha") else session.model.head
    for constant in ("alpha", "beta", "theta"):
        assert traces[constant][-1] == pytest.approx(getattr(owner, constant).item(), abs=1e-6)
        assert traces[constant][0] != traces[constant][1]


def test_what_cannot_be_explored_is_one_sentence(mnist_run, tmp_path):
    save_file({"x": torch.zeros(2, 2)}, tmp_path / "x.safetensors")
    for arguments, code, sentence in [
        (["nowhere"], 1, "nowhere does not exist; give a run's folder, a checkpoint, an index, word vectors, or demo."),
        ([tmp_path / "x.safetensors"], 1, "no names"),
        (["demo", "--out", tmp_path / "page.png"], 1, "a page is written as .html"),
        (["demo", "--out", tmp_path / "none" / "page.html"], 1, "No such folder"),
        ([mnist_run, "--network", "MNISTNet", "--out", tmp_path / "a.html"], 1, "VisualTverskyMNISTNet"),
        (["demo", "--host", "0.0.0.0"], 2, "--allow-remote"),
    ]:
        result = invoke(*arguments)
        assert result.exit_code == code, (arguments, result.output)
        assert sentence in result.output
        assert "Traceback" not in result.output


def test_a_run_of_edits_can_be_drawn_on(tmp_path, monkeypatch):
    from rich.console import Console

    # One drawing is selected instead of one out of hundreds.
    monkeypatch.setattr(editing, "lines", lambda: iter([(14, 8, 14, 21, 2)]))
    folder = tmp_path / "editing"
    run.run("editing", "paper", [], folder, tmp_path / "results", "cpu", True, Console(quiet=True))
    session = explored.session_of(str(folder))
    assert session.about()["offers"]["edit"]
    image = session.image({"kind": "example", "index": 3})["pixels"]
    assert session.preview({"prototypes": {"7": image}})["all"]
