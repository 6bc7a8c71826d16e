"""The heads that ``heads`` compares: how each is made and started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..initialize import init_from_data
from ..nn import TverskyProjection

if TYPE_CHECKING:
    from .heads import Config

HEADS = ("linear", "tversky")
# What init_from_data gets for a Tversky layer that is named; the default one does not start from data. Layers in TAUGHT
# get the classes too.
LAYERS: dict[str, dict[str, Any]] = {
    "default": {},
    "let-go": {"start": "k-means"},
    "mixed": {"start": "k-means", "mixed": 0.5},
    "whitened": {"start": "k-means", "whiten": 0.5},
    "classes": {"start": "classes"},
}
TAUGHT = ("whitened", "classes")


def make(config: Config, head: str, dim: int, classes: int) -> nn.Module:
    """A new head with the library's starting values, except for those in the settings."""
    if head == "linear":
        return nn.Linear(dim, classes)
    options: dict[str, Any] = {"init": config.init} if config.init else {}
    for name in ("intersection", "difference", "level", "normalize", "bias"):
        options[name] = getattr(config, name)
    if LAYERS.get(head):
        options |= {"bias": True, "presence": config.presence}
        return TverskyProjection(dim, classes, config.num_features, **options)
    return shortened(TverskyProjection(dim, classes, config.num_features, **options), config.length)


@torch.no_grad()
def shortened(layer: TverskyProjection, length: float) -> TverskyProjection:
    """The layer with smaller prototypes, whose outputs are smaller and otherwise the same."""
    layer.prototypes.mul_(length)
    # The term of α measures the input alone; smaller prototypes scale all other terms of S.
    layer.get_buffer("alpha_unit").mul_(length)
    if layer.bias is not None:
        layer.bias.mul_(length)
    return layer


def start(config: Config, name: str, head: nn.Module, x: Tensor, y: Tensor) -> None:
    """Starts a layer from its training data, if it is one that does."""
    if options := LAYERS.get(name):
        init_from_data(head, x, **options, classes=y if name in TAUGHT else None)
        assert isinstance(head, TverskyProjection)
        shortened(head, config.length)
