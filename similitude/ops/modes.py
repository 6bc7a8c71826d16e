"""How a similarity is computed: dtype, autocast, tracing, kernels, and sizes that a GPU's cores like."""

from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)
HAS_TRITON = find_spec("triton") is not None
# Whether the CPU multiplies bfloat16, and adds up in float32; without, such products are made number by number.
HAS_BFLOAT16 = torch.cpu._is_avx512_bf16_supported()
# Operations from which on padding is worth a copy of prototypes and bank.
WORTH_PADDING = 2**30

_NOTHING = nullcontext()


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or float32 if that is wider: sums are made in it."""
    return torch.float32 if dtype in HALVES else torch.promote_types(dtype, torch.float32)


def widest(x: Tensor) -> torch.dtype:
    """float64 where the device has it: for sums whose differences count."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def eager(x: Tensor) -> bool:
    """Whether values can be looked at: not while tracing, inside torch.func, or on the meta device."""
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or x.is_meta)


def autocasts(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def rounded(x: Tensor) -> torch.dtype:
    """The dtype that autocast, if it is on, rounds a tensor to, as it does for F.linear; it leaves float64 alone."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) and x.dtype != torch.float64 else x.dtype


def without_autocast(device: str) -> AbstractContextManager[Any]:
    """Context in which products are taken in the dtype of their factors."""
    if device == "meta" or not (torch.is_autocast_enabled(device) or torch.compiler.is_compiling()):
        return _NOTHING
    return torch.autocast(device, enabled=False)


def has_kernels(x: Tensor) -> bool:
    """Whether there are Triton kernels for a tensor like this one."""
    return x.is_cuda and x.dtype != torch.float64 and HAS_TRITON


def refuse_second_derivatives() -> None:
    """For a backward in kernels, whose results would pass for constants."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError(
            "GPU kernels of half precision have no second derivatives, which create_graph=True asks for; "
            "use backend='torch'."
        )


def apply(function: type[torch.autograd.Function], *args: Any) -> Any:
    """``function.apply(*args)``, less the look at its signature, which costs more than a small layer's products.

    Not for what torch.compile traces.
    """
    if torch._C._are_functorch_transforms_active():
        return function.apply(*args)
    return super(torch.autograd.Function, function).apply(*args)  # pyright: ignore[reportAttributeAccessIssue]


def padded_size(N: int, P: int, K: int) -> tuple[int, int]:
    """P and K as multiples of 8 (P of 64 where it is large) if that pays: tensor cores are slow without."""
    if N * P * K < WORTH_PADDING:
        return P, K
    return P + -P % (64 if P >= 4096 else 8), K + -K % 8


def padded(rows: Tensor, size: int) -> Tensor:
    """The rows with zeros behind them up to ``size``.

    No object has a feature of zeros; similarities to prototypes of zeros are cut off by the caller.
    """
    return torch.nn.functional.pad(rows, (0, 0, 0, size - len(rows))) if size > len(rows) else rows
