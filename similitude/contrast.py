"""α, β, θ of a layer: how they are learned, read, set and loaded.

With ``parametrization="gain"`` a constant is a learned gain times a fixed unit, the size that it has by nature at the
start: an optimiser's step of 0.001 is then a thousandth of it, and not a thousand times it. "log" learns the logarithm
of the gain, so that no constant becomes negative. "plain" learns the constants themselves, as the paper does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import checks

CONSTANTS = ("alpha", "beta", "theta")
PARAMETRIZATIONS = ("gain", "log", "plain")


class Contrast(nn.Module):
    """A module whose ``alpha``, ``beta`` and ``theta`` are what its similarities are made with.

    They have one element and one axis, since FSDP2 shards no parameter without axes. ``layer.alpha = 0.3`` sets one;
    changed in place they are not, but where they are learned plainly: they are made anew whenever they are read.
    """

    alpha: Tensor
    beta: Tensor
    theta: Tensor
    model: str
    parametrization: str

    def register_constants(
        self, values: Sequence[float], learnable: bool | Collection[str], parametrization: str, device, dtype
    ) -> None:
        """What is learned as parameters, or buffers where it is not to train, and units as buffers."""
        if isinstance(learnable, bool):
            names = CONSTANTS if learnable else ()
        elif isinstance(learnable, Collection):
            names = (learnable,) if isinstance(learnable, str) else tuple(learnable)
        else:
            raise ValueError(f"learnable must be True, False or names of {', '.join(CONSTANTS)}; got {learnable!r}.")
        for name in names:
            checks.check_choice("learnable", name, CONSTANTS)
        if self.model == "ratio":
            # The ratio model has no θ: it would never get a gradient.
            names = tuple(name for name in names if name != "theta")
        self.parametrization = checks.check_choice("parametrization", parametrization, PARAMETRIZATIONS)
        for name in CONSTANTS:
            raw = torch.empty(1, device=device, dtype=dtype)
            register: Any = self.register_parameter if name in names else self.register_buffer
            register(self._raw(name), nn.Parameter(raw) if name in names else raw)
            if self.parametrization != "plain":
                self.register_buffer(f"{name}_unit", torch.ones(1, device=device, dtype=dtype))
        self.set_constants(values)

    def take_constants(self, other: Contrast) -> None:
        """The other's constants, which are then shared with it."""
        self.model, self.parametrization = other.model, other.parametrization
        for name, tensor in zip(CONSTANTS, other.learned(), strict=True):
            register: Any = self.register_parameter if isinstance(tensor, nn.Parameter) else self.register_buffer
            register(self._raw(name), tensor)
            if self.parametrization != "plain":
                self.register_buffer(f"{name}_unit", getattr(other, f"{name}_unit"))

    @torch.no_grad()
    def set_constants(self, values: Sequence[float], units: Sequence[float] | None = None) -> None:
        """α, β, θ, and the units in which gains are learned from now on: by default what is set, or 1 for 0."""
        for i, (name, value) in enumerate(zip(CONSTANTS, values, strict=True)):
            checks.check_scalar(name, value)
            if self.parametrization != "plain":
                unit = abs(float(value)) or 1.0
                getattr(self, f"{name}_unit").fill_(unit if units is None else units[i])
            self._set(name, float(value))

    def constants(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in CONSTANTS}

    def learned(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is learned behind α, β, θ: themselves, gains, or logarithms of gains."""
        return tuple(getattr(self, self._raw(name)) for name in CONSTANTS)  # pyright: ignore[reportReturnType]

    def _raw(self, name: str) -> str:
        return name if self.parametrization == "plain" else f"{name}_{self.parametrization}"

    @torch.no_grad()
    def _set(self, name: str, value: float) -> None:
        if self.parametrization == "log" and not value > 0:
            raise ValueError(f"{name} must be more than 0 where its logarithm is learned; got {value}.")
        raw: Tensor = getattr(self, self._raw(name))
        if self.parametrization == "plain":
            raw.fill_(value)
        else:
            gain = value / getattr(self, f"{name}_unit")
            raw.copy_(gain.log() if self.parametrization == "log" else gain)

    def __getattr__(self, name: str):
        # Reached for what is no plain attribute, parameter or buffer.
        if name in CONSTANTS and self.__dict__.get("parametrization", "plain") != "plain":
            raw: Any = super().__getattr__(self._raw(name))
            unit: Any = super().__getattr__(f"{name}_unit")
            return unit * (raw.exp() if self.parametrization == "log" else raw)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value) -> None:
        if name in CONSTANTS and "parametrization" in self.__dict__ and not isinstance(value, nn.Parameter):
            checks.check_scalar(name, value)  # pyright: ignore[reportArgumentType]
            self._set(name, value.item() if isinstance(value, Tensor) else float(value))  # pyright: ignore
        else:
            super().__setattr__(name, value)

    def _load_from_state_dict(self, state_dict, prefix, *args, **kwargs):
        """Takes constants that were saved with any parametrisation."""
        if "parametrization" in self.__dict__:
            for name in CONSTANTS:
                self._translate(name, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _translate(self, name: str, state: dict[str, Tensor], prefix: str) -> None:
        mine, unit = prefix + self._raw(name), f"{prefix}{name}_unit"
        forms = {"plain": prefix + name, "gain": f"{prefix}{name}_gain", "log": f"{prefix}{name}_log"}
        found = next((form for form, key in forms.items() if key in state), None)
        if found is None or forms[found] == mine:
            return
        value = state.pop(forms[found])
        if found != "plain":
            value = (value.exp() if found == "log" else value) * state.pop(unit)
        if self.parametrization == "plain":
            state[mine] = value
            return
        state[unit] = torch.where(value == 0, 1.0, value.abs()).to(value.dtype)
        gain = value / state[unit]
        state[mine] = gain.log() if self.parametrization == "log" else gain
