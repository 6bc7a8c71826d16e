"""A run's folder: its settings, its log, its checkpoints and its result.

    config.json       the settings; a folder belongs to one run
    log.jsonl         one line per logged step, also written as TensorBoard events if that is installed
    checkpoint-N/     model.safetensors, state.pt and, if the experiment selects a model, best.safetensors after N
                      steps; a stopped run resumes from the newest
    model.safetensors the trained model, once the run has ended; the selected one, if the experiment selects
    .lock             held by the process that works here
    result.json       the result, with recipe, row, versions, device, commit, hashes of the data, time and memory
    SHA256SUMS        digests of a checkpoint's files; beside result.json, of all that an ended run has

Every file is written whole or not at all. A checkpoint or result that changed since is refused.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import MISSING, asdict, fields
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..files import (
    SUMS,
    changed,
    checkpoints,
    clear_halves,
    locked,
    make_folder,
    parse_json,
    read_json,
    remove_empty,
    whole,
    write_bytes,
    write_json,
    write_sums,
)
from . import EXPERIMENTS_RENAMED
from .origin import origin, peak_gib, reset_peak

# Files of a run whose names other programs use too.
WRITTEN = ("log.jsonl", "model.safetensors", "result.json")
# Files of a checkpoint.
CHECKPOINT = ("model.safetensors", "best.safetensors", "state.pt")

# Settings and experiments by the names of version 0.1.0, and their names now.
RENAMED = {"model": "network", "features": "encoded", "digits": "made_up", "pictures": "made_up", "text": "made_up"}
# Experiments since then, whose settings have no older names.
NEW = ("human", "direction")


class RunError(Exception):
    """A run cannot start or resume; the message is one sentence."""


def too_little_memory(error: BaseException) -> bool:
    said = any(text in str(error) for text in ("allocate memory", "out of memory", "bad_alloc"))
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and said)


class WriteError(RunError):
    """No run can go on, because the disk is full or cannot be written to."""


class Busy(RunError):
    """Another process works in the run's folder."""


class Record:
    """One run's folder, opened to start the run or to resume it.

    recipe, row: which line of the experiment's tables the run belongs to; see ``settings.row``.
    smoke: whether its numbers mean nothing, which result.json then says.
    """

    folder: Path
    name: str
    config: Any
    device: str
    recipe: str
    row: str
    smoke: bool
    before: float
    start: float
    origin: dict[str, Any]

    def __init__(self, folder: Path, name: str, config: Any, device: str, recipe: str = "", row: str = "", smoke=False):
        self.folder, self.name, self.config, self.device = Path(folder), name, config, device
        self.recipe, self.row, self.smoke = recipe, row, smoke
        self.hashes: dict[str, str] = {}
        self.before = 0.0  # seconds of earlier sittings
        self._events: Any = None
        self._lock: Any = None
        self._made: list[Path] = []
        # Taken at the start, because the code may change before the run ends.
        self.origin = origin(device)
        reset_peak(device)
        self.asked: dict[str, Any] = {"experiment": name} | _plain(asdict(config))
        try:
            self._made = make_folder(self.folder)
            _check_no_others(self.folder)
            self._lock = self._locked()
            clear_halves(self.folder)
            path = self.folder / "config.json"
            there = self._filled(of_now(_read_json(path))) if path.exists() else {}
            # A folder whose run never logged a line is free for another run.
            if there and (self.result or checkpoints(self.folder) or (self.folder / "log.jsonl").exists()):
                self._check_same(there)
                if self.result:
                    check_whole(self.folder)
                    self._check_same({"experiment": self.result["experiment"], **self.result["config"]})
            else:
                write_json(path, self.asked)
            # It was stopped while it ended.
            if self.result and checkpoints(self.folder):
                self._seal()
        except OSError as error:
            if self._made:
                self.leave()
            kind = WriteError if error.errno in (errno.ENOSPC, errno.EDQUOT) else RunError
            raise kind(f"cannot write to {self.folder}: {error.strerror or error}; give another --out.") from None
        self.start = time.perf_counter()

    def leave(self) -> None:
        """Removes the folder if the run failed before there was anything to keep."""
        with suppress(OSError):
            if {path.name for path in self.folder.iterdir()} <= {"config.json", ".lock"}:
                if self._lock:
                    self._lock.release()
                for name in ("config.json", ".lock"):
                    (self.folder / name).unlink(missing_ok=True)
                remove_empty(self._made)

    def _locked(self) -> Any:
        try:
            return locked(self.folder)
        except BlockingIOError:
            raise Busy(f"another process works in {self.folder}; wait for it, or give another --out.") from None

    def _check_same(self, there: dict) -> None:
        other = [k for k in self.asked | there if there.get(k) != self.asked.get(k)]
        if other:
            key = other[0]
            raise RunError(
                f"{self.folder} holds a run with {key}={there.get(key)!r}, not {self.asked.get(key)!r}; "
                "give another --out, or the same settings to resume."
            )

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json, or None if the run has not ended."""
        path = self.folder / "result.json"
        if not path.exists():
            return None
        content = _read_json(path)
        if not (isinstance(content.get("config"), dict) and isinstance(content.get("result"), dict)):
            raise RunError(f"{path} holds no result; remove it to run again, or give another --out.")
        content = result_of_now(content, self.recipe, self.row)
        return content | {"config": self._filled(content["config"])}

    def _filled(self, settings: dict) -> dict:
        """Settings of an earlier version: those that it did not have are at what they start from."""
        usual = {field.name: field.default for field in fields(self.config) if field.default is not MISSING}
        return _plain(usual) | settings

    def log(self, step: int, **values: float) -> None:
        """Appends a line to the log."""
        line = json.dumps({"step": step, **values})
        with self._writing(), open(self.folder / "log.jsonl", "a") as file:
            file.write(line + "\n")
        try:
            if self._events is None:
                self._events = _event_writer(self.folder)
            for key, value in values.items() if self._events else ():
                self._events.add_scalar(key, value, step)
        except OSError:  # a full disk; the log has the same values
            self._events = False

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: dict[str, Any] | None = None,
        best: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Writes a checkpoint and removes the earlier ones; ``best``: the model that the run has selected so far."""
        final, half = self.folder / f"checkpoint-{step}", self.folder / f"checkpoint-{step}.half"
        with self._writing():
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            for name, kept in (("model", tensors), ("best", best)):
                if kept is not None:
                    save_file(
                        {k: v.detach().contiguous().clone() for k, v in kept.items()}, half / f"{name}.safetensors"
                    )
            log = self._log()
            about = {"step": step, "log": [len(log), hashlib.sha256(log).hexdigest()]}
            about |= {"seconds": self.seconds(), "commit": self.origin["commit"], "config": self.asked}
            torch.save({**about, **(state or {})}, half / "state.pt")
            write_sums(half, [name for name in CHECKPOINT if (half / name).exists()])
            for file in half.iterdir():
                _sync(file)
            shutil.rmtree(final, ignore_errors=True)
            half.rename(final)
        for _, folder in checkpoints(self.folder)[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    def save_arrays(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Writes NAME.npz."""
        with self._writing(), whole(self.folder / f"{name}.npz") as half, open(half, "wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]

    def load(self, names: Iterable[str] | None = None) -> tuple[int, dict[str, Tensor], dict[str, Any]] | None:
        """Steps, tensors and state of the newest checkpoint, or None; drops later lines of the log.

        names: the names that the tensors must have.
        """
        found = checkpoints(self.folder)
        if not found:
            self._cut_log(0)
            return None
        step, folder = found[-1]
        try:
            if changed(folder, CHECKPOINT):
                raise ValueError("a file is not as it was written")
            tensors = load_file(folder / "model.safetensors")
            state = torch.load(folder / "state.pt", weights_only=True, map_location="cpu")
            self.before, earlier, asked = (state.pop(key) for key in ("seconds", "commit", "config"))
            # Version 0.1.0 wrote no sums, and neither of these.
            own, log = state.pop("step", step), state.pop("log", None)
            if log is not None and not (folder / SUMS).exists():
                raise ValueError("the sums are gone")
        except Exception:  # damaged bytes raise almost anything
            raise _damaged(folder) from None
        if (
            own != step
            or self._filled(of_now(asked)) != self.asked
            or (names is not None and tensors.keys() != set(names))
        ):
            raise RunError(f"{folder} belongs to another run or version; remove it to start again.")
        now = self.origin["commit"]
        self.origin["commit"] = earlier if earlier.split(", then ")[-1] == now else f"{earlier}, then {now}"
        self._cut_log(step, log)
        return step, tensors, state

    def load_best(self) -> dict[str, Tensor]:
        """The selected model of the newest checkpoint."""
        _, folder = checkpoints(self.folder)[-1]
        try:
            return load_file(folder / "best.safetensors")
        except (OSError, SafetensorError):
            raise _damaged(folder) from None

    def finish(self, result: dict[str, Any]) -> dict[str, Any]:
        """Ends the run: writes result.json and model.safetensors, and returns the content of result.json."""
        content = {
            "experiment": self.name,
            "recipe": self.recipe,
            "row": self.row,
            **({"smoke": True} if self.smoke else {}),
            "config": _plain(asdict(self.config)),
            "result": _plain(result),
            "data": self.hashes,
            "seconds": round(self.seconds(), 1),
            "peak_gib": round(peak_gib(self.device), 3),
            **self.origin,
        }
        with self._writing():
            for _, folder in checkpoints(self.folder):
                best = folder / "best.safetensors"
                with whole(self.folder / "model.safetensors") as half:
                    _link(best if best.exists() else folder / "model.safetensors", half)
            # This file ends the run.
            write_json(self.folder / "result.json", content)
            self._seal()
        return content

    def _seal(self) -> None:
        """Writes the sums of a run that has ended, and removes its checkpoints."""
        write_sums(self.folder, _sealed(self.folder))
        for _, folder in checkpoints(self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def seconds(self) -> float:
        """Time spent in all sittings."""
        return self.before + time.perf_counter() - self.start

    def _log(self) -> bytes:
        path = self.folder / "log.jsonl"
        return path.read_bytes() if path.is_file() else b""

    def _cut_log(self, step: int, kept: list | None = None) -> None:
        """Drops the lines of the log that came after the checkpoint.

        kept: size and digest that the log had then; None for a checkpoint of version 0.1.0.
        """
        path, there = self.folder / "log.jsonl", self._log()
        if kept is None:
            left = b"".join(line + b"\n" for line in there.split(b"\n") if _step_of(line) <= step)
        else:
            left = there[: kept[0]]
            if hashlib.sha256(left).hexdigest() != kept[1]:
                raise RunError(f"{path} is damaged; restore it, or remove {self.folder} to start again.")
        if left != there:
            with self._writing():
                write_bytes(path, left)

    @contextmanager
    def _writing(self):
        """Raises one sentence if the disk is full or the folder is gone; earlier files stay."""
        try:
            yield
        except (OSError, SafetensorError, RuntimeError) as error:
            # torch.save raises a plain RuntimeError on a full disk.
            plain = type(error) is RuntimeError
            if isinstance(error, RuntimeError) and not plain:
                raise
            why = getattr(error, "strerror", None) or str(error).splitlines()[0]
            with suppress(OSError):
                clear_halves(self.folder)
            left = "the last checkpoint is intact, " if any(self.folder.glob("checkpoint-*")) else ""
            raise WriteError(
                f"cannot write to {self.folder}: {why}{' (is the disk full?)' * plain}; "
                f"{left}run the same command to go on."
            ) from None


def check_whole(folder: Path) -> None:
    """Raises if a file of a run that has ended is not as it was written."""
    if wrong := changed(folder, _sealed(folder)):
        sums = folder / SUMS
        raise RunError(
            f"{folder / wrong[0]} is damaged, gone or edited: restore it, or remove {sums} to take it as it is."
        )


def of_now(settings: dict[str, Any], experiment: str = "") -> dict[str, Any]:
    """The settings of a config.json by the names of this version; ``experiment``, if they do not say theirs."""
    if settings.get("experiment", experiment) not in NEW:
        settings = {RENAMED.get(key, key): value for key, value in settings.items()}
    if "experiment" in settings:
        settings["experiment"] = EXPERIMENTS_RENAMED.get(str(settings["experiment"]), settings["experiment"])
    return settings


def result_of_now(content: dict[str, Any], recipe: str = "", row: str = "") -> dict[str, Any]:
    """The content of a result.json by the names of this version; version 0.1.0 wrote neither recipe nor row."""
    now = of_now({"experiment": content.get("experiment", "")})
    now["config"] = of_now(content.get("config", {}), now["experiment"])
    return {"experiment": "", "recipe": recipe, "row": row} | content | now


def _sealed(folder: Path) -> list[str]:
    """The files of a run that has ended whose sums are kept."""
    return [file.name for file in folder.iterdir() if file.name in WRITTEN or file.suffix == ".npz"]


def _damaged(folder: Path) -> RunError:
    return RunError(f"{folder} cannot be read, its files are damaged; remove it to start again.")


def _step_of(line: bytes) -> float:
    """The step of a line of the log; infinity for a line that a kill cut off."""
    try:
        return float(parse_json(line)["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return float("inf")


def make_writable(folder: Path, option: str) -> list[Path]:
    """The folders that were made, the innermost first; raises before the work starts if it cannot be written to."""
    try:
        made = make_folder(folder)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied")
        return made
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}; give another {option}.") from None


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _link(path: Path, to: Path) -> None:
    """Links the file, or copies it if the disk has no links."""
    try:
        os.link(path, to)
    except OSError:
        shutil.copyfile(path, to)


def _check_no_others(folder: Path) -> None:
    """Raises if the folder holds files that a run would overwrite and no run has written."""
    config = folder / "config.json"
    wrong = [config] if config.exists() and "experiment" not in _read_json(config) else []
    if not config.exists():
        wrong += [folder / name for name in WRITTEN if (folder / name).exists()] + list(folder.glob("checkpoint-*"))
    if wrong:
        raise RunError(
            f"{folder} is not a run's folder: another program wrote its {wrong[0].name}; give another --out."
        )


def _read_json(path: Path) -> dict:
    try:
        found = read_json(path)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RunError(f"{path} is not a JSON object; remove the folder, or give another --out.")
    return found


def _plain(value) -> Any:
    """The value with lists in place of tuples, as JSON returns it."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple | list) else value


def _event_writer(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(str(folder / "tensorboard"))


def paper(table: str) -> list[dict[str, str]]:
    """The lines of one of the paper's tables."""
    text = (resources.files("similitude.reproduce") / "paper" / f"{table}.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
