"""The settings of runs: read from text, small for a smoke run, and those of a table's rows."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

from similitude.cli import EXPERIMENTS
from similitude.experiments.record import RunError
from similitude.experiments.settings import changed, label, of_recipe, rows, small


@dataclass(frozen=True)
class Config:
    steps: int = 3
    lr: float = 0.1
    name: str = "a"
    quick: bool = False
    sizes: tuple[int, ...] = (1, 2)


def test_settings_are_read_as_their_fields_types():
    got = changed(Config(), ["steps=5", "lr=1e-3", "name=b", "quick=true", "sizes=4,8"])
    assert got == Config(5, 0.001, "b", True, (4, 8))


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("stepz=5", "no setting 'stepz=5'; give key=value, with a key out of steps, lr, name, quick, sizes."),
        ("steps", "no setting 'steps'; give key=value, with a key out of steps, lr, name, quick, sizes."),
        ("steps=1.5", "steps must be a whole number, as in steps=3; got '1.5'."),
        ("lr=fast", "lr must be a number, as in lr=0.1; got 'fast'."),
        ("lr=nan", "lr must be a number, as in lr=0.1; got 'nan'."),
        ("lr=inf", "lr must be a number, as in lr=0.1; got 'inf'."),
        ("lr=-1", "lr must be more than 0; got -1.0."),
        ("quick=1", "quick must be true or false, as in quick=false; got '1'."),
        ("sizes=1,x", "sizes must be a whole number, as in sizes=1; got 'x'."),
    ],
)
def test_wrong_settings_get_one_sentence(setting, sentence):
    with pytest.raises(RunError) as error:
        changed(Config(), [setting])
    assert str(error.value) == sentence


def test_a_smoke_run_is_small_and_otherwise_as_its_recipe():
    from similitude.experiments import mnist

    for name in EXPERIMENTS:
        experiment = import_module(f"similitude.experiments.{name}")
        assert small(experiment, "paper") == experiment.SMOKE
    got = small(mnist, "legible")
    assert (got.image_blur, got.networks) == (3.0, mnist.RECIPES["legible"].networks)
    assert (got.digits, got.epochs) == (mnist.SMOKE.digits, mnist.SMOKE.epochs)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_rows_are_runs_that_can_be_asked_for_and_the_committed_results_are_of_them(name):
    experiment = import_module(f"similitude.experiments.{name}")
    names = []
    for recipe in experiment.RECIPES:
        table = rows(experiment, recipe, [])
        assert len({of_recipe(experiment, recipe, row) for row in table}) == len(table)
        names += [label(name, recipe, row, 0) for row in table]
    there = {path.stem for path in (Path(__file__).parent.parent / "results").glob(f"{name}-*-seed0.json")}
    if name in ("xor", "mnist", "sevens"):
        assert there == set(names)
    elif name == "ptb":
        assert there == {n for n in names if "finetuned" not in n}
    else:
        # These were run with other epochs or sources besides.
        assert all(any(result.startswith(n.removesuffix("-seed0")) for n in names) for result in there)


def test_settings_pick_rows_that_have_them_and_hold_for_all_otherwise():
    ptb = import_module("similitude.experiments.ptb")
    untied = [row for row in ptb.ROWS["paper"] if "tied=False" in row and "init=finetuned" not in row]
    assert len(untied) == 3
    assert rows(ptb, "paper", ["init=scratch", "epochs=1", "tied=false"]) == [[*row, "epochs=1"] for row in untied]
    assert rows(ptb, "tuned", ["model=baseline", "lr=0.001"]) == [["model=baseline", "lr=1e-3"]]
    assert rows(import_module("similitude.experiments.mnist"), "tuned", ["lr=1"]) == [["lr=1"]]
    with pytest.raises(RunError, match="no row of ptb has model=tversky-head; model is baseline") as error:
        rows(ptb, "paper", ["num_features=8192", "intersection=product", "init=scratch", "model=tversky-head"])
    assert "\n" not in str(error.value)
