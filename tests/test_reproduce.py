"""``similitude reproduce``: every experiment runs, stops and goes on, by one command."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module

import numpy as np
import pytest

from similitude.cli import EXPERIMENTS
from similitude.experiments.record import Record

COMMAND = [sys.executable, "-c", "from similitude.cli import main; main()", "reproduce"]


def quiet(*_, **__):
    pass


def run(experiment, folder, name):
    record = Record(folder, name, experiment.SMOKE, "cpu")
    result = experiment.run(experiment.SMOKE, record, quiet)
    result.pop("tokens_per_second", None)
    return result


def arrays(folder):
    return {(f.name, key): np.load(f)[key] for f in folder.glob("*.npz") for key in np.load(f)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_that_is_stopped_after_any_checkpoint_ends_as_an_unbroken_one(name, tmp_path, monkeypatch):
    experiment = import_module(f"similitude.experiments.{name}")
    saves = []
    save = Record.save

    def counted(self, step, *rest):
        save(self, step, *rest)
        saves.append(step)

    monkeypatch.setattr(Record, "save", counted)
    whole = run(experiment, tmp_path / "whole", name)
    assert len(saves) >= 2
    for stop in saves[:-1]:

        def stopped(self, step, *rest, stop=stop):
            save(self, step, *rest)
            if step == stop:
                raise KeyboardInterrupt

        monkeypatch.setattr(Record, "save", stopped)
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path / str(stop), name)
        monkeypatch.setattr(Record, "save", save)
        assert run(experiment, tmp_path / str(stop), name) == whole
        ours, theirs = arrays(tmp_path / str(stop)), arrays(tmp_path / "whole")
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[key], theirs[key]) for key in ours)


def test_a_run_that_is_killed_goes_on_by_the_same_command(tmp_path):
    """SIGKILL leaves no time to tidy up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, "mnist", "--smoke", "--set", "epochs=6", "--set", "networks=TverskyMNISTNet"]
    whole = subprocess.run([*command, "--out", "whole"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    process = subprocess.Popen([*command, "--out", "killed"], cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "killed").glob("checkpoint-[0-9]")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    again = subprocess.run([*command, "--out", "killed"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    results = [json.loads((tmp_path / folder / "result.json").read_text())["result"] for folder in ("whole", "killed")]
    assert results[0] == results[1]
    # The third time there is nothing left to do.
    third = subprocess.run([*command, "--out", "killed"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "killed has ended already" in third.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["xorr"], "no experiment named 'xorr'; there are xor, mnist, resnet, ptb, sevens, heads. Did you mean xor?"),
        (["xor", "--recipe", "mine"], "no recipe 'mine' for xor; there are paper, tuned."),
        (["xor", "--smoke", "--recipe", "mine"], "no recipe 'mine' for xor; there are paper, tuned."),
        (["mnist", "--smoke", "--set", "dropout=2"], "dropout must be from 0 to below 1; got 2.0."),
        (["xor", "--smoke", "--set", "level=sets"], "level must be set or feature; got 'sets'."),
        (["mnist", "--smoke", "--set", "epochs=0"], "epochs, batch and checkpoint_every must be 1 or more."),
        (
            ["ptb", "--smoke", "--set", "intersection=and"],
            "intersection must be one of product, min, max, mean, gmean, softmin; got 'and'. Did you mean 'mean'?",
        ),
        (["ptb", "--smoke", "--set", "leak=7"], "leak must be a number from 0, none, to 1; got 7.0."),
        (["ptb", "--smoke", "--set", "presence=2"], "presence must be a number from 0.5 to below 1; got 2.0."),
        (["xor", "--smoke", "--device", "tpu"], "device must be cpu, or cuda where there is one; got 'tpu'."),
    ],
)
def test_wrong_commands_get_one_sentence(arguments, sentence, tmp_path):
    done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.strip() == sentence
    assert not list(tmp_path.iterdir())
