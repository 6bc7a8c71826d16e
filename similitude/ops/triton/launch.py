"""Launches of Triton kernels that cost the host less: at small sizes it is launches that a layer's time goes to."""

from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple, object] = {}


def launch(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], num_warps: int, **constants: Any) -> None:
    """A run of the kernel; ``constants`` are its constexpr arguments, which stand last and in this order.

    Triton looks at each argument to choose among the kernels that it has compiled. Calls that differ in nothing but the
    data take the one that was chosen before.

    Equivalent to: ``kernel[grid](*args, num_warps=num_warps, **constants)``.
    """
    if torch.compiler.is_compiling():
        kernel[grid](*args, num_warps=num_warps, **constants)
        return
    with torch.cuda.device_of(args[0]):
        device = args[0].device.index
        facts = [(a.dtype, a.data_ptr() % 16) if isinstance(a, Tensor) else a for a in args]
        key = (id(kernel), device, num_warps, *facts, *constants.values())
        chosen = _compiled.get(key)
        if chosen is None:
            if len(_compiled) > 4096:
                _compiled.clear()
            # The interpreter of CPUs has nothing compiled to give.
            chosen = kernel[grid](*args, num_warps=num_warps, **constants)
            if chosen is not None:
                _compiled[key] = chosen
        elif 0 not in grid:
            chosen[(*grid, 1, 1)[:3]](*args, *constants.values())  # pyright: ignore
