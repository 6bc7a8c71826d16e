"""The settings of a run: a recipe's, with those that a command names in their place, and those of a table's rows."""

from __future__ import annotations

import hashlib
import json
import math
import re
from contextlib import suppress
from dataclasses import asdict, fields, replace
from typing import Any

from .record import RunError

# Settings that no experiment has a meaning for below 0.
AT_LEAST_0 = {"bank_rate", "batch", "clip", "cost", "difference_rate", "digits", "head_rate", "momentum"}
AT_LEAST_0 |= {"num_features", "pictures", "size", "text", "warmup", "weight_decay"}


def of_recipe(experiment, recipe: str, settings: list[str], smoke: bool = False) -> Any:
    """The recipe's settings with the given ones in their place; few steps on made-up data for a smoke run."""
    return changed(usual(experiment, recipe, smoke), settings)


def usual(experiment, recipe: str, smoke: bool = False) -> Any:
    """The recipe's own settings, or with what makes the experiment's smoke run small."""
    if recipe not in experiment.RECIPES:
        known = ", ".join(experiment.RECIPES)
        raise RunError(f"no recipe {recipe!r} for {_name(experiment)}; there are {known}.")
    if not smoke:
        return experiment.RECIPES[recipe]
    papers = asdict(experiment.RECIPES["paper"])
    few = {key: value for key, value in asdict(experiment.SMOKE).items() if value != papers[key]}
    return replace(experiment.RECIPES[recipe], **few)


def rows(experiment, recipe: str, settings: list[str], smoke: bool = False) -> list[list[str]]:
    """The settings of each run that the experiment's table is made of; of one that is a single run, the given ones.

    A given setting that rows name picks those with its value. Any other holds for all of them.
    """
    wanted = of_recipe(experiment, recipe, settings, smoke)
    table = getattr(experiment, "ROWS", {}).get(recipe, [[]])
    named = {_key(setting) for row in table for setting in row}
    for key in (_key(setting) for setting in settings if _key(setting) in named):
        value_of = lambda row, k=key: getattr(of_recipe(experiment, recipe, row), k)  # noqa: E731
        naming = [row for row in table if key in map(_key, row)]
        table = [row for row in naming if value_of(row) == getattr(wanted, key)]
        if not table:
            there = ", ".join(dict.fromkeys(str(value_of(row)) for row in naming))
            raise RunError(
                f"no such row of {_name(experiment)} has {key}={getattr(wanted, key)}; there is {there or 'none'}."
            )
    common = [setting for setting in settings if _key(setting) not in named]
    return [[*row, *common] for row in table]


def label(experiment, recipe: str, config: Any, smoke: bool = False) -> str:
    """The name of a run's folder and result: recipe, what is not as in it, and seed."""
    own = usual(experiment, recipe, smoke)
    names = [f.name for f in fields(config) if f.name != "seed" and getattr(config, f.name) != getattr(own, f.name)]
    parts = [f"{name}_{_part(getattr(config, name))}" for name in names]
    changes = _short("-".join(parts), 160)
    return "-".join(
        [_name(experiment), f"{'smoke-' * smoke}{recipe}", *([changes] if parts else []), f"seed{config.seed}"]
    )


def _part(value: object) -> str:
    """A value as a part of a file's name."""
    text = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return _short(re.sub(r"[^\w.]+", "_", text), 40)


def _short(text: str, most: int) -> str:
    """The text or, of one that is too long, as a path may be, the end and a hash of all of it."""
    if len(text) <= most:
        return text
    return f"{text[16 - most :].lstrip('-_')}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _name(experiment) -> str:
    return experiment.__name__.rpartition(".")[2]


def _key(setting: str) -> str:
    return setting.partition("=")[0]


def changed(config, settings: list[str]):
    """The dataclass with ``key=value`` settings, each value read as its field's type."""
    known = {f.name: getattr(config, f.name) for f in fields(config)}
    values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in known:
            raise RunError(f"no setting {setting!r}; give key=value, with a key out of {', '.join(known)}.")
        if key in values:
            raise RunError(f"{key} is set twice; give one value.")
        values[key] = _read(key, text, known[key])
    for key, value in values.items():
        if key == "lr" and not value > 0:
            raise RunError(f"lr must be more than 0; got {value}.")
        if key == "dropout" and not 0 <= value < 1:
            raise RunError(f"dropout must be from 0 to below 1; got {value}.")
        if key == "seed" and not 0 <= value < 2**32:
            raise RunError(f"seed must be from 0 to {2**32 - 1}; got {value}.")
        if key in AT_LEAST_0 and isinstance(value, int | float) and value < 0:
            raise RunError(f"{key} must be 0 or more; got {value}.")
    try:
        return replace(config, **values)
    except ValueError as error:
        raise RunError(str(error)) from None


def _read(key: str, text: str, now: object):
    """The text as a value of the kind that the setting has now; lists are separated by commas."""
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
            if math.isfinite(value):
                return value
        value = None
    if value is None:
        raise RunError(f"{key} must be {kind}, as in {key}={json.dumps(now)}; got {text!r}.")
    return value
