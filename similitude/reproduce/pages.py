"""Pages of results: edited prose in Markdown, with blocks between markers that are written from results/.

A block stands between ``<!-- KIND: NAME -->`` and ``<!-- end -->``. KIND is table, origin or command, of an experiment,
or claims, of all of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_text
from . import EXPERIMENTS, Experiment, find
from .record import RunError
from .results import by_row, caveats, load, markdown, naming

BLOCK = re.compile(r"<!-- (\w+): (\w+) -->\n(.*?)<!-- end -->\n", re.DOTALL)
PAGE = """# {title}

<!-- command: {name} -->
<!-- end -->

<!-- table: {name} -->
<!-- end -->

<!-- origin: {name} -->
<!-- end -->
"""
NOT_RUN = "Not run yet."
INDEX = """# Results

<!-- claims: all -->
<!-- end -->
"""


def write(folder: Path, results: Path) -> list[Path]:
    """Writes the blocks of all pages in the folder, makes pages that are missing, and returns the new ones."""
    if not results.is_dir():
        raise RunError(f"no folder {results}; make results with: similitude reproduce xor")
    link = Path(os.path.relpath(results, folder)).as_posix()
    runs = {name: load(results, name) for name in EXPERIMENTS}
    pages = {folder / "index.md": INDEX}
    pages |= {folder / f"{name}.md": PAGE.format(name=name, title=find(name).title) for name in EXPERIMENTS}
    try:
        there = {path: path.read_text() for path in pages if path.exists()}
        for path, text in there.items():
            _check_kept(text, path, runs, results)
        folder.mkdir(parents=True, exist_ok=True)
        for path, new in pages.items():
            write_text(path, filled(there.get(path, new), path, runs, link))
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror}.") from None
    return [path for path in pages if path not in there]


def _check_kept(text: str, path: Path, runs: dict[str, dict[Path, dict[str, Any]]], results: Path) -> None:
    """Raises if a table on the page would be lost, because its experiment has no results."""
    for kind, name, lines in BLOCK.findall(text):
        if kind == "table" and lines.strip() not in ("", NOT_RUN) and not runs.get(name, True):
            raise RunError(
                f"{path} has a table of {name}, and {results} has no results of it; name their folder by --results, or "
                f"make some with: similitude reproduce {name}"
            )


def filled(text: str, path: Path, runs: dict[str, dict[Path, dict[str, Any]]], link: str) -> str:
    """The page with its blocks written anew, and all else as it is."""
    marks = len(re.findall(r"<!-- (?:\w+: \w+|end) -->", text))
    if marks != 2 * len(BLOCK.findall(text)):
        raise RunError(f"{path} has a marker without its other half; a block is <!-- table: xor --> … <!-- end -->.")

    def block(found: re.Match[str]) -> str:
        kind, name, _ = found.groups()
        if kind == "claims":
            lines = claims(runs)
        elif kind not in BLOCKS or name not in EXPERIMENTS:
            raise RunError(f"{path} has a block {kind}: {name}; kinds are {', '.join(BLOCKS)} of an experiment.")
        else:
            lines = BLOCKS[kind](find(name), runs[name], link)
        return f"<!-- {kind}: {name} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->\n"

    return BLOCK.sub(block, text)


def claims(runs: dict[str, dict[Path, dict[str, Any]]]) -> list[str]:
    """The table of the paper's claims."""
    lines = ["| claim of the paper | verdict | paper | ours | |", "| --- | --- | --- | --- | --- |"]
    for name in EXPERIMENTS:
        experiment = find(name)
        with naming(name, runs[name]):
            found = experiment.claims(list(runs[name].values()))
        for claim in found:
            cells = claim.says, f"**{claim.verdict}**", claim.paper, claim.ours, f"[{experiment.title}]({name}.md)"
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def table(experiment: Experiment, runs: dict[Path, dict[str, Any]], link: str) -> list[str]:
    """The tables of an experiment, and what their stars mean."""
    if not runs:
        return [NOT_RUN]
    own = list(runs.values())
    with naming(experiment.name, runs):
        # A star at the start of a line is a list in Markdown.
        lines = [*map(markdown, experiment.tables(own)), *(f"\\{line}" for line in caveats(own))]
    return "\n\n".join(lines).splitlines()


def command(experiment: Experiment, runs: dict[Path, dict[str, Any]], link: str) -> list[str]:
    """The commands that run the experiment."""
    every = " --all" if experiment.rows else ""
    start = f"similitude reproduce {experiment.name}"
    recipes = (f"{start}{'' if recipe == 'paper' else f' --recipe {recipe}'}" for recipe in experiment.recipes)
    each = [f"{line}{every if recipe in experiment.rows else ''}" for line, recipe in zip(recipes, experiment.recipes)]
    return ["```bash", *each, "```"]


def origin(experiment: Experiment, runs: dict[Path, dict[str, Any]], link: str) -> list[str]:
    """A folded table of where the results come from, a line for each row."""
    if not runs:
        return []
    paths = {id(run): path for path, run in runs.items()}
    speeds = any("tokens_per_second" in run["result"] for run in runs.values())
    heads = ["recipe", "differs from it", "seeds", "on", "torch", "commit", "time", "peak"] + ["tokens/s"] * speeds
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- | --- | --- | --- | --- | --: | --: |" + " --: |" * speeds]
    for row in by_row(runs.values()):
        some = lambda key: ", ".join(dict.fromkeys(map(key, row.runs)))  # noqa: B023, E731
        seeds = (f"[{run['config']['seed']}]({link}/{paths[id(run)].name})" for run in row.runs)
        cells = [
            f"{row.recipe}{row.star.replace('*', chr(92) + '*')}",
            ", ".join(f"{key} {value}" for key, value in row.settings.items()) or "–",
            ", ".join(seeds),
            some(lambda run: run["device"].removeprefix("NVIDIA ")),
            some(lambda run: run["versions"]["torch"]),
            some(lambda run: run["commit"]),
            f"{np.mean([run['seconds'] for run in row.runs]):.0f} s",
            f"{max(run['peak_gib'] for run in row.runs):.1f} GiB",
        ]
        if speeds:
            cells.append(f"{row.mean('tokens_per_second'):,.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    count = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    return [f"<details><summary>Where the numbers come from ({count})</summary>", "", *lines, "", "</details>"]


BLOCKS = {"table": table, "origin": origin, "command": command}
