"""Edits of a model while it is looked at: of a network's images by drawing, or of a layer's vectors and thresholds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..interpret.edit import Edit, Preview
from ..models.data_domain import DataDomain
from ..nn import TverskyProjection
from ..reach import evaluating

Change = Mapping[str, Any]
# What of a network is drawn.
DRAWN = ("prototypes", "features", "added")
# Vectors whose answers are computed at once.
ROWS = 1000


class Refused(ValueError):
    """What was asked for cannot be; the sentence says why."""


def undo_of(model: Any, change: Change) -> Callable[[], object]:
    """Makes a change, and returns what takes it back.

    Args:
        model: a DataDomain network, or a TverskyProjection.
        change: ``prototypes`` and ``features``, new values by index, as flat lists; of a network also ``added``, a list
            of them; of a layer also ``thresholds``, numbers by index.
    """
    if isinstance(model, DataDomain):
        edit = _drawn(model, change)
        edit.apply()
        return edit.undo
    parts = _parts(model)
    before = {name: part.detach().clone() for name, part in parts.items()}
    _write(model, change)

    @torch.no_grad()
    def undo() -> None:
        for name, old in before.items():
            parts[name].copy_(old)

    return undo


@torch.no_grad()
def preview(model: Any, inputs: Tensor, labels: Tensor, change: Change) -> Preview:
    """Answers before and after a change that is not made.

    Args:
        model: as in ``undo_of``.
        inputs: of a network its inputs, of a layer the vectors that reach it.
        labels: right answer of each, ``[N]``.
        change: as in ``undo_of``.
    """
    if isinstance(model, DataDomain):
        return _drawn(model, change).preview(inputs, labels)
    after = copy.deepcopy(model)
    _write(after, change)
    answers = []
    for layer in (model, after):
        with evaluating(layer):
            answers.append(torch.cat([layer(part).argmax(-1) for part in inputs.split(ROWS)]).cpu())
    return Preview(labels, *answers)


def values_of(model: Any, kind: str, index: int) -> list[float]:
    """A prototype or a feature as it is, flat, to draw on."""
    weight = model.features if isinstance(model, DataDomain) else model.features.weight
    rows = {"prototype": model.prototypes, "feature": weight}.get(kind)
    if rows is None or not is_index(index, len(rows)):
        raise Refused(f"there is no {kind} {index!r}.")
    return rows[index].detach().flatten().tolist()


def _drawn(model: DataDomain, change: Change) -> Edit:
    edit, shape = Edit(model), model.shape
    _check_names("network", change, DRAWN)
    try:
        for p, image in dict(change.get("prototypes", {})).items():
            edit.set_prototype(int(p), _values(image, model.prototypes, shape))
        for k, image in dict(change.get("features", {})).items():
            edit.swap_feature(int(k), _values(image, model.prototypes, shape))
        for image in list(change.get("added", [])):
            edit.add_feature(_values(image, model.prototypes, shape))
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    return edit


def _parts(layer: TverskyProjection) -> dict[str, Tensor]:
    """What of a layer can be changed, by the names that a change has."""
    parts: dict[str, Tensor] = {"prototypes": layer.prototypes, "features": layer.features.weight}
    return parts if layer.features.threshold is None else {**parts, "thresholds": layer.features.threshold}


@torch.no_grad()
def _write(layer: TverskyProjection, change: Change) -> None:
    """Writes new values into a layer, all or none of them."""
    parts, found = _parts(layer), []
    _check_names("layer", change, tuple(parts))
    for name in change:
        try:
            rows = {int(i): row for i, row in dict(change[name]).items()}
        except (ValueError, TypeError):
            raise Refused(f"{name} must be new values by their index.") from None
        for i, row in rows.items():
            if not is_index(i, len(parts[name])):
                raise Refused(f"there is no {name.removesuffix('s')} {i}; they are 0 to {len(parts[name]) - 1}.")
            part = parts[name]
            found.append((part, i, _values(row if isinstance(row, list) else [row], part, part.shape[1:])))
    for part, i, values in found:
        part[i] = values


def _check_names(kind: str, change: Change, known: tuple[str, ...]) -> None:
    wrong = [name for name in change if name not in known]
    if wrong:
        raise Refused(f"a {kind} has no {wrong[0]} to change; it has {', '.join(known)}.")


def _values(values: Any, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Numbers from outside as a tensor, or one sentence."""
    if not isinstance(values, list) or len(values) != math.prod(shape):
        raise Refused(f"values must be {math.prod(shape)} numbers, of the shape {list(shape)}.")
    try:
        found = torch.tensor(values, dtype=like.dtype, device=like.device).reshape(shape)
    except (ValueError, TypeError, RuntimeError, OverflowError):
        raise Refused("values must be numbers.") from None
    if not found.isfinite().all():
        raise Refused("values must be finite numbers.")
    return found


def is_index(value: object, size: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
