"""α, β, θ of a layer, and the form of its comparison: how they are learned, read, set and loaded.

With ``parametrization="gain"`` a constant is a learned gain times a fixed unit, its natural size at the start: an
optimizer's step of 0.001 then changes it by a thousandth. "log" learns the logarithm of the gain, so that no constant
becomes negative. "plain" learns the constants themselves, as the paper does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from . import checks
from .form import Form, check_choice
from .ops.modes import HALVES

CONSTANTS = ("alpha", "beta", "theta")
UNITS = ("alpha_unit", "beta_unit", "theta_unit")
PARAMETRIZATIONS: dict[str, tuple[str, str, str]] = {
    "gain": ("alpha_gain", "beta_gain", "theta_gain"),
    "log": ("alpha_log", "beta_log", "theta_log"),
    "plain": CONSTANTS,
}


def _constant(i: int) -> Any:
    def read(self: Contrast) -> Tensor:
        return self.contrast()[i].to(self.learned()[i].dtype)

    return property(read, doc=f"{CONSTANTS[i]}; assign a number to change it.")


def _option(name: str) -> Any:
    def read(self: Contrast):
        return getattr(self.form, name)

    def write(self: Contrast, value) -> None:
        self.form = self.form.but(**{name: value})

    return property(read, write, doc=f"{name} of the layer's form.")


class Contrast(nn.Module):
    """A module whose ``alpha``, ``beta`` and ``theta`` weigh the parts of its similarities, in the form it has.

    They have one element and one axis, since FSDP2 shards no parameter without axes. Assign to change one
    (``layer.alpha = 0.3``); do not modify it in place, since but for "plain" each read makes a new tensor.
    """

    form: Form
    parametrization: str
    alpha_unit: Tensor
    beta_unit: Tensor
    theta_unit: Tensor

    alpha: Any = _constant(0)
    beta: Any = _constant(1)
    theta: Any = _constant(2)
    intersection: str = _option("intersection")
    difference: str = _option("difference")
    level: str = _option("level")
    model: str = _option("model")
    normalize: bool = _option("normalize")
    backend: str = _option("backend")
    leak: float = _option("leak")

    def register_constants(
        self, learnable: bool | Collection[str], parametrization: str, device: Device, dtype: torch.dtype | None
    ) -> None:
        """Makes parameters of what is learned, buffers of what is fixed, and units as buffers; none has a value yet."""
        if isinstance(learnable, bool):
            names = CONSTANTS if learnable else ()
        elif isinstance(learnable, Collection):
            names = (learnable,) if isinstance(learnable, str) else tuple(learnable)
        else:
            raise ValueError(f"learnable must be True, False or names of {', '.join(CONSTANTS)}; got {learnable!r}.")
        for name in names:
            check_choice("learnable", name, CONSTANTS)
        if self.form.model == "ratio":
            # The ratio model has no θ: it would never get a gradient.
            names = tuple(name for name in names if name != "theta")
        self.parametrization = check_choice("parametrization", parametrization, tuple(PARAMETRIZATIONS))
        for name, raw, unit in zip(CONSTANTS, PARAMETRIZATIONS[parametrization], UNITS, strict=True):
            self._hold(raw, torch.empty(1, device=device, dtype=dtype), name in names)
            if parametrization != "plain":
                self._buffers[unit] = torch.ones(1, device=device, dtype=dtype)

    def take_constants(self, other: Contrast) -> None:
        """Shares the other's constants from now on, and takes its form."""
        self.form, self.parametrization = other.form, other.parametrization
        for raw, unit, tensor in zip(PARAMETRIZATIONS[self.parametrization], UNITS, other.learned(), strict=True):
            self._hold(raw, tensor, isinstance(tensor, nn.Parameter))
            if self.parametrization != "plain":
                self._buffers[unit] = getattr(other, unit)

    def _hold(self, raw: str, tensor: Tensor, learned: bool) -> None:
        # Not register_parameter, which takes the property of a plain constant for another attribute.
        if learned:
            self._parameters[raw] = tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor)
        else:
            self._buffers[raw] = tensor

    @torch.no_grad()
    def set_constants(self, values: Sequence[float], units: Sequence[float] | None = None) -> None:
        """Sets α, β, θ, and the units in which gains are learned from now on: by default the values, or 1 for 0."""
        if units is None:
            units = [abs(float(value)) or 1.0 for value in values]
        for i, raw in enumerate(self.learned()):
            if self.parametrization != "plain":
                getattr(self, UNITS[i]).fill_(units[i])
            self._set(i, raw, float(values[i]))

    def contrast(self) -> tuple[Tensor, Tensor, Tensor]:
        """α, β, θ; a forward reads them once. Those of a layer in half precision are multiplied in float32."""
        if self.parametrization == "plain":
            return self.learned()
        a, b, t = self.learned()
        if a.dtype in HALVES:
            a, b, t = a.float(), b.float(), t.float()
        if self.parametrization == "log":
            a, b, t = a.exp(), b.exp(), t.exp()
        return self.alpha_unit * a, self.beta_unit * b, self.theta_unit * t

    def constants(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in CONSTANTS}

    def learned(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is learned behind α, β, θ: themselves, gains, or logarithms of gains."""
        if self.parametrization == "gain":
            return self.alpha_gain, self.beta_gain, self.theta_gain  # pyright: ignore[reportReturnType]
        if self.parametrization == "log":
            return self.alpha_log, self.beta_log, self.theta_log  # pyright: ignore[reportReturnType]
        return self._plain("alpha"), self._plain("beta"), self._plain("theta")

    def _plain(self, name: str) -> Tensor:
        """A constant that is learned itself, behind the property of its name."""
        # A replica of nn.DataParallel has it as an attribute; parametrize has a module that returns it.
        for tensors in (self._parameters, self._buffers, self.__dict__):
            if name in tensors:
                return tensors[name]  # pyright: ignore[reportReturnType]
        made = self._modules.get("parametrizations")
        if isinstance(made, nn.ModuleDict) and name in made:
            return made[name]()
        raise AttributeError(f"{type(self).__name__} has no {name} yet.")

    @torch.no_grad()
    def _set(self, i: int, raw: Tensor, value: float) -> None:
        if self.parametrization == "log" and not value > 0:
            raise ValueError(f"{CONSTANTS[i]} must be more than 0 where its logarithm is learned; got {value}.")
        if self.parametrization == "plain":
            raw.fill_(value)
        else:
            unit = getattr(self, UNITS[i])
            gain = value / (unit.float() if unit.dtype in HALVES else unit)
            raw.copy_(gain.log() if self.parametrization == "log" else gain)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CONSTANTS and getattr(self, "_is_replica", False):
            self.__dict__[name] = value
        elif name in CONSTANTS and not isinstance(value, nn.Parameter):
            checks.check_scalar(name, value)
            i = CONSTANTS.index(name)
            number: Any = value.item() if isinstance(value, Tensor) else value
            self._set(i, self.learned()[i], float(number))
        else:
            super().__setattr__(name, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Modules pickled by version 0.1.0 have the options as attributes, and those of a linear head none.
        options = {name: state.pop(name) for name in Form._fields if name in state}
        super().__setstate__({"form": Form.of(**options) if options else None, **state})

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors):
        """Takes constants that were saved with any parametrisation."""
        if "parametrization" in self.__dict__:
            for i in range(3):
                self._translate(i, state_dict, prefix, missing, errors)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def _translate(self, i: int, state: dict[str, Tensor], prefix: str, missing: list[str], errors: list[str]) -> None:
        mine, unit = prefix + PARAMETRIZATIONS[self.parametrization][i], prefix + UNITS[i]
        found = next((how for how, names in PARAMETRIZATIONS.items() if prefix + names[i] in state), None)
        if found is None or found == self.parametrization:
            return
        if found != "plain" and unit not in state:
            missing.append(unit)
            return
        value = state.pop(prefix + PARAMETRIZATIONS[found][i])
        dtype = value.dtype
        if dtype in HALVES:
            value = value.float()
        if found != "plain":
            value = (value.exp() if found == "log" else value) * state.pop(unit)
        if self.parametrization == "plain":
            state[mine] = value.to(dtype)
            return
        if self.parametrization == "log" and not ((value > 0) & value.isfinite()).all():
            name = f"{prefix}{CONSTANTS[i]}"
            errors.append(
                f"{name} is {value.item():g}, and parametrization='log' holds numbers above 0 only: use 'gain'."
            )
            return
        state[unit] = torch.where((value == 0) | ~value.isfinite(), 1.0, value.abs()).to(dtype)
        gain = value / state[unit]
        state[mine] = (gain.log() if self.parametrization == "log" else gain).to(dtype)
