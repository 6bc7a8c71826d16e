"""What a layer keeps in ``eval()`` under ``no_grad``, so that small batches need not pay for the prototypes' side."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from .ops.inference import Side
from .ops.modes import autocasts, eager

# Elements of a tensor from which on a look at eight columns takes longer than what a small batch asks for.
LARGE = 2**18

Look = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Kept:
    """A value made of tensors, and the means to tell whether they are still what they were.

    Args:
        value: What is kept.
        tensors: What it was made of; changes that PyTorch counts show in their identity, place and version.
        key: What else it depends on.
        look: What of them is compared by value, since a change through ``.data`` leaves no other mark: parts of them
            that share their memory.
    """

    def __init__(self, value: Any, tensors: Sequence[Tensor], key: Hashable, look: Look):
        self.value: Any = value
        self.key: Hashable = key
        self.marks: list[tuple[Tensor, int, int]] = [(t, t.data_ptr(), t._version) for t in tensors]
        parts = [part.detach() for part in look(tensors)]
        numbers = [type(t) is Tensor and t.numel() == 1 for t in parts]
        self.numbers: list[tuple[Tensor, float]] = [(t, t.item()) for t, one in zip(parts, numbers) if one]
        self.parts: list[tuple[Tensor, Tensor]] = [(t, t.clone()) for t, one in zip(parts, numbers) if not one]

    def holds(self, tensors: Sequence[Tensor], key: Hashable) -> bool:
        if key != self.key or len(tensors) != len(self.marks):
            return False
        return all(t is kept for t, (kept, _, _) in zip(tensors, self.marks)) and self._unchanged()

    def _unchanged(self) -> bool:
        for tensor, place, version in self.marks:
            if tensor._version != version or tensor.data_ptr() != place:
                return False
        for part, number in self.numbers:
            if part.item() != number:
                return False
        return all(torch.equal(part, copy) for part, copy in self.parts)


class KeptSide(Kept):
    """The prototypes' side of a layer, with a quick way to tell that it serves an input.

    Hooks, parametrisations, replicas and programs that wrap the bank stand between a layer and its tensors; where there
    are none, tensors are looked at where the modules hold them. On the CPU, where calls cost more than arithmetic.

    Args:
        side: What is kept.
        layer: The layer that it is of.
        bank: The bank in it, if it is one and nothing around one.
        tensors, key: As in Kept; the key is the layer's form and ``place``.
    """

    def __init__(self, side: Side, layer: nn.Module, bank: nn.Module | None, tensors: Sequence[Tensor], key: tuple):
        super().__init__(side, tensors, key, some_columns)
        self.bank, self.own = bank, layer._parameters
        self.form, (device, self.dtype, cast) = key
        self.width: int = side.features.shape[1]
        self.homes: list[tuple[dict[str, Any], str, Tensor]] | None = None
        if bank is not None and device.type == "cpu" and cast is None:
            places = (layer._parameters, layer._buffers, bank._parameters, bank._buffers)
            found = [[(held, name, t) for held in places for name in held if held[name] is t][:1] for t in tensors]
            self.homes = [home for homes in found for home in homes] if all(found) else None

    def serves(self, layer: nn.Module, x: object) -> bool:
        """Whether ``value`` is what the layer would make for ``x``; False where that takes longer to tell."""
        bank, homes = self.bank, self.homes
        if homes is None or bank is None or type(x) is not Tensor or not x.is_cpu or x.dtype is not self.dtype:
            return False
        if layer._parameters is not self.own or layer._modules.get("features") is not bank:
            return False
        if bank._forward_hooks or bank._forward_pre_hooks or "forward" in bank.__dict__ or _has_any_global_hook():
            return False
        if layer.training or layer.__dict__["form"] is not self.form or not x.dim() or x.shape[-1] != self.width:
            return False
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not eager(x):
            return False
        for held, name, tensor in homes:
            if held.get(name) is not tensor:
                return False
        return self._unchanged()


def place(x: object, prototypes: Tensor) -> tuple[Any, ...] | None:
    """Device, dtype and autocast's dtype of a similarity with ``x``; None where nothing may be kept for it.

    That is under any transform, while a CUDA graph is captured, and for tensors that do not go together, which
    tversky_projection refuses with the reason.
    """
    if not isinstance(x, Tensor) or not x.dim() or not x.is_floating_point() or not eager(x):
        return None
    if x.device != prototypes.device or prototypes.is_meta:
        return None
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    if not autocasts(x):
        return (x.device, x.dtype, None) if x.dtype == prototypes.dtype else None
    # Autocast leaves float64 alone.
    if (x.dtype == torch.float64) != (prototypes.dtype == torch.float64):
        return None
    return x.device, x.dtype == torch.float64, torch.get_autocast_dtype(x.device.type)


def some_columns(tensors: Sequence[Tensor]) -> list[Tensor]:
    """About eight columns of every row, or of large tensors one element of every row, at other columns from row to row.

    They tell of most changes through ``.data``.
    """
    return [_some(x.detach()) for x in tensors]


def _some(x: Tensor) -> Tensor:
    step = max(1, x.shape[-1] // 8)
    if x.dim() > 1 and x.shape[-1] > 1 and x.numel() >= LARGE and x.is_contiguous():
        return x.view(-1)[:: x.shape[-1] - step]
    return x[..., ::step]
