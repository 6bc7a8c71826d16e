"""Two models beside one another on one page: what is shown of the second, and which features are the same in both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..interpret.matching import matched
from .content import Content
from .table import ARRAYS

# Features up to which each gets a partner of its own; beyond, the one most like it, which several may share.
MATCHED = 512
PREFIX = "beside-"


def beside(first: Content, second: Content) -> Content:
    """The first content with the second beside it; both must show the same objects.

    Features are matched by the correlation of their measures, above 0 alone, over the objects on the page: so that two
    models of different widths can be compared.
    """
    H = min(len(first.arrays["measures"]), len(second.arrays["measures"]))
    if first.about["objects"] != second.about["objects"]:
        raise ValueError(
            "both models must be shown the same inputs; "
            f"got {first.about['objects']:,} and {second.about['objects']:,}."
        )
    correlation = correlations(*(content.arrays["measures"][:H] for content in (first, second)))
    match = partners(correlation)
    # The table of both is the first one's.
    others = {PREFIX + name: array for name, array in second.arrays.items() if name not in ARRAYS}
    arrays = {**first.arrays, **others}
    arrays["match"] = match.astype(np.int32)
    rows = np.arange(len(match))
    arrays["likeness"] = np.where(match >= 0, correlation[rows, match], 0.0).astype(np.float32)
    sprites = {**first.sprites, **{PREFIX + name: sprite for name, sprite in second.sprites.items()}}
    about = {name: value for name, value in second.about.items() if name != "table"}
    return replace(first, about={**first.about, "beside": about}, arrays=arrays, sprites=sprites)


def correlations(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation of each feature of one model with each of the other, ``[H, K]``, ``[H, L]`` -> ``[K, L]``."""
    units = []
    for measures in (a, b):
        positive = np.maximum(measures.astype(np.float32), 0)
        apart = positive - positive.mean(0)
        length = np.linalg.norm(apart, axis=0)
        units.append(np.divide(apart, length, out=np.zeros_like(apart), where=length > 1e-6))
    return units[0].T @ units[1]


def partners(correlation: np.ndarray) -> np.ndarray:
    """The partner of each row's feature, −1 where there is none."""
    K, L = correlation.shape
    if max(K, L) > MATCHED:
        return correlation.argmax(1)
    if K <= L:
        return matched(-correlation)
    found = np.full(K, -1)
    found[matched(-correlation.T)] = np.arange(L)
    return found
