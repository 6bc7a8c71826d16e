"""Data in batches, as users have it: a tensor, keyword arguments as a mapping, or a loader of these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def batches(data: Any, rows: int | None = None, name: str = "inputs") -> Iterator[Any]:
    """Batches of the data as they come: parts of a tensor, a mapping as one batch, what a loader yields.

    Args:
        data: a tensor, a mapping of keyword arguments, or an iterable of batches.
        rows: rows of a part of a tensor; None leaves a tensor whole.
        name: what an error calls the data.
    """
    if isinstance(data, Tensor):
        yield from data.split(rows) if rows else (data,)
    elif isinstance(data, Mapping):
        yield data
    elif isinstance(data, Iterable) and not hasattr(data, "__array__"):
        yield from data
    else:
        hint = f": give torch.as_tensor({name})" if hasattr(data, "__array__") else ""
        raise TypeError(f"{name} must be a tensor, a mapping or a loader of batches; got {type(data).__name__}{hint}.")


def inputs_of(batch: Any, device: torch.device) -> Any:
    """A model's inputs in a batch, on the device; of a tuple, which may have targets too, the first element."""
    x = batch[0] if isinstance(batch, list | tuple) else batch
    if isinstance(x, Mapping):
        return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in x.items()}
    return x.to(device) if isinstance(x, Tensor) else x
