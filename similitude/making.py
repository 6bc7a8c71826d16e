"""What layers are made of when they are made or start again: their bank, tied prototypes, and α, β, θ."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from . import checks
from .bank import FeatureBank
from .contrast import CONSTANTS, Contrast
from .initialize import PAPER, calibrate


def like(given: Tensor, device: Device, dtype: torch.dtype | None) -> tuple[Any, ...]:
    """The device and dtype asked for, or those of what was given."""
    return given.device if device is None else device, given.dtype if dtype is None else dtype


def check_prototypes(prototypes: object, P: int, D: int) -> None:
    if prototypes is None:
        return
    if not isinstance(prototypes, nn.Parameter):
        hint = ": pass its .weight" if isinstance(prototypes, nn.Module) else ""
        raise TypeError(f"prototypes must be an nn.Parameter to tie to; got {type(prototypes).__name__}{hint}.")
    checks.check_vectors("prototypes", prototypes)
    if list(prototypes.shape) != [P, D]:
        raise ValueError(
            f"tied prototypes must be [num_prototypes, dim] = {[P, D]}; got shape {list(prototypes.shape)}."
        )


def made_bank(
    dim: int,
    num_features: int | None,
    features: FeatureBank | None,
    init: str,
    presence: float | None,
    hold: bool | int,
    device: Device,
    dtype: torch.dtype | None,
) -> FeatureBank:
    """The bank that was given, checked, or a new one."""
    if features is None:
        if num_features is None:
            raise ValueError(
                "give num_features for a feature bank of its own, or features=FeatureBank(...) to share one."
            )
        return FeatureBank(num_features, dim, init=init, presence=presence, hold=hold, device=device, dtype=dtype)
    if not isinstance(features, FeatureBank):
        raise TypeError(
            f"features must be a FeatureBank; got {type(features).__name__}: FeatureBank(num_features, dim)."
        )
    if features.dim != dim:
        raise ValueError(f"the feature bank has dim {features.dim} and the layer dim {dim}; they must be equal.")
    if presence not in (None, features.presence) or hold not in (False, features.hold):
        given = f"presence={presence}, hold={hold}"
        raise ValueError(f"{given} is not what the given bank has: make it as FeatureBank(..., {given}).")
    if num_features not in (None, features.num_features):
        raise ValueError(
            f"num_features={num_features} contradicts the given bank of {features.num_features} features; leave it out."
        )
    return features


def start_constants(
    module: Any,
    values: tuple[float | None, ...],
    learnable: bool | Collection[str],
    parametrization: str,
    device: Device,
    dtype: torch.dtype | None,
) -> None:
    for name, value in zip(CONSTANTS, values, strict=True):
        if value is not None:
            checks.check_scalar(name, value)
    module.starting_constants = tuple(None if value is None else float(value) for value in values)
    module.register_constants(learnable, parametrization, device, dtype)
    module.reset_constants()


def reset_constants(
    module: Any, prototypes: Tensor | None, x: Tensor | None, spread: float | None, share: float
) -> None:
    """What was asked for, and for the rest what the starting values of the vectors call for."""
    given, usual, units = module.starting_constants, PAPER, None
    if module.init == "calibrated" and None in given:
        bank = module.features
        usual, units = calibrate(prototypes, bank.weight, module.form, spread, share, x, bank.threshold)
    values = [value if value is not None else other for value, other in zip(given, usual, strict=True)]
    if units is not None:
        units = [unit if value is None else abs(value) or unit for value, unit in zip(given, units, strict=True)]
    module.set_constants(values, units)


@torch.no_grad()
def shown(layer: Contrast) -> str:
    """α, β, θ for ``print``, but for what is on no device or on several."""
    values = layer.contrast()[: 2 if layer.model == "ratio" else 3]
    if any(v.is_meta or type(v) not in (Tensor, nn.Parameter) or v.numel() != 1 for v in values):
        return ""
    return "".join(f", {name}={v.item():.3g}" for name, v in zip(CONSTANTS, values))
