"""The settings of a run: those of a recipe, changed by ``key=value``, and what each setting may be."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from ..form import check_choice
from .record import RENAMED, RunError

if TYPE_CHECKING:
    from . import Experiment


class Range(NamedTuple):
    """What a number may be, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


Count = Annotated[int, Range("1 or more", lambda value: value >= 1)]
Size = Annotated[int, Range("0 or more", lambda value: value >= 0)]
Weight = Annotated[float, Range("0 or more", lambda value: value >= 0)]
Rate = Annotated[float, Range("more than 0", lambda value: value > 0)]
Dropout = Annotated[float, Range("from 0 to below 1", lambda value: 0 <= value < 1)]
Share = Annotated[float, Range("between 0 and 1", lambda value: 0 < value < 1)]
Seed = Annotated[int, Range(f"from 0 to {2**32 - 1}", lambda value: 0 <= value < 2**32)]

# Whole numbers that torch takes.
LARGEST = 2**63 - 1

# Settings that do not change a result's row in the tables.
NO_ROW = ("seed", "checkpoint_every", "snapshots")


def check(config: Any) -> None:
    """Raises ``ValueError`` unless each field is in its type's range or one of its type's choices."""
    for name, kind in _kinds(type(config)).items():
        value = getattr(config, name)
        if get_origin(kind) is Literal:
            check_choice(name, value, get_args(kind))
        for bounds in getattr(kind, "__metadata__", ()):
            if not bounds.holds(value):
                raise ValueError(f"{name} must be {bounds.words}; got {value}.")


@cache
def _kinds(config: type) -> dict[str, Any]:
    return get_type_hints(config, include_extras=True)


def of_recipe(experiment: Experiment, recipe: str, settings: list[str], smoke: bool = False) -> Any:
    """The recipe's settings, changed by the given ones; a few steps on made-up data for a smoke run."""
    config = changed(usual(experiment, recipe, smoke), settings)
    if not smoke and getattr(config, "made_up", 0):
        raise RunError(f"made_up={config.made_up} needs --smoke; other runs are on the real data.")
    return config


def usual(experiment: Experiment, recipe: str, smoke: bool = False) -> Any:
    """The recipe's own settings; with those that make the experiment's smoke run small."""
    if recipe not in experiment.recipes:
        known, hint = ", ".join(experiment.recipes), _hint(recipe, experiment.recipes)
        raise RunError(f"no recipe {recipe!r} for {experiment.name}; there are {known}.{hint}")
    if not smoke:
        return experiment.recipes[recipe]
    papers = asdict(experiment.recipes["paper"])
    few = {key: value for key, value in asdict(experiment.smoke).items() if value != papers[key]}
    return replace(experiment.recipes[recipe], **few)


def rows(experiment: Experiment, recipe: str, settings: list[str], smoke: bool = False) -> list[list[str]]:
    """The settings of each run of the experiment's table, or the given ones if the recipe is a single run.

    A given setting that rows name selects the rows with its value. Any other applies to all rows.
    """
    wanted = of_recipe(experiment, recipe, settings, smoke)
    table = experiment.rows.get(recipe, [[]])
    named = {_key(setting) for row in table for setting in row}
    for key in (_key(setting) for setting in settings if _key(setting) in named):
        value_of = lambda row, k=key: getattr(of_recipe(experiment, recipe, row), k)  # noqa: E731
        naming = [row for row in table if key in map(_key, row)]
        table = [row for row in naming if value_of(row) == getattr(wanted, key)]
        if not table:
            there = ", ".join(dict.fromkeys(str(value_of(row)) for row in naming))
            raise RunError(
                f"no such row of {experiment.name} has {key}={getattr(wanted, key)}; there is {there or 'none'}."
            )
    common = [setting for setting in settings if _key(setting) not in named]
    return [[*row, *common] for row in table]


def row(experiment: Experiment, recipe: str, config: Any, smoke: bool = False) -> str:
    """The settings that differ from the recipe, as a command has them; runs of a row differ by their seed alone."""
    changes = _changes(experiment, recipe, config, smoke).items()
    return shlex.join(_told(name, value) for name, value in changes if name not in NO_ROW)


def of_row(row: str) -> dict[str, str]:
    """The settings that a row names."""
    return dict(setting.split("=", 1) for setting in shlex.split(row))


def label(experiment: Experiment, recipe: str, config: Any, smoke: bool = False) -> str:
    """The name of a run's folder and result: recipe, settings that differ from it, and seed."""
    changes = _changes(experiment, recipe, config, smoke)
    changes.pop("seed", None)
    parts = _short("-".join(f"{name}_{_part(value)}" for name, value in changes.items()), 160)
    return "-".join([experiment.name, f"{'smoke-' * smoke}{recipe}", *([parts] if parts else []), f"seed{config.seed}"])


def _changes(experiment: Experiment, recipe: str, config: Any, smoke: bool) -> dict[str, Any]:
    own, mine = (vars(c) for c in (usual(experiment, recipe, smoke), config))
    return {name: value for name, value in mine.items() if value != own[name]}


def _part(value: object) -> str:
    """The value as part of a file's name."""
    text = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return _short(re.sub(r"[^\w.]+", "_", text), 40)


def _short(text: str, most: int) -> str:
    """The text, or the end of one that is too long with a hash of all of it."""
    if len(text) <= most:
        return text
    return f"{text[16 - most :].lstrip('-_')}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _key(setting: str) -> str:
    return setting.partition("=")[0]


def _hint(given: str, known: Iterable[str]) -> str:
    """A sentence with the nearest name, or nothing."""
    near = difflib.get_close_matches(given.lower(), list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _told(key: str, value: object) -> str:
    """A setting as a command has it."""
    return f"{key}={','.join(map(str, value)) if isinstance(value, tuple) else str(value)}"


def changed(config: Any, settings: list[str]) -> Any:
    """The dataclass with ``key=value`` settings, each value read as its field's type."""
    known = {f.name: getattr(config, f.name) for f in fields(config)}
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if RENAMED.get(key) in known and key not in known:
            raise RunError(f"{key} is called {RENAMED[key]} now; give {RENAMED[key]}={text}.")
        if key not in known:
            raise RunError(f"no setting {key!r}; there are {', '.join(known)}.{_hint(key, known)}")
        if not equals:
            raise RunError(f"{key} has no value; KEY=VALUE is expected, such as {_told(key, known[key])}.")
        if key in values:
            raise RunError(f"{key} is set twice; give one value.")
        values[key] = _read(key, text, known[key])
    try:
        return replace(config, **values)
    except ValueError as error:
        raise RunError(str(error)) from None


def _read(key: str, text: str, now: object):
    """The text as a value of the present value's type; commas separate the items of a list."""
    if isinstance(now, str):
        return text
    if isinstance(now, tuple):
        kind = now[0] if now else ""
        return tuple(_read(key, part, kind) for part in text.split(",") if part)
    if isinstance(now, bool):
        kind, value = "true or false", {"true": True, "false": False}.get(text.lower())
    else:
        kind = "a whole number" if isinstance(now, int) else "a number"
        with suppress(ValueError):
            value = int(text) if isinstance(now, int) else float(text)
            if isinstance(value, int) and abs(value) > LARGEST:
                kind = f"a whole number of at most {LARGEST}"
            elif math.isfinite(value):
                return value
        value = None
    if value is None:
        raise RunError(f"{key} must be {kind}, as in {key}={json.dumps(now)}; got {text!r}.")
    return value
