"""Starts from data or from a linear layer, and parameter groups for an optimiser."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import checks
from .contrast import CONSTANTS, Contrast
from .initialize import linear_spread
from .nn import FeatureBank, TverskyProjection, TverskySimilarity

# A bank's rate beside that of everything else: on a frozen backbone's features the full rate overfits.
BANK = 0.1


@torch.no_grad()
def init_from_data(
    layer: TverskyProjection | TverskySimilarity, x: Tensor, share: float = 0.5, spread: float | None = None
) -> None:
    """Starts a layer from a batch of what it is going to see, ``[..., D]``, in one pass.

    Each feature is turned along the batch's mean until ``share`` of the batch has it, at the length that it had, and α,
    β, θ are set so that outputs have the mean 0 and the standard deviation ``spread``. Inputs behind a ReLU need it
    most: all on one side, they would have some features always and others never.
    """
    checks.check_vectors("x", x)
    checks.check_width("x", x, layer.features.weight)
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1; got {share}.")
    bank = layer.features.weight
    objects = x.detach().reshape(-1, x.shape[-1]).to(bank.device, torch.promote_types(bank.dtype, torch.float32))
    if len(objects) < 2:
        raise ValueError(f"x must have 2 inputs or more to start from; got {len(objects)}.")
    _turn_(bank, objects, share)
    layer.reset_constants(objects, spread)


def _turn_(bank: Tensor, x: Tensor, share: float) -> None:
    """Features turned along the mean of ``x`` until ``share`` of the rows has them."""
    mean = x.mean(0)
    along = x @ nn.functional.normalize(mean, dim=0)  # [N]
    ahead = along > along.std() * 1e-3
    if mean.norm() <= 1e-3 * x.norm(dim=-1).mean() or ahead.sum() < 2:
        return
    mean = nn.functional.normalize(mean, dim=0)
    rows = bank.to(x.dtype)
    length = rows.norm(dim=-1, keepdim=True)
    across = nn.functional.normalize(rows - (rows @ mean)[:, None] * mean, dim=-1)
    # x·(f + t·mean) > 0 where t > −x·f / x·mean.
    needed = -(x[ahead] @ across.mT) / along[ahead, None]
    t = torch.quantile(needed[:4096], share, dim=0)
    bank.copy_(nn.functional.normalize(across + t[:, None] * mean, dim=-1) * length)


@torch.no_grad()
def init_from_linear(layer: TverskyProjection, linear: nn.Linear, x: Tensor | None = None) -> None:
    """Starts a projection near a trained linear layer: its rows as prototypes, its bias, and outputs of its size.

    x: some of its inputs, ``[..., D]``, for which sizes are then equal; without them for inputs of unit variance. How
    near it is depends on the bank: with K = 2D calibrated features the outputs correlate to about 0.9.
    """
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"linear must be an nn.Linear; got {type(linear).__name__}.")
    if linear.weight.shape != layer.prototypes.shape:
        raise ValueError(
            f"linear must map {layer.in_features} to {layer.out_features} as the layer does; "
            f"it maps {linear.in_features} to {linear.out_features}."
        )
    if linear.bias is not None and layer.bias is None:
        raise ValueError("linear has a bias and the layer has none; make it with bias=True.")
    layer.prototypes.copy_(linear.weight)
    if layer.bias is not None:
        layer.bias.zero_() if linear.bias is None else layer.bias.copy_(linear.bias)
    objects = None if x is None else x.detach().reshape(-1, x.shape[-1]).to(linear.weight)
    if objects is None:
        spread = linear_spread(linear.weight)
    else:
        spread = nn.functional.linear(objects, linear.weight).std().item() or None
    layer.reset_constants(objects, spread)


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float = 0.0, bank_rate: float = BANK, difference_rate: float = 1.0
) -> list[dict]:
    """Parameter groups for an optimiser: ``torch.optim.AdamW(parameter_groups(model, 1e-3, 0.1))``.

    Weight decay for matrices; none for biases, norms and α, β, θ. Feature banks learn at ``bank_rate`` of the rate,
    α and β at ``difference_rate`` of it: 10 fits small problems sooner, and large models to their training data.
    Constants that are learned plainly get a rate in proportion to their size, so that a step of Adam changes them by
    the share of it that it changes a gain by.
    """
    banks = {id(m.weight): m.weight for m in model.modules() if isinstance(m, FeatureBank) and m.weight.requires_grad}
    constants = {}
    for module in model.modules():
        if isinstance(module, Contrast) and "parametrization" in module.__dict__:
            for name, c in zip(CONSTANTS, module.learned(), strict=True):
                size = (abs(c.item()) or 1.0) if module.parametrization == "plain" else 1.0
                constants[id(c)] = c, lr * size * (1.0 if name == "theta" else difference_rate)
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in constants.keys() | banks.keys()]
    groups = [
        {"params": [p for p in rest if p.dim() > 1], "lr": lr, "weight_decay": weight_decay},
        {"params": [p for p in rest if p.dim() <= 1], "lr": lr, "weight_decay": 0.0},
        {"params": list(banks.values()), "lr": bank_rate * lr, "weight_decay": weight_decay},
    ]
    learned = [(c, rate) for c, rate in constants.values() if c.requires_grad]
    for rate in dict.fromkeys(rate for _, rate in learned):
        groups.append({"params": [c for c, r in learned if r == rate], "lr": rate, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]
