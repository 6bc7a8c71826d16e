"""Random damages to a run's files, and kills at random moments: each run ends as an unbroken one or says why not."""

import json
import os
import random
import shutil
import signal
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from similitude.reproduce import record as records
from similitude.reproduce.record import Record, RunError
from similitude.reproduce.run import run

STEPS = 4


@dataclass(frozen=True)
class Config:
    lr: float = 0.1
    name: str = "a"


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch):
    """Its threads do not live through a fork."""
    monkeypatch.setattr(records, "_event_writer", lambda folder: False)


def work(folder, stop=None):
    """A run with all the files that runs have: a log, checkpoints with a selected model, arrays, a result."""
    record = Record(folder, "test", Config(), "cpu")
    if not record.result:
        step, tensors, state = record.load(["w"]) or (0, {"w": torch.arange(32.0)}, {"rows": []})
        w, rows = tensors["w"], state["rows"]
        best = record.load_best()["w"] if step else w
        for now in range(step + 1, STEPS + 1):
            w = (1.7 * w + now).sin()
            rows.append(w.sum().item())
            best = w if rows[-1] == max(rows) else best
            record.log(now, loss=rows[-1])
            record.save(now, {"w": w}, {"rows": rows}, {"w": best})
            if now == stop:
                return None
        record.save_arrays("images", {"w": w.numpy()})
        record.finish({"rows": rows})
    return outcome(folder)


def outcome(folder):
    """All that a run gives."""
    content = json.loads((folder / "result.json").read_text())
    kept = [content[key] for key in ("experiment", "recipe", "row", "config", "result", "data")]
    with np.load(folder / "images.npz") as images:
        arrays = {name: images[name].tobytes() for name in images}
    names = sorted(path.name for path in folder.iterdir())
    return kept, arrays, (folder / "model.safetensors").read_bytes(), (folder / "log.jsonl").read_bytes(), names


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"}


def flip(path, rng):
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path, rng):
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def blank(path, rng):
    content, start = path.read_bytes(), rng.randrange(path.stat().st_size)
    path.write_bytes(content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :])


def double(path, rng):
    path.write_bytes(path.read_bytes() * 2)


def replace(path, rng):
    path.write_bytes(
        rng.choice([b"\xff\xfe\x00", b"[" * 100_000, b'{"a":' * 100_000, b"null", b"1e999", rng.randbytes(300)])
    )


def vanish(path, rng):
    path.unlink()


def become_a_folder(path, rng):
    path.unlink()
    path.mkdir()


def swap(path, rng):
    """The file gets the content of another."""
    path.write_bytes(rng.choice(list(files(path.parent).values())))


def odd(path, rng):
    """An odd name beside the file."""
    name = rng.choice(
        ["checkpoint-²", "checkpoint-٣", "checkpoint-", "checkpoint-1e9", "x.half", "checkpoint-9.half", "\udcff"]
    )
    (path.parent / name).mkdir()


def rename(path, rng):
    """A checkpoint under the name of another step, if there is one."""
    folder = next((p for p in path.parents if p.name.startswith("checkpoint-")), None)
    if folder:
        folder.rename(folder.with_name(f"checkpoint-{rng.choice([1, 9, '007', 10**30])}"))


DAMAGES = [flip, flip, flip, flip, cut, blank, double, replace, vanish, become_a_folder, swap, odd, rename]


def damaged(count, tmp_path):
    """Damages that were refused and that did no harm; fails if one did."""
    whole = work(tmp_path / "whole")
    for stop in (1, 2, 3):
        work(tmp_path / f"stopped{stop}", stop)
    work(tmp_path / "ended")
    assert whole == outcome(tmp_path / "ended")
    refused, harmless = [], []
    for seed in range(count):
        rng = random.Random(seed)
        folder = tmp_path / f"copy{seed}"
        shutil.copytree(tmp_path / rng.choice(["stopped1", "stopped2", "stopped3", "ended"]), folder)
        path = rng.choice([path for path in files(folder) if path.stat().st_size])
        damage = rng.choice(DAMAGES)
        damage(path, rng)
        case, before = f"seed {seed}: {damage.__name__} {path.relative_to(folder)}", files(folder)
        sentence = ""
        try:
            found = work(folder)
        except RunError as error:
            sentence = str(error)
        if sentence:
            # What there was can still be rescued.
            assert "\n" not in sentence, case
            assert files(folder) == before, case
            refused.append(case)
        else:
            assert found[:4] == whole[:4], case
            # An odd name stays, and a run that has ended is taken without its sums.
            assert {*found[4], "SHA256SUMS"} >= {*whole[4]}, case
            assert not list(folder.rglob("*.half")), case
            harmless.append(case)
        shutil.rmtree(folder)
    return refused, harmless


def test_a_damaged_run_is_refused_or_ends_as_an_unbroken_one(tmp_path):
    refused, harmless = damaged(60, tmp_path)
    assert refused
    assert harmless


@pytest.mark.slow
def test_five_hundred_damages_lose_and_misread_nothing(tmp_path):
    refused, harmless = damaged(500, tmp_path)
    assert len(refused) > 200
    assert len(harmless) > 30


def child(call, folder, kill_at):
    """The status of a process that makes the call, killed at its n-th work on a file of the folder; and its number."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        with open(read) as pipe:
            seen = pipe.read().count(".")
        return os.waitpid(pid, 0)[1], seen
    try:
        torch.set_num_threads(1)
        seen, within = 0, str(folder)

        def watch(event, args):
            nonlocal seen
            if event.split(".")[0] in ("open", "os", "shutil") and any(within in str(a) for a in args[:2]):
                seen += 1
                os.write(write, b".")
                if seen == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        call()
        os._exit(0)
    finally:
        os._exit(1)


def killed(kills, tmp_path, call, outcome):
    """Runs that are killed up to three times each and then end; fails if one ends otherwise than an unbroken one."""
    rng, done, at = random.Random(0), 0, set()
    status, most = child(lambda: call(tmp_path / "whole"), tmp_path / "whole", 0)
    assert status == 0
    whole = outcome(tmp_path / "whole")
    while done < kills:
        folder = tmp_path / f"killed{done}"
        for _ in range(rng.randint(1, 3)):
            place = rng.randint(1, most)
            status, _ = child(lambda: call(folder), folder, place)  # noqa: B023
            assert status in (0, signal.SIGKILL)
            if status:
                done += 1
                at.add(place)
        status, _ = child(lambda: call(folder), folder, 0)  # noqa: B023
        assert status == 0, f"killed at {place} of {most}"
        assert outcome(folder) == whole, f"killed at {place} of {most}"
        assert not list(folder.rglob("*.half"))
        shutil.rmtree(folder)
    return at


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@needs_fork
def test_a_killed_run_ends_as_an_unbroken_one(tmp_path):
    assert len(killed(20, tmp_path, work, outcome)) > 10


@needs_fork
@pytest.mark.slow
def test_a_hundred_kills_of_runs_and_of_their_copies_lose_nothing(tmp_path):
    few = ["num_features=1,2", "seeds=1", "steps=3"]

    def xor(folder):
        run("xor", settings=few, out=folder / "run", results=folder / "results", device="cpu")

    def found(folder):
        [copy] = (folder / "results").glob("*.json")
        contents = [json.loads(path.read_text()) for path in (copy, folder / "run" / "result.json")]
        assert contents[0] == contents[1]
        [array] = (folder / "results").glob("*.npz")
        assert array.read_bytes() == (folder / "run" / "outcomes.npz").read_bytes()
        with np.load(array) as arrays:
            values = {name: arrays[name].tobytes() for name in arrays}
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
        return contents[0]["result"], values, (folder / "run" / "log.jsonl").read_text(), names

    assert len(killed(50, tmp_path / "xor", xor, found)) > 30
    assert len(killed(50, tmp_path / "test", work, outcome)) > 30
