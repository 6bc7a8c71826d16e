"""``similitude gallery RUN``: all of the paper's figures that a run, or a folder of results, has the numbers for."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from html import escape
from importlib import import_module
from pathlib import Path

from ...interpret.figures.base import save, write
from .. import EXPERIMENTS, find
from ..record import RunError, make_writable, result_of_now
from ..results import origin, unknown_settings
from .curves import Made, Missing, Report, Run


def kinds() -> dict[str, Callable[[list[Run], Report], Made]]:
    """The functions that draw runs, by the name of their experiment."""
    named = {name: function for name in EXPERIMENTS if (function := find(name).figures)}
    parts = {name: function.split(".") for name, function in named.items()}
    return {name: getattr(import_module(f".{file}", __package__), function) for name, (file, function) in parts.items()}


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>similitude gallery</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; color: #222 }}
img {{ max-width: 100% }} figure {{ margin: 0 0 3em }} figcaption, footer {{ color: #555 }}
</style>
</head>
<body>
<h1>similitude gallery</h1>
{body}
</body>
</html>
"""


def make(folder: Path, out: Path, svg: bool = False, report: Report = lambda *_, **__: None) -> tuple[list[Path], int]:
    """Writes the figures and index.html to ``out``; gives the files, and how many figures could not be made."""
    runs = runs_in(Path(folder))
    for run in runs:
        if unknown := unknown_settings({"config": {}, **run.whole}):
            raise RunError(f"{run.label} is of another version, with a setting {unknown[0]!r}; make it again.")
    made, missing, written = [], [], []
    try:
        make_writable(out, "--out")
        for name, kind in kinds().items():
            own = [run for run in runs if run.whole["experiment"] == name]
            for item in kind(own, report) if own else ():
                if isinstance(item, Missing):
                    missing.append(item)
                    continue
                for suffix in (".png", ".svg") if svg else (".png",):
                    save(item.figure, out / f"{item.name}{suffix}")
                    written.append(out / f"{item.name}{suffix}")
                made.append((item.name, item.title, item.alt))
        write(out / "index.html", page(made, missing, runs, out).encode())
    except KeyError as error:
        raise RunError(f"{folder} holds a result without {error}; make it again with this version.") from None
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror or error}; give another --out.") from None
    return [*written, out / "index.html"], len(missing)


def runs_in(folder: Path) -> list[Run]:
    """The run whose folder this is, or all results in it."""
    if (folder / "result.json").exists():
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
    return found


def _read(path: Path) -> dict:
    try:
        content = json.loads(path.read_text())
        return result_of_now(content) if isinstance(content, dict) else content
    except (ValueError, OSError):
        raise RunError(f"{path} is not JSON that can be read; remove it, or make it again.") from None


def page(made: list[tuple[str, str, str]], missing: list[Missing], runs: list[Run], out: Path) -> str:
    """The page of all figures, with the pictures in it, so that it can be sent as one file."""
    body = []
    for name, title, alt in made:
        content = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
        body.append(
            f'<figure id="{escape(name)}"><h2>{escape(title)}</h2>\n'
            f'<img alt="{escape(alt)}" src="data:image/png;base64,{content}">\n'
            f"<figcaption>{escape(alt)}</figcaption></figure>"
        )
    if missing:
        items = "".join(f"<li>{escape(m.title)}: {escape(m.why)}.</li>" for m in missing)
        body.append(f"<h2>Not made</h2><ul>{items}</ul>")
    origins = "".join(f"<li>{escape(run.label)}: {escape(origin(run.whole))}</li>" for run in runs)
    body.append(f"<footer><h2>Where the numbers come from</h2><ul>{origins}</ul></footer>")
    return PAGE.format(body="\n".join(body))
