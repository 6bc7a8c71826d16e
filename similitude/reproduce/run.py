"""Runs of experiments, from Python or from a command: one run, or all rows of an experiment's table."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..files import clear_halves, remove_empty, write_bytes, write_json
from . import EXPERIMENTS_RENAMED, find
from .data.find import DataError
from .record import RENAMED, Busy, Record, RunError, WriteError, make_writable, too_little_memory
from .settings import label, of_recipe, row, rows

if TYPE_CHECKING:
    from rich.console import Console

    from . import Experiment

# Seconds between plain lines of progress: at least, and at most where nothing took longer.
OFTEN, SELDOM = 1, 30


def run(
    name: str,
    recipe: str = "paper",
    settings: Iterable[str] = (),
    out: str | Path | None = None,
    results: str | Path | None = None,
    device: str | None = None,
    smoke: bool = False,
    console: Console | None = None,
) -> dict[str, Any]:
    """The content of result.json of one run, which starts, resumes after a stop, or has ended already.

    Args:
        name: Name of the experiment.
        recipe: Name of one of its recipes.
        settings: Changes of the recipe's settings, such as ``["seed=1", "level=feature"]``.
        out: The run's folder, by default runs/ and a name made of the settings.
        results: Folder that the result is copied to, if any; a smoke run is never copied.
        device: "cpu" or "cuda"; by default cuda if there is a GPU.
        smoke: Runs a few steps on made-up data.
        console: Shows progress and the result, if given.
    """
    experiment, device = find(name), _device(device)
    config = of_recipe(experiment, recipe, list(settings), smoke)
    own = label(experiment, recipe, config, smoke)
    made = make_writable(Path(results), "--results") if results and not smoke else []
    folder = Path(out) if out else _folder(Path("runs"), own)
    try:
        record = Record(folder, name, config, device, recipe, row(experiment, recipe, config, smoke), smoke)
        content = record.result
        if content:
            _show(console, f"{record.folder} has ended already; this is its result.")
        else:
            content = _ended(experiment, record, console)
    except BaseException:
        remove_empty(made)
        raise
    if results and not smoke:
        _copy(record.folder, content, Path(results) / own)
    if smoke:
        _show(console, "smoke run: it works. Its numbers come from made-up data and mean nothing, so none are shown.")
    for item in experiment.summary(content) if not smoke else ():
        _show(console, item)
    _show(console, f"result written to {record.folder / 'result.json'}")
    return content


def _ended(experiment: Experiment, record: Record, console: Console | None) -> dict:
    try:
        with progress_of(console, experiment.name) as progress:
            # Numbers of a smoke run are never shown.
            quiet = lambda step, steps, what="", **_: progress(step, steps, what)  # noqa: E731
            return record.finish(experiment.run(record.config, record, quiet if record.smoke else progress))
    except BaseException as error:
        record.leave()
        if isinstance(error, KeyboardInterrupt) and not any(record.folder.glob("checkpoint-*[0-9]")):
            raise KeyboardInterrupt("stopped before the first checkpoint; nothing of this run was saved.") from None
        if too_little_memory(error):
            raise RunError(f"too little memory: {str(error).splitlines()[0]}") from None
        raise


def run_all(
    name: str,
    recipe: str = "paper",
    settings: Iterable[str] = (),
    out: str | Path | None = None,
    results: str | Path | None = None,
    device: str | None = None,
    smoke: bool = False,
    share: str = "1/1",
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """The results of all rows of the experiment's table; see ``run`` for the arguments.

    A row that fails does not stop the others, and a row in which another process works is skipped.

    Args:
        out: Folder of the runs' folders.
        share: "I/N" runs every N-th row, from row I on.
    """
    experiment, folder, (first, step) = find(name), Path(out or "runs"), _share(share)
    table = rows(experiment, recipe, list(settings), smoke)
    # A wrong setting is reported before the first run.
    labels = [label(experiment, recipe, of_recipe(experiment, recipe, one, smoke), smoke) for one in table]
    done, failed = [], 0
    for place in range(first - 1, len(table), step):
        _show(console, f"row {place + 1} of {len(table)}: {labels[place]}")
        try:
            own = _folder(folder, labels[place])
            done.append(run(name, recipe, table[place], own, results, device, smoke, console))
        except Busy as error:
            _show(console, f"skipped: {error}")
        except WriteError:
            raise
        except (RunError, DataError) as error:
            failed += 1
            if console:
                print(error, file=sys.stderr)
    if failed:
        mine = len(range(first - 1, len(table), step))
        raise RunError(f"{failed} of {mine} rows could not be run; the same command tries these again.")
    return done


def commands(
    name: str, recipe: str = "paper", settings: Iterable[str] = (), smoke: bool = False, share: str = "1/1"
) -> list[str]:
    """The arguments of ``similitude reproduce`` for each row of the experiment's table, or of a share of it."""
    experiment, (first, step) = find(name), _share(share)
    start = [name, *(["--recipe", recipe] if recipe != "paper" else []), *(["--smoke"] if smoke else [])]
    table = rows(experiment, recipe, list(settings), smoke)
    return [
        shlex.join([*start, *(word for setting in one for word in ("--set", setting))])
        for one in table[first - 1 :: step]
    ]


def _share(text: str) -> tuple[int, int]:
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise RunError(f"share must be I/N, with I from 1 to N, such as 2/4; got {text!r}.")
    return int(first), int(step)


def _device(device: str | None) -> str:
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise RunError(f"device must be cpu, or cuda where there is one; got {device!r}.")
    return device


def _folder(parent: Path, own: str) -> Path:
    """The run's folder; a folder that version 0.1.0 began under its own names is taken up."""
    if not (parent / own).exists() and parent.is_dir():
        for folder in parent.iterdir():
            if _name_of_now(folder.name) == own:
                return folder
    return parent / own


def _name_of_now(name: str) -> str:
    """A folder's name with the names that settings and experiments have now."""
    experiment, *parts = name.split("-")
    for old, now in RENAMED.items():
        parts = [now + part.removeprefix(old) if part.startswith(f"{old}_") else part for part in parts]
    return "-".join([EXPERIMENTS_RENAMED.get(experiment, experiment), *parts])


def _copy(folder: Path, content: dict, to: Path) -> None:
    """Copies a run's result and arrays, as TO.json and TO.NAME.npz."""
    try:
        clear_halves(to.parent, f".{escape(to.name)}.*")
        write_json(to.with_name(f"{to.name}.json"), content)
        for file in folder.glob("*.npz"):
            write_bytes(to.with_name(f"{to.name}.{file.name}"), file.read_bytes())
    except OSError as error:
        raise WriteError(
            f"cannot write to {to.parent}: {error.strerror}; the run is whole, run the same command to copy it."
        ) from None


def _show(console: Console | None, item: object) -> None:
    """Prints a line as it is, or a table."""
    if console and isinstance(item, str):
        console.out(item, highlight=False)
    elif console:
        console.print(item)


@contextmanager
def progress_of(console: Console | None, name: str, transient: bool = False, elapsed: bool = False):
    """A function ``progress(step, steps, what, **values)`` that draws a bar on the console, if there is one.

    A console that is no terminal gets plain lines instead, if what is drawn is to stay.

    Args:
        transient: Whether the bar vanishes at the end.
        elapsed: Whether the bar has the time that passed, not the time that is left, for steps of unequal length.
    """
    if console is None:
        yield lambda *_, **__: None
        return
    if not (console.is_terminal or console.is_jupyter or transient):
        yield _lines(console, name)
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[values]}"))
    timed = TimeElapsedColumn() if elapsed else TimeRemainingColumn()
    with Progress(*columns, timed, console=console, transient=transient) as bar:
        task = bar.add_task(name, total=None, values="")

        def progress(step: int, steps: int, what: str = "", **values: float) -> None:
            if step < bar.tasks[task].completed:
                # Another part of the run began, whose steps take another time.
                bar.reset(task)
            speed = bar.tasks[task].speed
            shown = [f"{key} {value:.3f}" for key, value in values.items()] + ([f"{speed:.3g}/s"] if speed else [])
            bar.update(task, completed=step, total=steps, description=f"{name} {what}".strip(), values=", ".join(shown))

        yield progress


def _lines(console: Console, name: str) -> Callable[..., None]:
    """A function ``progress(step, steps, what, **values)`` that prints a line every tenth of the way, or 30 s."""
    start = last = time.monotonic()
    tenth = 0

    def progress(step: int, steps: int, what: str = "", **values: float) -> None:
        nonlocal last, tenth
        now, share = time.monotonic(), step / max(steps, 1)
        # Parts that take less than a second are not worth a line.
        if now - last < OFTEN or (int(10 * share) == tenth and now - last < SELDOM):
            return
        last, tenth = now, int(10 * share)
        shown = [f"{share:.0%}", *(f"{key} {value:.3f}" for key, value in values.items()), f"{now - start:.0f} s"]
        _show(console, f"{f'{name} {what}'.strip()}: {', '.join(shown)}")

    return progress
