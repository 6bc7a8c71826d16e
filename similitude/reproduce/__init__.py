"""The paper's experiments, one a file: each can be run, resumed after a stop, and compared with the paper.

``EXPERIMENTS`` is the only list of them. A new experiment is one file, with an ``EXPERIMENT``, and one name here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

# Names of before.
EXPERIMENTS_RENAMED = {"sevens": "editing"}
EXPERIMENTS = ("xor", "mnist", "resnet", "ptb", "editing", "heads", "legibility", "human", "direction")


@dataclass(frozen=True)
class Experiment:
    """One experiment: its settings, how it runs, and how its results are shown.

    Args:
        name: Its name in commands, which is also its module's.
        title: Heading of its page of results.
        config: Frozen dataclass of the settings of a run.
        recipes: Settings by recipe; one recipe is "paper".
        smoke: Settings of a run of seconds on made-up data.
        run: ``run(config, record, progress)`` trains, resumes from ``record`` and returns the result.
        summary: What a command prints after a run, from the content of result.json.
        tables: Tables of runs beside the paper's numbers.
        claims: The paper's claims and what the runs say of them, as ``results.Claim``.
        rows: Settings of each row of a recipe's table, which ``--all`` runs; no rows for a single run.
        figures: Name of the function below ``reproduce.figures`` that draws runs, or None.
    """

    name: str
    title: str
    config: type
    recipes: dict[str, Any]
    smoke: Any
    run: Callable[..., dict[str, Any]]
    summary: Callable[[dict[str, Any]], list[Any]]
    tables: Callable[[list[dict[str, Any]]], list[Any]]
    claims: Callable[[list[dict[str, Any]]], list[Any]]
    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    figures: str | None = None


class UnknownExperiment(LookupError):
    """There is no experiment of that name."""


def find(name: str) -> Experiment:
    """The experiment of that name."""
    return import_module(f".{check_name(name)}", __package__).EXPERIMENT


def check_name(name: str) -> str:
    """The name, if there is such an experiment; else the error has the nearest one."""
    if name in EXPERIMENTS:
        return name
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    if name in EXPERIMENTS_RENAMED:
        hint = f" {name} is called {EXPERIMENTS_RENAMED[name]} now."
    raise UnknownExperiment(f"no experiment named {name!r}; there are {', '.join(EXPERIMENTS)}.{hint}")
