"""In which dtype and sizes a similarity is computed: autocast, halves on a GPU, sizes that its cores like."""

import math
from contextlib import contextmanager

import torch
from torch import Tensor

from .checks import check_vectors, short
from .ops import cross_entropy, pairwise
from .ops.separable import without_autocast


def autocasts(x: Tensor) -> bool:
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def agrees(x: object, prototypes: Tensor) -> bool:
    """Whether the two can be compared as they are, outside of any transform; if not, tversky_projection says why."""
    if not isinstance(x, Tensor) or not cross_entropy.eager(x) or prototypes.is_meta:
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    # Autocast leaves float64 alone.
    alike = (
        (x.dtype == torch.float64) == (prototypes.dtype == torch.float64)
        if autocasts(x)
        else x.dtype == prototypes.dtype
    )
    return x.device == prototypes.device and alike


def settings(x: Tensor) -> tuple:
    """Where and in which dtype a similarity with ``x`` is computed."""
    device = x.device.type
    return device, torch.get_autocast_dtype(device) if autocasts(x) else None


@contextmanager
def exact(backend: str = "torch", rounded: bool = True, **tensors: Tensor):
    """The tensors checked, autocast off, and the dtype that the answer has.

    Under autocast tensors are first rounded to its dtype, as F.linear's would be. Halves are widened to 32 bits, except
    for GPU kernels, which take them as they are and add up in 32 bits. With ``rounded=False`` tensors stay as they are.
    """
    for name, tensor in tensors.items():
        check_vectors(name, tensor)
    values = list(tensors.values())
    first, device = values[0], values[0].device.type
    dtypes = [_dtype(v) for v in values]
    if any(d != dtypes[0] or v.device != first.device for d, v in zip(dtypes, values, strict=True)):
        given = ", ".join(f"{n} is {short(d)} on {v.device}" for n, d, v in zip(tensors, dtypes, values, strict=True))
        raise ValueError(f"{', '.join(tensors)} must have one dtype and one device; {given}.")
    dtype = dtypes[0]
    if rounded:
        values = [v.to(dtype) for v in values]
    if backend == "triton":
        _check_triton(values)
    halves = backend in ("auto", "triton") and pairwise.has_kernels(values[0]) and all(v.dim() == 2 for v in values[1:])
    with without_autocast(device):
        yield values if halves or not rounded else [v.to(wide(dtype)) for v in values], dtype


def _dtype(x: Tensor) -> torch.dtype:
    """The dtype that a tensor is rounded to; autocast leaves float64 alone."""
    return torch.get_autocast_dtype(x.device.type) if autocasts(x) and x.dtype != torch.float64 else x.dtype


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def fits_whole(x: object, prototypes: Tensor, features: Tensor) -> bool:
    """Whether vectors go to the kernels as they are, to be rounded there: halves on a GPU, outside of transforms."""
    return (
        isinstance(x, Tensor)
        and x.is_cuda
        and pairwise.HAS_TRITON
        and _dtype(x) in pairwise.HALVES
        and prototypes.dim() == features.dim() == 2
        and cross_entropy.eager(x)
    )


def _check_triton(values: list[Tensor]) -> None:
    """The backend named by hand runs, or says why it cannot."""
    first = values[0]
    if not pairwise.HAS_TRITON:
        raise RuntimeError("backend='triton' needs the package triton, which does not import here; use backend='auto'.")
    if not first.is_cuda:
        raise RuntimeError(f"backend='triton' needs tensors on a CUDA device; got {first.device}; use backend='auto'.")
    if first.dtype == torch.float64:
        raise RuntimeError("backend='triton' has no float64; use backend='torch'.")
    if values[1].dim() != 2:
        raise RuntimeError("backend='triton' takes no batched prototypes; use backend='torch'.")


# Operations from which on aligned sides are worth a copy of them.
WORTH_ALIGNING = 2**30


def aligned_size(N: int, P: int, K: int) -> tuple[int, int]:
    """P and K, made multiples of 8, or 64 where that is little, if it pays: tensor cores are slow beside them."""
    if N * P * K < WORTH_ALIGNING:
        return P, K
    return P + -P % (64 if P >= 4096 else 8), K + -K % 8


def aligned(x: Tensor, prototypes: Tensor, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Halves on a GPU with P and K of aligned_size.

    A feature of zeros is nobody's, and prototypes of zeros are cut off the answer.
    """
    if not x.is_cuda or x.dtype not in pairwise.HALVES:
        return x, prototypes, features
    sizes = aligned_size(math.prod(x.shape[:-1]), prototypes.shape[0], features.shape[0])
    more_p, more_k = sizes[0] - prototypes.shape[0], sizes[1] - features.shape[0]
    pad = torch.nn.functional.pad
    prototypes = pad(prototypes, (0, 0, 0, more_p)) if more_p else prototypes
    return x, prototypes, pad(features, (0, 0, 0, more_k)) if more_k else features
