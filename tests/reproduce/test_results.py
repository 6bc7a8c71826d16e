"""``similitude table``: the pages agree with the results, and errors are one sentence."""

import gzip
import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

from typer.testing import CliRunner

from similitude import cli
from similitude.reproduce import EXPERIMENTS, mnist, pages, results

ROOT = Path(__file__).parents[2]


def invoke(*arguments):
    return CliRunner().invoke(cli.make_app(), ["table", *map(str, arguments)])


@pytest.fixture
def copied(tmp_path):
    """The committed pages and results, as far from each other as they are in the repository."""
    shutil.copytree(ROOT / "docs" / "results", tmp_path / "docs" / "results")
    (tmp_path / "results").symlink_to(ROOT / "results")
    return tmp_path / "docs" / "results"


def write(pages):
    return invoke("--docs", pages, "--results", pages.parents[1] / "results")


def test_the_pages_of_results_are_made_from_the_results_that_are_there(copied):
    assert write(copied).exit_code == 0
    for page in sorted(copied.glob("*.md")):
        there = (ROOT / "docs" / "results" / page.name).read_text()
        assert page.read_text() == there, "make it again: similitude table --docs docs/results"


def test_only_blocks_are_written_and_a_missing_page_is_made(copied):
    page = copied / "mnist.md"
    whole = page.read_text()
    assert "98.93 (+0.23)" in whole
    page.write_text("Prose of ours.\n" + whole.replace("98.93 (+0.23)", "99.99 (+9.99)"))
    (copied / "heads.md").unlink()
    assert write(copied).exit_code == 0
    assert page.read_text() == "Prose of ours.\n" + whole
    made = (copied / "heads.md").read_text()
    assert made.startswith("# Heads on a frozen backbone\n")
    assert "+0.36 ± 0.13" in made


def test_new_pages_are_named(copied):
    (copied / "heads.md").unlink()
    assert write(copied).stdout.splitlines() == [f"new: {copied / 'heads.md'}", f"pages written to {copied}"]


def test_a_table_is_not_lost_for_want_of_results(copied, tmp_path):
    before = {page: page.read_text() for page in copied.iterdir()}
    (tmp_path / "empty").mkdir()
    for folder, sentence in [
        ("nowhere", "no folder "),
        ("empty", f"{copied / 'xor.md'} has a table of xor, and {tmp_path / 'empty'} has no results of it; "),
    ]:
        result = invoke("--docs", copied, "--results", tmp_path / folder)
        assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
        assert result.stderr.startswith(sentence)
        assert {page: page.read_text() for page in copied.iterdir()} == before


def test_every_experiment_has_a_page_with_its_tables_and_their_origin():
    for name in EXPERIMENTS:
        page = (ROOT / "docs" / "results" / f"{name}.md").read_text()
        assert {f"<!-- {kind}: {name} -->" for kind in pages.BLOCKS} <= set(page.splitlines())
        linked = set(re.findall(r"\(\.\./\.\./results/(.*?\.json)\)", page))
        assert linked == {path.name for path in (ROOT / "results").glob(f"{name}-*.json")}


def test_without_results_claims_are_open_and_tables_say_so(tmp_path):
    (tmp_path / "results").mkdir()
    assert invoke("--docs", tmp_path / "docs", "--results", tmp_path / "results").exit_code == 0
    index = (tmp_path / "docs" / "index.md").read_text()
    rows = [line for line in index.splitlines() if line.startswith("| ")][2:]
    assert len(rows) > 15
    assert all("| **open** |" in row and "| not run |" in row for row in rows)
    assert "Not run yet." in (tmp_path / "docs" / "xor.md").read_text()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("<!-- table: xor -->\n", "has a marker without its other half"),
        ("<!-- tables: xor -->\n<!-- end -->\n", "has a block tables: xor; kinds are table, origin, command"),
    ],
)
def test_wrong_markers_are_one_sentence_and_the_page_stays(copied, text, sentence):
    (copied / "xor.md").write_text(text)
    result = write(copied)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert sentence in result.stderr
    assert (copied / "xor.md").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--docs", "pages", "--results", "nowhere"], "no folder nowhere; make results with: similitude reproduce xor"),
        (["--docs", "file/pages", "--results", "."], "cannot write to file/pages: Not a directory."),
        (["xor", "--docs", "pages"], "--docs writes the pages of all experiments; leave out xor, or --docs."),
        (
            ["mnist", "--results", "."],
            "mnist-a.json holds no result; remove it, or make it again with: similitude reproduce mnist",
        ),
    ],
)
def test_wrong_folders_and_files_get_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    if arguments[0] == "mnist":
        Path("mnist-a.json").write_text("[]")
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stderr == sentence + "\n"
    assert not Path("pages").exists()


def test_runs_of_other_settings_are_not_averaged_with_a_recipe_and_two_columns_fit():
    whole = json.loads((ROOT / "results" / "mnist-paper-seed0.json").read_text())
    runs = [whole]
    for settings in ({"lr": 0.05}, {"seed": 1}, {"images": "digits"}, {"epochs": 50}):
        config = whole["config"] | settings
        row = "" if "seed" in settings else " ".join(f"{k}={v}" for k, v in settings.items())
        runs.append({**whole, "row": row, "config": config})
    tables = mnist.tables(runs)
    assert [column.header for table in tables for column in table.columns[3:]] == [
        "ours, paper's recipe, 1000 epochs",
        "ours, paper's recipe, 50 epochs",
        "ours, paper's recipe, 1000 epochs, images digits",
        "ours, paper's recipe, 1000 epochs, lr 0.05",
    ]
    assert "±" in next(iter(tables[0].columns[3].cells))


def test_rows_group_seeds_and_the_last_of_a_seed_counts():
    run = lambda value, **config: {"recipe": "paper", "row": "", "config": config, "result": {"a": value}}  # noqa: E731
    other = run(9.0, seed=0) | {"row": "lr=1"}
    first, second = results.by_row([run(1.0, seed=0), run(3.0, seed=1), run(2.0, seed=0), other])
    assert (first.cell("a"), first.mean("a")) == ("2.50 ± 0.50", 2.5)
    assert (second.name, second.settings, second.cell("a", theirs="8")) == ("lr=1", {"lr": "1"}, "9.00 (+1.00)")


def test_a_caveat_is_told_with_the_table_and_on_the_page(tmp_path):
    whole = json.loads((ROOT / "results" / "ptb-paper-network_baseline-seed0.json").read_text())
    whole.pop("caveat", None)
    (tmp_path / "ptb-a.json").write_text(json.dumps({**whole, "caveat": "learned from half of it"}))
    (tmp_path / "ptb-b.json").write_text(json.dumps({**whole, "row": "network=baseline lr=0.1"}))
    line = "* 1 run of 2: learned from half of it."
    assert line in invoke("ptb", "--results", tmp_path).stdout
    assert invoke("--docs", tmp_path / "docs", "--results", tmp_path).exit_code == 0
    page = (tmp_path / "docs" / "ptb.md").read_text().splitlines()
    assert f"\\{line}" in page
    origins = [line for line in page if f"| {whole['commit']} |" in line]
    assert [line.startswith("| paper\\* |") for line in origins] == [True, False]


def test_results_of_version_0_1_0_are_read_by_todays_names(tmp_path):
    whole = json.loads((ROOT / "results" / "editing-paper-seed0.json").read_text())
    old = {k: v for k, v in whole.items() if k not in ("recipe", "row")} | {"experiment": "sevens"}
    old["config"] = {"digits" if k == "made_up" else k: v for k, v in whole["config"].items()}
    (tmp_path / "sevens-paper-seed0.json").write_text(json.dumps(old))
    [found] = results.load(tmp_path, "editing").values()
    assert found == whole | {"recipe": "", "row": ""}
    assert "64.1%" in invoke("editing", "--results", tmp_path).stdout


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"experiment": "xor"}, "is a result of xor"),
        ({"config": {"newer": 1}}, "is of another version, with a setting 'newer'"),
        ({"config": {"made_up": 100}}, "was measured on made-up data"),
        ({"config": []}, "holds no result"),
        ({"result": []}, "holds no result"),
        ({"result": {}}, "has an empty result"),
        ({"result": {"other": 1}}, "has no 'networks' in its result"),
    ],
)
def test_results_of_other_experiments_and_versions_are_one_sentence(tmp_path, change, why):
    whole = json.loads((ROOT / "results" / "mnist-tuned-seed0.json").read_text())
    (tmp_path / "mnist-a-folder.json").mkdir()
    (tmp_path / "mnist-b.json").write_text(json.dumps({**whole, **change}))
    result = invoke("mnist", "--results", tmp_path)
    again = "remove it, or make it again with: similitude reproduce mnist"
    assert result.stderr == f"{tmp_path / 'mnist-b.json'} {why}; {again}\n"
    assert invoke("--docs", tmp_path / "docs", "--results", tmp_path).stderr == result.stderr


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b2J", "\ud800"])
@pytest.mark.parametrize("key", ["row", "caveat", "device"])
def test_a_result_with_text_that_a_terminal_obeys_is_refused(tmp_path, text, key):
    path = next((Path(__file__).parents[2] / "results").glob("xor-paper-*.json"))
    content = json.loads(path.read_text())
    (tmp_path / path.name).write_text(json.dumps({**content, key: f"a {text}"}))
    with pytest.raises(results.RunError, match="has text that a terminal cannot show; remove it"):
        results.load(tmp_path, "xor")


def test_without_a_folder_of_results_those_of_the_wheel_are_shown(monkeypatch, tmp_path):
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    hook = (ROOT / shipped["hooks"]["custom"]["path"]).read_text()
    assert f"similitude/{results.SHIPPED.name}" in hook
    assert Path(results.__file__).parents[1] == results.SHIPPED.parent
    # As that hook packs them.
    packed = {path.stem: json.loads(path.read_text()) for path in (ROOT / "results").glob("xor-*.json")}
    monkeypatch.setattr(results, "SHIPPED", tmp_path / "packed.json.gz")
    results.SHIPPED.write_bytes(gzip.compress(json.dumps(packed).encode()))
    monkeypatch.chdir(tmp_path)
    assert list(results.load(results.SHIPPED, "xor").values()) == list(results.load(ROOT / "results", "xor").values())
    assert not results.load(results.SHIPPED, "mnist")
    assert "product + subtractmatch" in invoke("xor").stdout
    other = invoke("xor", "--results", "elsewhere")
    assert other.exit_code == 1
    assert "no results of xor in elsewhere" in other.stderr
    (tmp_path / "results").mkdir()
    assert "no results of xor in results" in invoke("xor").stderr


def test_a_result_that_cannot_be_opened_is_told(tmp_path, monkeypatch):
    (tmp_path / "xor-a.json").touch()

    def locked(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(results, "read_json", locked)
    result = invoke("xor", "--results", tmp_path)
    assert (result.exit_code, result.stderr) == (1, f"cannot open {tmp_path / 'xor-a.json'}: Permission denied.\n")
