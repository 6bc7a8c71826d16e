"""Parameter groups for an optimizer, with the learning rates that the parts of a Tversky layer need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .bank import FeatureBank
from .checks import check_rate
from .contrast import CONSTANTS, Contrast
from .names import plain_weight
from .ops.modes import wide

__all__ = ["parameter_groups", "unit_length_"]

# A bank's rate relative to that of everything else, without thresholds: on a frozen backbone's features the full rate
# overfits.
BANK = 0.1


def parameter_groups(
    model: nn.Module, lr: float, weight_decay: float = 0.0, bank_rate: float | None = None, difference_rate: float = 1.0
) -> list[dict[str, Any]]:
    """Parameter groups for an optimizer: ``torch.optim.AdamW(parameter_groups(model, 1e-3, 0.1))``.

    Frozen parameters are left out. Constants that are learned as plain values get a rate in proportion to their size,
    so that a step of Adam changes them by the same share as it changes a gain.

    Args:
        model: Any module; its Tversky layers are found by themselves.
        lr: Learning rate of everything but feature banks, α, β and plain constants.
        weight_decay: Weight decay of matrices and banks; biases, norms, thresholds, α, β, θ and banks with fixed
            features get none.
        bank_rate: Learning rate of feature banks, as a multiple of ``lr``: by default 0.1, and 1 for banks with
            thresholds, whose features are to become something.
        difference_rate: Learning rate of α and β, as a multiple of θ's. 10 helps small problems converge and makes
            large models overfit.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module, whose Tversky layers are found; got {type(model).__name__}.")
    for name, value in {"lr": lr, "weight_decay": weight_decay, "difference_rate": difference_rate}.items():
        check_rate(name, value)
    if bank_rate is not None:
        check_rate("bank_rate", bank_rate)
    banks = dict.fromkeys(m for m in model.modules() if isinstance(m, FeatureBank))
    rates = _constants(model, lr, difference_rate)
    known = {*rates, *(p for bank in banks for p in bank.parameters())}
    others = [p for p in model.parameters() if p not in known]
    groups = [
        _group((p for p in others if p.dim() > 1), lr, weight_decay),
        _group((p for p in others if p.dim() <= 1), lr),
    ]
    for cut, usual in ((False, BANK), (True, 1.0)):
        chosen = [bank for bank in banks if (bank.threshold is not None) == cut]
        groups += _of_banks(chosen, lr * (usual if bank_rate is None else bank_rate), weight_decay)
    groups += [_group((c for c in rates if rates[c] == rate), rate) for rate in dict.fromkeys(rates.values())]
    return [group for group in groups if group["params"]]


@torch.no_grad()
def unit_length_(model: nn.Module) -> None:
    """Features of all banks at length 1 again, in place and with thresholds in proportion, so that no set changes.

    Called after each step of an optimizer, it leaves directions and thresholds as all that features learn: held
    thresholds then fit better, see docs/guides/thresholds.md. A feature of zeros and fixed features stay as they are.

    Args:
        model: Any module; its banks are found by themselves.
    """
    for bank in dict.fromkeys(m for m in model.modules() if isinstance(m, FeatureBank)):
        weight = plain_weight(bank)
        length = weight.norm(dim=-1, dtype=wide(weight.dtype))
        length = length.masked_fill(length == 0, 1.0)
        if bank.fixed is not None:
            length = length.masked_fill(bank.fixed, 1.0)
        weight.div_(length[:, None])
        if bank.threshold is not None:
            bank.threshold.div_(length)


def _group(parameters: Iterable[Tensor], lr: float, weight_decay: float = 0.0) -> dict:
    return {"params": [p for p in parameters if p.requires_grad], "lr": lr, "weight_decay": weight_decay}


def _of_banks(banks: list[FeatureBank], lr: float, weight_decay: float) -> list[dict]:
    # Decay would move features that are fixed, and thresholds are numbers of one axis.
    free = [p for bank in banks if bank.fixed is None for p in bank.parameters() if p is not bank.threshold]
    decayed = set(free)
    others = (p for bank in banks for p in bank.parameters() if p not in decayed)
    return [_group(free, lr, weight_decay), _group(others, lr)]


def _constants(model: nn.Module, lr: float, difference_rate: float) -> dict[Tensor, float]:
    """The learning rate of each α, β and θ that is learned."""
    rates = {}
    for module in model.modules():
        if not isinstance(module, Contrast) or "parametrization" not in module.__dict__:
            continue
        for name, c in zip(CONSTANTS, module.learned(), strict=True):
            if c.requires_grad:
                size = (abs(c.item()) or 1.0) if module.parametrization == "plain" else 1.0
                rates[c] = lr * size * (1.0 if name == "theta" else difference_rate)
    return rates
