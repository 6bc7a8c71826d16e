"""The settings and recipes of an experiment, read from its file without running it, since the help needs no torch."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

from . import check_name


class Setting(NamedTuple):
    """A setting that ``--set`` takes: its value in the recipe "paper", or in ``Config``, and what it is."""

    key: str
    value: str
    says: str


def settings(name: str) -> list[Setting]:
    """The settings of an experiment, in the order of its ``Config``."""
    (config,) = (node for node in _file(name).body if isinstance(node, ast.ClassDef) and node.name == "Config")
    says = _arguments(ast.get_docstring(config) or "")
    fields = [node for node in config.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return [
        Setting(key, _text(field.value), says.get(key, ""))
        for field in fields
        if isinstance(field.target, ast.Name) and (key := field.target.id) != "made_up"
    ]


def recipes(name: str) -> list[str]:
    """The names of an experiment's recipes that its file spells out."""
    found: list[str] = []
    for node in _file(name).body:
        if not isinstance(node, ast.Assign):
            continue
        target, value = ast.unparse(node.targets[0]), node.value
        if target == "RECIPES" and isinstance(value, ast.Dict):
            found += [str(key.value) for key in value.keys if isinstance(key, ast.Constant)]
        elif target == "RECIPES" and isinstance(value, ast.DictComp):
            found += ast.literal_eval(value.generators[0].iter)
        elif found and (key := re.fullmatch(r"RECIPES\['(\w+)'\]", target)):
            found.append(key[1])
    return found


def _file(name: str) -> ast.Module:
    return ast.parse(Path(__file__).with_name(f"{check_name(name)}.py").read_text(encoding="utf-8"))


def _arguments(docstring: str) -> dict[str, str]:
    """What the ``Args:`` of a docstring say of each name, or of several that stand before one colon."""
    part = docstring.partition("Args:\n")[2]
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\S)", part.rstrip()):
        names, _, says = entry.strip().partition(": ")
        found |= {key.strip(): " ".join(says.split()) for key in names.split(",")}
    return found


def _text(value: ast.expr | None) -> str:
    """A default as ``--set`` takes it."""
    if value is None:
        return ""
    try:
        plain = ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)
    return ",".join(map(str, plain)) if isinstance(plain, tuple) else str(plain)
