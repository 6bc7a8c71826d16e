"""product + ignorematch on CUDA in half precision: four products by cuBLAS, and as few passes as they leave between them.

Measures are ``a [N, K]`` and ``b [P, K]``, contiguous, bfloat16 or float16, with K and P multiples of 8 so that products
run at full rate. With centred indicators I' = I − ½, J' = J − ½,

    S = A⁺(θB⁺ + αJ')ᵀ + β I'B⁺ᵀ − ½α sal(A) − ½β sal(B).

Centring keeps I'B⁺ᵀ near zero, where half precision is fine; the first product is large and stays in float32 until all is
added up. Sums are made in two steps of fixed order, so that results do not vary from run to run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .separable import without_autocast


def product_ignorematch(a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, theta: Tensor) -> Tensor:
    """S of all pairs, ``[N, P]`` in the dtype of ``a``; the scalars are float32 tensors without axes.

    Equivalent to: ``separable.product_ignorematch(a.float(), b.float(), alpha, beta, theta).to(a.dtype)``.
    """
    return ProductIgnorematch.apply(a, b, alpha, beta, theta)  # pyright: ignore


class ProductIgnorematch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, alpha, beta, theta):
        scalars = torch.stack([alpha, beta, theta]).float()
        positive_a, has_a, sum_a = _split(a, scalars, "indicator")
        positive_b, side_b, sum_b = _split(b, scalars, "object side")
        missing = has_a @ positive_b.mT  # [N, P], I'B⁺ᵀ
        shared = _product32(positive_a, side_b.mT)  # [N, P], A⁺(θB⁺ + αJ')ᵀ
        out = torch.empty_like(missing)
        N, P = out.shape
        grid = (N, triton.cdiv(P, 4096))
        _combine[grid](shared, missing, out, sum_a, sum_b, scalars, P, BLOCK=4096, num_warps=8)
        learning = any(ctx.needs_input_grad[2:])
        ctx.save_for_backward(positive_a, positive_b, side_b, sum_a, sum_b, missing if learning else None, scalars)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        a, b, side_b, sum_a, sum_b, missing, scalars = ctx.saved_tensors
        grad = grad.contiguous()
        with without_autocast(a.device.type):
            rows, columns, inner = _sums(grad, missing)
            to_a, by_a = _masked(grad @ side_b, a, rows, scalars, constant=0)
            to_b, by_b = _masked(grad.mT @ _side(a, scalars), b, columns, scalars, constant=1)
            to_scalars = (None, None, None)
            if missing is not None:
                to_scalars = _scalar_gradients(grad, a, b, rows, columns, sum_a, sum_b, inner, by_a, by_b, scalars)
        return to_a, to_b, *(s if n else None for s, n in zip(to_scalars, ctx.needs_input_grad[2:], strict=True))


def _product32(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` of halves, kept in float32."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def _split(x: Tensor, scalars: Tensor, factor: str) -> tuple[Tensor, Tensor, Tensor]:
    """x⁺, its factor in a product (I', or θx⁺ + αJ'), and its salience, in one pass."""
    rows, K = x.shape
    positive, side = torch.empty_like(x), torch.empty_like(x)
    total = torch.empty(rows, dtype=torch.float32, device=x.device)
    kind = 0 if factor == "indicator" else 1
    _split_kernel[(rows,)](x, positive, side, total, scalars, K, KIND=kind, BLOCK=_block(K), num_warps=4)
    return positive, side, total


def _side(positive: Tensor, scalars: Tensor) -> Tensor:
    """θx⁺ + βI', the object's factor in the backward."""
    rows, K = positive.shape
    side = torch.empty_like(positive)
    _split_kernel[(rows,)](positive, side, side, side, scalars, K, KIND=2, BLOCK=_block(K), num_warps=4)
    return side


def _block(K: int) -> int:
    return min(4096, triton.next_power_of_2(K))


@triton.jit
def _split_kernel(x, positive, side, total, scalars, K, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """KIND 0: x⁺ and I' of a raw x. 1: x⁺ and θx⁺ + αI'. 2: θx + βI' alone, of an x that is x⁺ already."""
    row = tl.program_id(0).to(tl.int64) * K
    theta = tl.load(scalars + 2)
    weight = tl.load(scalars + (1 if KIND == 2 else 0))
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < K
        value = tl.load(x + row + k, mask=inside, other=0.0).to(tl.float32)
        plus = tl.maximum(value, 0.0)
        centred = tl.where(value > 0, 0.5, -0.5)
        factor = centred if KIND == 0 else theta * plus + weight * centred
        tl.store(side + row + k, factor.to(side.dtype.element_ty), mask=inside)
        if KIND != 2:
            tl.store(positive + row + k, plus.to(positive.dtype.element_ty), mask=inside)
            acc += plus
    if KIND != 2:
        tl.store(total + tl.program_id(0), tl.sum(acc))


@triton.jit
def _combine(shared, missing, out, sum_a, sum_b, scalars, P, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = p < P
    alpha, beta = tl.load(scalars), tl.load(scalars + 1)
    at = n.to(tl.int64) * P + p
    less = 0.5 * alpha * tl.load(sum_a + n)
    value = tl.load(shared + at, mask=inside, other=0.0) - less
    lack = tl.load(missing + at, mask=inside, other=0.0).to(tl.float32) - 0.5 * tl.load(sum_b + p, mask=inside, other=0.0)
    tl.store(out + at, (value + beta * lack).to(out.dtype.element_ty), mask=inside)


ROWS, COLUMNS = 32, 512


def _sums(grad: Tensor, missing: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of ``grad`` over rows ``[N]`` and over columns ``[P]``, and of its tiles with ``missing``, in one pass."""
    N, P = grad.shape
    across, down = triton.cdiv(P, COLUMNS), triton.cdiv(N, ROWS)
    rows = torch.empty(across, N, dtype=torch.float32, device=grad.device)
    columns = torch.empty(down, P, dtype=torch.float32, device=grad.device)
    inner = torch.empty(down * across, dtype=torch.float32, device=grad.device)
    other = grad if missing is None else missing
    _sums_kernel[(down, across)](
        grad, other, rows, columns, inner, N, P, WITH=missing is not None, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=8
    )
    return rows.sum(0), columns.sum(0), inner


@triton.jit
def _sums_kernel(
    grad, missing, rows, columns, inner, N, P, WITH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    i, j = tl.program_id(0), tl.program_id(1)
    n = i * ROWS + tl.arange(0, ROWS)
    p = j * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < N)[:, None] & (p < P)[None, :]
    at = n.to(tl.int64)[:, None] * P + p[None, :]
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(rows + j.to(tl.int64) * N + n, tl.sum(g, 1), mask=n < N)
    tl.store(columns + i.to(tl.int64) * P + p, tl.sum(g, 0), mask=p < P)
    if WITH:
        m = tl.load(missing + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(inner + i * tl.num_programs(1) + j, tl.sum(tl.sum(g * m, 1), 0))


def _masked(gradient: Tensor, positive: Tensor, sums: Tensor, scalars: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """1[x > 0]·(gradient − ½ constant·sums), in place, and its row-wise products with x⁺."""
    rows, K = gradient.shape
    by = torch.empty(rows, dtype=torch.float32, device=gradient.device)
    _masked_kernel[(rows,)](gradient, positive, sums, by, scalars, K, CONSTANT=constant, BLOCK=_block(K), num_warps=4)
    return gradient, by


@triton.jit
def _masked_kernel(gradient, positive, sums, by, scalars, K, CONSTANT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = row.to(tl.int64) * K
    less = 0.5 * tl.load(scalars + CONSTANT) * tl.load(sums + row)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < K
        g = tl.load(gradient + at + k, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(positive + at + k, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(x > 0, g - less, 0.0)
        tl.store(gradient + at + k, g.to(gradient.dtype.element_ty), mask=inside)
        acc += g * x
    tl.store(by + row, tl.sum(acc))


def _scalar_gradients(grad, a, b, rows, columns, sum_a, sum_b, inner, by_a, by_b, scalars) -> tuple[Tensor, ...]:
    """Gradients of α, β, θ by homogeneity, as in separable.py; without a look at values from the host.

    Where a quotient would keep too few digits, a kernel that otherwise returns at once multiplies everything out.
    """
    N, P = grad.shape
    K = a.shape[1]
    found = torch.empty(4, dtype=torch.float32, device=grad.device)
    _homogeneous[(1,)](
        rows, columns, sum_a, sum_b, inner, by_a, by_b, scalars, found, N, P, inner.numel(), BLOCK=4096, num_warps=8
    )
    tiles = (triton.cdiv(N, 64), triton.cdiv(P, 64))
    crossed = torch.empty(2, tiles[0] * tiles[1], dtype=torch.float32, device=grad.device)
    _crossed[tiles](grad, a, b, found, crossed, N, P, K, tiles[0] * tiles[1], num_warps=4)
    _settle[(1,)](rows, sum_a, found, crossed, N, tiles[0] * tiles[1], BLOCK=4096, num_warps=8)
    return found[0], found[1], found[2]


@triton.jit
def _dot(x, y, size, BLOCK: tl.constexpr):
    """Σ x·y of two vectors, in float64."""
    acc = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        left = tl.load(x + i, mask=i < size, other=0.0).to(tl.float64)
        acc += left * tl.load(y + i, mask=i < size, other=0.0)
    return tl.sum(acc)


@triton.jit
def _total(x, size, BLOCK: tl.constexpr):
    """Σ x of a vector, in float64."""
    acc = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(x + i, mask=i < size, other=0.0).to(tl.float64)
    return tl.sum(acc)


@triton.jit
def _homogeneous(
    rows, columns, sum_a, sum_b, inner, by_a, by_b, scalars, found, N, P, tiles, BLOCK: tl.constexpr
):
    """dα, dβ, dθ, and whether dα and dθ have to be multiplied out instead."""
    alpha = tl.load(scalars).to(tl.float64)
    beta = tl.load(scalars + 1).to(tl.float64)
    theta = tl.load(scalars + 2).to(tl.float64)
    to_beta = _total(inner, tiles, BLOCK) - 0.5 * _dot(columns, sum_b, P, BLOCK)
    total_a, total_b = _total(by_a, N, BLOCK), _total(by_b, P, BLOCK)
    by_beta = beta * to_beta
    by_theta, by_alpha = total_b - by_beta, total_a - total_b + by_beta
    size = tl.abs(total_a) + tl.abs(total_b) + tl.abs(by_beta)
    bad = tl.minimum(tl.abs(by_theta), tl.abs(by_alpha)) <= 1e-2 * size
    tl.store(found, (by_alpha / tl.where(bad, 1.0, alpha)).to(tl.float32))
    tl.store(found + 1, to_beta.to(tl.float32))
    tl.store(found + 2, (by_theta / tl.where(bad, 1.0, theta)).to(tl.float32))
    tl.store(found + 3, tl.where(bad, 1.0, 0.0))


@triton.jit
def _crossed(grad, a, b, found, crossed, N, P, K, tiles):
    """Tile by tile ⟨G, A⁺B⁺ᵀ⟩ and ⟨G, A⁺Jᵀ⟩, if they are wanted."""
    if tl.load(found + 3) == 0.0:
        return
    i, j = tl.program_id(0), tl.program_id(1)
    n, p, step = i * 64 + tl.arange(0, 64), j * 64 + tl.arange(0, 64), tl.arange(0, 64)
    products = tl.zeros([64, 64], tl.float32)
    matches = tl.zeros([64, 64], tl.float32)
    for start in range(0, K, 64):
        k = start + step
        left = tl.load(a + n.to(tl.int64)[:, None] * K + k[None, :], mask=(n < N)[:, None] & (k < K)[None, :], other=0.0)
        right = tl.load(b + p.to(tl.int64)[None, :] * K + k[:, None], mask=(p < P)[None, :] & (k < K)[:, None], other=0.0)
        products = tl.dot(left.to(tl.float32), right.to(tl.float32), products, input_precision="ieee")
        matches = tl.dot(left.to(tl.float32), tl.where(right > 0, 1.0, 0.0), matches, input_precision="ieee")
    inside = (n < N)[:, None] & (p < P)[None, :]
    g = tl.load(grad + n.to(tl.int64)[:, None] * P + p[None, :], mask=inside, other=0.0).to(tl.float32)
    at = i * tl.num_programs(1) + j
    tl.store(crossed + at, tl.sum(tl.sum(g * products, 1), 0))
    tl.store(crossed + tiles + at, tl.sum(tl.sum(g * matches, 1), 0))


@triton.jit
def _settle(rows, sum_a, found, crossed, N, tiles, BLOCK: tl.constexpr):
    """Puts what was multiplied out in the place of the quotients."""
    if tl.load(found + 3) == 0.0:
        return
    to_alpha = _total(crossed + tiles, tiles, BLOCK) - _dot(rows, sum_a, N, BLOCK)
    tl.store(found, to_alpha.to(tl.float32))
    tl.store(found + 2, _total(crossed, tiles, BLOCK).to(tl.float32))
