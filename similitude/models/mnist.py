"""The paper's four networks for MNIST digits: ``[N, 1, 28, 28]`` -> ``[N, 10]``, with the paper's parameter counts.

The paper gives the counts, three maps of 12 channels averaged over space, and dropout of 0.05 on the stack's output.
Its figure of the architecture gives no kernels. We chose the rest: kernels of 9, 5 and 3 without padding, with 2×2 max
pooling in between, for maps of 20×20, 6×6 and 1×1; batch norms instead of biases; and maps averaged before their ReLU,
so that vectors have both signs and no digit has every feature.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import TverskyProjection
from .data_domain import DataDomain

SHAPE = (1, 28, 28)
CHANNELS, KERNELS = 12, (9, 5, 3)
DIM = CHANNELS * len(KERNELS)
CLASSES = 10

__all__ = ["MNISTNet", "TverskyMNISTNet", "VisualMNISTNet", "VisualTverskyMNISTNet"]


class ConvolutionStack(nn.Module):
    """Three convolutions whose maps are averaged over space and concatenated, ``[N, 1, 28, 28]`` -> ``[N, 36]``.

    5,940 parameters. ``scale`` is the starting weight of the batch norms, and so the size of the maps.
    """

    def __init__(self, dropout: float = 0.05, scale: float = 1.0):
        super().__init__()
        widths = zip((SHAPE[0], CHANNELS, CHANNELS), KERNELS, strict=True)
        self.convolutions: nn.ModuleList = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, CHANNELS, kernel, bias=False), nn.BatchNorm2d(CHANNELS))
            for width, kernel in widths
        )
        self.dropout: nn.Module = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, scale)

    def forward(self, x: Tensor) -> Tensor:
        means = []
        for convolution in self.convolutions:
            if means:
                x = nn.functional.max_pool2d(x.relu(), 2)
            x = convolution(x)
            means.append(x.mean(dim=(2, 3)))
        return self.dropout(torch.cat(means, dim=1))


def hidden_layers() -> nn.Sequential:
    """LeNet-5's layers of 120 and 84 units, with ReLU: ``[N, 36]`` -> ``[N, 84]``."""
    return nn.Sequential(nn.Linear(DIM, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU())


class MNISTNet(nn.Sequential):
    """The stack and three linear layers, 21,394 parameters.

    Args:
        dropout: Dropout of the stack's output.
    """

    def __init__(self, dropout: float = 0.05):
        backbone = nn.Sequential(ConvolutionStack(dropout), hidden_layers())
        super().__init__(OrderedDict(backbone=backbone, head=nn.Linear(84, CLASSES)))


class TverskyMNISTNet(nn.Sequential):
    """The stack and one Tversky projection, 7,023 parameters.

    Args:
        num_features: Size of the bank.
        dropout: Dropout of the stack's output.
        options: Those of TverskyProjection.
    """

    def __init__(self, num_features: int = 20, dropout: float = 0.05, **options: Any):
        head = TverskyProjection(DIM, CLASSES, num_features, **options)
        super().__init__(OrderedDict(backbone=ConvolutionStack(dropout), head=head))


class VisualMNISTNet(DataDomain):
    """MNISTNet whose last layer's ten rows are images, 28,394 parameters.

    Args:
        dropout: Dropout of the stack's output.
    """

    def __init__(self, dropout: float = 0.05):
        backbone = nn.Sequential(ConvolutionStack(dropout), hidden_layers())
        super().__init__(backbone, nn.Linear(84, CLASSES), SHAPE)


class VisualTverskyMNISTNet(DataDomain):
    """TverskyMNISTNet whose prototypes and features are images, 29,463 parameters.

    The stack's maps start at 0.3 of their usual size. Encoded images are much longer than the unit vectors that a
    projection starts with, and a similarity grows with the fourth power of their length. On digits the first loss is
    3 to 5 instead of about 100, from which the network learns slowly or not at all.

    Args:
        num_features: Size of the bank.
        dropout: Dropout of the stack's output.
        options: Those of TverskyProjection.
    """

    def __init__(self, num_features: int = 20, dropout: float = 0.05, **options: Any):
        backbone = ConvolutionStack(dropout, scale=0.3)
        # α, β, θ calibrated for the head's own vectors would be wrong for encoded images.
        options = {"init": "unit", "parametrization": "plain", **options}
        super().__init__(backbone, TverskyProjection(DIM, CLASSES, num_features, **options), SHAPE)
