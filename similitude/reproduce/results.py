"""docs/results.md, made from results/: the paper's tables with ours beside them, and where ours come from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .record import RunError, write_text

if TYPE_CHECKING:
    from rich.table import Table

TITLES = {
    "xor": "XOR by one layer",
    "mnist": "MNIST",
    "resnet": "ResNet-50",
    "ptb": "Penn Treebank",
    "sevens": "Editing: sevens with a mid stroke",
    "heads": "Heads on a frozen backbone",
}


def found(results: Path, name: str) -> list[dict]:
    """The results of an experiment that are in the folder, in the order of their names."""
    out = []
    for path in sorted(path for path in results.glob(f"{name}-*.json") if path.is_file()):
        whole, why = None, ""
        try:
            whole = json.loads(path.read_text())
        except (ValueError, OSError):
            why = "is not JSON"
        if not why and not (isinstance(whole, dict) and {"experiment", "config", "result"} <= whole.keys()):
            why = "holds no result"
        elif whole and whole["experiment"] != name:
            why = f"is a result of {whole['experiment']}"
        elif whole and (unknown := unknown_settings(whole)):
            why = f"is of another version, with a setting {unknown[0]!r}"
        if why:
            raise RunError(f"{path} {why}; remove it, or make it again with: similitude reproduce {name}")
        out.append(whole)
    return out


def unknown_settings(whole: dict) -> list[str]:
    """Settings of a run that its experiment does not have any more, or not yet."""
    known = {field.name for field in fields(import_module(f".{whole['experiment']}", __package__).Config)}
    return sorted(whole["config"].keys() - known)


def write(path: Path, results: Path) -> None:
    """The page of all experiments; what was not run says so."""
    if not results.is_dir():
        raise RunError(f"no folder {results}; make results with: similitude reproduce xor")
    lines = [
        "# Results",
        "",
        "Made by `similitude table --docs docs/results.md` from [results](../results): one JSON a run, with settings,",
        "versions, device, commit, hashes of the data, time and memory.",
    ]
    for name, title in TITLES.items():
        experiment = import_module(f".{name}", __package__)
        runs = found(results, name)
        lines += ["", f"## {title}", "", *experiment.NOTE.strip().splitlines(), "", command(name, experiment), ""]
        if not runs:
            lines.append("Not run yet.")
            continue
        for item in experiment.compare(runs):
            lines += [markdown(item), ""]
        # A list's mark in Markdown, as the star happens to be.
        lines += [*caveats(runs), ""] if caveats(runs) else []
        lines += [origin(run) for run in runs]
    try:
        write_text(path, "\n".join(lines).rstrip() + "\n")
    except OSError as error:
        raise RunError(f"cannot write to {path}: {error.strerror}.") from None


def command(name: str, experiment) -> str:
    """What runs the experiment."""
    every = " --all" if hasattr(experiment, "ROWS") else ""
    others = ", ".join(f"`--recipe {recipe}`" for recipe in experiment.RECIPES if recipe != "paper")
    options = f", alone and with {others}" if others else ""
    return f"To run it: `similitude reproduce {name}{every}`{options}. The settings of our runs are below the tables."


def markdown(table: Table) -> str:
    heading = [str(column.header) for column in table.columns]
    marks = ["--:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    lines = [f"**{table.title}**", ""] + ["| " + " | ".join(map(str, row)) + " |" for row in (heading, marks, *rows)]
    return "\n".join(lines)


def with_error(values: Iterable[float], form: str = ".2f", theirs: str | None = None) -> str:
    """The mean, of more than one its standard error, and where the paper has a value the difference from that."""
    own = np.array(list(values))
    error = f" ± {own.std(ddof=1) / np.sqrt(len(own)):.2f}" if len(own) > 1 else ""
    difference = f" ({own.mean() - float(theirs):+{form}})" if theirs and np.isfinite(float(theirs)) else ""
    return f"{own.mean():{form}}{error}{difference}"


def mark(runs: list[dict]) -> str:
    """A star where a result has a caveat: what is wrong with a run that stands until it is run again."""
    return "*" * any("caveat" in run for run in runs)


def caveats(runs: list[dict]) -> list[str]:
    """What the stars of an experiment's tables mean, a line each."""
    count = Counter(run["caveat"] for run in runs if "caveat" in run)
    return [f"* {n} run{'s' * (n > 1)} of {len(runs)}: {caveat}." for caveat, n in count.most_common()]


def origin(run: dict) -> str:
    """A line on where a result comes from."""
    # Features that were computed elsewhere come in the place of these.
    unused = ("source", "data", "size") if run["config"].get("features") else ()
    config = ", ".join(f"{k} {v}" for k, v in run["config"].items() if not isinstance(v, list) and k not in unused)
    speed = run["result"].get("tokens_per_second")
    return (
        f"- {run['device']}, torch {run['versions']['torch']}, commit {run['commit']}, {run['seconds']:.0f} s, "
        f"{run['peak_gib']:.1f} GiB{f', {speed:,.0f} tokens/s' if speed else ''}: {config}."
        f"{f' * {caveat}.' if (caveat := run.get('caveat')) else ''}"
    )
