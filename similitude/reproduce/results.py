"""Results of runs: reading them, grouping them by row, means with standard errors, and tables as Markdown."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..files import read_json
from . import EXPERIMENTS, EXPERIMENTS_RENAMED, find
from .record import RunError, result_of_now
from .settings import of_row

if TYPE_CHECKING:
    from rich.table import Table

HOLDS, FAILS, OPEN = "holds", "fails", "open"


# Where runs put results, and where a wheel has ours, all in one file.
USUAL, SHIPPED = Path("results"), Path(__file__).parents[1] / "results.json.gz"


class Claim(NamedTuple):
    """A claim of the paper, whether our results agree, and both numbers."""

    says: str
    verdict: str
    paper: str
    ours: str


class Row(NamedTuple):
    """Runs of one row of a recipe, which differ by their seed alone."""

    recipe: str
    name: str
    runs: list[dict[str, Any]]

    @property
    def config(self) -> dict[str, Any]:
        return self.runs[0]["config"]

    @property
    def settings(self) -> dict[str, str]:
        """The settings that differ from the recipe."""
        return of_row(self.name)

    @property
    def star(self) -> str:
        """A star if a run has a caveat."""
        return "*" * any("caveat" in run for run in self.runs)

    def mean(self, key: str) -> float:
        return float(np.mean([run["result"][key] for run in self.runs]))

    def cell(self, key: str, form: str = ".2f", scale: float = 1, theirs: str = "") -> str:
        """``with_error`` of a value of the results, with a star if a run has a caveat."""
        return with_error((scale * run["result"][key] for run in self.runs), form, theirs) + self.star


def at_hand(folder: Path) -> Path:
    """The folder of results, or the file of those that a wheel brings where there is none by the usual name."""
    return SHIPPED if folder == USUAL and not folder.is_dir() and SHIPPED.is_file() else folder


def load(folder: Path, name: str) -> dict[Path, dict[str, Any]]:
    """The results of an experiment that are in the folder, or in a wheel's file, in the order of their names."""
    named = [name, *(old for old, now in EXPERIMENTS_RENAMED.items() if now == name)]
    if folder == SHIPPED:
        shipped = {folder / stem: content for stem, content in json.loads(gzip.decompress(folder.read_bytes())).items()}
        of_name = {path: whole for path, whole in shipped.items() if path.name.partition("-")[0] in named}
        return {path: _checked(path, name, whole) for path, whole in of_name.items()}
    paths = sorted(path for start in named for path in folder.glob(f"{start}-*.json") if path.is_file())
    return {path: _checked(path, name) for path in paths}


def _checked(path: Path, name: str, content: Any = None) -> dict:
    """The content of a result.json, read if it is not given, or one sentence that says why it is not a result."""
    why = ""
    try:
        content = content or read_json(path)
    except ValueError:
        why = "is not JSON"
    except OSError as error:
        raise RunError(f"cannot open {path}: {error.strerror}.") from None
    whole = isinstance(content, dict) and {"experiment", "config", "result"} <= content.keys()
    if not why and not (whole and isinstance(content["config"], dict) and isinstance(content["result"], dict)):
        why = "holds no result"
    if not why and not content["result"]:
        why = "has an empty result"
    if content and not why:
        content = result_of_now(content)
        if content["experiment"] != name:
            why = f"is a result of {content['experiment']}"
        elif unknown := unknown_settings(content):
            why = f"is of another version, with a setting {unknown[0]!r}"
        elif content["config"].get("made_up"):
            why = "was measured on made-up data"
        elif content.get("smoke"):
            why = "is of a smoke run"
    if content and not why and not all(text.isprintable() for text in _texts(content)):
        why = "has text that a terminal cannot show"
    if why or not content:
        raise RunError(f"{path} {why}; remove it, or make it again with: similitude reproduce {name}")
    return content


@contextmanager
def naming(name: str, runs: dict[Path, dict[str, Any]]) -> Iterator[None]:
    """Turns the lack of a value in a result into one sentence that names its file."""
    try:
        yield
    except KeyError as error:
        lacking = [path for path, run in runs.items() if error.args[0] not in run["result"]]
        if not lacking:
            raise
        again = f"remove it, or make it again with: similitude reproduce {name}"
        raise RunError(f"{lacking[0]} has no {error.args[0]!r} in its result; {again}") from None


def _texts(value: object) -> Iterator[str]:
    """All text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _texts(part)


def unknown_settings(content: dict[str, Any]) -> list[str]:
    """Settings of a run that its experiment does not have in this version."""
    if content["experiment"] not in EXPERIMENTS:
        return []
    known = {field.name for field in fields(find(content["experiment"]).config)}
    return sorted(content["config"].keys() - known)


def by_row(runs: Iterable[dict[str, Any]]) -> list[Row]:
    """Runs grouped by recipe and row; of runs with the same seed the last one counts."""
    groups: dict[tuple[str, str], dict[int, dict]] = {}
    for run in runs:
        groups.setdefault((run["recipe"], run["row"]), {})[run["config"]["seed"]] = run
    return [Row(recipe, name, list(group.values())) for (recipe, name), group in groups.items()]


def with_error(values: Iterable[float], form: str = ".2f", theirs: str = "") -> str:
    """The mean, its standard error if there are several values, and its difference from the paper's value, if any."""
    own = np.array(list(values))
    error = f" ± {own.std(ddof=1) / np.sqrt(len(own)):.2f}" if len(own) > 1 else ""
    difference = f" ({own.mean() - float(theirs):+{form}})" if theirs and np.isfinite(float(theirs)) else ""
    return f"{own.mean():{form}}{error}{difference}"


def recipe_title(recipe: str) -> str:
    return "paper's recipe" if recipe == "paper" else f"{recipe} recipe"


def caveats(runs: list[dict[str, Any]]) -> list[str]:
    """What the stars of an experiment's tables mean, one line each."""
    count = Counter(run["caveat"] for run in runs if "caveat" in run)
    return [f"* {n} run{'s' * (n > 1)} of {len(runs)}: {caveat}." for caveat, n in count.most_common()]


def origin(run: dict[str, Any]) -> str:
    """One line that says where a result comes from."""
    return (
        f"{run['device']}, torch {run['versions']['torch']}, commit {run['commit']}, {run['seconds']:.0f} s, "
        f"{run['peak_gib']:.1f} GiB; {run['recipe']} recipe, {run['row'] or 'as it is'}, seed {run['config']['seed']}"
    )


def markdown(table: Table) -> str:
    """The table as Markdown, under its title."""
    heading = [str(column.header) for column in table.columns]
    marks = ["--:" if column.justify == "right" else "---" for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    return "\n".join(
        [f"**{table.title}**", ""] + ["| " + " | ".join(map(str, row)) + " |" for row in (heading, marks, *rows)]
    )
