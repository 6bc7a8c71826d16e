"""Set-level similarities on CUDA in half precision, and the mean's and product's at feature level.

All of them are functions of u = A⁺Jᵀ, v = I B⁺ᵀ, w = A⁺B⁺ᵀ (for ``product`` alone) and the saliences. Products are made
by cuBLAS from halves and kept in float32, so that an empty intersection is exactly 0; everything element-wise is one
kernel forward and one backward. Measures are ``a [N, K]`` and ``b [P, K]``; products run at full rate if K and P are
multiples of 8.
"""
# Kernels are a language of their own, which pyright does not read.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..modes import refuse_second_derivatives, without_autocast
from ..separable import add_product_
from .launch import launch
from .separable import _product, block, ceil

INTERSECTIONS = ("product", "mean", "min", "max", "gmean", "softmin")
ROWS, COLUMNS = 16, 512


def similarity(a: Tensor, b: Tensor, scalars: Sequence[Tensor], *options: str) -> Tensor:
    """S of all pairs, ``[N, P]`` in the dtype of ``a``; scalars: α, β, θ, float32 tensors without axes.

    Equivalent to: ``pairwise.similarity(a.float(), b.float(), *scalars, *options).to(a.dtype)``.
    """
    return Pooled.apply(a, b, *scalars, *options)  # pyright: ignore


class Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, alpha: Tensor, beta: Tensor, theta: Tensor, *options: Any) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        (N, K), P = a.shape, b.shape[0]
        positive_a, has_a, positive_b, has_b = (torch.empty_like(t) for t in (a, a, b, b))
        sums = torch.empty(N + P, dtype=torch.float32, device=a.device)  # sal(A), then sal(B)
        args = (a, b, positive_a, has_a, positive_b, has_b, sums, N, K)
        launch(_sets, (N + P,), args, 4, BLOCK=block(K))
        ctx.kernel = _settings(*options)
        tables = _tables(positive_a, has_a, positive_b, has_b, ctx.kernel)
        out = _pooled(tables, sums, (alpha, beta, theta), ctx.kernel, a.dtype)
        ctx.save_for_backward(positive_a, has_a, positive_b, has_b, sums, *tables, alpha, beta, theta)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_second_derivatives()
        a, has_a, b, has_b, sums, *tables, alpha, beta, theta = ctx.saved_tensors
        (N, K), P = a.shape, b.shape[0]
        (by_u, by_v, by_w), rows, columns, to_scalars = _slopes(
            grad, tables, sums, (alpha, beta, theta), ctx.kernel, a.dtype
        )
        with without_autocast(a.device.type):
            to_a, to_b = by_u @ has_b, by_v.mT @ has_a
            if by_w is not None:
                to_a.addmm_(by_w, b)
                to_b.addmm_(by_w.mT, a)
        args = (to_a, to_b, a, b, rows, columns, N, P, K, len(rows), len(columns))
        launch(_present, (N + P,), args, 4, BLOCK=block(K))
        needed = ctx.needs_input_grad[2:5]
        return to_a, to_b, *(s if n else None for s, n in zip(to_scalars.float(), needed, strict=True)), *[None] * 4


class Chunks:
    """Logits of chunks of A against one B, and their gradients, in float32; what B alone makes is made once.

    Measures have no negative values here, and the gradient of one that is 0 is whatever it is.
    """

    b: Tensor
    kernel: dict[str, Any]
    to_b: Tensor | None
    to_sums: Tensor
    to_scalars: Tensor

    def __init__(self, b: Tensor, scalars: Sequence[Tensor], options: Sequence[str], wanted: Sequence[bool]):
        self.b, self.has, self.sums = b, b.sign(), b.sum(-1, dtype=torch.float32)
        self.scalars, self.kernel, self.wanted = scalars, _settings(*options), wanted
        self.to_b = torch.zeros_like(b, dtype=torch.float32) if wanted[1] else None
        self.to_sums, self.to_scalars = torch.zeros_like(self.sums), self.sums.new_zeros(3, dtype=torch.float64)

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        """Logits of a chunk; and a function from their gradient to that of ``a``, which adds to those of the others."""
        has, sums = a.sign(), torch.cat([a.sum(-1, dtype=torch.float32), self.sums])
        tables = _tables(a, has, self.b, self.has, self.kernel)

        def pull(slope: Tensor, _) -> Tensor | None:
            if not any(self.wanted[:5]):
                return None
            by, rows, columns, to_scalars = _slopes(slope, tables, sums, self.scalars, self.kernel, a.dtype)
            by_u, by_v, by_w = by
            self.to_scalars += to_scalars
            if self.to_b is not None:
                self.to_sums += columns.sum(0)
                add_product_(self.to_b, by_v.mT, has)
                if by_w is not None:
                    add_product_(self.to_b, by_w.mT, a)
            if not self.wanted[0]:
                return None
            to_a = rows.sum(0).unsqueeze(1).repeat(1, a.shape[1])
            add_product_(to_a, by_u, self.has)
            if by_w is not None:
                add_product_(to_a, by_w, self.b)
            return to_a.to(a.dtype)

        return _pooled(tables, sums, self.scalars, self.kernel, torch.float32), pull

    def finish(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients of b and of α, β, θ."""
        to_b = None if self.to_b is None else self.to_b.add_(self.to_sums.unsqueeze(1))
        return to_b, [s if w else None for s, w in zip(self.to_scalars.unbind(), self.wanted[2:5], strict=True)]


def _settings(intersection: str, difference: str, level: str, model: str) -> dict:
    """What the kernels are made for; ``level`` makes no difference to them."""
    kind = dict(PSI=INTERSECTIONS.index(intersection), SUBTRACT=difference == "subtractmatch", RATIO=model == "ratio")
    return dict(**kind, ROWS=ROWS, COLUMNS=COLUMNS)


def _tables(a: Tensor, has_a: Tensor, b: Tensor, has_b: Tensor, kernel: dict) -> tuple[Tensor, Tensor, Tensor | None]:
    """u, v and, for the product alone, w; each ``[N, P]`` in float32."""
    w = _product(a, b.mT, torch.float32) if kernel["PSI"] == 0 else None
    return _product(a, has_b.mT, torch.float32), _product(has_a, b.mT, torch.float32), w


def _pooled(tables, sums: Tensor, scalars: Sequence[Tensor], kernel: dict, dtype: torch.dtype) -> Tensor:
    """S of all pairs, ``[N, P]``; sums: sal(A), then sal(B)."""
    u, v, w = tables
    (N, P), out = u.shape, torch.empty_like(u, dtype=dtype)
    args = (u, v, u if w is None else w, sums, *scalars, out, N, P)
    launch(_pool, (ceil(N, ROWS), ceil(P, COLUMNS)), args, 8, **kernel)
    return out


def _slopes(grad: Tensor, tables, sums: Tensor, scalars: Sequence[Tensor], kernel: dict, dtype: torch.dtype):
    """Gradients of u, v, w in ``dtype``; parts of sal(A)'s, ``[·, N]``, and sal(B)'s, ``[·, P]``; of α, β, θ."""
    u, v, w = tables
    (N, P), grad, new = u.shape, grad.contiguous(), sums.new_empty
    down, across = ceil(N, ROWS), ceil(P, COLUMNS)
    by_u, by_v = torch.empty_like(grad, dtype=dtype), torch.empty_like(grad, dtype=dtype)
    by_w = None if w is None else torch.empty_like(grad, dtype=dtype)
    rows, columns, to_scalars = new(across, N), new(down, P), new(3, down * across)
    by = (by_u, by_v, by_u if by_w is None else by_w)
    args = (grad, u, v, u if w is None else w, sums, *scalars, *by, rows, columns, to_scalars, N, P, down * across)
    launch(_unpool, (down, across), args, 8, **kernel)
    return (by_u, by_v, by_w), rows, columns, to_scalars.sum(-1, dtype=torch.float64)


@triton.jit
def _set_row(x, positive, has, total, K, BLOCK: tl.constexpr):
    acc = tl.zeros([BLOCK], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        value = tl.maximum(tl.load(x + k, mask=k < K, other=0.0).to(tl.float32), 0.0)
        tl.store(positive + k, value.to(positive.dtype.element_ty), mask=k < K)
        tl.store(has + k, tl.where(value > 0, 1.0, 0.0).to(has.dtype.element_ty), mask=k < K)
        acc += value
    tl.store(total, tl.sum(acc))


@triton.jit
def _sets(a, b, positive_a, has_a, positive_b, has_b, sums, N, K, BLOCK: tl.constexpr):
    """x⁺, 1[x>0] and sal(x) of a row of A or of B."""
    row = tl.program_id(0)
    if row < N:
        at = row.to(tl.int64) * K
        _set_row(a + at, positive_a + at, has_a + at, sums + row, K, BLOCK)
    else:
        at = (row - N).to(tl.int64) * K
        _set_row(b + at, positive_b + at, has_b + at, sums + row, K, BLOCK)


@triton.jit
def _tile(u, v, w, sums, N, P, PSI: tl.constexpr, SUBTRACT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """f(A∩B), f(A−B), f(B−A) of a tile of pairs, with u, v and min(u, v)'s share of u; and where the tile is."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    p = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < N)[:, None] & (p < P)[None, :]
    at = n.to(tl.int64)[:, None] * P + p[None, :]
    all_a = tl.load(sums + n, mask=n < N, other=0.0)[:, None]
    all_b = tl.load(sums + N + p, mask=p < P, other=0.0)[None, :]
    x = tl.load(u + at, mask=inside, other=0.0)
    y = tl.load(v + at, mask=inside, other=0.0)
    least = tl.minimum(x, y)
    # The tie of min goes half and half.
    share = tl.where(x < y, 1.0, tl.where(x > y, 0.0, 0.5))
    if PSI == 0:
        common = tl.load(w + at, mask=inside, other=0.0)
    elif PSI == 1:
        common = 0.5 * (x + y)
    elif PSI == 2:
        common = least
    elif PSI == 3:
        common = tl.maximum(x, y)
    elif PSI == 4:
        common = tl.sqrt(x) * tl.sqrt(y)
    else:
        common = least - tl.log(1.0 + tl.exp(-tl.abs(x - y)))
    a_only = all_a - (least if SUBTRACT else x)
    b_only = all_b - (least if SUBTRACT else y)
    return n, p, at, inside, x, y, share, common, a_only, b_only


@triton.jit
def _pool(
    u, v, w, sums, alpha, beta, theta, out, N, P,
    PSI: tl.constexpr, SUBTRACT: tl.constexpr, RATIO: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    _, _, at, inside, _, _, _, common, a_only, b_only = _tile(u, v, w, sums, N, P, PSI, SUBTRACT, ROWS, COLUMNS)
    A, B = tl.load(alpha), tl.load(beta)
    if RATIO:
        whole = common + A * a_only + B * b_only
        value = tl.where(whole != 0, common / tl.where(whole != 0, whole, 1.0), 0.0)
    else:
        value = tl.load(theta) * common - A * a_only - B * b_only
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _unpool(
    grad, u, v, w, sums, alpha, beta, theta, by_u, by_v, by_w, rows, columns, scalars, N, P, tiles,
    PSI: tl.constexpr, SUBTRACT: tl.constexpr, RATIO: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of u, v, w of a tile; and its sums towards those of the saliences and of α, β, θ."""
    n, p, at, inside, x, y, share, common, a_only, b_only = _tile(u, v, w, sums, N, P, PSI, SUBTRACT, ROWS, COLUMNS)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    A, B = tl.load(alpha), tl.load(beta)
    if RATIO:
        whole = common + A * a_only + B * b_only
        g = tl.where(whole != 0, g / tl.where(whole != 0, whole, 1.0), 0.0)
        ratio = tl.where(whole != 0, common / tl.where(whole != 0, whole, 1.0), 0.0)
        by_common, slope = g * (1 - ratio), -g * ratio
        to_theta = tl.zeros_like(g)
    else:
        by_common, slope = g * tl.load(theta), -g
        to_theta = g * common
    by_a, by_b = A * slope, B * slope
    if PSI == 0:
        tl.store(by_w + at, by_common.to(by_w.dtype.element_ty), mask=inside)
        to_x, to_y = tl.zeros_like(g), tl.zeros_like(g)
    elif PSI == 1:
        to_x, to_y = 0.5 * by_common, 0.5 * by_common
    elif PSI == 2:
        to_x, to_y = by_common * share, by_common * (1 - share)
    elif PSI == 3:
        to_x, to_y = by_common * (1 - share), by_common * share
    elif PSI == 4:
        some = (x > 0) & (y > 0)
        slant = tl.sqrt(tl.where(some, y, 1.0) / tl.where(some, x, 1.0))
        to_x, to_y = tl.where(some, 0.5 * by_common * slant, 0.0), tl.where(some, 0.5 * by_common / slant, 0.0)
    else:
        soft = 1 / (1 + tl.exp(x - y))
        to_x, to_y = by_common * soft, by_common * (1 - soft)
    if SUBTRACT:
        to_x -= (by_a + by_b) * share
        to_y -= (by_a + by_b) * (1 - share)
    else:
        to_x -= by_a
        to_y -= by_b
    tl.store(by_u + at, to_x.to(by_u.dtype.element_ty), mask=inside)
    tl.store(by_v + at, to_y.to(by_v.dtype.element_ty), mask=inside)
    tl.store(rows + tl.program_id(1).to(tl.int64) * N + n, tl.sum(by_a, 1), mask=n < N)
    tl.store(columns + tl.program_id(0).to(tl.int64) * P + p, tl.sum(by_b, 0), mask=p < P)
    tile = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    a_only, b_only = tl.where(inside, a_only, 0.0), tl.where(inside, b_only, 0.0)
    tl.store(scalars + tile, tl.sum(tl.sum(slope * a_only, 1), 0))
    tl.store(scalars + tiles + tile, tl.sum(tl.sum(slope * b_only, 1), 0))
    tl.store(scalars + 2 * tiles + tile, tl.sum(tl.sum(to_theta, 1), 0))


@triton.jit
def _present_row(gradient, positive, parts, stride, count, K, BLOCK: tl.constexpr):
    acc = tl.zeros([128], tl.float32)
    for start in range(0, count, 128):
        i = start + tl.arange(0, 128)
        acc += tl.load(parts + i.to(tl.int64) * stride, mask=i < count, other=0.0)
    more = tl.sum(acc)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        g = tl.load(gradient + k, mask=k < K, other=0.0).to(tl.float32)
        x = tl.load(positive + k, mask=k < K, other=0.0)
        tl.store(gradient + k, tl.where(x > 0, g + more, 0.0).to(gradient.dtype.element_ty), mask=k < K)


@triton.jit
def _present(to_a, to_b, a, b, rows, columns, N, P, K, across, down, BLOCK: tl.constexpr):
    """1[x > 0]·(gradient + gradient of its salience) of a row of A or of B, in place."""
    row = tl.program_id(0)
    if row < N:
        at = row.to(tl.int64) * K
        _present_row(to_a + at, a + at, rows + row, N, across, K, BLOCK)
    else:
        p = row - N
        at = p.to(tl.int64) * K
        _present_row(to_b + at, b + at, columns + p, P, down, K, BLOCK)
