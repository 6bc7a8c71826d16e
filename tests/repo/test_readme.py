"""README's tables of numbers are those that `python -m benchmarks --readme` makes of the measurements stored here."""

import json
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import engines, ratios, readme, tables

ROOT = Path(__file__).parents[2]
SHAPES = ROOT / "benchmarks" / "results" / "shapes-cuda.csv"
RATIOS = ROOT / "benchmarks" / "results" / "ratios-cpu.csv"


def test_tables_are_made_from_the_measurements(tmp_path):
    pages = [Path(shutil.copy(page, tmp_path / page.name)) for page in readme.PAGES]
    readme.write(tables.read_csv(SHAPES), tables.read_csv(RATIOS) if RATIOS.exists() else [], pages=pages)
    for made, page in zip(pages, readme.PAGES, strict=True):
        assert made.read_text() == page.read_text(), "make it again: python -m benchmarks --readme"


def test_the_page_on_engines_has_what_was_measured(tmp_path):
    page = Path(shutil.copy(engines.PAGE, tmp_path))
    engines.write_page(tables.read_csv(RATIOS.with_name("engines-cpu.csv")), page)
    assert page.read_text() == engines.PAGE.read_text(), "make it again: python -m benchmarks.engines"


def test_every_table_has_its_place():
    text = "".join(page.read_text() for page in readme.PAGES)
    assert text.count("<!-- cpu -->") == text.count("<!-- /cpu -->") == 1
    for name in ("cost", "short", "speed", "results"):
        assert len(re.findall(rf"<!-- {name} -->\n\|.*<!-- /{name} -->", text, flags=re.DOTALL)) == 1


def test_readme_has_five_results_and_a_few_costs():
    text = readme.PAGES[0].read_text()
    for name, rows in (("results", {5}), ("short", {4, 5, 6})):
        table = text.partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
        assert table.count("\n|") - 2 in rows


def test_readme_is_about_one_screen():
    assert len(readme.PAGES[0].read_text().splitlines()) <= 130


def test_a_ratio_that_was_not_measured_has_no_row():
    rows, ratios = tables.read_csv(SHAPES), tables.read_csv(RATIOS)
    first = next(iter(readme.ON_A_CPU.values()))
    assert readme.short(rows, ratios).count("one CPU core") == len(readme.ON_A_CPU)
    few = [row for row in ratios if row["what"] != first]
    assert readme.short(rows, few).count("one CPU core") == len(readme.ON_A_CPU) - 1


def test_a_ratio_is_ours_over_linear():
    rows = [row for row in tables.read_csv(SHAPES) if row["shape"] == "gpt2-head" and "set" not in row["options"]]
    ours, linear = (next(r for r in rows if r["contender"] == name) for name in ("ours", readme.LINEAR))
    *_, line, _, _ = readme.cost(rows).splitlines()
    cells = line.strip("| ").split(" | ")[1:]
    keys = ("both_ms", "graph_ms", "peak_gib")
    assert [float(cell) for cell in cells[1::2]] == [round(float(ours[k]) / float(linear[k]), 1) for k in keys]


def test_a_machine_without_a_gpu_has_a_table_too():
    rows = [{**row, "graph_ms": "", "peak_gib": "nan"} for row in tables.read_csv(SHAPES)]
    assert "| – | – | – | – |" in readme.cost(rows)
    assert "nan" not in readme.cost(rows) + readme.speed(rows)


def test_a_missing_result_is_one_sentence(tmp_path):
    with pytest.raises(SystemExit, match=r"no result xor-tuned-seed0\.json in .*; make it with"):
        readme.accuracy(tmp_path)


def test_a_spread_is_the_standard_error():
    assert readme.spread([40.0, 60.0]) == "50.00 ± 10.00"
    assert readme.spread([40.0]) == "40.00"


def test_a_row_of_two_seeds_is_their_mean(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    for seed, test in ((0, 39.0), (1, 41.0)):
        path = tmp_path / "results" / f"ptb-tuned-network_tversky_head-seed{seed}.json"
        run = json.loads(path.read_text())
        run["result"].update(test=test, valid=20.0)
        path.write_text(json.dumps(run))
    assert "40.00 ± 1.00 (131 M)" in readme.accuracy(tmp_path / "results")


def test_every_module_of_the_benchmarks_imports():
    for path in (ROOT / "benchmarks").glob("[a-z]*.py"):
        import_module(f"benchmarks.{path.stem}")


def test_a_ratio_passes_its_bound_by_a_fifth_at_most(monkeypatch, capsys):
    """Above the bound is said, and fails from a fifth on."""
    monkeypatch.setattr(ratios, "PARTS", ())
    monkeypatch.setattr(ratios, "ratios", lambda: {"a": (1.0, 1.0), "b": (1.1, 1.0), "c": (1.3, 1.0)})
    assert [row["held"] for row in ratios.check()] == ["yes", "yes", "no"]
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]] == ["1", "above", "slow"]


def test_a_part_of_the_ratios_that_is_not_there_is_left_out(monkeypatch):
    monkeypatch.setattr(ratios, "PARTS", ("nosuch",))
    monkeypatch.setattr(ratios, "ratios", lambda: {"a": (1.0, 1.0)})
    assert [row["what"] for row in ratios.check()] == ["a"]
