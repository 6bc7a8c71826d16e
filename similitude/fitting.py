"""What TverskyClassifier fits with: starting values from the data, batches, the loss, and when to stop."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .initialize import init_from_data
from .nn import TverskyProjection

# Numbers in a table of rows by classes, or by features, that is in memory at once.
AT_ONCE = 2**24
# Products in a batch from which on threads are worth their start.
WORTH_THREADS = 2**24
# Deviation of a prototype without rows from another one of its class, in standard deviations of the columns.
APART = 0.1


def parts(width: int, *tensors: Tensor, most: int | None = None) -> Iterator[tuple[Tensor, ...]]:
    """Parts of the tensors' rows, whose tables with ``width`` columns fit into memory; ``most`` rows in each."""
    rows = max(1, AT_ONCE // width)
    return zip(*(tensor.split(min(rows, most or rows)) for tensor in tensors), strict=True)


def shuffled(random: np.random.RandomState, batch: tuple[Tensor, ...], size: int) -> list[tuple[Tensor, ...]]:
    """All rows in random order, in batches of one size: else a last one of few rows would weigh as a whole one."""
    order = torch.from_numpy(random.permutation(len(batch[0]))).to(batch[0].device)
    # Rows are gathered once, and batches are views of them.
    pieces = (t[order].tensor_split(math.ceil(len(order) / size)) for t in batch)
    return list(zip(*pieces, strict=True))


@torch.no_grad()
def start(
    layer: TverskyProjection,
    each: int,
    x: Tensor,
    targets: Tensor,
    weights: Tensor,
    random: np.random.RandomState,
    mixed: float = 0.0,
) -> float:
    """The gain of the similarities, after the layer has got its starting values.

    Args:
        layer: With thresholds its bank starts from k-means of the rows, whatever their weights, else at random.
        each: Number of prototypes of each class.
        x: Objects, ``[N, D]``, with a 1 in the last column if the layer has no thresholds.
        targets: Their classes, ``[N]``.
        weights: Their weights, ``[N]``.
        random: Draws directions, or where k-means begins.
        mixed: Fraction of a bank with thresholds that starts from random directions and their opposites, cut at 0.
    """
    K, D = layer.features.weight.shape
    width = max(len(layer.prototypes), K)
    if layer.features.threshold is None:
        directions = torch.from_numpy(random.standard_normal((K, D))).to(x)
        layer.features.weight.copy_(nn.functional.normalize(directions, dim=-1))
    _place_prototypes(layer, each, x, targets, weights, random)
    if layer.features.threshold is None:
        layer.prototypes[:, -1] = 1
    else:
        torch.manual_seed(random.randint(2**31))
        layer.init = "calibrated"  # to the rows, and to no others before
        # A bias would be set from a table of many rows by all prototypes; it is set below, part by part.
        bias, layer.bias = layer.bias, None
        with warnings.catch_warnings():
            # A table may have fewer rows than the classifier has features.
            warnings.filterwarnings("ignore", message=".* inputs are too few for")
            init_from_data(layer, x, start="k-means", mixed=mixed)
        layer.bias = bias
    assert layer.bias is not None
    layer.bias.zero_()
    spread = _spread(layer, x, weights)
    # θ scales the contrast model along with α and β, and is not in the ratio model.
    if layer.model == "contrast":
        for constant in (layer.alpha, layer.beta, layer.theta):
            constant.div_(spread)
    means = sum(weight @ layer(rows) for rows, weight in parts(width, x, weights)) / weights.sum()
    layer.bias.copy_(means.mean() - means)
    return 1.0 if layer.model == "contrast" else 1 / spread


def _place_prototypes(
    layer: TverskyProjection, each: int, x: Tensor, targets: Tensor, weights: Tensor, random: np.random.RandomState
) -> None:
    """Prototypes at the means of their classes; several of a class at the means of its clusters."""
    classes = len(layer.prototypes) // each
    if each > 1:
        targets = _clusters(classes, each, x, targets, weights, random)
    P = len(layer.prototypes)
    total, count = torch.zeros_like(layer.prototypes), x.new_zeros(P)
    for rows, own, weight in parts(max(P, len(layer.features.weight)), x, targets, weights):
        belongs = nn.functional.one_hot(own, P).to(x) * weight[:, None]  # [n, P]
        total += belongs.T @ rows
        count += belongs.sum(0)
    layer.prototypes.copy_(total / count.clamp(min=torch.finfo(x.dtype).tiny)[:, None])
    for p in (count == 0).nonzero()[:, 0].tolist() if each > 1 else ():
        # Equal prototypes would stay equal; this one starts near the class's first.
        near = torch.from_numpy(random.standard_normal(x.shape[1])).to(x)
        layer.prototypes[p] = layer.prototypes[p - p % each] + APART * near


def _clusters(
    classes: int, each: int, x: Tensor, targets: Tensor, weights: Tensor, random: np.random.RandomState
) -> Tensor:
    """The cluster of each row among those of all classes, ``[N]``: a class has as many as it has rows, and ``each``."""
    from sklearn.cluster import KMeans

    found = targets * each
    for c in range(classes):
        own = (targets == c).nonzero()[:, 0]
        n = min(each, len(x[own].unique(dim=0))) if len(own) else 0
        if n > 1:
            options: dict[str, Any] = {"n_init": 1, "random_state": random}
            means = KMeans(n, **options)
            means.fit(x[own].cpu().numpy(), sample_weight=weights[own].cpu().numpy())
            found[own] += torch.as_tensor(means.labels_).to(found)
    return found


def _spread(layer: TverskyProjection, x: Tensor, weights: Tensor) -> float:
    """Standard deviation of the similarities of a row to the classes; 1 if they are equal."""
    squares = x.new_zeros(())
    for rows, weight in parts(max(len(layer.prototypes), len(layer.features.weight)), x, weights):
        similarities = layer(rows)
        squares += weight @ (similarities - similarities.mean(-1, keepdim=True)).square().mean(-1)
    spread = (squares / weights.sum()).sqrt().item()
    return spread if spread > 1e-6 else 1.0


def optimizer_of(
    layer: TverskyProjection, bank_rate: float, weight_decay: float, moments: dict[int, Any]
) -> torch.optim.Optimizer:
    """AdamW with the moments of the last call; the learning rate of a group is its ``rate`` times that of a step."""
    bank = list(layer.features.parameters())
    others = [p for name, p in layer.named_parameters() if not name.startswith("features.")]
    groups = [{"params": others, "rate": 1.0}, {"params": bank, "rate": float(bank_rate)}]
    if bank_rate == 1:
        groups = [{"params": others + bank, "rate": 1.0}]
    optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay, fused=True)
    # After the layer is pruned or grown the moments have another size, which a fused AdamW does not notice.
    if [m["exp_avg"].shape for m in moments.values()] != [p.shape for p in others + bank]:
        moments = {}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return optimizer


@torch.no_grad()
def loss_of(similarities: Tensor, targets: Tensor, weights: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Sum of the rows' cross-entropies by their weights, and its gradient ``[n, classes]``.

    Equivalent to: ``weights @ cross_entropy(similarities, targets, reduction="none", label_smoothing=smoothing)``,
    without its graph, which costs much beside a small layer.
    """
    logs = similarities.log_softmax(-1)
    spread = smoothing / logs.shape[-1]
    wanted = torch.full_like(logs, spread).scatter_(-1, targets[:, None], 1 - smoothing + spread)
    by_row = weights[:, None]
    return -(logs * wanted).mul_(by_row).sum(), (logs.exp() - wanted).mul_(by_row)


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


def array(x: Tensor) -> np.ndarray:
    return x.detach().cpu().numpy().copy()
