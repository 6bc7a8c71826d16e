"""Runs of experiments, from Python or from a command: one run, or all rows of an experiment's table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path

import torch

from ..files import write_bytes, write_json
from . import Experiment, find
from .data.find import DataError
from .record import EXPERIMENTS_RENAMED, RENAMED, Busy, Record, RunError, WriteError, make_writable
from .settings import label, of_recipe, row, rows

Show = Callable[[object], object]


def quiet(*_: object, **__: object) -> None:
    """Shows nothing, for ``show`` and ``progress``."""


def run(
    name: str,
    recipe: str = "paper",
    settings: Iterable[str] = (),
    out: str | Path | None = None,
    results: str | Path | None = None,
    device: str | None = None,
    smoke: bool = False,
    show: Show = quiet,
    progress: Callable[..., object] = quiet,
) -> dict:
    """The content of result.json of one run, which starts, resumes after a stop, or has ended already.

    Args:
        name: Name of the experiment.
        recipe: Name of one of its recipes.
        settings: Changes of the recipe's settings, such as ``["seed=1", "level=feature"]``.
        out: The run's folder, by default runs/ and a name made of the settings.
        results: Folder that the result is copied to, if any; a smoke run is never copied.
        device: "cpu" or "cuda"; by default cuda if there is a GPU.
        smoke: Runs a few steps on made-up data.
        show: Called with each line and table to print.
        progress: Called with ``(step, steps, what, **values)`` as the run goes on.
    """
    experiment, device = find(name), _device(device)
    config = of_recipe(experiment, recipe, list(settings), smoke)
    own = label(experiment, recipe, config, smoke)
    if results and not smoke:
        make_writable(Path(results), "--results")
    folder = Path(out) if out else _folder(Path("runs"), own)
    record = Record(folder, name, config, device, recipe, row(experiment, recipe, config, smoke))
    content = record.result
    if content:
        show(f"{record.folder} has ended already; this is its result.")
    else:
        try:
            content = record.finish(experiment.run(config, record, progress))
        except torch.OutOfMemoryError as error:
            raise RunError(f"too little memory on the GPU: {str(error).splitlines()[0]}") from None
    if results and not smoke:
        _copy(record.folder, content, Path(results) / own)
    for item in experiment.summary(content):
        show(item)
    show(f"result written to {record.folder / 'result.json'}")
    return content


def run_all(
    name: str,
    recipe: str = "paper",
    settings: Iterable[str] = (),
    out: str | Path | None = None,
    results: str | Path | None = None,
    device: str | None = None,
    smoke: bool = False,
    share: tuple[int, int] = (1, 1),
    show: Show = quiet,
    warn: Show = quiet,
    progress: Callable[..., object] = quiet,
) -> list[dict]:
    """The results of all rows of the experiment's table; see ``run`` for the arguments.

    A row that fails does not stop the others, and a row in which another process works is skipped.

    Args:
        out: Folder of the runs' folders.
        share: ``(i, n)`` runs every n-th row, from row i on.
        warn: Called with the sentence of each row that fails.
    """
    experiment, folder = find(name), Path(out or "runs")
    table = rows(experiment, recipe, list(settings), smoke)
    # A wrong setting is reported before the first run.
    labels = [label(experiment, recipe, of_recipe(experiment, recipe, one, smoke), smoke) for one in table]
    first, step = share
    done, failed = [], 0
    for place in range(first - 1, len(table), step):
        show(f"row {place + 1} of {len(table)}: {labels[place]}")
        try:
            own = _folder(folder, labels[place])
            done.append(run(name, recipe, table[place], own, results, device, smoke, show, progress))
        except Busy as error:
            show(f"skipped: {error}")
        except WriteError:
            raise
        except (RunError, DataError) as error:
            warn(str(error))
            failed += 1
    if failed:
        mine = len(range(first - 1, len(table), step))
        raise RunError(f"{failed} of {mine} rows could not be run; the same command tries these again.")
    return done


def commands(experiment: Experiment, recipe: str, settings: Iterable[str], smoke: bool = False) -> list[str]:
    """The arguments of ``similitude reproduce`` for each row of the experiment's table."""
    start = [experiment.name, *(["--recipe", recipe] if recipe != "paper" else []), *(["--smoke"] if smoke else [])]
    table = rows(experiment, recipe, list(settings), smoke)
    return [shlex.join([*start, *(word for setting in one for word in ("--set", setting))]) for one in table]


def share_of(text: str) -> tuple[int, int]:
    """``"2/4"`` as (2, 4)."""
    first, _, step = text.partition("/")
    if not (first.isdecimal() and step.isdecimal() and 1 <= int(first) <= int(step)):
        raise RunError(f"--share must be I/N, with I from 1 to N, such as 2/4; got {text!r}.")
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
        write_json(to.with_name(f"{to.name}.json"), content)
        for file in folder.glob("*.npz"):
            write_bytes(to.with_name(f"{to.name}.{file.name}"), file.read_bytes())
    except OSError as error:
        raise WriteError(
            f"cannot write to {to.parent}: {error.strerror}; the run is whole, run the same command to copy it."
        ) from None


@contextmanager
def progress_of(console, name: str, transient: bool = False):
    """A function ``progress(step, steps, what, **values)`` that draws a bar with values, speed and time left."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[values]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=transient) as bar:
        task = bar.add_task(name, total=None, values="")

        def progress(step: int, steps: int, what: str = "", **values: float) -> None:
            if step < bar.tasks[task].completed:
                # Another part of the run began, whose steps take another time.
                bar.reset(task)
            speed = bar.tasks[task].speed
            shown = [f"{key} {value:.3f}" for key, value in values.items()] + ([f"{speed:.3g}/s"] if speed else [])
            bar.update(task, completed=step, total=steps, description=f"{name} {what}".strip(), values=", ".join(shown))

        yield progress
