"""What a layer keeps in ``eval()`` under ``no_grad``, so that small batches need not pay for the prototypes' side."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from .ops.modes import autocasts, eager

Look = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class Kept:
    """A value made of tensors, and the means to tell whether they are still what they were.

    Args:
        value: What is kept.
        tensors: What it was made of; changes that PyTorch counts show in their identity, place and version.
        key: What else it depends on.
        look: What of them is compared by value, since a change through ``.data`` leaves no other mark.
    """

    def __init__(self, value: Any, tensors: Sequence[Tensor], key: Hashable, look: Look):
        self.value: Any = value
        self.key: Hashable = key
        self.tensors: list[tuple[Tensor, int, int]] = [(t, t.data_ptr(), t._version) for t in tensors]
        self.looked_at: list[Tensor] = [t.detach().clone() for t in look(tensors)]

    def holds(self, tensors: Sequence[Tensor], key: Hashable, look: Look) -> bool:
        if key != self.key or len(tensors) != len(self.tensors):
            return False
        for tensor, (kept, place, version) in zip(tensors, self.tensors):
            if tensor is not kept or tensor._version != version or tensor.data_ptr() != place:
                return False
        return all(map(torch.equal, look(tensors), self.looked_at))


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
    """About eight columns of every row, which tell of most changes through ``.data``."""
    return [x.detach()[..., :: max(1, x.shape[-1] // 8)] for x in tensors]
