"""What cross_entropy.py passes over large arrays for, in Triton, so that each is read and written once.

Cross entropy of a chunk of logits and its gradient: a row to a program, two readings and one writing.
"""
# Kernels are a language of their own, which pyright does not read.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportOperatorIssue=false

from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launch


def loss_and_gradient_(
    logits: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    label_smoothing: float,
    z_loss: float,
    dtype: torch.dtype | None,
    P: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Float32 loss of each row of ``logits [n, W]``, its gradient in ``dtype``, and the product of the two.

    target: ``[n]``; bias: ``[P]``, added to the logits; weight: ``[n]``, multiplies the gradients of rows; dtype: None
    for no gradient; P: how many of the W logits count, the gradient of the rest being 0. The gradient lies over the
    logits where they have its dtype. The row of a target that is not one of 0..P−1 becomes NaN.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    bias, weight = (None if t is None else t.contiguous() for t in (bias, weight))
    n, W = logits.shape
    P = W if P is None else P
    losses, inner = torch.empty(2, n, dtype=torch.float32, device=logits.device)
    # Rows of a new tensor start at multiples of 16, as products with them want it.
    slopes = logits if dtype in (None, logits.dtype) else logits.new_empty(n, -(-W // 16) * 16, dtype=dtype)[:, :W]
    block = min(4096, triton.next_power_of_2(P))
    if n:
        with torch.cuda.device(logits.device) if logits.is_cuda else nullcontext():
            _turn_rows[(n,)](
                logits, slopes, target.contiguous(), bias, weight, losses, inner, logits.stride(0), slopes.stride(0), P,
                label_smoothing, z_loss, label_smoothing != 0, dtype is not None, block,
                num_warps=max(1, min(8, block // 256)),
            )  # fmt: skip
    if dtype is None:
        return losses, None, None
    if P < W:
        slopes[:, P:] = 0
    return losses, slopes, inner


def side(a: Tensor, gain: Tensor, weight: Tensor) -> Tensor:
    """gain·a + weight·(sign a − 1) of ``a`` without negative values, in its dtype."""
    a, out = a.contiguous(), torch.empty_like(a, memory_format=torch.contiguous_format)
    size, block = a.numel(), 4096
    if size:
        launch(_side, (triton.cdiv(size, block),), (a, out, gain, weight, size), 8, BLOCK=block)
    return out


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of rows ``[n, K]``, in float32."""
    (n, K), out = x.shape, x.new_empty(len(x), dtype=torch.float32)
    x, y = (t if t.stride(1) == 1 else t.contiguous() for t in (x, y))
    if n:
        args = (x, y, out, x.stride(0), y.stride(0), K)
        launch(_inner, (n,), args, 4, BLOCK=min(4096, triton.next_power_of_2(K)))
    return out


@triton.jit
def _side(a, out, gain, weight, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < size, other=0.0).to(tl.float32)
    lack = tl.where(value > 0, 0.0, tl.load(weight).to(tl.float32))
    tl.store(out + at, (tl.load(gain).to(tl.float32) * value - lack).to(out.dtype.element_ty), mask=at < size)


@triton.jit
def _inner(x, y, out, x_stride, y_stride, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(x + row * x_stride + k, mask=k < K, other=0.0).to(tl.float32)
        acc += left * tl.load(y + row * y_stride + k, mask=k < K, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(acc))


@triton.jit
def _turn_rows(
    logits, slopes, target, bias, weight, losses, inner, stride, slope_stride, P, smoothing, z_loss,
    SMOOTH: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row: its log-sum-exp, kept up in BLOCK lanes, then ``softmax·(1 + 2·z_loss·lse) − target``."""
    row = tl.program_id(0).to(tl.int64)
    z = logits + row * stride
    y = tl.load(target + row)
    # Read before the reductions below, which every warp must pass before one of them writes.
    at_y = tl.load(z + y, (y >= 0) & (y < P), float("nan")).to(tl.float32)
    if bias is not None:
        at_y += tl.load(bias + y, (y >= 0) & (y < P), 0.0)
    lane = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), float("-inf"), tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, P, BLOCK):
        x = _logits(z, bias, start + lane, P)
        higher = tl.maximum(tops, x)
        # A lane that has met nothing but −inf has nothing to be scaled by.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        sums = sums * tl.exp(tops - shift) + tl.exp(x - shift)
        tops = higher
        if SMOOTH:
            plain += tl.where(start + lane < P, x, 0.0)
    top = tl.max(tops, 0)
    total = tl.sum(sums * tl.exp(tops - top), 0)
    lse = top + tl.log(total)
    # Differences from the highest first: they are small where the logits are large.
    loss = tl.log(total) - (1 - smoothing) * (at_y - top)
    if SMOOTH:
        loss -= smoothing * (tl.sum(plain, 0) / P - top)
    tl.store(losses + row, loss + z_loss * lse * lse)
    if GRADIENT:
        scale = tl.where(at_y == at_y, 1.0, at_y)
        if weight is not None:
            scale *= tl.load(weight + row)
        gain = scale * (1 + 2 * z_loss * lse) / total
        product = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, P, BLOCK):
            j = start + lane
            x = tl.load(z + j, j < P, 0.0).to(tl.float32)
            slope = tl.exp(_logits(z, bias, j, P) - top) * gain
            slope -= scale * (smoothing / P + tl.where(j == y, 1 - smoothing, 0.0))
            tl.store(slopes + row * slope_stride + j, slope.to(slopes.dtype.element_ty), j < P)
            product += tl.where(j < P, slope, 0.0) * x
        tl.store(inner + row, tl.sum(product, 0))


@triton.jit
def _logits(z, bias, j, P):
    """A block of the row in float32, −inf past its end."""
    x = tl.load(z + j, j < P, float("-inf")).to(tl.float32)
    if bias is not None:
        x += tl.load(bias + j, j < P, 0.0)
    return x
