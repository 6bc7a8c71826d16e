"""The paper's models of XOR, trained together as one batched program.

Models are stacked along a leading axis: prototypes ``[M, 2, D]``, features ``[M, K, D]``, α, β, θ ``[M, 1, 1]``. No
operation mixes them, and Adam is element-wise, so each model trains as if alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..initialize import fill_
from ..ops import reference, separable
from .loop import captured

if TYPE_CHECKING:
    from .xor import Config

POINTS = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
LABELS = [0, 1, 1, 0]
# The paper's; the library may have more.
INTERSECTIONS = ("product", "min", "max", "mean", "gmean", "softmin")
DIFFERENCES = ("ignorematch", "subtractmatch")
INITS = ("uniform", "normal", "orthogonal")
# The axes of the outcome, in this order.
AXES = ("intersection", "difference", "normalize", "num_features", "prototypes_init", "features_init", "seed")


class Models(NamedTuple):
    """The parameters of M models."""

    prototypes: Tensor  # [M, 2, D]
    features: Tensor  # [M, K, D]
    constants: Tensor  # [3, M, 1, 1], α, β, θ


def shape(config: Config) -> tuple[int, ...]:
    """Models along each of AXES."""
    return len(INTERSECTIONS), len(DIFFERENCES), 2, len(config.num_features), len(INITS), len(INITS), config.seeds


def start(config: Config, K: int, device: str) -> Models:
    """Models with K features, in the order of AXES without num_features; a seed has the same start for all options."""
    prototypes, features = [], []
    for a, b, seed in itertools.product(range(3), range(3), range(config.seeds)):
        for into, drawn in zip((prototypes, features), draw(config, K, a, b, seed), strict=True):
            into.append(drawn)
    times = len(INTERSECTIONS) * len(DIFFERENCES) * 2
    constants = torch.tensor([0.5, 0.5, 1.0]).reshape(3, 1, 1, 1).expand(3, times * len(features), 1, 1)
    stacked = (torch.stack(prototypes).repeat(times, 1, 1), torch.stack(features).repeat(times, 1, 1), constants)
    return Models(*(t.clone().to(device).requires_grad_() for t in stacked))


def draw(config: Config, K: int, a: int, b: int, seed: int) -> tuple[Tensor, Tensor]:
    """Starting prototypes and features of a model; a and b are the places of their distributions in INITS."""
    torch.manual_seed(((config.seed * 1000 + seed) * 3 + a) * 3 + b)
    return fill_(torch.empty(2, 2), INITS[a]), fill_(torch.empty(K, 2), INITS[b])


def similarities(models: Models, x: Tensor, level: str) -> Tensor:
    """S of the points ``[4, D]`` to both prototypes of all models, ``[M, 4, 2]``; models are in the order of ``start``.

    The sums u and v over shared features and the saliences are computed once for all options.
    """
    prototypes, features, constants = models
    M, groups = len(features), len(INTERSECTIONS) * len(DIFFERENCES)
    position = torch.arange(M, device=x.device).view(M, 1, 1)
    subtracts, normal = position // (M // groups) % 2 == 1, position // (M // groups // 2) % 2 == 1
    unit = torch.nn.functional.normalize
    a = torch.where(normal, unit(x, dim=-1), x) @ features.mT  # [M, 4, K]
    b = torch.where(normal, unit(prototypes, dim=-1), prototypes) @ features.mT  # [M, 2, K]
    u, v = separable.shared_sums(a, b)  # [M, 4, 2]
    least = reference.common(a[:, :, None], b[:, None], "min", "feature") if level == "feature" else torch.minimum(u, v)
    blocks = [t.unflatten(0, (len(INTERSECTIONS), -1)) for t in (a, b, u, v, least)]
    shared = [_shared(intersection, level, *(t[i] for t in blocks)) for i, intersection in enumerate(INTERSECTIONS)]
    matched_a, matched_b = torch.where(subtracts, least, u), torch.where(subtracts, least, v)
    a_only = separable.salience(a).unsqueeze(-1) - matched_a
    b_only = separable.salience(b).unsqueeze(-2) - matched_b
    return reference.contrast(torch.cat(shared), a_only, b_only, *constants.unbind())


def _shared(intersection: str, level: str, a: Tensor, b: Tensor, u: Tensor, v: Tensor, least: Tensor) -> Tensor:
    """f(A∩B) of the models with one intersection, from the common sums."""
    if intersection == "product":
        return separable.product(a, b)
    if intersection == "gmean":
        return separable.gmean(a, b) if level == "feature" else separable.root(u) * separable.root(v)
    if level == "feature" and intersection == "softmin":
        return reference.common(a[:, :, None], b[:, None], "softmin", "feature")
    if level == "feature" and intersection in ("min", "max"):
        return least if intersection == "min" else u + v - least
    return reference.pooled(u, v, intersection)


def train(config: Config, K: int, device: str, tell: Callable[[int, float], None]) -> tuple[np.ndarray, np.ndarray]:
    """Losses and right answers, of 4, of all models with K features after training, ``[M]``."""
    models = start(config, K, device)
    x, y = torch.tensor(POINTS, device=device), torch.tensor(LABELS, device=device)
    optimizer = torch.optim.Adam(models, lr=config.lr, capturable=device == "cuda")

    def losses() -> Tensor:
        S = similarities(models, x, config.level)
        return (
            torch.nn.functional.cross_entropy(S.flatten(0, 1), y.repeat(len(S)), reduction="none").view(-1, 4).mean(-1)
        )

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        each = losses()
        each.sum().backward()
        optimizer.step()
        return each

    advance = captured(step, min(3, config.steps)) if device == "cuda" else step
    for i in range(config.steps):
        each = advance()
        if i % 50 == 49 or i + 1 == config.steps:
            tell(i + 1, each.detach().nanmean().item())
    with torch.no_grad():
        S = similarities(models, x, config.level)
        return losses().cpu().numpy(), (S.argmax(-1) == y).sum(-1).cpu().numpy()
