"""Legible features of a file of the user's own: what is read of it, every layer on it, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from similitude.reproduce import find, legibility
from similitude.reproduce.data.find import DataError
from similitude.reproduce.data.given import given
from similitude.reproduce.record import Record, RunError
from similitude.reproduce.results import by_row
from similitude.reproduce.settings import row, rows


def arrays(N: int = 400, D: int = 20) -> dict[str, np.ndarray]:
    """Rows with 6 attributes, each along a direction of its own, and three classes that follow from them."""
    random = np.random.RandomState(0)
    has = random.rand(N, 6) < 0.25
    X = has @ random.standard_normal((6, D)) * 3 + 0.3 * random.standard_normal((N, D)) + 5
    y = np.array(["red", "green", "blue"])[(has @ random.standard_normal((6, 3))).argmax(1)]
    return {"X": X, "y": y, "attributes": has, "names": np.array([f"part {j}" for j in range(6)])}


def saved(folder, **changes) -> str:
    path = folder / "mine.npz"
    np.savez(path, **{name: a for name, a in {**arrays(), **changes}.items() if a is not None})
    return str(path)


def test_a_fifth_of_the_rows_tests_and_the_others_set_the_scale(tmp_path):
    found = given(saved(tmp_path), 10_000)
    assert (len(found.train_x), len(found.test_x), found.outputs) == (320, 80, 3)
    assert found.names == [f"part {j}" for j in range(6)]
    torch.testing.assert_close(found.train_x.mean(0), torch.zeros(20), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.train_x.std(0, correction=0), torch.ones(20))
    assert found.train_x.dtype == torch.float32
    # Each row keeps its class and its attributes.
    whole = arrays()
    scale, mean = whole["X"].std(0), whole["X"].mean(0)
    for x, y, has in zip(found.test_x[:9], found.test_y, found.has):
        i = np.abs((whole["X"] - mean) / scale - x.numpy()).sum(1).argmin()
        assert has.tolist() == whole["attributes"][i].tolist()
        assert sorted({"red", "green", "blue"})[y] == whole["y"][i]
    assert list(found.hashes) == ["mine.npz"]
    assert len(given(saved(tmp_path), 100).train_x) == 100


@pytest.mark.parametrize("layer", legibility.LAYERS)
def test_every_layer_runs_on_a_file(layer, tmp_path):
    config = legibility.Config(layer=layer, file=saved(tmp_path), num_features=32, steps=150, batch=64, seeds=2)
    record = Record(tmp_path / "run", "legibility", config, "cpu", "paper", row(find("legibility"), "paper", config))
    content = record.finish(legibility.run(config, record, lambda *_, **__: None))
    assert min(content["result"]["score"]) > (30 if layer in ("random", "k-means") else 60)
    assert len(content["result"]["attributes"][0]) > 3
    first, second = legibility.tables([content])
    assert first.title == f"legible features: {config.file}"
    assert second.row_count == 1
    assert by_row([content])[0].config["file"] == config.file


def test_all_layers_take_the_file():
    table = rows(find("legibility"), "paper", ["file=mine.npz"])
    assert [settings[-1] for settings in table] == ["file=mine.npz"] * len(table)
    assert [settings[0] for settings in table][: len(legibility.LAYERS)] == [f"layer={x}" for x in legibility.LAYERS]


def test_tables_take_no_file(tmp_path):
    config = replace(legibility.RECIPES["tables"], file="mine.npz")
    with pytest.raises(RunError, match=r"^file= is read in place of digits; leave --recipe tables out\.$"):
        legibility.run(config, None, None)


WRONG = {
    "no X": ({"X": None}, r"mine\.npz has no array 'X', only attributes, names, y; expected X \[N, D\], y \[N\]"),
    "X of text": ({"X": np.array([["a"]] * 400)}, r"^X of .*mine\.npz must be numbers \[N, D\]; got <U1 \[400, 1\]\.$"),
    "few rows": (
        {n: arrays(40)[n] for n in ("X", "y", "attributes")},
        r"^X of .* must be 50 rows or more; got float64",
    ),
    "y of another length": (
        {"y": np.arange(399)},
        r"^y of .* must be classes \[400\], whole numbers or text; got int64",
    ),
    "y of floats": ({"y": np.linspace(0, 1, 400)}, r"^y of .* must be classes \[400\], .*; got float64 \[400\]\.$"),
    "one class": ({"y": np.ones(400, int)}, r"^y of .* must have two classes or more; all rows are 1\.$"),
    "shares": (
        {"attributes": np.full((400, 6), 0.5)},
        r"^attributes of .* must be bool \[400, J\]; got float64 \[400, 6\]",
    ),
    "few names": ({"names": np.array(["a"])}, r"^names of .* must be the names of 6 attributes; got <U1 \[1\]\.$"),
    "objects": (
        {"names": np.array(["a", None])},
        r"mine\.npz is not an npz file of plain arrays \(Object arrays cannot",
    ),
    "not finite": (
        {"X": np.where(np.arange(400)[:, None] == 7, np.nan, 1.0)},
        r"^X of .* must be finite; row 7 is not",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_one_sentence(case, tmp_path):
    changes, message = WRONG[case]
    with pytest.raises(DataError, match=message) as error:
        given(saved(tmp_path, **changes), 100)
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_npz_is_one_sentence(tmp_path):
    path = tmp_path / "mine.npz"
    with pytest.raises(DataError, match=r"mine\.npz is not there\.$"):
        given(str(path), 100)
    for content in (b"text", b"PK\x03\x04 cut short"):
        path.write_bytes(content)
        with pytest.raises(
            DataError, match=r"mine\.npz is not an npz file of plain arrays \(.*\); expected X \[N, D\]"
        ):
            given(str(path), 100)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(DataError, match=r"one\.npy is not an npz file of plain arrays"):
        given(str(tmp_path / "one.npy"), 100)
