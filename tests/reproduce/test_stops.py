"""What is said after Ctrl-C is true, and long epochs are saved though no checkpoint is due."""

import sys
from dataclasses import replace

import pytest

from similitude.cli import main
from similitude.reproduce import find, loop
from similitude.reproduce.record import Record


def quiet(*_, **__):
    pass


def result(experiment, config, folder):
    record = Record(folder, experiment.name, config, "cpu")
    found = experiment.run(config, record, quiet)
    return {key: value for key, value in found.items() if key != "tokens_per_second"}


def stopping(monkeypatch, step, after):
    """Ctrl-C at the checkpoint of this step, before it is written or after."""
    save = Record.save

    def stopped(self, at, *rest):
        if at != step or after:
            save(self, at, *rest)
        if at == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(Record, "save", stopped)
    return save


@pytest.mark.parametrize("name", ["mnist", "resnet", "ptb"])
def test_a_checkpoint_that_is_saved_for_its_time_changes_nothing(name, tmp_path, monkeypatch):
    experiment = find(name)
    config = replace(experiment.smoke, epochs=4, checkpoint_every=3)
    whole = result(experiment, config, tmp_path / "whole")
    monkeypatch.setattr(loop, "LONG", 0)
    for step in (1, 2):
        save = stopping(monkeypatch, step, after=True)
        with pytest.raises(KeyboardInterrupt):
            result(experiment, config, tmp_path / str(step))
        assert (tmp_path / str(step) / f"checkpoint-{step}").is_dir()
        monkeypatch.setattr(Record, "save", save)
        assert result(experiment, config, tmp_path / str(step)) == whole
    logs = [(tmp_path / folder / "log.jsonl").read_text() for folder in ("whole", "1", "2")]
    assert name == "ptb" or logs[0] == logs[1] == logs[2]


def test_short_epochs_are_saved_only_when_a_checkpoint_is_due(tmp_path, monkeypatch):
    saved, save = [], Record.save
    monkeypatch.setattr(Record, "save", lambda self, step, *rest: (saved.append(step), save(self, step, *rest)))
    mnist = find("mnist")
    result(mnist, replace(mnist.smoke, networks=("MNISTNet",), epochs=4, checkpoint_every=3), tmp_path / "run")
    assert saved == [3, 4]


@pytest.mark.parametrize(
    ("step", "after", "sentence"),
    [
        (1, False, "stopped before the first checkpoint; nothing of this run was saved."),
        (1, True, "stopped; resume from the last checkpoint with: similitude reproduce mnist --smoke --out {run}"),
        (2, False, "stopped; resume from the last checkpoint with: similitude reproduce mnist --smoke --out {run}"),
    ],
)
def test_a_stop_says_what_is_left(step, after, sentence, tmp_path, monkeypatch, capfd):
    run = str(tmp_path / "run")
    stopping(monkeypatch, step, after)
    monkeypatch.setattr(sys, "argv", ["similitude", "reproduce", "mnist", "--smoke", "--out", run])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
    assert capfd.readouterr().err.strip() == sentence.format(run=run)
    assert bool(list(tmp_path.rglob("checkpoint-1"))) == (sentence.startswith("stopped; "))
