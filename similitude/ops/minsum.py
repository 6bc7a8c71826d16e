"""Sums over all pairs that do not factor into products: Σ_k min(a⁺, b⁺), and the feature-level softmin.

Measures are ``a [..., N, K]`` and ``b [..., P, K]`` with equal leading axes. The forward walks over tiles; the backward
compares again instead of remembering, so memory stays O(NP + NK + PK) and a tile.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .cpu import minsum as cpu_minsum
from .modes import apply, wide
from .reference import common_terms

# Intersections whose Ψ is summed pair by pair at feature level; min and max follow from min_sum.
COMMON = ("softmin",)
# Elements of a tile, measured: they fill a core's cache, or a GPU. The optimum is flat.
TILE = {"cpu": 2**19, "cuda": 2**26}


def min_sum(a: Tensor, b: Tensor, kernels: bool = True) -> Tensor:
    """M = Σ_k min(a⁺, b⁺), ``[..., N, P]``: what both have, as much as the one that has less of it.

    Equivalent to: ``torch.minimum(a.relu()[..., :, None, :], b.relu()[..., None, :, :]).sum(-1)``.
    """
    return _pair_sum(a, b, "min", kernels)


def common_sum(a: Tensor, b: Tensor, intersection: str, kernels: bool = True) -> Tensor:
    """Σ_k Ψ(a, b) over shared features, ``[..., N, P]``, for an intersection of COMMON.

    Equivalent to: ``common_terms(a[..., :, None, :], b[..., None, :, :], intersection).sum(-1)``.
    """
    return _pair_sum(a, b, intersection, kernels)


def _pair_sum(a: Tensor, b: Tensor, kind: str, kernels: bool) -> Tensor:
    kernels = kernels and (a.is_cpu or (a.dtype != torch.float64 and a.dim() <= 3))
    if torch.compiler.is_exporting() and torch.onnx.is_in_onnx_export():
        return _pair_terms(a, b, kind, _scan)
    if torch.compiler.is_exporting():
        # A program that needs nothing of ours, whatever runs it.
        dtype = wide(a.dtype)
        return common_terms(a.to(dtype).unsqueeze(-2), b.to(dtype).unsqueeze(-3), kind).sum(-1)
    if torch.compiler.is_compiling():
        return pair_sum(a, b, kind, kernels)
    return apply(PairSum, a, b, kind, kernels)


class PairSum(torch.autograd.Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor, kind: str, kernels: bool) -> Tensor:
        if kernels and a.is_cuda:
            from .triton import minsum as triton_minsum

            return triton_minsum.pair_sum(a, b, kind)
        if kernels and (out := cpu_minsum.pair_sum(a, b, kind)) is not None:
            return out
        return _pair_terms(a, b, kind, _fill)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.kind, ctx.kernels = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: Tensor, b: Tensor, kind: str, kernels: bool) -> Any:
        return PairSum.apply(*_batched(info, in_dims, a, b), kind, False), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return *PairSumGradients.apply(grad, *ctx.saved_tensors, ctx.kind, ctx.kernels), None, None  # pyright: ignore


class PairSumGradients(torch.autograd.Function):
    """The backward of PairSum as a function of its own, so that it can be differentiated again."""

    @staticmethod
    def forward(grad: Tensor, a: Tensor, b: Tensor, kind: str, kernels: bool) -> tuple[Tensor, Tensor]:
        if kernels and a.is_cuda:
            from .triton import minsum as triton_minsum

            to_a, to_b = triton_minsum.pair_sum_gradients(grad, a, b, kind)
            return to_a.to(a.dtype), to_b.to(b.dtype)
        if kernels and (gradients := cpu_minsum.pair_sum_gradients(grad, a, b, kind)) is not None:
            return gradients
        to_a, to_b = (_min_gradients if kind == "min" else _softmin_gradients)(grad, a, b)
        return torch.where(a > 0, to_a, 0.0), torch.where(b > 0, to_b, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *tensors, ctx.kind, _ = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def vmap(info: Any, in_dims: Any, grad: Tensor, a: Tensor, b: Tensor, kind: str, kernels: bool) -> Any:
        return PairSumGradients.apply(*_batched(info, in_dims, grad, a, b), kind, False), (0, 0)

    @staticmethod
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Any:
        # Second derivatives are rare and make N×P×K tensors.
        grad, a, b = ctx.saved_tensors
        g, a, b = grad.unsqueeze(-1), a.unsqueeze(-2), b.unsqueeze(-3)
        by_a, by_b = by_a.unsqueeze(-2), by_b.unsqueeze(-3)
        both = ((a > 0) & (b > 0)).to(a.dtype)
        if ctx.kind == "min":
            share = both * torch.heaviside(b - a, torch.full_like(b[..., :1, :1], 0.5))
            return (by_a * share + by_b * (both - share)).sum(-1), None, None, None, None
        share = both * torch.sigmoid(b - a)
        bend = g * (by_a - by_b) * share * (both - share)
        return (by_a * share + by_b * (both - share)).sum(-1), -bend.sum(-2), bend.sum(-3), None, None


# For torch.compile, one node each: traced, the law's backward would keep an N×P×K tensor, and tiles be unrolled.
@torch.library.custom_op("similitude::pair_sum", mutates_args=())
def pair_sum(a: Tensor, b: Tensor, kind: str, kernels: bool) -> Tensor:
    return PairSum.forward(a, b, kind, kernels)


@torch.library.custom_op("similitude::pair_sum_gradients", mutates_args=())
def pair_sum_gradients(grad: Tensor, a: Tensor, b: Tensor, kind: str, kernels: bool) -> tuple[Tensor, Tensor]:
    return PairSumGradients.forward(grad, a, b, kind, kernels)


@pair_sum.register_fake
def _(a, b, kind, kernels):
    return a.new_empty(*a.shape[:-1], b.shape[-2], dtype=wide(a.dtype))


@pair_sum_gradients.register_fake
def _(grad, a, b, kind, kernels):
    return torch.empty_like(a), torch.empty_like(b)


def _save(ctx, inputs, output) -> None:
    a, b, ctx.kind, ctx.kernels = inputs
    ctx.save_for_backward(a, b)


def _pull(ctx, grad):
    return *pair_sum_gradients(grad, *ctx.saved_tensors, ctx.kind, ctx.kernels), None, None


pair_sum.register_autograd(_pull, setup_context=_save)


@pair_sum.register_vmap
def _(info, in_dims, a, b, kind, kernels):
    return pair_sum(*_batched(info, in_dims, a, b), kind, False), 0


@pair_sum_gradients.register_vmap
def _(info, in_dims, grad, a, b, kind, kernels):
    return pair_sum_gradients(*_batched(info, in_dims, grad, a, b), kind, False), (0, 0)


def _min_gradients(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    # M = ½(Σ a⁺ + Σ b⁺ − Σ|a⁺ − b⁺|); the sign of 0 is 0, so a tie goes half and half.
    a, b = a.relu(), b.relu()
    to_a = grad.sum(-1, keepdim=True) - _l1_gradient(grad, a, b)
    to_b = grad.sum(-2).unsqueeze(-1) - _l1_gradient(grad.mT, b, a)
    return to_a.mul_(0.5), to_b.mul_(0.5)


def _softmin_gradients(grad: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    to_a, to_b = torch.zeros_like(a), torch.zeros_like(b)
    if _factors(a, b) and cpu_minsum.moderate(grad):
        # g e^−a / (e^−a + e^−b): the numerator is an object's own. Nothing is shared with what is infinite.
        a, b = (torch.where(x > 0, x.neg().exp_(), math.inf) for x in (a, b))
        for i, j in _tiles(a, b):
            shares = grad[..., i, j].unsqueeze(-1) / (a[..., i, None, :] + b[..., None, j, :])  # [..., n, p, K]
            to_a[..., i, :] += shares.sum(-2)
            to_b[..., j, :] += shares.sum(-3)
        return to_a.mul_(a), to_b.mul_(b)
    a, b = _apart(a, b)
    for i, j in _tiles(a, b):
        g = grad[..., i, j].unsqueeze(-1)  # [..., n, p, 1]
        gap = b[..., None, j, :] - a[..., i, None, :]  # [..., n, p, K]
        to_a[..., i, :] += (g * gap.sigmoid()).sum(-2)
        to_b[..., j, :] += (g * gap.neg_().sigmoid_()).sum(-3)
    return to_a, to_b


def _l1_gradient(grad: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Gradient of Σ_k |a − b| by ``a``, ``[..., N, K]``, in blocks of ``b`` that stay in cache."""
    a = a.contiguous()
    total = torch.zeros_like(a)
    for start in range(0, b.shape[-2], 256):
        block = b[..., start : start + 256, :].contiguous()
        g = grad[..., start : start + 256].contiguous()
        # The distance itself plays no part in the gradient of an L1 norm.
        total += torch.ops.aten._cdist_backward(g, a, block, 1.0, g)
    return total


def _pair_terms(a: Tensor, b: Tensor, kind: str, fill: Callable[..., Tensor]) -> Tensor:
    if kind == "softmin" and fill is _fill and (factors := _factors(a, b)):
        return _soft_terms(a, b, factors)
    least = fill(a.relu(), b.relu(), torch.minimum)
    if kind == "min":
        return least
    # −log(e^−a + e^−b) = min(a, b) − log(1 + e^−|a−b|), and the second term vanishes for features moved far apart.
    return least - fill(*_apart(a, b), _excess)


def _factors(a: Tensor, b: Tensor) -> int:
    """How many sums of exponentials can be multiplied before a logarithm, on a CPU: 8, 4 or 2; 0 for none."""
    dtype, most = cpu_minsum.limits(a, b, "softmin")
    return next((n for n in (8, 4, 2) if n <= most), 0) if dtype == a.dtype else 0


def _soft_terms(a: Tensor, b: Tensor, factors: int) -> Tensor:
    """−Σ_k log(e^−a + e^−b) over what both have: exponentials once an object, a logarithm for several features."""
    # Negative, so that one call of threshold makes what is not shared, below −3, the factor −1; their number is even.
    a, b = (torch.nn.functional.threshold(x, 0.0, -math.log(4.0)).neg_().exp_().neg_() for x in (a, b))
    a, b = (torch.nn.functional.pad(x, (0, -x.shape[-1] % factors), value=-4.0) for x in (a, b))
    out = a.new_empty(*a.shape[:-1], b.shape[-2])
    for i, j in _tiles(a, b):
        sums = torch.threshold_(a[..., i, None, :] + b[..., None, j, :], -3.0, -1.0)
        size = sums.shape[-1] // factors
        product = sums[..., :size]
        for start in range(size, sums.shape[-1], size):
            product.mul_(sums[..., start : start + size])
        out[..., i, j] = product.log_().sum(-1).neg_()
    return out


def _scan(a: Tensor, b: Tensor, term: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Σ_k term(a, b) of all pairs, feature by feature: a loop that ONNX keeps, whose runtimes do not fuse."""
    from torch._higher_order_ops.scan import scan

    def add(total: Tensor, measures: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        # Some ONNX tools cannot read a loop that has no output per step.
        return total + term(measures[0].unsqueeze(-1), measures[1].unsqueeze(-2)), total.new_zeros(1)

    # ONNX is for inference, and tracing would prepare for gradients.
    a, b = a.detach(), b.detach()
    start = torch.zeros_like(a[..., :1] * b[..., 0].unsqueeze(-2))
    return scan(add, start, (a.movedim(-1, 0), b.movedim(-1, 0)))[0]


def _fill(a: Tensor, b: Tensor, term: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Σ_k term(a, b) of all pairs, tile by tile."""
    out = a.new_empty(*a.shape[:-1], b.shape[-2])
    for i, j in _tiles(a, b):
        out[..., i, j] = term(a[..., i, None, :], b[..., None, j, :]).sum(-1)
    return out


def _tiles(a: Tensor, b: Tensor) -> Iterator[tuple[slice, slice]]:
    N, P = a.shape[-2], b.shape[-2]
    pairs = max(1, TILE.get(a.device.type, 2**24) // max(1, a.shape[:-2].numel() * a.shape[-1]))
    n = max(1, min(N, math.isqrt(2 * pairs)))
    p = max(1, pairs // n)
    for i in range(0, N, n):
        for j in range(0, P, p):
            yield slice(i, i + n), slice(j, j + p)


def _apart(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The measures, with absent features moved so far from everything and from each other that e^−|a−b| is 0."""
    return torch.where(a > 0, a, -100.0), torch.where(b > 0, b, -200.0)


def _excess(a: Tensor, b: Tensor) -> Tensor:
    """log(1 + e^−|a−b|), exactly 0 from a distance of 80 on: beyond it exponentials are subnormal and slow."""
    near = (a - b).abs_().neg_().clamp_(min=-80.0).exp_()
    return torch.threshold_(near, 2e-35, 0.0).log1p_()


def _batched(info, in_dims, *tensors: Tensor) -> list[Tensor]:
    """The tensors with vmap's axis first."""
    return [
        x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
        for x, axis in zip(tensors, in_dims, strict=False)
    ]
