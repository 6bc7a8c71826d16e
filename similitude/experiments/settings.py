"""The settings of a run: a recipe's, with those that a command names in their place, and those of a table's rows."""

from __future__ import annotations

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
    if recipe not in experiment.RECIPES:
        known = ", ".join(experiment.RECIPES)
        raise RunError(f"no recipe {recipe!r} for {_name(experiment)}; there are {known}.")
    return changed(small(experiment, recipe) if smoke else experiment.RECIPES[recipe], settings)


def small(experiment, recipe: str) -> Any:
    """The recipe with what makes the experiment's smoke run small."""
    usual = asdict(experiment.RECIPES["paper"])
    few = {key: value for key, value in asdict(experiment.SMOKE).items() if value != usual[key]}
    return replace(experiment.RECIPES[recipe], **few)


def rows(experiment, recipe: str, settings: list[str]) -> list[list[str]]:
    """The settings of each run that the experiment's table is made of; of one that is a single run, the given ones.

    A given setting by which the rows differ picks those that have it. Any other holds for all of them.
    """
    wanted = of_recipe(experiment, recipe, settings)
    table = [(row, of_recipe(experiment, recipe, row)) for row in getattr(experiment, "ROWS", {}).get(recipe, [[]])]
    differing, common = {_key(setting) for row, _ in table for setting in row}, []
    for setting in settings:
        key = _key(setting)
        if key not in differing:
            common.append(setting)
            continue
        there = dict.fromkeys(getattr(config, key) for _, config in table)
        table = [(row, config) for row, config in table if getattr(config, key) == getattr(wanted, key)]
        if not table:
            raise RunError(f"no row of {_name(experiment)} has {setting}; {key} is {', '.join(map(str, there))}.")
    return [[*row, *common] for row, _ in table]


def label(name: str, recipe: str, settings: list[str], seed: int, smoke: bool = False) -> str:
    """The name of a run's folder and result, which has what is not the recipe's own: other settings get another."""
    own = (re.sub(r"[^\w.]+", "_", setting) for setting in settings)
    return "-".join([name, f"{'smoke-' * smoke}{recipe}", *own, f"seed{seed}"])


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
