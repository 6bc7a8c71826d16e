"""Parameter groups for an optimiser, with the learning rates that the parts of a Tversky layer need."""

from __future__ import annotations

from torch import nn

from .bank import FeatureBank
from .contrast import CONSTANTS, Contrast

# A bank's rate beside that of everything else: on a frozen backbone's features the full rate overfits.
BANK = 0.1


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
