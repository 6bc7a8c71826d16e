"""A run's folder: whole files only, going on where it was, and one sentence for whatever is wrong."""

import json
import os
import shutil
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from similitude.reproduce import record as records
from similitude.reproduce.record import Record, RunError, WriteError


@dataclass(frozen=True)
class Config:
    steps: int = 3
    lr: float = 0.1
    name: str = "a"
    quick: bool = False
    sizes: tuple[int, ...] = (1, 2)


def stop(*_, **__):
    raise KeyboardInterrupt


def open_record(folder, config=None):
    return Record(folder, "test", config or Config(), "cpu")


def test_a_folder_goes_on_with_its_own_settings_only(tmp_path):
    open_record(tmp_path / "run").log(1, loss=1.0)
    open_record(tmp_path / "run")
    with pytest.raises(RunError, match="holds a run with steps=3, not 4"):
        open_record(tmp_path / "run", Config(steps=4))


def test_a_folder_of_a_run_that_failed_at_once_is_free_for_other_settings(tmp_path):
    open_record(tmp_path / "run")
    open_record(tmp_path / "run", Config(steps=4))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 4


@pytest.mark.parametrize("last", ["_link", "write_json"])
def test_a_run_that_is_stopped_while_it_ends_can_end_again(tmp_path, monkeypatch, last):
    """Whatever was done by then, the checkpoint is whole until the result is there."""
    record = open_record(tmp_path)
    record.save(3, {"a": torch.arange(3)})
    monkeypatch.setattr(records, last, stop)
    with pytest.raises(KeyboardInterrupt):
        record.finish({"x": 1})
    monkeypatch.undo()
    again = open_record(tmp_path)
    step, tensors, _ = again.load()
    assert (step, tensors["a"].tolist()) == (3, [0, 1, 2])
    again.finish({"x": 1})
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [0, 1, 2]
    assert again.result["result"] == {"x": 1}


def test_what_a_run_left_that_was_stopped_right_after_its_result_is_cleared(tmp_path, monkeypatch):
    record = open_record(tmp_path)
    record.save(3, {"a": torch.arange(3)})
    monkeypatch.setattr(records.shutil, "rmtree", stop)
    with pytest.raises(KeyboardInterrupt):
        record.finish({"x": 1})
    monkeypatch.undo()
    assert open_record(tmp_path).result["result"] == {"x": 1}
    assert not list(tmp_path.glob("checkpoint-*"))
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [0, 1, 2]


def test_arrays_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    record = open_record(tmp_path)
    record.save_arrays("images", {"a": np.arange(3)})

    def full(file, **_):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.np, "savez_compressed", full)
    with pytest.raises(RunError, match="No space left on device; run the same command to go on"):
        record.save_arrays("images", {"a": np.arange(4)})
    assert np.load(tmp_path / "images.npz")["a"].tolist() == [0, 1, 2]
    assert not list(tmp_path.glob("*.half"))


def test_a_checkpoint_comes_back_and_replaces_the_earlier_one(tmp_path):
    record = open_record(tmp_path)
    assert record.load() is None
    record.save(1, {"w": torch.zeros(2)}, {"rng": torch.get_rng_state()})
    record.save(2, {"w": torch.ones(2)}, {"epoch": 7})
    step, tensors, state = open_record(tmp_path).load()
    assert (step, state) == (2, {"epoch": 7})
    assert torch.equal(tensors["w"], torch.ones(2))
    assert [f.name for f in tmp_path.glob("checkpoint-*")] == ["checkpoint-2"]


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    record = open_record(tmp_path)
    record.log(1, loss=1.0)
    record.save(1, {"w": torch.zeros(1)})
    record.log(2, loss=0.5)
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 3, "lo')
    open_record(tmp_path).load()
    assert [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [
        {"step": 1, "loss": 1.0}
    ]


def test_a_half_written_checkpoint_is_no_checkpoint(tmp_path):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(1)})
    (tmp_path / "checkpoint-2.half").mkdir()
    (tmp_path / "config.json.half").write_text("{")
    assert open_record(tmp_path).load()[0] == 1
    assert not list(tmp_path.glob("*.half"))


@pytest.mark.parametrize("file", ["model.safetensors", "state.pt"])
@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_a_corrupt_checkpoint_is_one_sentence(tmp_path, file, damage):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(100)}, {"epoch": 1})
    (tmp_path / "checkpoint-1" / file).write_bytes(damage)
    with pytest.raises(RunError, match="checkpoint-1 cannot be read") as error:
        open_record(tmp_path).load()
    assert "\n" not in str(error.value)


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(1)})

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "save_file", full)
    with pytest.raises(RunError, match="No space left on device; the last checkpoint is intact"):
        record.save(2, {"w": torch.ones(1)})
    assert not list(tmp_path.glob("*.half"))
    assert record.load()[0] == 1


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write to"):
        open_record(tmp_path / "run")


def test_a_file_in_the_place_of_the_folder_is_one_sentence(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*run: File exists; give another --out"):
        open_record(tmp_path / "run")


def test_the_result_says_where_it_comes_from(tmp_path):
    record = open_record(tmp_path)
    record.hashes["train"] = "00ff"
    record.save(3, {"w": torch.zeros(1)})
    whole = record.finish({"accuracy": 0.9})
    assert whole == open_record(tmp_path).result
    assert whole["config"]["sizes"] == [1, 2]
    assert whole["data"] == {"train": "00ff"}
    assert whole["versions"]["torch"] == torch.__version__
    assert whole["seconds"] >= 0
    assert whole["peak_gib"] > 0
    assert whole["commit"]
    assert not list(tmp_path.glob("checkpoint-*"))
    assert torch.equal(load_file(tmp_path / "model.safetensors")["w"], torch.zeros(1))


def test_time_of_earlier_sittings_counts(tmp_path):
    record = open_record(tmp_path)
    record.start -= 100
    record.save(1, {"w": torch.zeros(1)})
    again = open_record(tmp_path)
    again.load()
    assert again.seconds() > 100


def test_a_run_names_the_commits_of_all_its_sittings(tmp_path, monkeypatch):
    for step, commit in enumerate(["aaaaaaa", "aaaaaaa", "bbbbbbb", "bbbbbbb"], 1):
        monkeypatch.setenv("SIMILITUDE_COMMIT", commit)
        record = open_record(tmp_path / "run")
        record.load()
        record.save(step, {"x": torch.zeros(1)})
    assert record.finish({})["commit"] == "aaaaaaa, then bbbbbbb"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("basic_ios::clear: iostream")])
def test_any_way_that_a_disk_is_full_is_one_sentence_and_leaves_no_halves(tmp_path, monkeypatch, error):
    def full(*_, **__):
        raise error

    record = open_record(tmp_path)
    record.log(1, loss=1.0)
    record.save(1, {"w": torch.zeros(1)})
    monkeypatch.setattr(records.torch, "save", full)
    with pytest.raises(WriteError, match="the last checkpoint is intact, run the same command to go on") as told:
        record.save(2, {"w": torch.ones(1)})
    assert "\n" not in str(told.value)
    monkeypatch.undo()
    record.log(2, loss=1.0)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError):
        open_record(tmp_path).load()
    monkeypatch.undo()
    assert not list(tmp_path.glob("*.half"))
    assert open_record(tmp_path).load()[0] == 1


def test_a_disk_that_is_too_full_for_tensorboard_stops_nothing(tmp_path, monkeypatch):
    class Full:
        def add_scalar(self, *_):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(records, "_event_writer", lambda folder: Full())
    record = open_record(tmp_path)
    record.log(1, loss=1.0)
    record.log(2, loss=0.5)
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("file", "text"),
    [("config.json", '{"model_type": "gpt2"}'), ("model.safetensors", "weights"), ("result.json", "{}")],
)
def test_a_folder_of_something_else_is_left_alone(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(RunError, match=f"another program wrote its {file}; give another --out") as error:
        open_record(tmp_path)
    assert "\n" not in str(error.value)
    assert (tmp_path / file).read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_another_programs_checkpoints_are_left_alone(tmp_path):
    (tmp_path / "checkpoint-500").mkdir()
    with pytest.raises(RunError, match="another program wrote its checkpoint-500"):
        open_record(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-500"]


def test_a_disk_that_is_full_before_a_run_ends_all_of_them(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left on device; give another --out"):
        open_record(tmp_path / "run")


def test_a_checkpoint_or_result_of_another_run_is_not_taken_for_ones_own(tmp_path):
    for folder, config in (("a", Config()), ("b", Config(lr=0.2))):
        record = open_record(tmp_path / folder, config)
        record.save(1, {"w": torch.zeros(1)})
    (tmp_path / "a" / "checkpoint-1").rename(tmp_path / "b" / "checkpoint-2")
    with pytest.raises(RunError, match="checkpoint-2 belongs to another run or version; remove it to start again"):
        open_record(tmp_path / "b", Config(lr=0.2)).load()
    (tmp_path / "b" / "checkpoint-2").rename(tmp_path / "aside")
    with pytest.raises(RunError, match="checkpoint-1 belongs to another run"):
        open_record(tmp_path / "b", Config(lr=0.2)).load(["w", "v"])
    record = open_record(tmp_path / "b", Config(lr=0.2))
    record.finish({})
    (tmp_path / "b" / "result.json").rename(tmp_path / "a" / "result.json")
    with pytest.raises(RunError, match=r"holds a run with lr=0\.2, not 0\.1"):
        open_record(tmp_path / "a")


def test_peak_memory_is_the_runs_own(tmp_path):
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the peak is counted anew on Linux alone")
    first = open_record(tmp_path / "first")
    large = torch.ones(2**28, dtype=torch.uint8)
    most = first.finish({})["peak_gib"]
    del large
    assert most - open_record(tmp_path / "second").finish({})["peak_gib"] > 0.2


def copied(record, to):
    """What a machine that stops leaves of a run's folder: all but the lock that this process holds."""
    shutil.copytree(record.folder, to)
    return to


@pytest.mark.parametrize("file", ["model.safetensors", "best.safetensors", "state.pt", "SHA256SUMS"])
def test_a_flipped_bit_anywhere_in_a_checkpoint_is_refused(tmp_path, file):
    record = open_record(tmp_path / "run")
    record.save(1, {"w": torch.zeros(3)}, {"epoch": 1, "rows": [0.5, 0.25]}, {"w": torch.ones(3)})
    path = copied(record, tmp_path / "copy") / "checkpoint-1" / file
    content = path.read_bytes()
    for place in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        with pytest.raises(RunError, match=r"checkpoint-1 cannot be read, its files are damaged; remove it to start"):
            open_record(tmp_path / "copy").load()


def test_a_checkpoint_without_its_sums_is_one_of_version_0_1_0_or_damaged(tmp_path):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(3)}, {"epoch": 1})
    folder = tmp_path / "checkpoint-1"
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(RunError, match="its files are damaged"):
        record.load()
    state = torch.load(folder / "state.pt")
    torch.save({key: value for key, value in state.items() if key not in ("step", "log")}, folder / "state.pt")
    assert record.load()[2] == {"epoch": 1}


def test_files_that_a_checkpoint_does_not_name_are_left_alone(tmp_path):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(3)}, {"epoch": 1})
    (tmp_path / "checkpoint-1" / ".DS_Store").write_text("view")
    assert record.load()[0] == 1


def test_a_checkpoint_under_the_name_of_another_step_is_refused(tmp_path):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(3)})
    (tmp_path / "checkpoint-1").rename(tmp_path / "checkpoint-3")
    with pytest.raises(RunError, match="checkpoint-3 belongs to another run or version"):
        record.load()


@pytest.mark.parametrize(
    "name", ["checkpoint-²", "checkpoint-٣", "checkpoint-", "checkpoint-2.half.half", "checkpoint-x"]
)
def test_odd_names_are_no_checkpoints(tmp_path, name):
    record = open_record(tmp_path)
    record.save(1, {"w": torch.zeros(3)})
    (tmp_path / name).mkdir()
    assert open_record(tmp_path).load()[0] == 1


def test_the_log_is_what_it_was_at_the_checkpoint_or_refused(tmp_path):
    record = open_record(tmp_path / "run")
    record.log(1, loss=1.0)
    record.save(1, {"w": torch.zeros(1)})
    record.log(1, loss=7.0)
    log = copied(record, tmp_path / "copy") / "log.jsonl"
    open_record(tmp_path / "copy").load()
    assert log.read_text() == '{"step": 1, "loss": 1.0}\n'
    for damage in (b'{"step": 1, "loss": 1.5}\n', b"", b'{"step": 1, "loss": 1.0\xff\n'):
        log.write_bytes(damage)
        with pytest.raises(RunError, match=r"log\.jsonl is damaged; restore it, or remove"):
            open_record(tmp_path / "copy").load()
        assert log.read_bytes() == damage


@pytest.mark.parametrize("line", [b'{"step": 1, "loss": "\xff"}', b"[" * 100_000, b'{"step": [1]}', b'{"step": 1e999}'])
def test_lines_that_cannot_be_read_are_dropped_from_a_log_of_version_0_1_0(tmp_path, line):
    record = open_record(tmp_path)
    record.log(1, loss=1.0)
    record.save(1, {"w": torch.zeros(1)})
    folder = tmp_path / "checkpoint-1"
    state = torch.load(folder / "state.pt")
    torch.save({key: value for key, value in state.items() if key not in ("step", "log")}, folder / "state.pt")
    (folder / "SHA256SUMS").unlink()
    with open(tmp_path / "log.jsonl", "ab") as file:
        file.write(line + b"\n")
    assert record.load()[0] == 1
    assert (tmp_path / "log.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'


@pytest.mark.parametrize(
    "content", [b"\xff\xfe{}", b"[" * 100_000, b'{"a":' * 100_000, b"3", b"", b'{"experiment": []}']
)
@pytest.mark.parametrize("file", ["config.json", "result.json"])
def test_settings_and_results_that_are_no_json_are_one_sentence(tmp_path, file, content):
    record = open_record(tmp_path / "run")
    record.log(1, loss=1.0)
    (copied(record, tmp_path / "copy") / file).write_bytes(content)
    with pytest.raises(RunError, match=r"is not a JSON object|holds a run with|holds no result") as error:
        open_record(tmp_path / "copy")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", ["result.json", "model.safetensors", "images.npz", "log.jsonl", "SHA256SUMS"])
def test_a_run_that_has_ended_is_what_it_was_or_refused(tmp_path, file):
    record = open_record(tmp_path / "run")
    record.log(1, loss=1.0)
    record.save_arrays("images", {"a": np.arange(3)})
    record.save(1, {"w": torch.zeros(3)})
    record.finish({"accuracy": 0.25})
    path = copied(record, tmp_path / "copy") / file
    assert open_record(tmp_path / "copy").result["result"] == {"accuracy": 0.25}
    path.write_bytes(path.read_bytes().removesuffix(b"\n") + b" ")
    with pytest.raises(
        RunError, match=r"^.*is damaged, gone or edited: restore it, or remove .*SUMS to take it as it is\.$"
    ):
        open_record(tmp_path / "copy")
    (tmp_path / "copy" / "SHA256SUMS").unlink()
    assert open_record(tmp_path / "copy").result


def test_a_run_that_was_stopped_before_its_sums_gets_them(tmp_path, monkeypatch):
    record = open_record(tmp_path)
    record.save(3, {"a": torch.arange(3)})
    monkeypatch.setattr(records, "write_sums", stop)
    with pytest.raises(KeyboardInterrupt):
        record.finish({"x": 1})
    monkeypatch.undo()
    assert open_record(tmp_path).result["result"] == {"x": 1}
    assert "result.json" in (tmp_path / "SHA256SUMS").read_text()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(tmp_path):
    (tmp_path / "mine").write_text("my own")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match=r"cannot write to .*: its \.lock is a link to .*mine; give another --out\.$"):
        open_record(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "my own"


def test_settings_of_newer_experiments_keep_their_names():
    """``model`` was the older name of ``network``, and is a setting of people's judgements."""
    content = {"experiment": "human", "config": {"model": "tversky"}, "result": {}}
    assert records.result_of_now(content)["config"] == {"model": "tversky"}
    assert records.result_of_now(content | {"experiment": "ptb"})["config"] == {"network": "tversky"}
