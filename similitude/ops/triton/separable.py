"""product + ignorematch on CUDA in half precision: four products by cuBLAS, and few passes between them.

Measures are ``a [N, K]`` and ``b [P, K]``, bfloat16 or float16; products run at full rate if K and P are multiples of
8. With centred indicators I' = I − ½, J' = J − ½,

    S = A⁺(θB⁺ + αJ')ᵀ + β I'B⁺ᵀ − ½α sal(A) − ½β sal(B).

Centring keeps I'B⁺ᵀ near zero, where half precision is fine; the first product is large and stays in float32 until
all is added up. Sums are made in two steps of fixed order, so that results do not vary from run to run. Rows of both
sides are served by one launch where they can be: at small sizes it is launches that cost.
"""
# Kernels are a language of their own, which pyright does not read.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..modes import refuse_second_derivatives, without_autocast
from ..separable import least_quotient
from .launch import launch


def product_ignorematch(a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, theta: Tensor) -> Tensor:
    """S of all pairs, ``[N, P]`` in the dtype of ``a``; the scalars are float32 tensors without axes.

    Equivalent to: ``separable.product_ignorematch(a.float(), b.float(), alpha, beta, theta).to(a.dtype)``.
    """
    return ProductIgnorematch.apply(a, b, alpha, beta, theta)  # pyright: ignore


def projection(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    alpha: Tensor,
    beta: Tensor,
    theta: Tensor,
    dtype: torch.dtype,
    size: tuple[int, int],
) -> Tensor:
    """S of all pairs from vectors, in ``dtype``: ``[N, D]``, ``[P, D]``, ``[K, D]`` -> ``[N, P']``.

    Measures and their gradients are made in here too, with both sides in one product, since at small sizes it is
    launches that cost. ``size`` is (P', K'), P and K or more: prototypes and features of zeros are put at the ends.

    Equivalent to: ``product_ignorematch(x @ features.mT, prototypes @ features.mT, ...)``, all in ``dtype``.
    """
    return Projection.apply(x, prototypes, features, alpha, beta, theta, dtype, size)  # pyright: ignore


class ProductIgnorematch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, theta: Tensor) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        out, *kept = _forward(a, b, torch.empty_like(a), torch.empty_like(b), alpha, beta, theta)
        _keep(ctx, kept, alpha, beta, theta, any(ctx.needs_input_grad[2:]))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_second_derivatives()
        a, b = ctx.saved_tensors[:2]
        to_a, to_b = torch.empty_like(a), torch.empty_like(b)
        return to_a, to_b, *_backward(grad, to_a, to_b, *ctx.saved_tensors, ctx.needs_input_grad[2:])


class Projection(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, prototypes, features, alpha, beta, theta, dtype, size = inputs
        (N, D), P, K = x.shape, prototypes.shape[0], features.shape[0]
        objects, bank = x.new_empty(N + size[0], D, dtype=dtype), x.new_empty(size[1], D, dtype=dtype)
        sources = (x.contiguous(), prototypes.contiguous(), features.contiguous())
        launch(_gather, (N + sum(size),), (*sources, objects, bank, N, P, K, *size, D), 4, BLOCK=block(D))
        measures = objects @ bank.mT  # [N + P', K']
        a, b = measures[:N], measures[N:]
        # The measures are nobody else's, and what is positive of them is put in their place.
        out, *kept = _forward(a, b, a, b, alpha, beta, theta)
        _keep(ctx, kept, alpha, beta, theta, any(ctx.needs_input_grad[3:6]), objects, bank)
        ctx.shape = (N, P, K)
        ctx.dtypes = (x.dtype, prototypes.dtype, features.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_second_derivatives()
        *kept, objects, bank = ctx.saved_tensors
        (N, P, K), dtypes = ctx.shape, ctx.dtypes
        to_measures = bank.new_empty(objects.shape[0], bank.shape[0])
        to_a, to_b = to_measures[:N], to_measures[N:]
        to_scalars = _backward(grad, to_a, to_b, *kept, ctx.needs_input_grad[3:6])
        needed = ctx.needs_input_grad
        with without_autocast(grad.device.type):
            # Not in one product: gradients that are views of one tensor would keep all of it alive.
            to_x = _product(to_a, bank, dtypes[0]) if needed[0] else None
            to_prototypes = _product(to_b, bank, dtypes[1])[:P] if needed[1] else None
            to_features = _product(to_measures.mT, objects, dtypes[2])[:K] if needed[2] else None
        return to_x, to_prototypes, to_features, *to_scalars, None, None


def _forward(a, b, positive_a, positive_b, alpha, beta, theta) -> tuple[Tensor, ...]:
    """S, and then A⁺, B⁺ (put where the caller says), θB⁺ + αJ', saliences and I'B⁺ᵀ."""
    (N, K), P = a.shape, b.shape[0]
    has_a, side_b = torch.empty_like(a), torch.empty_like(b)
    sums = torch.empty(N + P, dtype=torch.float32, device=a.device)  # sal(A), then sal(B)
    args = (a, b, positive_a, has_a, positive_b, side_b, sums, alpha, theta, N, K)
    launch(_split, (N + P,), args, 4, BLOCK=block(K))
    missing = has_a @ positive_b.mT  # [N, P], I'B⁺ᵀ
    shared = _product(positive_a, side_b.mT, torch.float32)  # [N, P], A⁺(θB⁺ + αJ')ᵀ
    out = torch.empty_like(missing)
    launch(_combine, (N, ceil(P, 4096)), (shared, missing, out, sums, alpha, beta, N, P), 8, BLOCK=block(P))
    return out, positive_a, positive_b, side_b, sums, missing


def _keep(ctx, kept, alpha, beta, theta, learning: bool, *more: Tensor) -> None:
    *kept, missing = kept
    ctx.save_for_backward(*kept, missing if learning else None, alpha, beta, theta, *more)


def _backward(grad, to_a, to_b, a, b, side_b, sums, missing, alpha, beta, theta, needed) -> tuple[Tensor | None, ...]:
    """Gradients of α, β, θ; those of the measures are put into ``to_a`` and ``to_b``."""
    (N, K), P = a.shape, b.shape[0]
    grad, side_a, new = grad.contiguous(), torch.empty_like(a), sums.new_empty
    across, down, sides = ceil(P, COLUMNS), ceil(N, ROWS), ceil(N * K, SIDE)
    rows, columns, inner = new(across, N), new(down, P), new(down * across)
    other = grad if missing is None else missing
    args = (grad, other, a, side_a, rows, columns, inner, beta, theta, N, P, N * K, across, down)
    constants = dict(WITH=missing is not None, ROWS=ROWS, COLUMNS=COLUMNS, SIDE=SIDE)
    launch(_prepare, (down * across + sides,), args, 8, **constants)
    with without_autocast(a.device.type):
        torch.mm(grad, side_b, out=to_a)
        torch.mm(grad.mT, side_a, out=to_b)
    # Of each row of A and then of B: its share of ⟨x⁺, dx⟩, and of ⟨sums of grad, sal⟩.
    by, removed = new(N + P), new(N + P)
    args = (to_a, to_b, a, b, rows, columns, sums, by, removed, alpha, beta, N, P, K, across, down)
    launch(_mask, (N + P,), args, 4, BLOCK=block(K))
    if missing is None:
        return None, None, None
    to_scalars = _scalar_gradients(grad, a, b, inner, by, removed, alpha, beta, theta)
    return tuple(s if n else None for s, n in zip(to_scalars, needed, strict=True))


def _scalar_gradients(grad, a, b, inner, by, removed, alpha, beta, theta) -> tuple[Tensor, ...]:
    """Gradients of α, β, θ by homogeneity, as in separable.py, without a look at values from the host.

    Where a quotient would keep too few digits, a kernel that otherwise returns at once multiplies everything out. At
    small sizes it always does, which is one launch less.
    """
    (N, P), K = grad.shape, a.shape[1]
    found = by.new_empty(4)
    small = N * P * K <= 2**28
    precision = "ieee" if a.dtype == torch.float32 else "tf32"  # in which halves are exact
    if not small:
        args = (inner, by, removed, alpha, beta, theta, found, least_quotient(a), N, P, inner.numel())
        launch(_homogeneous, (1,), args, 8, BLOCK=4096)
    tiles = (ceil(N, 64), ceil(P, 64))
    count = tiles[0] * tiles[1]
    crossed = by.new_empty(2 * count)
    launch(_cross, tiles, (grad, a, b, found, crossed, N, P, K, count), 4, ALWAYS=small, PRECISION=precision)
    args = (inner, removed, found, crossed, N, P, inner.numel(), count)
    launch(_settle, (1,), args, 8, ALWAYS=small, BLOCK=4096)
    return found.unbind()[:3]


ROWS, COLUMNS, SIDE = 32, 512, 8192


def ceil(size: int, part: int) -> int:
    return -(-size // part)


def block(size: int) -> int:
    """The power of 2 that holds a row, up to 4096."""
    return min(4096, 1 << max(0, size - 1).bit_length())


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """``a @ b`` of halves, in their dtype or kept in float32."""
    if a.dtype == dtype:
        return a @ b
    if a.is_cuda and dtype == torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    return (a.float() @ b.float()).to(dtype)


@triton.jit
def _gather(x, prototypes, features, objects, bank, N, P, K, Q, L, D, BLOCK: tl.constexpr):
    """A row of x, prototypes or features, rounded: N + Q rows of objects and L of the bank, zeros at the ends."""
    row = tl.program_id(0).to(tl.int64)
    if row < N:
        _copy_row(x + row * D, objects + row * D, D, D, BLOCK)
    elif row < N + Q:
        p = row - N
        _copy_row(prototypes + p * D, objects + row * D, tl.where(p < P, D, 0), D, BLOCK)
    else:
        k = row - N - Q
        _copy_row(features + k * D, bank + k * D, tl.where(k < K, D, 0), D, BLOCK)


@triton.jit
def _copy_row(source, target, size, D, BLOCK: tl.constexpr):
    for start in range(0, D, BLOCK):
        d = start + tl.arange(0, BLOCK)
        value = tl.load(source + d, mask=d < size, other=0.0)
        tl.store(target + d, value.to(target.dtype.element_ty), mask=d < D)


@triton.jit
def _split_row(x, positive, side, total, gain, weight, K, BLOCK: tl.constexpr):
    """x⁺ of a row, its factor gain·x⁺ + weight·(1[x>0] − ½), and its sum."""
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < K
        value = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        plus = tl.maximum(value, 0.0)
        factor = gain * plus + tl.where(value > 0, 0.5, -0.5) * weight
        tl.store(side + k, factor.to(side.dtype.element_ty), mask=inside)
        tl.store(positive + k, plus.to(positive.dtype.element_ty), mask=inside)
        acc += plus
    tl.store(total, tl.sum(acc))


@triton.jit
def _split(a, b, positive_a, has_a, positive_b, side_b, sums, alpha, theta, N, K, BLOCK: tl.constexpr):
    """A⁺, I' and sal(A) of a row of A, or B⁺, θB⁺ + αJ' and sal(B) of a row of B."""
    row = tl.program_id(0)
    if row < N:
        at = row.to(tl.int64) * K
        _split_row(a + at, positive_a + at, has_a + at, sums + row, 0.0, 1.0, K, BLOCK)
    else:
        at = (row - N).to(tl.int64) * K
        gain, weight = tl.load(theta).to(tl.float32), tl.load(alpha).to(tl.float32)
        _split_row(b + at, positive_b + at, side_b + at, sums + row, gain, weight, K, BLOCK)


@triton.jit
def _combine(shared, missing, out, sums, alpha, beta, N, P, BLOCK: tl.constexpr):
    n = tl.program_id(0)
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = p < P
    at = n.to(tl.int64) * P + p
    value = tl.load(shared + at, mask=inside, other=0.0) - 0.5 * tl.load(alpha).to(tl.float32) * tl.load(sums + n)
    half = 0.5 * tl.load(sums + N + p, mask=inside, other=0.0)
    lack = tl.load(missing + at, mask=inside, other=0.0).to(tl.float32) - half
    value += tl.load(beta).to(tl.float32) * lack
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _prepare(
    grad, missing, positive, side, rows, columns, inner, beta, theta, N, P, size, across, down,
    WITH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    """Of a tile of grad its sums over rows and columns, and its product with I'B⁺ᵀ; or of a block of A⁺, θA⁺ + βI'."""
    tile = tl.program_id(0)
    if tile < down * across:
        i, j = tile // across, tile % across
        n = i * ROWS + tl.arange(0, ROWS)
        p = j * COLUMNS + tl.arange(0, COLUMNS)
        inside = (n < N)[:, None] & (p < P)[None, :]
        at = n.to(tl.int64)[:, None] * P + p[None, :]
        g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(rows + j.to(tl.int64) * N + n, tl.sum(g, 1), mask=n < N)
        tl.store(columns + i.to(tl.int64) * P + p, tl.sum(g, 0), mask=p < P)
        if WITH:
            m = tl.load(missing + at, mask=inside, other=0.0).to(tl.float32)
            tl.store(inner + tile, tl.sum(tl.sum(g * m, 1), 0))
    else:
        k = (tile - down * across).to(tl.int64) * SIDE + tl.arange(0, SIDE)
        x = tl.load(positive + k, mask=k < size, other=0.0).to(tl.float32)
        factor = tl.load(theta).to(tl.float32) * x + tl.where(x > 0, 0.5, -0.5) * tl.load(beta).to(tl.float32)
        tl.store(side + k, factor.to(side.dtype.element_ty), mask=k < size)


@triton.jit
def _mask_row(gradient, positive, parts, stride, count, sums, by, removed, constant, K, BLOCK: tl.constexpr):
    """1[x > 0]·(gradient − ½ constant·sum of parts) of a row, in place."""
    acc = tl.zeros([128], tl.float32)
    for start in range(0, count, 128):
        i = start + tl.arange(0, 128)
        acc += tl.load(parts + i.to(tl.int64) * stride, mask=i < count, other=0.0)
    total = tl.sum(acc)
    less = 0.5 * tl.load(constant).to(tl.float32) * total
    product = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        inside = k < K
        g = tl.load(gradient + k, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(positive + k, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(x > 0, g - less, 0.0)
        tl.store(gradient + k, g.to(gradient.dtype.element_ty), mask=inside)
        product += g * x
    tl.store(by, tl.sum(product))
    tl.store(removed, total * tl.load(sums))


@triton.jit
def _mask(to_a, to_b, a, b, rows, columns, sums, by, removed, alpha, beta, N, P, K, across, down, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if row < N:
        at = row.to(tl.int64) * K
        _mask_row(to_a + at, a + at, rows + row, N, across, sums + row, by + row, removed + row, alpha, K, BLOCK)
    else:
        p = row - N
        at = p.to(tl.int64) * K
        _mask_row(to_b + at, b + at, columns + p, P, down, sums + row, by + row, removed + row, beta, K, BLOCK)


@triton.jit
def _total(x, size, BLOCK: tl.constexpr):
    """Σ x of a vector, in float64."""
    acc = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(x + i, mask=i < size, other=0.0).to(tl.float64)
    return tl.sum(acc)


@triton.jit
def _square(x, size, BLOCK: tl.constexpr):
    """Σ x² of a vector, in float64."""
    acc = tl.zeros([BLOCK], tl.float64)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < size, other=0.0).to(tl.float64)
        acc += value * value
    return tl.sum(acc)


@triton.jit
def _homogeneous(inner, by, removed, alpha, beta, theta, found, least, N, P, tiles, BLOCK: tl.constexpr):
    """dα, dβ, dθ by homogeneity, as in separable.py, and whether dα and dθ have to be multiplied out instead.

    They have to where what is divided is too small beside the norm of the rows that it is the sum of.
    """
    to_beta = _total(inner, tiles, BLOCK) - 0.5 * _total(removed + N, P, BLOCK)
    by_a, by_b, by_beta = _total(by, N, BLOCK), _total(by + N, P, BLOCK), tl.load(beta).to(tl.float64) * to_beta
    by_theta, by_alpha = by_b - by_beta, by_a - by_b + by_beta
    bad = tl.minimum(tl.abs(by_theta), tl.abs(by_alpha)) <= least * tl.sqrt(_square(by, N + P, BLOCK))
    tl.store(found, (by_alpha / tl.where(bad, 1.0, tl.load(alpha).to(tl.float64))).to(tl.float32))
    tl.store(found + 1, to_beta.to(tl.float32))
    tl.store(found + 2, (by_theta / tl.where(bad, 1.0, tl.load(theta).to(tl.float64))).to(tl.float32))
    tl.store(found + 3, tl.where(bad, 1.0, 0.0))


@triton.jit
def _cross(grad, a, b, found, crossed, N, P, K, tiles, ALWAYS: tl.constexpr, PRECISION: tl.constexpr):
    """Tile by tile ⟨G, A⁺B⁺ᵀ⟩ and ⟨G, A⁺Jᵀ⟩; nothing where they are not wanted."""
    if not ALWAYS:  # noqa: SIM102 (known when compiling)
        if tl.load(found + 3) == 0.0:
            return
    i, j = tl.program_id(0), tl.program_id(1)
    n, p, step = i * 64 + tl.arange(0, 64), j * 64 + tl.arange(0, 64), tl.arange(0, 64)
    at_n, at_p = n.to(tl.int64)[:, None], p.to(tl.int64)[None, :]
    products = tl.zeros([64, 64], tl.float32)
    matches = tl.zeros([64, 64], tl.float32)
    for start in range(0, K, 64):
        k = start + step
        left = tl.load(a + at_n * K + k[None, :], mask=(at_n < N) & (k < K)[None, :], other=0.0).to(tl.float32)
        right = tl.load(b + at_p * K + k[:, None], mask=(at_p < P) & (k < K)[:, None], other=0.0).to(tl.float32)
        products = tl.dot(left, right, products, input_precision=PRECISION)
        matches = tl.dot(left, tl.where(right > 0, 1.0, 0.0), matches, input_precision=PRECISION)
    g = tl.load(grad + at_n * P + at_p, mask=(at_n < N) & (at_p < P), other=0.0).to(tl.float32)
    at = i * tl.num_programs(1) + j
    tl.store(crossed + at, tl.sum(tl.sum(g * products, 1), 0))
    tl.store(crossed + tiles + at, tl.sum(tl.sum(g * matches, 1), 0))


@triton.jit
def _settle(inner, removed, found, crossed, N, P, sums, tiles, ALWAYS: tl.constexpr, BLOCK: tl.constexpr):
    """Puts what was multiplied out in the place of the quotients."""
    if ALWAYS:
        to_beta = _total(inner, sums, BLOCK) - 0.5 * _total(removed + N, P, BLOCK)
        tl.store(found + 1, to_beta.to(tl.float32))
    elif tl.load(found + 3) == 0.0:
        return
    tl.store(found, (_total(crossed + tiles, tiles, BLOCK) - _total(removed, N, BLOCK)).to(tl.float32))
    tl.store(found + 2, _total(crossed, tiles, BLOCK).to(tl.float32))
