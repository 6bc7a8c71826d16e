"""What TverskyClassifier fits with: starting values from the data, rows held out, the loss, and when to stop."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .nn import TverskyProjection

# Numbers in a table of rows by classes, or by features, that is in memory at once.
AT_ONCE = 2**24
# Products in a batch from which on threads are worth their start.
WORTH_THREADS = 2**24


def parts(width: int, *tensors: Tensor, most: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Parts of the tensors' rows, whose tables with ``width`` columns fit into memory; ``most`` rows in each."""
    rows = max(1, AT_ONCE // width)
    return zip(*(tensor.split(min(rows, most or rows)) for tensor in tensors), strict=True)


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


def shuffled(random: np.random.RandomState, N: int, size: int) -> list[np.ndarray]:
    """All rows in random order, in batches of one size: else a last one of few rows would weigh as a whole one."""
    return np.array_split(random.permutation(N), math.ceil(N / size))


@torch.no_grad()
def start(layer: TverskyProjection, directions: Tensor, x: Tensor, targets: Tensor, weights: Tensor) -> float:
    """The gain of the similarities, after the layer has got its starting values.

    Args:
        layer: A prototype for each class.
        directions: Of the features, ``[K, D]``.
        x: Objects, ``[N, D]``, with a 1 in the last column.
        targets: Their classes, ``[N]``.
        weights: Their weights, ``[N]``.
    """
    P, width = len(layer.prototypes), max(layer.prototypes.shape[0], len(directions))
    layer.features.weight.copy_(nn.functional.normalize(directions, dim=-1))
    total, count = torch.zeros_like(layer.prototypes), x.new_zeros(P)
    for rows, own, weight in parts(width, x, targets, weights):
        belongs = nn.functional.one_hot(own, P).to(x) * weight[:, None]  # [n, P]
        total += belongs.T @ rows
        count += belongs.sum(0)
    layer.prototypes.copy_(total / count.clamp(min=torch.finfo(x.dtype).tiny)[:, None])
    layer.prototypes[:, -1] = 1
    spread = _spread(layer, x, weights)
    # θ scales the contrast model along with α and β, and is not in the ratio model.
    if layer.model == "contrast":
        for constant in (layer.alpha, layer.beta, layer.theta):
            constant.div_(spread)
    means = sum(weight @ layer(rows) for rows, weight in parts(width, x, weights)) / weights.sum()
    assert layer.bias is not None
    layer.bias.copy_(means.mean() - means)
    return 1.0 if layer.model == "contrast" else 1 / spread


def _spread(layer: TverskyProjection, x: Tensor, weights: Tensor) -> float:
    """Standard deviation of the similarities of a row to the classes; 1 if they are equal."""
    squares = x.new_zeros(())
    for rows, weight in parts(max(len(layer.prototypes), len(layer.features.weight)), x, weights):
        similarities = layer(rows)
        squares += weight @ (similarities - similarities.mean(-1, keepdim=True)).square().mean(-1)
    spread = (squares / weights.sum()).sqrt().item()
    return spread if spread > 1e-6 else 1.0


def loss_of(similarities: Tensor, targets: Tensor, weights: Tensor, smoothing: float) -> Tensor:
    """Sum of the rows' cross-entropies by their weights."""
    return weights @ nn.functional.cross_entropy(similarities, targets, reduction="none", label_smoothing=smoothing)


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


class EarlyStopping:
    """The lowest held-out loss so far, with the parameters that had it, and how many looks ago that was."""

    def __init__(self, layer: nn.Module, patience: int):
        self.layer: nn.Module = layer
        self.patience: int = patience
        self.lowest: float = math.inf
        self.state: dict[str, Any] | None = None
        self.waited: int = 0

    def look(self, loss: float) -> None:
        self.waited += 1
        if loss < self.lowest:
            self.lowest, self.state, self.waited = loss, copy.deepcopy(self.layer.state_dict()), 0

    @property
    def due(self) -> bool:
        return self.waited >= self.patience

    def restore(self) -> None:
        if self.state is not None:
            self.layer.load_state_dict(self.state)


@contextmanager
def threads(products: int) -> Iterator[None]:
    """A context with one thread if a batch has few products: more gain nothing, and cost much on a busy machine."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if products < WORTH_THREADS else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def or_unchanged(fit: Callable) -> Callable:
    """The method, which leaves the classifier as it was if it fails."""

    @wraps(fit)
    def whole(self, *args, **kwargs):
        settings = self.get_params(deep=False)
        before = copy.deepcopy({name: value for name, value in vars(self).items() if name not in settings})
        try:
            return fit(self, *args, **kwargs)
        except Exception:
            for name in vars(self).keys() - settings.keys():
                delattr(self, name)
            vars(self).update(before)
            raise

    return whole
