"""The right answers of objects, given as indices of prototypes or as names of classes."""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Classes that an error lists.
LISTED = 5


def indices_of(labels: Any, classes: Sequence[str] | None, N: int, P: int) -> Tensor:
    """Index of each label's prototype, ``[N]``.

    Args:
        labels: indices, or names of classes, ``[N]``: a tensor, a list, an array or a Series.
        classes: name of each prototype, if they have any.
        N, P: how many objects and prototypes there are.
    """
    given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.shape != (N,):
        raise ValueError(f"labels must be [{N}], one for each input; got shape {list(given.shape)}.")
    if given.dtype.kind in "OUST" and any(isinstance(label, str) for label in given):
        return torch.tensor(_places(given.tolist(), classes), dtype=torch.long)
    try:
        found = given.astype(np.float64)
    except (ValueError, TypeError):
        found = np.full(N, np.nan)
    for wrong in given[~(found == np.round(found))][:1]:
        raise ValueError(f"labels must be indices of prototypes, or names of classes; got {wrong!r}.")
    if N and not 0 <= found.min() <= found.max() < P:
        got = f"{found.min():.0f} to {found.max():.0f}"
        named = f", or give names of classes as text, such as {classes[-1]!r}" if classes else ""
        raise ValueError(f"labels must be indices of prototypes, from 0 to {P - 1}; got {got}{named}.")
    return torch.from_numpy(found.astype(np.int64))


def _places(labels: list[Any], classes: Sequence[str] | None) -> list[int]:
    """Places of names among the classes."""
    if classes is None:
        raise ValueError(
            f"labels are names, such as {labels[0]!r}, and the prototypes have none: give classes=, a name for each."
        )
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise ValueError(f"labels are names, so classes must differ; {twice[0]!r} is there twice.")
    place = {name: p for p, name in enumerate(classes)}
    for label in labels:
        if str(label) not in place:
            near = difflib.get_close_matches(str(label), classes, n=1, cutoff=0.5)
            known = ", ".join(map(repr, classes[:LISTED])) + (", …" if len(classes) > LISTED else "")
            hint = f"the nearest one is {near[0]!r}" if near else f"they are {known}"
            raise ValueError(f"labels must be names of classes; got {label!r}, and {hint}.")
    return [place[str(label)] for label in labels]


def most_frequent(labels: Tensor) -> float:
    """Share of the label that most objects have: the accuracy of answering always that one."""
    return labels.bincount(minlength=1).max().item() / max(1, len(labels))


def warn_of_order(accuracy: float, constant: float) -> None:
    """Warns the caller of ``explore`` if the layer is right less often than one answer for all objects would be."""
    # Objects of one class say nothing of an order.
    if accuracy < constant < 1:
        warnings.warn(
            f"the layer is right on {accuracy:.1%} of the labels, and always answering the most frequent one would be "
            f"on {constant:.1%}: labels probably have another order than the prototypes; give them as names, and "
            "classes= in the order of the prototypes.",
            UserWarning,
            stacklevel=3,
        )
