"""``similitude gallery RUN``: the paper's figures that a run, or a folder of results, has the numbers for."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib import import_module, resources
from pathlib import Path
from string import Template

from ...files import read_json, remove_empty, write_text
from ...interpret.figures.base import save
from ...page import one_file
from .. import EXPERIMENTS, find
from ..record import RunError, check_whole, make_writable, result_of_now
from ..results import origin, unknown_settings
from .runs import Drawn, Made, Missing, Progress, Run

FILES = resources.files(__name__.rpartition(".")[0])


def kinds() -> dict[str, Callable[[list[Run], Progress], Made]]:
    """The functions that draw runs, by the name of their experiment."""
    named = {name: function for name in EXPERIMENTS if (function := find(name).figures)}
    parts = {name: function.split(".") for name, function in named.items()}
    return {name: getattr(import_module(f".{file}", __package__), function) for name, (file, function) in parts.items()}


def make(
    folder: Path, out: Path, svg: bool = False, progress: Progress = lambda *_, **__: None
) -> tuple[list[Path], list[Missing]]:
    """The files that were written, figures and index.html, and the figures that could not be made.

    Args:
        folder: a run's folder, or a folder of results.
        out: the folder to write to.
        svg: whether to write each figure as SVG too.
        progress: called with steps done, steps in all and what is being drawn.
    """
    runs = runs_in(Path(folder))
    for run in runs:
        if unknown := unknown_settings({"config": {}, **run.whole}):
            raise RunError(f"{run.label} is of another version, with a setting {unknown[0]!r}; make it again.")
    drawn, missing, written, made = [], [], [], []
    try:
        made = make_writable(out, "--out")
        for item in _figures(runs, progress):
            item = _warned(item, runs[0].warning)
            if isinstance(item, Missing):
                missing.append(item)
                continue
            for suffix in (".png", ".svg") if svg else (".png",):
                written.append(out / f"{item.name}{suffix}")
                save(item.figure, written[-1])
            drawn.append({"name": item.name, "title": item.title, "alt": item.alt})
        write_text(out / "index.html", page(drawn, missing, runs, out))
    except KeyError as error:
        raise RunError(f"{folder} holds a result without {error}; make it again with this version.") from None
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror or error}; give another --out.") from None
    finally:
        remove_empty(made)
    return [*written, out / "index.html"], missing


def _figures(runs: list[Run], progress: Progress) -> Made:
    of = {name: [run for run in runs if run.whole["experiment"] == name] for name in kinds()}
    there = [name for name, own in of.items() if own]
    for i, name in enumerate(there):
        progress(i, len(there), name)
        yield from kinds()[name](of[name], progress)


def _warned(item: Drawn | Missing, warning: str) -> Drawn | Missing:
    """A figure of a smoke run says so; one that has the paper's numbers too is not made."""
    if not warning or isinstance(item, Missing):
        return item
    if item.compares:
        return Missing(item.title, f"numbers of a smoke run do not belong beside the paper's ({warning})")
    return item._replace(title=f"{item.title} ({warning})", alt=f"{item.alt} ({warning})")


def runs_in(folder: Path) -> list[Run]:
    """The run in this folder, or all results in it, of which none may be a smoke run's."""
    if (folder / "result.json").exists():
        check_whole(folder)
        run = Run(folder.resolve().name, _read(folder / "result.json"), f"{folder}/")
        if not isinstance(run.whole, dict) or run.whole.get("experiment") not in kinds():
            raise RunError(f"{folder} holds a run of none of the experiments with figures: {', '.join(kinds())}.")
        return [run]
    if (folder / "config.json").exists():
        raise RunError(f"{folder} holds a run that has not ended; run its similitude reproduce command to go on.")
    if not folder.is_dir():
        raise RunError(f"no folder {folder}; give a run's folder, such as runs/xor-paper-seed0, or results.")
    found = [Run(p.stem, _read(p), f"{p.with_suffix('')}.") for p in sorted(folder.glob("*.json"))]
    found = [run for run in found if isinstance(run.whole, dict) and run.whole.get("experiment") in kinds()]
    if not found:
        raise RunError(f"no results in {folder}; make some with: similitude reproduce xor")
    for run in found:
        if run.warning:
            why = "was measured on made-up data" if run.config.get("made_up") else "is of a smoke run"
            again = f"similitude reproduce {run.whole['experiment']}"
            raise RunError(f"{folder / run.label}.json {why}; remove it, or make it again with: {again}")
    return found


def _read(path: Path) -> dict:
    try:
        content = read_json(path)
        return result_of_now(content) if isinstance(content, dict) else content
    except (ValueError, OSError):
        raise RunError(f"{path} is not JSON that can be read; remove it, or make it again.") from None


def page(drawn: list[dict[str, str]], missing: list[Missing], runs: list[Run], out: Path) -> str:
    """gallery.html with the figures' name, title, alt and PNG from ``out``: one file, with all images in it."""
    contents = (base64.b64encode((out / f"{row['name']}.png").read_bytes()).decode() for row in drawn)
    filled = one_file(FILES, "gallery.html", "similitude gallery")
    filled = _each(filled, "figures", ({**row, "content": content} for row, content in zip(drawn, contents)))
    filled = _each(filled, "missing", (item._asdict() for item in missing))
    filled = _kept(filled, "not-made", bool(missing))
    # The runs of a page are all smoke runs, or none is.
    warnings = {run.warning for run in runs if run.warning}
    filled = _each(filled, "warned", ({"warning": warning.capitalize()} for warning in warnings))
    origins = ({"label": run.label, "origin": _origin(run)} for run in runs)
    return _each(filled, "origins", origins)


def _origin(run: Run) -> str:
    # A smoke run's row leaves out what makes it small.
    changed = {"row": ", ".join(part for part in ("changed by --smoke", run.whole["row"]) if part)}
    return origin(run.whole | (changed if run.warning else {})).removeprefix("- ")


def _each(page: str, block: str, rows: Iterable[Mapping[str, str]]) -> str:
    """The page with one copy of a block per row, its $names replaced by the row's values, escaped."""
    before, copy, after = _parts(page, block)
    values = ({name: escape(value) for name, value in row.items()} for row in rows)
    return "".join([before, *(Template(copy).substitute(row) for row in values), after])


def _kept(page: str, block: str, keep: bool) -> str:
    """The page with a block, or without it."""
    before, copy, after = _parts(page, block)
    return before + copy * keep + after


def _parts(page: str, block: str) -> list[str]:
    """What comes before a block, the block, and what comes after.

    Comments mark its two ends, ``<!-- block -->`` and ``<!-- /block -->``; escaped values cannot contain them.
    """
    return re.split(rf"<!-- /?{block} -->\n", page)
