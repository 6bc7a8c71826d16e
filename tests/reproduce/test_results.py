"""``similitude table``: the page of results is that of the results, and what is wrong is one sentence."""

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from similitude import cli
from similitude.reproduce import mnist

ROOT = Path(__file__).parents[2]


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), ["table", *map(str, arguments)])


def test_the_page_of_results_is_made_from_the_results_that_are_there(tmp_path):
    assert invoke("--docs", tmp_path / "page.md", "--results", ROOT / "results").exit_code == 0
    made, there = (tmp_path / "page.md").read_text(), (ROOT / "docs" / "results.md").read_text()
    assert made == there, "make it again: similitude table --docs docs/results.md"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--docs", "page.md", "--results", "nowhere"],
            "no folder nowhere; make results with: similitude reproduce xor",
        ),
        (["--docs", "no/page.md", "--results", "."], "cannot write to no/page.md: No such file or directory."),
        (["xor", "--docs", "page.md"], "--docs is of all experiments; leave out xor, or --docs."),
        (
            ["mnist", "--results", "."],
            "mnist-a.json holds no result; remove it, or make it again with: similitude reproduce mnist",
        ),
    ],
)
def test_wrong_folders_and_files_get_one_sentence_and_the_page_stays(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("page.md").write_text("a good page")
    if arguments[0] == "mnist":
        Path("mnist-a.json").write_text("[]")
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stderr == sentence + "\n"
    assert Path("page.md").read_text() == "a good page"


def test_runs_of_other_settings_are_not_averaged_with_a_recipe_and_two_columns_fit(tmp_path):
    whole = json.loads((ROOT / "results" / "mnist-paper-seed0.json").read_text())
    runs = [whole]
    for settings in ({"lr": 0.05}, {"seed": 1}, {"images": "digits"}, {"epochs": 50}):
        runs.append({**whole, "config": {**whole["config"], **settings}})
    kinds = [kind for _, kind in map(mnist._kind, runs)]
    assert kinds == [
        "paper's recipe, 1000 epochs",
        "paper's recipe, 1000 epochs, lr 0.05",
        "paper's recipe, 1000 epochs",
        "paper's recipe, 1000 epochs, images digits",
        "paper's recipe, 50 epochs",
    ]
    tables = mnist.compare(runs)
    assert [len(table.columns) for table in tables] == [5, 5]
    for name, recipe in mnist.RECIPES.items():
        assert mnist._kind({"config": json.loads(json.dumps(vars(recipe)))})[1].startswith(mnist.TITLES.get(name, name))


def test_a_caveat_is_told_with_the_table_and_on_the_page(tmp_path):
    whole = json.loads((ROOT / "results" / "ptb-paper-model_baseline-seed0.json").read_text())
    whole.pop("caveat", None)
    (tmp_path / "ptb-a.json").write_text(json.dumps({**whole, "caveat": "learned from half of it"}))
    (tmp_path / "ptb-b.json").write_text(json.dumps(whole))
    line = "* 1 run of 2: learned from half of it."
    assert line in invoke("ptb", "--results", tmp_path).stdout
    assert invoke("--docs", tmp_path / "page.md", "--results", tmp_path).exit_code == 0
    page = (tmp_path / "page.md").read_text().splitlines()
    assert line in page
    origins = [line for line in page if f", commit {whole['commit']}," in line]
    assert [line.endswith("* learned from half of it.") for line in origins] == [True, False]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"experiment": "xor"}, "is a result of xor"),
        ({"config": {"newer": 1}}, "is of another version, with a setting 'newer'"),
    ],
)
def test_results_of_other_experiments_and_versions_are_one_sentence(tmp_path, change, why):
    whole = json.loads((ROOT / "results" / "mnist-tuned-seed0.json").read_text())
    (tmp_path / "mnist-a-folder.json").mkdir()
    (tmp_path / "mnist-b.json").write_text(json.dumps({**whole, **change}))
    result = invoke("mnist", "--results", tmp_path)
    again = "remove it, or make it again with: similitude reproduce mnist"
    assert result.stderr == f"{tmp_path / 'mnist-b.json'} {why}; {again}\n"
