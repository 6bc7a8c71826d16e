"""A run's folder: what was asked for, how it went, where it stands, and what came out.

    config.json       the settings; a folder belongs to one setting
    log.jsonl         one line a step that was reported, and the same as TensorBoard events where that is installed
    checkpoint-N/     model.safetensors, state.pt and, where one is chosen, best.safetensors after N steps; the newest
                      is where a stopped run goes on
    model.safetensors what was trained, once the run has ended; the best of it, where the experiment chose
    .lock             held by the process that is at work here
    result.json       what came out, with versions, device, commit, hashes of the data, time and memory

Whatever is written appears whole or not at all.
"""

from __future__ import annotations

import csv
import errno
import gc
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

# What a run leaves under a name that other programs use too.
WRITTEN = ("log.jsonl", "model.safetensors", "result.json")
LIBRARIES = ("similitude", "torch", "numpy", "transformers", "triton")


class RunError(Exception):
    """What keeps a run from starting or going on, in one sentence."""


class WriteError(RunError):
    """What keeps all runs from going on: there is no place for them."""


class Record:
    """One run's folder, opened to start or to go on."""

    def __init__(self, folder: Path, name: str, config: Any, device: str):
        self.folder, self.name, self.config, self.device = Path(folder), name, config, device
        self.hashes: dict[str, str] = {}
        self.before = 0.0  # seconds of earlier sittings
        self._events: Any = None
        # Now, since the code may be changed before the run ends.
        self.origin = origin(device)
        # Another run of this process may have had more.
        gc.collect()
        if device == "cuda" and torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # Linux counts its peak anew
        self.asked: dict = {"experiment": name} | _plain(asdict(config))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _check_no_others(self.folder)
            self._lock = _locked(self.folder)
            _clear_halves(self.folder)
            path = self.folder / "config.json"
            there = _read_json(path) if path.exists() else {}
            # A run that never came to its first line is none.
            if there and (self.result or self._checkpoints() or (self.folder / "log.jsonl").exists()):
                self._check_same(there)
                if self.result:
                    self._check_same({"experiment": self.result.get("experiment"), **self.result.get("config", {})})
            else:
                write_json(path, self.asked)
            for _, folder in self._checkpoints() if self.result else ():
                shutil.rmtree(folder)
        except OSError as error:
            kind = WriteError if error.errno in (errno.ENOSPC, errno.EDQUOT) else RunError
            raise kind(f"cannot write to {self.folder}: {error.strerror or error}; give another --out.") from None
        self.start = time.perf_counter()

    def _check_same(self, there: dict) -> None:
        other = [k for k in self.asked | there if there.get(k) != self.asked.get(k)]
        if other:
            key = other[0]
            raise RunError(
                f"{self.folder} holds a run with {key}={there.get(key)!r}, and {self.asked.get(key)!r} is asked for; "
                "give another --out, or the same settings to go on."
            )

    @property
    def result(self) -> dict | None:
        """What came out, if the run has ended."""
        path = self.folder / "result.json"
        return _read_json(path) if path.exists() else None

    def log(self, step: int, **values: float) -> None:
        line = json.dumps({"step": step, **values})
        with self._writing(), open(self.folder / "log.jsonl", "a") as file:
            file.write(line + "\n")
        try:
            if self._events is None:
                self._events = _event_writer(self.folder)
            for key, value in values.items() if self._events else ():
                self._events.add_scalar(key, value, step)
        except OSError:  # a full disk; what counts is in the log
            self._events = False

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: dict | None = None,
        best: Mapping[str, Tensor] | None = None,
    ) -> None:
        """A checkpoint after so many steps, in the place of the earlier ones; ``best``: what the run is to leave."""
        final, half = self.folder / f"checkpoint-{step}", self.folder / f"checkpoint-{step}.half"
        with self._writing():
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            for name, kept in (("model", tensors), ("best", best)):
                if kept is not None:
                    save_file(
                        {k: v.detach().contiguous().clone() for k, v in kept.items()}, half / f"{name}.safetensors"
                    )
            about = {"seconds": self.seconds(), "commit": self.origin["commit"], "config": self.asked}
            torch.save({**about, **(state or {})}, half / "state.pt")
            for file in half.iterdir():
                _sync(file)
            shutil.rmtree(final, ignore_errors=True)
            half.rename(final)
        for _, folder in self._checkpoints()[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def save_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """NAME.npz, whole or not at all."""
        half = self.folder / f"{name}.npz.half"
        with self._writing():
            with open(half, "wb") as file:
                np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]
            _sync(half)
            half.replace(self.folder / f"{name}.npz")

    def load(self, names: Iterable[str] | None = None) -> tuple[int, dict[str, Tensor], dict] | None:
        """Steps, tensors and state of the newest checkpoint, if there is one. Later lines of the log are dropped.

        names: those that the tensors must have.
        """
        found = self._checkpoints()
        if not found:
            self._drop_lines_after(0)
            return None
        step, folder = found[-1]
        try:
            tensors = load_file(folder / "model.safetensors")
            state = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
            self.before, earlier, asked = (state.pop(key) for key in ("seconds", "commit", "config"))
        except (OSError, SafetensorError, RuntimeError, EOFError, ValueError, LookupError, TypeError, UnpicklingError):
            raise _damaged(folder) from None
        if asked != self.asked or (names is not None and tensors.keys() != set(names)):
            raise RunError(f"{folder} is of another run or version; remove it to start again.")
        now = self.origin["commit"]
        self.origin["commit"] = earlier if earlier.split(", then ")[-1] == now else f"{earlier}, then {now}"
        self._drop_lines_after(step)
        return step, tensors, state

    def load_best(self) -> dict[str, Tensor]:
        """The ``best`` of the newest checkpoint."""
        _, folder = self._checkpoints()[-1]
        try:
            return load_file(folder / "best.safetensors")
        except (OSError, SafetensorError):
            raise _damaged(folder) from None

    def finish(self, result: dict) -> dict:
        """``result.json``, with all that one needs to judge it; returns it."""
        whole = {
            "experiment": self.name,
            "config": _plain(asdict(self.config)),
            "result": result,
            "data": self.hashes,
            "seconds": round(self.seconds(), 1),
            "peak_gib": round(_peak_gib(self.device), 3),
            **self.origin,
        }
        with self._writing():
            for _, folder in self._checkpoints():
                half = self.folder / "model.safetensors.half"
                best = folder / "best.safetensors"
                _link(best if best.exists() else folder / "model.safetensors", half)
                half.replace(self.folder / "model.safetensors")
            # With this the run has ended: the rest must be there by now.
            write_json(self.folder / "result.json", whole)
            for _, folder in self._checkpoints():
                shutil.rmtree(folder, ignore_errors=True)
        return whole

    def seconds(self) -> float:
        """Time in all sittings."""
        return self.before + time.perf_counter() - self.start

    def _checkpoints(self) -> list[tuple[int, Path]]:
        found = [(f.name.removeprefix("checkpoint-"), f) for f in self.folder.glob("checkpoint-*")]
        return sorted((int(step), folder) for step, folder in found if step.isdigit())

    def _drop_lines_after(self, step: int) -> None:
        path = self.folder / "log.jsonl"
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if _step_of(line) <= step]
            with self._writing():
                write_text(path, "".join(line + "\n" for line in lines))

    def _writing(self):
        return _Writing(self.folder)


class _Writing:
    """Turns a full disk or a folder that went away into one sentence; what was there before stays."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        # torch.save has a plain RuntimeError for a full disk.
        if isinstance(error, OSError | SafetensorError) or kind is RuntimeError:
            why = getattr(error, "strerror", None) or str(error).splitlines()[0]
            why += " (is the disk full?)" * (kind is RuntimeError)
            with suppress(OSError):
                _clear_halves(self.folder)
            left = "the last checkpoint is intact, " if any(self.folder.glob("checkpoint-*")) else ""
            raise WriteError(f"cannot write to {self.folder}: {why}; {left}run the same command to go on.") from None


def _damaged(folder: Path) -> RunError:
    return RunError(f"{folder} cannot be read, its files are damaged; remove it to start again.")


def _step_of(line: str) -> float:
    """The step of a line of the log; one that was cut off by a kill counts as later than any."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")


def make_writable(folder: Path, option: str) -> None:
    """The folder, made if need be. What cannot be written to is told before the work, and not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; give another {option}.") from None


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """The file, whole or as it was."""
    half = path.with_name(path.name + ".half")
    try:
        half.write_bytes(content)
        _sync(half)
        half.replace(path)
    except OSError:
        half.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _link(path: Path, to: Path) -> None:
    """The same file under another name, or a copy where the disk knows no links."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)


def _check_no_others(folder: Path) -> None:
    """Keeps what a run would write over, and another program wrote."""
    config = folder / "config.json"
    wrong = [config] if config.exists() and "experiment" not in _read_json(config) else []
    if not config.exists():
        wrong += [folder / name for name in WRITTEN if (folder / name).exists()] + list(folder.glob("checkpoint-*"))
    if wrong:
        raise RunError(f"{folder} is no run's: its {wrong[0].name} is of something else; give another --out.")


def _locked(folder: Path) -> Any:
    """An open file that keeps other processes out until this one ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    file = open(folder / ".lock", "w")  # noqa: SIM115, open as long as the run
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(f"another process is at work in {folder}; wait for it, or give another --out.") from None
    except OSError:  # a disk that knows no locks
        pass
    return file


def _read_json(path: Path) -> dict:
    try:
        found = json.loads(path.read_text())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{path} is not JSON any more; remove the folder, or give another --out.")
    return found


def _clear_halves(folder: Path) -> None:
    for half in folder.glob("*.half"):
        shutil.rmtree(half) if half.is_dir() else half.unlink()


def _plain(value) -> Any:
    """Tuples as lists, all the way down, as JSON gives them back."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _event_writer(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(folder / "tensorboard"))


def _peak_gib(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    # macOS counts in bytes, others in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)


def paper(table: str) -> list[dict[str, str]]:
    """The rows of one of the paper's tables."""
    text = (resources.files("similitude.reproduce") / "paper" / f"{table}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))


def origin(device: str) -> dict:
    """Versions, device and commit."""
    versions = {}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    where = gpu or f"{platform.machine()}, {torch.get_num_threads()} threads"
    return {"versions": {"python": platform.python_version(), **versions}, "device": where, "commit": commit()}


def commit() -> str:
    """The commit, marked if there are changes on top of it; SIMILITUDE_COMMIT names it where there is no git."""
    if named := os.environ.get("SIMILITUDE_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"
