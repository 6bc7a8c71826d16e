"""All pairs of Σ_k min(a⁺, b⁺) and of the feature-level softmin, in C++: the kernels behind ``minsum`` on a CPU.

A sum of min is taken in registers, at a matrix product's rate. softmin is −log(e^−a + e^−b): the exponentials are made
once an object, their sums are multiplied over features, and each pair has one logarithm. The gradients compare again,
both in one pass, and share ties half and half. What the kernels do not take, plain torch computes: few elements,
NaN, infinity, numbers near overflow, and what a dispatch mode or a subclass of tensors wants to see.
"""

import math

import torch
from torch import Tensor

from . import build

# N·P·K from which the kernels are quicker than plain torch, and worth a build.
LEAST = 2**14
# Bytes of the widest vector: rows are padded to it.
PADDED = 64
# Measures up to which exponentials, their quotients, and sums of those neither vanish nor overflow; gradients likewise.
RANGE = {torch.float32: 40.0, torch.float64: 600.0}
LARGEST_GRADIENT = 1e15
# Logarithm of the largest product of sums of exponentials, and of the smallest's inverse, with room for a factor of 2.
PRODUCT = {torch.float32: 86.0, torch.float64: 700.0}


def pair_sum(a: Tensor, b: Tensor, kind: str) -> Tensor | None:
    """Σ_k of all pairs, ``[..., N, K]``, ``[..., P, K]`` -> ``[..., N, P]``; None if the kernels do not take it."""
    dtype, steps = limits(a, b, kind)
    kernels = build.library() if dtype and build.AVAILABLE else None
    if dtype is None or kernels is None:
        return None
    N, P = a.shape[-2], b.shape[-2]
    rows_a, rows_b = _rows(a, kind, dtype), _rows(b, kind, dtype)
    out = rows_a.new_empty(*a.shape[:-1], P)
    exponents = torch.empty_like(out) if kind == "softmin" else out
    failed = kernels.pair_sum(
        dtype == torch.float64,
        kind == "softmin",
        *(x.data_ptr() for x in (rows_a, rows_b, out, exponents)),
        *(a.shape[:-2].numel(), N, P, rows_a.shape[-1], steps, torch.get_num_threads()),
    )
    if kind == "softmin":
        out = exponents.mul_(-math.log(2.0)).sub_(out.log_())
    return None if failed else out.to(a.dtype)


def pair_sum_gradients(grad: Tensor, a: Tensor, b: Tensor, kind: str) -> tuple[Tensor, Tensor] | None:
    """Gradients of ``pair_sum`` by ``a`` and ``b``; None if the kernels do not take it."""
    dtype, _ = limits(a, b, kind)
    kernels = build.library() if dtype and build.AVAILABLE and moderate(grad) else None
    if dtype is None or kernels is None:
        return None
    N, P, K = *grad.shape[-2:], a.shape[-1]
    rows_a, rows_b = _rows(a, kind, dtype), _rows(b, kind, dtype)
    grad = grad.to(dtype).resolve_neg().contiguous()
    to_a, to_b, columns = torch.empty_like(rows_a), torch.empty_like(rows_b), grad.new_empty(*grad.shape[:-2], P)
    failed = kernels.pair_sum_gradients(
        dtype == torch.float64,
        kind == "softmin",
        *(x.data_ptr() for x in (grad, rows_a, rows_b, to_a, to_b, columns)),
        *(grad.shape[:-2].numel(), N, P, rows_a.shape[-1], torch.get_num_threads()),
    )
    if failed:
        return None
    return to_a[..., :K].to(a.dtype).contiguous(), to_b[..., :K].to(b.dtype).contiguous()


def limits(a: Tensor, b: Tensor, kind: str) -> tuple[torch.dtype | None, int]:
    """The dtype to compute in, None if the kernels do not take the measures; factors of a product that is in range."""
    if a.numel() * b.shape[-2] < LEAST or a.dtype not in RANGE or a.dtype != b.dtype:
        return None, 0
    if not (_plain(a) and _plain(b)):
        return None, 0
    extremes = [x.item() for side in (a, b) for x in torch.aminmax(side)]
    top = max(extremes)
    if not all(map(math.isfinite, extremes)) or top * a.shape[-1] >= torch.finfo(a.dtype).max:
        return None, 0
    if kind == "min":
        return a.dtype, 0
    # Measures too large for float32's exponentials have them in float64.
    dtype = next((dtype for dtype in (a.dtype, torch.float64) if top <= RANGE[dtype]), None)
    return dtype, int(PRODUCT[dtype] / max(top, 1.0)) if dtype else 0


def moderate(grad: Tensor) -> bool:
    """Whether a gradient is finite and no sum of quotients by it overflows."""
    return _plain(grad) and max(abs(x.item()) for x in torch.aminmax(grad)) <= LARGEST_GRADIENT


def _plain(x: Tensor) -> bool:
    """Whether a tensor's numbers lie in memory, and nobody wants to see what is done with them."""
    hidden = x._is_zerotensor() or torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore[reportAttributeAccessIssue]
    seen = torch._C._len_torch_dispatch_stack() > 0
    return type(x) is Tensor and x.is_cpu and x.layout == torch.strided and not hidden and not seen


def _rows(x: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """The measures, or e^−a for softmin, in rows of whole vectors; e^−a of what is absent is 4."""
    missing = -x.shape[-1] % (PADDED // dtype.itemsize)
    if kind == "softmin":
        x = torch.nn.functional.threshold(x.to(dtype), 0.0, -math.log(4.0)).neg_().exp_()
    if missing:
        x = torch.nn.functional.pad(x, (0, missing), value=4.0 if kind == "softmin" else 0.0)
    return x.resolve_neg().contiguous()
