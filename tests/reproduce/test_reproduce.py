"""``similitude reproduce``: every experiment runs, stops and goes on, by one command."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from similitude.cli import main
from similitude.files import locked
from similitude.reproduce import EXPERIMENTS, find
from similitude.reproduce.record import Record, RunError, WriteError
from similitude.reproduce.run import commands, run_all
from similitude.reproduce.run import run as run_one
from similitude.reproduce.settings import label, of_recipe, rows, usual

COMMAND = [sys.executable, "-c", "from similitude.cli import main; main()", "reproduce"]


def quiet(*_, **__):
    pass


def run(experiment, folder, name):
    record = Record(folder, name, experiment.smoke, "cpu")
    result = experiment.run(experiment.smoke, record, quiet)
    result.pop("tokens_per_second", None)
    result.pop("seconds", None)
    for table in result.get("tables", []) if name == "human" else []:
        table.pop("processor")
    return result


def arrays(folder):
    return {(f.name, key): np.load(f)[key] for f in folder.glob("*.npz") for key in np.load(f)}


@pytest.fixture
def ended(tmp_path, monkeypatch, capfd):
    """Runs a command in an empty folder, and returns its exit code and what it wrote to stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["similitude", "reproduce", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, capfd.readouterr().err

    return run


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_that_is_stopped_after_any_checkpoint_ends_as_an_unbroken_one(name, tmp_path, monkeypatch):
    experiment = find(name)
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


@pytest.mark.slow
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
        (
            ["xorr"],
            "no experiment named 'xorr'; there are xor, mnist, resnet, ptb, editing, heads, legibility, human, "
            "direction. Did you mean xor?",
        ),
        (["xor", "--recipe", "mine"], "no recipe 'mine' for xor; there are paper, tuned."),
        (["xor", "--recipe", "papr"], "no recipe 'papr' for xor; there are paper, tuned. Did you mean paper?"),
        (["xor", "--smoke", "--recipe", "mine"], "no recipe 'mine' for xor; there are paper, tuned."),
        (["mnist", "--smoke", "--set", "dropout=2"], "dropout must be from 0 to below 1; got 2.0."),
        (
            ["xor", "--smoke", "--set", "level=sets"],
            "level must be one of set, feature; got 'sets'. Did you mean 'set'?",
        ),
        (["mnist", "--smoke", "--set", "epochs=0"], "epochs must be 1 or more; got 0."),
        (
            ["ptb", "--smoke", "--set", "intersection=and"],
            "intersection must be one of product, min, max, mean, gmean, softmin; got 'and'. Did you mean 'mean'?",
        ),
        (["ptb", "--smoke", "--set", "leak=7"], "leak must be a number from 0, none, to 1; got 7.0."),
        (["ptb", "--smoke", "--set", "presence=2"], "presence must be a number between 0 and 1, such as 0.1; got 2.0."),
        (["mnist", "--smoke", "--set", "weight_decay=-1"], "weight_decay must be 0 or more; got -1.0."),
        (["mnist", "--smoke", "--set", "seed=-1"], "seed must be from 0 to 4294967295; got -1."),
        (
            ["mnist", "--smoke", "--set", "networks=MNISTNet,MNISTNet"],
            "each of the networks may be named once; got MNISTNet, MNISTNet.",
        ),
        (
            ["ptb", "--smoke", "--set", "heads=3"],
            "length must be 2 or more, and width a multiple of heads.",
        ),
        (["heads", "--smoke", "--set", "level=foo"], "level must be one of feature, set; got 'foo'."),
        (
            ["xor", "--smoke", "--set", "start=calibrated", "--set", "leak=5"],
            "leak must be a number from 0, none, to 1; got 5.0.",
        ),
        (["xor", "--all", "--set", "level=sets"], "level must be one of set, feature; got 'sets'. Did you mean 'set'?"),
        (["xor", "--smoke", "--set", "seed=1", "--seed", "2"], "seed is set twice; give one value."),
        (["mnist", "--set", "made_up=1000"], "made_up=1000 needs --smoke; other runs are on the real data."),
        (["mnist", "--set", "digits=1000"], "digits is called made_up now; give made_up=1000."),
        (["ptb", "--set", "model=baseline"], "model is called network now; give network=baseline."),
        (
            ["sevens"],
            "no experiment named 'sevens'; there are xor, mnist, resnet, ptb, editing, heads, legibility, human, "
            "direction. sevens is called editing now.",
        ),
        (["xor", "--share", "1/2"], "--share divides the rows of --all; add --all."),
        (["xor", "--all", "--share", "3/2"], "share must be I/N, with I from 1 to N, such as 2/4; got '3/2'."),
        (["xor", "--smoke", "--device", "tpu"], "device must be cpu, or cuda where there is one; got 'tpu'."),
    ],
)
def test_wrong_commands_get_one_sentence(arguments, sentence, ended):
    code, said = ended(*arguments)
    assert code != 0
    assert said.strip() == sentence
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["mnist", "--set", "images=digits", "--set", "made_up=5"], "images cannot start as digits: none of"),
        (["mnist", "--set", "lr=1e30"], "the loss of epoch 1 is nan; try a lower lr than 1e+30."),
        (
            ["ptb", "--set", "made_up=100", "--set", "length=30", "--set", "batch=2"],
            "test parts need 30 tokens or more",
        ),
        (["ptb", "--set", "made_up=65"], "65 tokens are too few for a batch of 4 × 16"),
        (
            ["ptb", "--set", "network=tversky-head", "--set", "lr=1e30", "--set", "epochs=1"],
            "try a lower lr than 1e+30",
        ),
        (["editing", "--set", "lr=1e30"], "try a lower lr than 1e+30"),
        (["legibility", "--set", "lr=1e30"], "try a lower lr than 1e+30"),
        (["editing", "--set", "validation=1"], "leaves no digits to train on, or no sevens with a stroke to select by"),
        (["heads", "--set", "num_features=1000000000000"], "too little memory: "),
    ],
)
def test_what_shows_only_in_a_run_gets_one_sentence_too_and_leaves_no_folder(arguments, sentence, ended, tmp_path):
    code, said = ended(*arguments, "--smoke")
    assert code == 1
    assert sentence in said
    assert said.count("\n") == 1
    kept = list(tmp_path.rglob("log.jsonl"))
    assert bool(kept) == bool(list(tmp_path.iterdir()))


@pytest.mark.parametrize("name", ["xor", "mnist", "resnet", "ptb"])
def test_other_recipes_have_smoke_runs_too(name, tmp_path):
    experiment = find(name)
    for recipe in [recipe for recipe in experiment.recipes if recipe != "paper"]:
        config = usual(experiment, recipe, smoke=True)
        record = Record(tmp_path / recipe, name, config, "cpu")
        assert experiment.summary(record.finish(experiment.run(config, record, quiet)))


def test_a_result_is_copied_from_a_run_that_has_ended(tmp_path):
    """Where it cannot be written is told before the run; what was not copied once is copied next time."""
    few = ["xor", "--set", "num_features=1", "--set", "seeds=1", "--set", "steps=3"]
    (tmp_path / "file").touch()
    command = [*COMMAND, *few, "--out", "run", "--results"]
    done = subprocess.run([*command, "file"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "cannot write to file: File exists; give another --results.\n"
    assert not (tmp_path / "run").exists()
    for folder in ("first", "second"):
        done = subprocess.run([*command, folder], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        names = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert [name.rpartition("-")[2] for name in names] == ["seed0.json", "seed0.outcomes.npz"]
    assert "has ended already" in done.stdout


@pytest.mark.slow
def test_a_folder_is_of_one_process_at_a_time(tmp_path):
    from similitude.reproduce import mnist

    record = Record(tmp_path / "run", "mnist", mnist.SMOKE, "cpu")
    command = [*COMMAND, "mnist", "--smoke", "--set", "networks=MNISTNet", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "another process works in run; wait for it, or give another --out.\n"
    del record
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).returncode == 0


def test_all_rows_run_by_one_command_and_one_that_cannot_does_not_stop_the_others(tmp_path):
    command = [*COMMAND, "xor", "--all", "--smoke"]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "xor-smoke-paper-seed0").touch()
    first = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert first.returncode == 1
    lines = first.stderr.splitlines()
    assert lines[0].startswith("cannot write to runs/xor-smoke-paper-seed0: File exists")
    assert lines[1:] == ["1 of 2 rows could not be run; the same command tries these again."]
    assert (tmp_path / "runs" / "xor-smoke-paper-level_feature-seed0" / "result.json").exists()
    (tmp_path / "runs" / "xor-smoke-paper-seed0").unlink()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "row 2 of 2: xor-smoke-paper-level_feature-seed0" in again.stdout
    assert again.stdout.count("has ended already") == 1


def test_each_row_has_a_smoke_run_that_needs_no_network(tmp_path):
    for name in ("resnet", "ptb", "editing"):
        experiment = find(name)
        for row in rows(experiment, "paper", []):
            config = of_recipe(experiment, "paper", row, smoke=True)
            if name == "ptb":
                config = replace(config, num_features=min(config.num_features, 64))
            record = Record(tmp_path / label(experiment, "paper", config, smoke=True), name, config, "cpu")
            assert experiment.summary(record.finish(experiment.run(config, record, quiet)))


def test_a_full_disk_ends_all_rows_with_one_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("similitude.reproduce.record.torch.save", full)
    with pytest.raises(WriteError, match="xor-smoke-paper-seed0: No space left on device; run the same command"):
        run_all("xor", device="cpu", smoke=True)
    assert [path.name for path in Path("runs").iterdir()] == ["xor-smoke-paper-seed0"]
    assert not list(tmp_path.rglob("*.half"))


@pytest.mark.parametrize("kind", ["json", "npz"])
def test_a_result_that_cannot_be_copied_leaves_no_half(tmp_path, monkeypatch, kind):
    few = ["num_features=1", "seeds=1", "steps=3"]
    arguments = ("xor", "paper", few, tmp_path / "run", tmp_path / "results", "cpu")
    run_one(*arguments)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    write = Path.write_bytes

    def full(path, content):
        write(path, content[:10])
        if kind in path.name:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(WriteError, match="the run is whole, run the same command to copy it"):
        run_one(*arguments)
    assert {path.name: path.read_bytes() for path in (tmp_path / "results").iterdir()} == kept


def test_python_runs_what_a_command_runs_without_a_word(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = run_one("xor", settings=["num_features=1", "seeds=1", "steps=3"], results="results", device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (content["experiment"], content["recipe"], content["row"]) == (
        "xor",
        "paper",
        "num_features=1 seeds=1 steps=3",
    )
    [folder] = Path("runs").iterdir()
    for path in (folder / "result.json", Path("results") / f"{folder.name}.json"):
        assert json.loads(path.read_text()) == content
    assert run_one("xor", settings=["num_features=1", "seeds=1", "steps=3"], device="cpu") == content


@pytest.mark.parametrize(("name", "recipe"), [(name, recipe) for name in EXPERIMENTS for recipe in find(name).recipes])
def test_a_listed_command_runs_its_row(name, recipe):
    experiment = find(name)
    table = rows(experiment, recipe, [])
    listed = [line.split() for line in commands(name, recipe)]
    assert len(listed) == len(table)
    for words, row in zip(listed, table, strict=True):
        assert words[0] == name
        assert words[1:3] == (["--recipe", recipe] if recipe != "paper" else words[1:3])
        given = [word for before, word in pairwise(words) if before == "--set"]
        assert of_recipe(experiment, recipe, given) == of_recipe(experiment, recipe, row)


@pytest.mark.parametrize("step", [1, 3, 40])
def test_shares_of_the_list_are_all_lines_once(step):
    listed = [commands("ptb", share=f"{first}/{step}") for first in range(1, step + 1)]
    assert sorted(line for lines in listed for line in lines) == sorted(commands("ptb"))
    assert max(map(len, listed)) - min(map(len, listed)) <= 1


def test_shares_are_all_rows_once(tmp_path):
    few = ["num_features=1", "seeds=1", "steps=3"]
    rows_of = {}
    for share in ("1/2", "2/2"):
        runs = run_all("xor", settings=few, out=tmp_path / "runs", device="cpu", share=share)
        rows_of[share] = [content["config"]["level"] for content in runs]
    assert rows_of == {"1/2": ["set"], "2/2": ["feature"]}


def test_a_row_in_which_another_process_works_is_skipped_and_is_no_failure(tmp_path):
    command = [*COMMAND, "xor", "--all", "--smoke"]
    (tmp_path / "runs" / "xor-smoke-paper-seed0").mkdir(parents=True)
    lock = locked(tmp_path / "runs" / "xor-smoke-paper-seed0")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    [line] = [line for line in done.stdout.splitlines() if line.startswith("skipped")]
    assert line.startswith("skipped: another process works in runs/xor-smoke-paper-seed0")
    assert not (tmp_path / "runs" / "xor-smoke-paper-seed0" / "result.json").exists()
    assert (tmp_path / "runs" / "xor-smoke-paper-level_feature-seed0" / "result.json").exists()
    lock.release()


def test_made_up_data_are_for_smoke_runs_alone_from_python_too(tmp_path):
    for name in EXPERIMENTS:
        if hasattr(find(name).smoke, "made_up"):
            with pytest.raises(RunError, match="made_up=50 needs --smoke"):
                run_one(name, settings=["made_up=50"], out=tmp_path / "run")
            assert not (tmp_path / "run").exists()


# Folders by the names that version 0.1.0 gave them, each stopped after its first checkpoint, with the result of each
# unbroken run; and the settings of the runs now.
OLD = {
    "mnist-smoke-paper-networks_TverskyMNISTNet-seed0": ["networks=TverskyMNISTNet"],
    "resnet-smoke-paper-seed0": [],
    "ptb-smoke-paper-num_features_8-length_8-layers_1-width_8-text_1000-seed0": [
        *("num_features=8", "length=8", "layers=1", "width=8", "made_up=1000")
    ],
    "sevens-smoke-paper-num_features_2-seed0": ["num_features=2"],
    "heads-smoke-paper-seed0": [],
}


@pytest.mark.parametrize("label", OLD)
def test_a_run_of_version_0_1_0_resumes_by_todays_names_and_its_result_is_read(label, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    zipfile.ZipFile(Path(__file__).with_name("runs-0.1.0.zip")).extractall("runs")
    name, saved, save = label.split("-")[0].replace("sevens", "editing"), [], Record.save
    monkeypatch.setattr(Record, "save", lambda self, step, *rest: (saved.append(step), save(self, step, *rest)))
    content = run_one(name, settings=OLD[label], device="cpu", smoke=True)
    assert saved[0] == 2
    assert (Path("runs") / label / "result.json").exists()
    whole = json.loads((Path("runs") / f"{label}.json").read_text())
    for result in (content["result"], whole["result"]):
        result.pop("tokens_per_second", None)
    result.pop("seconds", None)
    assert flat(content["result"]) == pytest.approx(flat(whole["result"]), rel=1e-3, abs=1e-3)
    assert content["experiment"] == name
    # A run that version 0.1.0 ended, without sums, is opened, not run again.
    (Path("runs") / label / "SHA256SUMS").unlink()
    (Path("runs") / label / "result.json").write_text((Path("runs") / f"{label}.json").read_text())
    again = run_one(name, settings=OLD[label], device="cpu", smoke=True)
    assert again["config"] == content["config"]
    assert (again["experiment"], again["recipe"], again["row"]) == (name, "paper", content["row"])
    assert again["commit"] == whole["commit"]


def flat(value) -> list[float]:
    """All numbers of a result, in order."""
    if isinstance(value, dict | list):
        return [n for item in (value.values() if isinstance(value, dict) else value) for n in flat(item)]
    return [value] if isinstance(value, int | float) else []


FEW = ["num_features=1", "seeds=1", "steps=3"]


@pytest.mark.parametrize("error", [RunError("no data."), KeyboardInterrupt(), MemoryError("no room")])
def test_a_run_that_fails_before_its_first_line_leaves_no_folder_that_it_made(tmp_path, monkeypatch, error):
    def failing(config, record, progress):
        assert (record.folder / "config.json").exists()
        raise error

    monkeypatch.setattr("similitude.reproduce.run.find", lambda name: replace(find(name), run=failing))
    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "deep" / "run", tmp_path / "mine"):
        with pytest.raises((RunError, KeyboardInterrupt)):
            run_one("xor", settings=FEW, out=out, results=tmp_path / "new" / "results", device="cpu")
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "mine"]


def test_a_run_that_fails_later_keeps_what_it_has(tmp_path, monkeypatch):
    def failing(config, record, progress):
        record.log(1, loss=1.0)
        raise RunError("the loss is nan.")

    monkeypatch.setattr("similitude.reproduce.run.find", lambda name: replace(find(name), run=failing))
    with pytest.raises(RunError, match="the loss is nan"):
        run_one("xor", settings=FEW, out=tmp_path / "run", results=tmp_path / "results", device="cpu")
    assert {path.name for path in (tmp_path / "run").iterdir()} >= {"config.json", "log.jsonl"}
    assert not (tmp_path / "results").exists()


def test_a_copy_clears_what_a_killed_one_left(tmp_path):
    content = run_one("xor", settings=FEW, out=tmp_path / "run", results=tmp_path / "results", device="cpu")
    [path] = (tmp_path / "results").glob("*.json")
    left = [path.with_name(f".{name}.77.half") for name in (path.name, f"{path.stem}.outcomes.npz")]
    others = path.with_name(".xor-paper-seed7.json.77.half")
    for half in (*left, others):
        half.write_text("half")
    assert run_one("xor", settings=FEW, out=tmp_path / "run", results=tmp_path / "results", device="cpu") == content
    assert not any(half.exists() for half in left)
    assert others.exists()
