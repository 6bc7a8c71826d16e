"""``similitude gallery``: a smoke run of each experiment draws its figures and a page that stands alone."""

import base64
import html
import json
import math
import re
import shutil
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("matplotlib")
pytest.importorskip("typer")

from typer.testing import CliRunner

from similitude import cli
from similitude.reproduce import EXPERIMENTS, find, heads, mnist, xor
from similitude.reproduce.data.made_up import synthetic_images
from similitude.reproduce.figures import gallery
from similitude.reproduce.figures import heads as figures_heads
from similitude.reproduce.figures import mnist as figures_mnist
from similitude.reproduce.figures import ptb as figures_ptb
from similitude.reproduce.figures import resnet as figures_resnet
from similitude.reproduce.figures import xor as figures_xor
from similitude.reproduce.figures.runs import Missing, Run
from similitude.reproduce.record import Record, RunError, paper

PNG = b"\x89PNG\r\n\x1a\n"
EXAMPLES = {"mnist-salience", *(f"mnist-venn-{name}" for name in mnist.NETWORKS)}
FIGURES = {
    "xor": {"xor-convergence", "xor-not-converged-set", "xor-sizes-set"},
    "mnist": {"mnist-training", "mnist-prototypes", "mnist-smoothed", "mnist-evolution", *EXAMPLES},
    "resnet": {"resnet-training-made-up-images--scratch", "resnet-constants"},
    "ptb": {"ptb-training", "ptb-constants"},
    "editing": {"sevens-images"},
    "heads": {"heads-features-heads"},
    "legibility": {"legibility-digits"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with a smoke run of each experiment."""
    folder = tmp_path_factory.mktemp("runs")
    for name in FIGURES:
        experiment = find(name)
        record = Record(folder / name, name, experiment.smoke, "cpu", "paper")
        record.finish(experiment.run(experiment.smoke, record, lambda *_, **__: None))
    return folder


@pytest.fixture(autouse=True)
def few_models(monkeypatch):
    monkeypatch.setattr(figures_xor, "SIZES", (2, 4))
    monkeypatch.setattr(figures_xor, "TRIES", 2)


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), ["gallery", *map(str, arguments)])


def test_every_experiment_with_figures_is_looked_at():
    assert {name for name in EXPERIMENTS if find(name).figures} == set(FIGURES) == set(gallery.kinds())


@pytest.mark.parametrize("name", FIGURES)
def test_a_smoke_run_gives_its_figures_and_a_page_that_stands_alone(name, runs, tmp_path):
    out = tmp_path / "gallery"
    result = invoke(runs / name, "--out", out)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    written = next(i for i, line in enumerate(lines) if re.match(rf"{len(FIGURES[name])} figures? written to", line))
    left = "\n".join(lines[written + 1 :])
    page = (out / "index.html").read_text()
    assert left.count("left out: ") == page.count("<li>") - 1  # the page lists the run too
    assert len(re.findall(r"^left out: .*, because .*\.$", left, flags=re.MULTILINE)) == left.count("left out: ")
    assert {path.stem for path in out.glob("*.png")} == FIGURES[name]
    assert {path.name for path in out.iterdir()} == {f"{stem}.png" for stem in FIGURES[name]} | {"index.html"}
    shown = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)">', page)
    assert {base64.b64decode(content) for _, content in shown} == {path.read_bytes() for path in out.glob("*.png")}
    assert all(len(alt) > 30 for alt, _ in shown)
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert all(path.read_bytes().startswith(PNG) for path in out.glob("*.png"))


def test_results_of_all_experiments_make_one_page(runs, tmp_path, monkeypatch):
    results = tmp_path / "results"
    results.mkdir()
    for name in FIGURES:
        shutil.copy(runs / name / "result.json", results / f"{name}-paper-seed0.json")
        for file in (runs / name).glob("*.npz"):
            shutil.copy(file, results / f"{name}-paper-seed0.{file.name}")
    (results / "other.json").write_text('{"rows": []}')
    monkeypatch.setattr(Run, "warning", "")
    written, missing = gallery.make(results, tmp_path / "out", svg=True)
    # The logs, which have α, β and θ of ptb, and what was trained stay with the runs.
    found = {path.stem for path in written if path.suffix == ".png"}
    usual = set().union(*FIGURES.values(), {"ptb-perplexity-scratch-tied"})
    assert found == usual - {"ptb-constants", *FIGURES["heads"]} - EXAMPLES
    assert len([path for path in written if path.suffix == ".svg"]) == len(written) // 2
    page = (tmp_path / "out" / "index.html").read_text()
    assert "mean nothing" not in page
    assert "they are in the log.jsonl of a Tversky run" in page
    assert "the trained networks are in the model.safetensors of the run" in page
    assert len(missing) == page.count("<li>") - len(FIGURES)


def test_a_sheet_shows_the_test_images_that_have_each_feature_most(tmp_path):
    config = replace(heads.SMOKE, layer="whitened", num_features=30, lrs=(3e-3,), seeds=1)
    record = Record(tmp_path / "run", "heads", config, "cpu", "paper")
    record.finish(heads.run(config, record, lambda *_, **__: None))
    run = gallery.runs_in(tmp_path / "run")[0]
    (drawn,) = figures_heads.of_heads([run], lambda *_, **__: None)
    encoded = heads.load(config, "cpu", lambda *_, **__: None)
    x = heads.scaled(config.scale, (encoded.train_x, encoded.train_y), (encoded.test_x, encoded.test_y))[1][0]
    tensors = run.tensors()
    measures = x @ tensors["features.weight"].mT - tensors["features.threshold"]
    images = synthetic_images(config.made_up, size=config.size).test_x
    rows = [ax for ax in drawn.figure.axes if ax.get_ylabel()]
    assert len(rows) == figures_heads.FEATURES
    for ax in rows:
        feature, share = ax.get_ylabel().removeprefix("feature ").split("\n")
        own = measures[:, int(feature)]
        assert share == f"{(own > 0).double().mean():.0%}"
        first = images[own.argmax()].permute(1, 2, 0) / 255
        np.testing.assert_allclose(ax.images[0].get_array(), first, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (dict(layer="linear"), "a linear head has no features"),
        (dict(encoded="vectors.npz", made_up=0), "the vectors came from a file, which has no images"),
    ],
)
def test_a_head_without_features_or_images_has_no_sheet(tmp_path, changes, why):
    save_file({"weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    whole = {"config": asdict(replace(heads.SMOKE, **changes)), "result": {}}
    (missing,) = figures_heads.of_heads([Run("a", whole, f"{tmp_path}/")], lambda *_, **__: None)
    assert missing == Missing("Features of heads: a", why)


def test_names_and_titles_are_text_on_the_page_whatever_is_in_them(tmp_path):
    """Marks of blocks and names of values are escaped or left as they are, too."""
    odd = '<script>alert("$why")</script> & <!-- missing --> $title ${content}'
    (tmp_path / "a.png").write_bytes(PNG)
    run = {
        "device": odd,
        "versions": {"torch": ""},
        "commit": "",
        "seconds": 0,
        "peak_gib": 0,
        "recipe": odd,
        "row": odd,
        "config": {"seed": 0},
        "result": {},
    }
    made = gallery.page([{"name": "a", "title": odd, "alt": odd}], [Missing(odd, odd)], [Run(odd, run, "")], tmp_path)
    assert "<script" not in made
    assert "<!--" not in made
    # The figure's title and twice its description; the missing one's title and reason; the run's label and origin (3).
    assert made.count(html.escape(odd)) == 9
    assert base64.b64encode(PNG).decode() in made


def test_the_page_has_no_mark_or_name_left_and_says_what_is_missing_only_if_something_is(tmp_path):
    pages = [gallery.page([], missing, [], tmp_path) for missing in ([], [Missing("a", "b")])]
    assert [page.count("Not made") for page in pages] == [0, 1]
    for page in pages:
        assert not re.search(r"\$|<!--", page)
        check = Balanced()
        check.feed(page)
        assert check.open == []


class Balanced(HTMLParser):
    """Checks that every tag is closed in its place."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_strip_shows_what_the_run_trained(runs, tmp_path):
    """Another model.safetensors in the same folder gives other figures; images.npz stays as it was."""
    folder, other = tmp_path / "run", {f"{n}/{k}": v for n in mnist.NETWORKS for k, v in state(n).items()}
    shutil.copytree(runs / "mnist", folder)
    gallery.make(folder, tmp_path / "before")
    save_file(other, folder / "model.safetensors")
    with pytest.raises(
        RunError, match=r"model\.safetensors is damaged, gone or edited: .* remove .*SHA256SUMS to take it"
    ):
        gallery.make(folder, tmp_path / "after")
    (folder / "SHA256SUMS").unlink()
    gallery.make(folder, tmp_path / "after")
    same = {
        p.stem: p.read_bytes() == (tmp_path / "after" / p.name).read_bytes()
        for p in (tmp_path / "before").glob("*.png")
    }
    assert {name for name, is_same in same.items() if not is_same} == EXAMPLES


def state(name):
    torch.manual_seed(1)
    return mnist.NETWORKS[name]().state_dict()


def test_smoothed_images_are_without_their_mean_and_find_their_own_class():
    x = torch.rand(10, 28, 28, generator=torch.Generator().manual_seed(0))
    smooth = figures_mnist.smoothed(x)
    torch.testing.assert_close(smooth.mean(0), torch.zeros(28, 28), atol=1e-6, rtol=0)
    torch.testing.assert_close(figures_mnist.smoothed(x + 3), smooth)
    assert smooth.std() < 0.3 * x.std()
    dot = torch.zeros(10, 28, 28)
    dot[0, 14, 14] = 10 / 9  # what is taken off is a tenth of it
    around = figures_mnist.smoothed(dot)[0]
    assert around[14, 14] / around[14, 17] == pytest.approx(math.exp((3 / 1.5) ** 2 / 2), rel=1e-4)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    assert torch.equal(figures_mnist.alike(2 * x[order] + 1, x).argmax(-1), order)


def test_a_linear_layer_is_seen_as_its_rows():
    network = mnist.NETWORKS["MNISTNet"]().eval()
    x = torch.rand(5, 1, 28, 28)
    layer, vectors = figures_mnist.last_layer(network, x)
    torch.testing.assert_close(vectors @ layer.features.weight.T + network.head.bias, network(x))


def test_candidates_are_those_that_ended_so_in_the_grid():
    config = xor.Config(num_features=(2, 4), seeds=2)
    right = np.random.default_rng(0).integers(3, 5, xor.shape(config)).astype(np.uint8)
    found = {c: list(figures_xor.candidates(config, 4, right, c)) for c in (True, False)}
    assert len(found[True]) + len(found[False]) == 9 * 2
    for converged, places in found.items():
        for at in places:
            where = tuple(1 if axis == "num_features" else at[axis] for axis in xor.AXES)
            assert (right[where] == 4) == converged
    assert len(list(figures_xor.candidates(config, 64, right, True))) == 9 * 2


def test_bars_are_the_papers_numbers_and_ours(runs):
    bars = figures_xor.bars(gallery.runs_in(runs / "xor"))
    assert [len(series["paper"]) for series in bars.values()] == [12, 9, 2, 6]
    row = paper("xor_by_reductions")[0]
    key = f"{row['intersection']}, {row['difference']}"
    assert bars["intersection and difference"]["paper"][key] == (float(row["p_conv"]), float(row["p_conv_se"]))
    assert list(bars["number of features"]["paper"]) == ["1", "2", "4", "8", "16", "32"]
    whole = json.loads((runs / "xor" / "result.json").read_text())
    got = bars["intersection and difference"][f"ours, {xor.heading(whole)}"]
    assert {p for p, _ in got.values()} == {r["p_conv"] for r in whole["result"]["tables"]["by_reductions"]}


def test_runs_that_noted_one_epoch_are_left_out_beside_curves():
    def made(condition, epochs):
        config = {"made_up": 0, "data": "cub", "condition": condition, "network": "tversky", "seed": 0}
        rows = [[epoch, 1.0, 0.5, 0.1, 0.2, 0.3] for epoch in range(epochs)]
        return Run(condition, {"config": config, "result": {"curve": rows}}, "")

    found = list(figures_resnet.of_resnet([made("frozen", 3), made("scratch", 1)], lambda *_, **__: None))
    assert [item.title for item in found if isinstance(item, Missing)] == ["ResNet: training on CUB, scratch"]
    constants = next(item for item in found if item[0] == "resnet-constants")
    (ax,) = constants.figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["CUB, frozen, seed 0"]


def test_a_result_that_is_not_of_the_grid_leaves_the_others_their_figures(runs, tmp_path, monkeypatch):
    """Nor does a run without images change the names of another's."""
    monkeypatch.setattr(Run, "warning", "")
    for label, name in (("xor-grid", "xor"), ("xor-other", "xor"), ("mnist-a", "mnist"), ("mnist-b", "mnist")):
        whole = json.loads((runs / name / "result.json").read_text())
        if label == "xor-other":
            whole["result"] = {"models": 3, "p_conv": 0.5, "rows": []}
        (tmp_path / f"{label}.json").write_text(json.dumps(whole))
    shutil.copyfile(runs / "mnist" / "images.npz", tmp_path / "mnist-a.images.npz")
    written, _ = gallery.make(tmp_path, tmp_path / "out")
    stems = {path.stem for path in written}
    assert {"xor-convergence", "mnist-prototypes", "mnist-evolution", "mnist-training-mnist-b"} <= stems
    assert "XOR: xor-other: it is not the paper&#x27;s grid" in (tmp_path / "out" / "index.html").read_text()


def test_figures_of_two_runs_with_images_have_names_and_titles_of_their_own(runs, tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "warning", "")
    for label in ("mnist-a", "mnist-b"):
        shutil.copyfile(runs / "mnist" / "result.json", tmp_path / f"{label}.json")
        shutil.copyfile(runs / "mnist" / "images.npz", tmp_path / f"{label}.images.npz")
    gallery.make(tmp_path, tmp_path / "out")
    titles = re.findall("<h2>(.*?)</h2>", (tmp_path / "out" / "index.html").read_text())
    assert len(titles) == len(set(titles)) > 6
    assert (tmp_path / "out" / "mnist-prototypes-mnist-b.png").exists()


def test_perplexities_of_seeds_are_averaged(runs):
    run = gallery.runs_in(runs / "ptb")[0]
    other = json.loads(json.dumps(run.whole))
    other["config"]["seed"], other["result"]["valid"] = 1, run.whole["result"]["valid"] + 2
    series, levels = figures_ptb.perplexities([run, run._replace(whole=other)], "scratch", True)
    ours = next(line for name, line in series.items() if name.startswith("ours"))
    assert ours == ([16], [pytest.approx(run.whole["result"]["valid"] + 1)])
    theirs = next(line for name, line in series.items() if name.startswith("paper"))
    assert 8192 in theirs[0]
    assert levels["paper, linear"] > 0


def test_of_rates_the_best_is_drawn(runs):
    run = gallery.runs_in(runs / "ptb")[0]
    other = json.loads(json.dumps(run.whole))
    other["config"]["lr"], other["result"]["valid"] = 7.0, run.whole["result"]["valid"] + 2
    seed = json.loads(json.dumps(run.whole))
    seed["config"]["seed"] = 1
    made = [run._replace(whole=other), run, run._replace(whole=seed)]
    assert figures_ptb.best(made) == made[1:]


def test_cells_that_the_paper_leaves_out_are_no_points(runs):
    run = gallery.runs_in(runs / "ptb")[0]
    whole = json.loads(json.dumps(run.whole))
    whole["config"] |= {"network": "tversky-head", "intersection": "product", "difference": "subtractmatch"}
    series, _ = figures_ptb.perplexities([run._replace(whole=whole)], "scratch", True)
    features, values = next(line for name, line in series.items() if name.startswith("paper"))
    assert max(features) == 12288  # 16384 and 32768 are empty
    assert len(features) == len(values)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (None, "no folder {folder}; give a run's folder, such as runs/xor-paper-seed0, or results."),
        ({"a.txt": ""}, "no results in {folder}; make some with: similitude reproduce xor"),
        (
            {"config.json": "{}"},
            "{folder} holds a run that has not ended; run its similitude reproduce command to go on.",
        ),
        (
            {"result.json": '{"experiment": "a"}'},
            "{folder} holds a run of none of the experiments with figures: {kinds}.",
        ),
        ({"result.json": "[]"}, "{folder} holds a run of none of the experiments with figures: {kinds}."),
        ({"result.json": "{"}, "{folder}/result.json is not JSON that can be read; remove it, or make it again."),
        (
            {"xor-a.json": '{"experiment": "xor"}'},
            "{folder} holds a result without 'result'; make it again with this version.",
        ),
    ],
)
def test_wrong_folders_get_one_sentence(files, sentence, tmp_path):
    folder = tmp_path / "run"
    for name, text in (files or {}).items():
        write(folder / name, text)
    result = invoke(folder, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr.strip() == sentence.format(folder=folder, kinds=", ".join(FIGURES))


def test_a_damaged_file_and_a_place_that_is_no_folder_are_one_sentence_each(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "mnist", folder)
    (folder / "SHA256SUMS").unlink()
    whole = (folder / "images.npz").read_bytes()
    for damaged in (b"nonsense", whole[: len(whole) // 2]):
        (folder / "images.npz").write_bytes(damaged)
        with pytest.raises(RunError, match=r"images.npz cannot be read"):
            gallery.make(folder, tmp_path / "out")
    shutil.copy(runs / "mnist" / "images.npz", folder)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"model.safetensors cannot be read"):
        gallery.make(folder, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*file: File exists; give another --out"):
        gallery.make(runs / "mnist", tmp_path / "file")


@pytest.mark.parametrize("summed", [True, False])
def test_a_file_that_cannot_be_read_is_told(summed, runs, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(runs / "mnist", folder)
    if not summed:
        (folder / "SHA256SUMS").unlink()

    def locked(path, *arguments, there=open, **options):
        if str(path).endswith("model.safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return there(path, *arguments, **options)

    monkeypatch.setattr("builtins.open", locked)
    result = invoke(folder, "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == f"cannot open {folder / 'model.safetensors'}: Permission denied.\n"


def test_two_grids_of_one_level_have_figures_of_their_own(runs, tmp_path):
    results = tmp_path / "results"
    results.mkdir()
    whole = json.loads((runs / "xor" / "result.json").read_text())
    for seed in (0, 1):
        (results / f"xor-paper-seed{seed}.json").write_text(
            json.dumps({**whole, "config": {**whole["config"], "seed": seed}})
        )
    written, _ = gallery.make(results, tmp_path / "gallery")
    assert len(written) == len(set(written)) == len(list((tmp_path / "gallery").iterdir()))
    assert {"xor-sizes-set-xor-paper-seed0.png", "xor-sizes-set-xor-paper-seed1.png"} <= {path.name for path in written}


def test_a_result_of_another_version_is_one_sentence(runs, tmp_path):
    whole = json.loads((runs / "xor" / "result.json").read_text())
    whole["config"]["newer"] = 1
    (tmp_path / "xor-paper-seed0.json").write_text(json.dumps(whole))
    result = invoke(tmp_path, "--out", tmp_path / "gallery")
    assert result.stderr == "xor-paper-seed0 is of another version, with a setting 'newer'; make it again.\n"
    assert not (tmp_path / "gallery").exists()


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"step": 1, "alp', b"\xff"])
def test_a_log_that_cannot_be_read_is_one_sentence(runs, tmp_path, line):
    folder = tmp_path / "run"
    shutil.copytree(runs / "ptb", folder)
    (folder / "SHA256SUMS").unlink()
    with open(folder / "log.jsonl", "ab") as file:
        file.write(line)
    with pytest.raises(RunError, match=r"^.*log\.jsonl cannot be read: .*; make it again by running the experiment\.$"):
        gallery.make(folder, tmp_path / "out")


def test_a_gallery_that_fails_before_its_first_figure_leaves_no_folder(tmp_path):
    write(tmp_path / "results" / "xor-a.json", '{"experiment": "xor"}')
    with pytest.raises(RunError, match="holds a result without 'result'"):
        gallery.make(tmp_path / "results", tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


def test_figures_of_runs_in_the_docs_have_the_names_of_results():
    """docs/figures/make.py finds what it has drawn by these names."""
    root = Path(__file__).parents[2]
    figures = [path.stem for path in (root / "docs" / "figures").glob("*seed*.png")]
    results = [path.stem for path in (root / "results").glob("*.json")]
    assert len(figures) >= 6
    assert [name for name in figures if not any(name.endswith(f"-{result}") for result in results)] == []
