"""Rows of a table for TverskyClassifier: settings, values and weights that it takes, equal rows, rows held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from .form import Form, check_choice
from .pooling import POOLINGS

# Values whose squares are still numbers.
LARGEST = 1e150
# Where a bank starts: the fraction of its features that starts from random directions.
STARTS = {"mixed": 0.5, "k-means": 0.0, "random": 1.0}


def check_device(device: object) -> None:
    try:
        torch.empty(0, device=device)  # pyright: ignore[reportArgumentType, reportCallIssue]
    except (AssertionError, RuntimeError, TypeError, NotImplementedError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise ValueError(f"device={device!r} cannot be used here ({why}); use device='cpu'.") from None


def check_weights(weights: np.ndarray) -> None:
    """Raises if sums of the weights would overflow, or small ones lose their digits."""
    most = 10.0 ** (np.finfo(weights.dtype).maxexp // 7)
    for wrong in weights[(weights > most) | ((weights > 0) & (weights < 1 / most))][:1]:
        expected = f"0, or from {1 / most:g} to {most:g}"
        raise ValueError(f"sample weights must be {expected}; got {wrong:g}: divide them by their mean.")


def counted(X: np.ndarray, y: np.ndarray, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y and weights, checked, without the rows of weight 0."""
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight

    check_classification_targets(y)
    if (largest := float(abs(X).max())) > LARGEST:
        raise ValueError(f"X must be within ±{LARGEST:g}, so that it has a variance; got {largest:.3g}: scale it.")
    weights = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
    if not weights.any():
        raise ValueError("sample weights must not all be zero.")
    check_weights(weights)
    chosen = weights > 0
    return X[chosen], y[chosen], weights[chosen]


def merged(X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows in an order of their own, equal ones as one with the sum of their weights.

    A row twice and a weight of 2 then give the same sums, to the last bit: many steps make much of little.
    """
    rows, number = np.unique(np.column_stack([targets, X]), axis=0, return_inverse=True)
    sums = np.bincount(number.ravel(), weights).astype(weights.dtype)
    return rows[:, 1:].astype(X.dtype), rows[:, 0].astype(targets.dtype), sums


def measure(scaler: Any, X: np.ndarray, weights: np.ndarray) -> None:
    """Adds rows to the means and variances of the columns."""
    with np.errstate(over="ignore", invalid="ignore"):  # told below
        scaler.partial_fit(X, sample_weight=weights)
    if not all(np.isfinite(found).all() for found in (scaler.mean_, scaler.var_)):
        raise ValueError(f"X times its sample weights has no variance; got {abs(X).max():.3g} in X: scale it.")


def held_out(X: np.ndarray, targets: np.ndarray, share: float, random: np.random.RandomState) -> np.ndarray:
    """Which rows are held out: a share of those that differ, of each class if it has enough. Each class keeps a row.

    Equal rows stay together, so that a row twice and a weight of 2 give the same split.
    """
    from sklearn.model_selection import train_test_split

    rows, number = np.unique(np.column_stack([targets, X]), axis=0, return_inverse=True)
    classes, counts = rows[:, 0], np.bincount(rows[:, 0].astype(int))
    n = math.ceil(share * len(rows))
    if counts.min() > 1 and len(counts) <= n <= len(rows) - len(counts):
        _, chosen = train_test_split(np.arange(len(rows)), test_size=share, stratify=classes, random_state=random)
    else:
        order = random.permutation(len(rows))
        first = np.unique(classes[order], return_index=True)[1]
        chosen = np.delete(order, first)[:n]
    if not len(chosen):
        raise ValueError(
            f"early_stopping holds rows out, so that a class must have two that differ; got n_samples={len(X)} "
            f"of {len(counts)} classes: use early_stopping=False."
        )
    return np.isin(number.ravel(), chosen)


def check_settings(given: Any) -> None:
    """Raises on the first setting of a classifier that it cannot fit with."""
    Form.of(given.intersection, given.difference, given.level, given.model)
    check_device(given.device)
    check_choice("start", given.start, tuple(STARTS))
    check_choice("pooling", given.pooling, POOLINGS)
    for name in ("num_features", "batch_size", "n_iter_no_change", "prototypes_per_class", "max_iter"):
        value = getattr(given, name)
        if name == "max_iter" and isinstance(value, str):
            check_choice(name, value, ("auto",))
        elif not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more; got {value!r}.")
    ranges: dict[str, tuple[str, Callable]] = {
        "learning_rate": ("above 0", lambda v: v > 0),
        "weight_decay": ("of 0 or more", lambda v: v >= 0),
        "label_smoothing": ("from 0 to 1", lambda v: 0 <= v <= 1),
        "validation_fraction": ("between 0 and 1", lambda v: 0 < v < 1),
        "presence": ("between 0 and 1", lambda v: 0 < v < 1),
        "bank_rate": ("of 0 or more", lambda v: v >= 0),
    }
    for name, (words, holds) in ranges.items():
        value: Any = getattr(given, name)
        # NaN holds nowhere; a whole number may be beyond any float.
        if not isinstance(value, Real) or isinstance(value, bool) or not (holds(value) and value <= LARGEST):
            raise ValueError(f"{name} must be a number {words}; got {value!r}.")


def told_start(start: str, presence: float) -> str:
    """Where features start, for a fit that says it."""
    directions = {"mixed": "k-means directions, half of them, and random ones, half"}.get(start, f"{start} directions")
    return f"starts from {directions}" + (f", and a presence of {presence:g}" if start != "random" else "")


def by_columns(directions: np.ndarray, columns: np.ndarray) -> list[str]:
    """Each feature's number and the two columns that weigh most in it, by deviation, with their signs."""
    strongest = np.argsort(-np.abs(directions), axis=1, kind="stable")[:, :2]
    return [
        f"{k}: " + " ".join(f"{'+' if directions[k, d] > 0 else '−'}{columns[d]}" for d in row)
        for k, row in enumerate(strongest)
    ]
