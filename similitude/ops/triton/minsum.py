"""All pairs of Σ_k min(a⁺, b⁺) and of the feature-level softmin, in Triton: the kernels behind ``minsum`` on a GPU.

Measures are ``a [N, K]`` and ``b [P, K]``, or both with one batch axis in front. ``_lay_out`` copies them without their
negative values, padded to whole tiles and in reading order, so that no inner loop has a mask; then

- ``_add_columns`` adds min, or softmin, one feature at a time: two instructions an element for min, in float32.
- ``_add_by_matrix`` is for 16-bit measures: their min is exact and comes in pairs, and tensor cores add it up, as a
  product with one-hot columns.
- ``_weigh_by_matrix`` is the gradient of min. Measures are compared as the integers that their bits are, which gives
  the share of each pair (0, ½, 1) exactly, and tensor cores multiply it by the incoming gradient, whose two float16
  pieces lie side by side in columns that would be idle.
- ``_weigh_columns`` is the gradient of softmin, two pairs to a division.

Sums are float32, the order of addition is fixed, and nothing is larger than O(NP + NK + PK).
"""
# Kernels are a language of their own, which pyright does not read.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# The interpreter takes no inline assembly and no bfloat16 matrices: there the same values are plain float32.
ASSEMBLY = not triton.knobs.runtime.interpret
LOG2E = 1.4426950408889634
# Programs that fill a large GPU; with fewer, the axis that is summed over is split between several.
ENOUGH = 264


def pair_sum(a: Tensor, b: Tensor, kind: str) -> Tensor:
    """Σ_k of ``min(a⁺, b⁺)`` (``kind="min"``) or of the softmin over shared features, float32 ``[..., N, P]``.

    Equivalent to: ``common_terms(a[..., :, None, :], b[..., None, :, :], kind).sum(-1)``.
    """
    a, b, shape = *_batched(a, b), (*a.shape[:-1], b.shape[-2])
    if 0 in shape or a.shape[-1] == 0:
        return torch.zeros(shape, device=a.device)
    by_matrix = kind == "min" and a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16)
    out = _pair_sum_by_matrix(a, b) if by_matrix else _pair_sum_by_columns(a, b, kind)
    return out.reshape(shape)


def pair_sum_gradients(grad: Tensor, a: Tensor, b: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Gradients of ``pair_sum`` by ``a`` and by ``b``, float32, for the gradient ``[..., N, P]`` of its result.

    At a tie of ``min`` each side has half. An incoming gradient counts to 2^-22 of itself, or 2^-38 of the largest of
    its row and of its column. Tensor cores add shares of 16-bit measures to about 2e-6 of the result, others to 1e-7.
    """
    shapes = a.shape, b.shape
    a, b = _batched(a, b)
    grad = grad.reshape(a.shape[0], a.shape[1], b.shape[1])
    if 0 in grad.shape or a.shape[-1] == 0:
        return torch.zeros(shapes[0], device=a.device), torch.zeros(shapes[1], device=a.device)
    gradient = _min_gradient if kind == "min" else _softmin_gradient
    to_a, to_b = gradient(grad, a, b), gradient(grad.mT, b, a)
    return to_a.reshape(shapes[0]), to_b.reshape(shapes[1])


def _pair_sum_by_columns(a: Tensor, b: Tensor, kind: str) -> Tensor:
    (B, N, K), P = a.shape, b.shape[1]
    soft = kind == "softmin"
    rows, columns = min(4 if soft else 8, _power(N, 16)), min(2, _power(P, 64))
    n, p, unroll = 16 * rows, 64 * columns, 8
    tiles = _blocks(N, n), _blocks(P, p)
    programs = B * math.prod(tiles)
    splits, k = _split(programs, K, unroll)
    # Absent features stand so far from everything, and from each other, that e^-|a-b| counts for nothing.
    scale, absent = (LOG2E, (-200.0, -400.0)) if soft else (1.0, (0.0, 0.0))
    x = _lay(a, n, k, torch.float32, tile=n, scale=scale, absent=absent[0])  # [B, N/n, K, n]
    y = _lay(b, p, k, torch.float32, tile=p, scale=scale, absent=absent[1])  # [B, P/p, K, p]
    out = x.new_empty(B, splits, tiles[0] * n, tiles[1] * p)
    sizes = k // splits, splits, *tiles, rows, columns, unroll
    _launch(_add_columns, programs * splits, x, y, out, *sizes, soft, ASSEMBLY, num_warps=8, maxnreg=128)
    return _gather(out, N, P)


def _pair_sum_by_matrix(a: Tensor, b: Tensor) -> Tensor:
    (B, N, K), P = a.shape, b.shape[1]
    n, p, step = min(256, max(32, _power(N))), min(16, max(8, _power(P))), 32
    tiles = _blocks(N, n), _blocks(P, p)
    programs = B * math.prod(tiles)
    splits, k = _split(programs, K, step)
    x = _lay(a, n, k, a.dtype)  # [B, N, K]
    y = _lay(b, p, k, b.dtype)  # [B, P, K]
    out = x.new_empty(B, splits, tiles[0] * n, tiles[1] * p, dtype=torch.float32)
    sizes = k // splits, splits, *tiles, n, p, step
    _launch(_add_by_matrix, programs * splits, x, y, out, *sizes, _assembly(a, 8), num_warps=2, num_stages=3)
    return _gather(out, N, P)


def _min_gradient(grad: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Σ_z g·w of ``own [B, X, K]`` against ``other [B, Z, K]``, with w = 1 where own < other, ½ at a tie."""
    (B, X, K), Z = own.shape, other.shape[1]
    wide = own.dtype != other.dtype or own.dtype not in (torch.bfloat16, torch.float16)
    if wide:
        own, other = own.float(), other.float()
    x, f, step = min(16 if wide else 8, max(4, _power(X))), 64 if wide else 128, 32
    tiles = _blocks(X, x), _blocks(K, f)
    programs = B * math.prod(tiles)
    splits, z = _split(programs, Z, step)
    unit = _unit(grad, tiles[0] * x)  # [B, X]
    tile = _lay(other.mT, f, z, own.dtype).view(torch.int32 if wide else torch.int16)  # [B, K, Z]
    line = _lay(own, x, tiles[1] * f, torch.int32)  # [B, X, K]
    weight = _lay(grad, x, z, torch.float16, scale=unit.reciprocal(), pieces=2)  # [B, X, 2, Z]
    out = unit.new_empty(B, splits, *line.shape[1:])
    tensors, sizes = (tile, line, weight, unit, out), (z // splits, splits, *tiles, x, f, step)
    _launch(_weigh_by_matrix, programs * splits, *tensors, *sizes, wide, _assembly(own, 9), num_warps=2, num_stages=3)
    return _gather(out, X, K)


def _softmin_gradient(grad: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Σ_z g·σ(other − own) over shared features, of ``own [B, X, K]`` against ``other [B, Z, K]``."""
    (B, X, K), Z = own.shape, other.shape[1]
    rows, columns = min(4, _power(X, 16)), min(2, _power(K, 64))
    x, f, unroll = 16 * rows, 64 * columns, 4
    tiles = _blocks(X, x), _blocks(K, f)
    programs = B * math.prod(tiles)
    splits, z = _split(programs, Z, unroll)
    unit = _unit(grad, tiles[0] * x)  # [B, X]
    near = _lay(own, x, tiles[1] * f, torch.float32, scale=LOG2E)  # [B, X, K]
    far = _lay(other.mT, f, z, torch.float32, tile=f, scale=LOG2E, absent=-200.0)  # [B, K/f, Z, f]
    weight = _lay(grad, x, z, torch.float32, tile=x, scale=unit.reciprocal(), pieces=1)  # [B, X/x, Z, x]
    out = near.new_empty(B, splits, *near.shape[1:])
    sizes = z // splits, splits, *tiles, rows, columns, unroll
    _launch(_weigh_columns, programs * splits, near, far, weight, out, *sizes, ASSEMBLY, num_warps=8)
    # The kernel counts what is absent as 2^-60, which must not be the gradient of a feature that no other object has.
    shared = (own > 0) & (other.amax(1, keepdim=True) > 0)
    return torch.where(shared, _gather(out, X, K) * unit[:, :X, None], 0.0)


def _unit(grad: Tensor, rows: int) -> Tensor:
    """Powers of two, ``[B, rows]``, in which the largest gradient of a row is 2^14 or more and under 2^15.

    So the pieces of a gradient are neither too large for float16 nor so small that they lose bits.
    """
    most = torch.linalg.vector_norm(grad, math.inf, -1, dtype=torch.float32)
    # The bits of a float32 from the 23rd on are its exponent.
    exponent = (most.view(torch.int32) >> 23).clamp(15, 254) - 14
    return torch.nn.functional.pad((exponent << 23).view(torch.float32), (0, rows - grad.shape[1]), value=1.0)


def _lay(
    x: Tensor, rows: int, columns: int, dtype, tile=1, scale: float | Tensor = 1.0, absent=0.0, pieces=0
) -> Tensor:
    """``x [B, I, J]`` padded to a multiple of ``rows`` and to ``columns``, in the order that a kernel reads.

    With a tile, ``[B, I/tile, J, tile]``. With pieces ``x`` is a gradient, its rows times ``scale [B, I]``, in as many
    terms of ``dtype``. Without, it is measures: positive ones are scaled and others become ``absent``. As int32 they
    are 1 less their bits, and 16 bits are there twice.
    """
    B, I, J = x.shape
    height = _blocks(I, rows) * rows
    out = torch.empty(B, height * max(1, pieces), columns, dtype=dtype, device=x.device)
    sizes = I, J, height, columns, *x.stride()
    _launch(_lay_out, B * _blocks(height, 64) * _blocks(columns, 64), x, out, *sizes, scale, absent, tile, pieces)
    return out


def _gather(out: Tensor, rows: int, columns: int) -> Tensor:
    """``[B, rows, columns]`` of the padded partial sums ``[B, splits, ...]``."""
    out = out.squeeze(1) if out.shape[1] == 1 else out.sum(1)
    return out[:, :rows, :columns]


def _launch(kernel, programs: int, x: Tensor, *arguments, **options) -> None:
    """Run a kernel, with programs along one axis, for the others of a GPU's grid end at 65,535."""
    with torch.cuda.device_of(x):
        kernel[(programs,)](x, *arguments, **options)


def _batched(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x if x.dim() == 3 else x.unsqueeze(0) for x in tensors)


def _blocks(length: int, size: int) -> int:
    return -(-length // size)


def _power(length: int, size: int = 1) -> int:
    """The least power of two of blocks of ``size`` that hold ``length``."""
    return triton.next_power_of_2(_blocks(length, size))


def _split(programs: int, length: int, step: int) -> tuple[int, int]:
    """How many programs share one sum over ``length``, and the length padded to whole, aligned steps of each."""
    splits, step = 1, max(16, step)
    while programs * splits < ENOUGH and length >= splits * 512:
        splits *= 2
    return splits, _blocks(length, splits * step) * splits * step


def _assembly(x: Tensor, generation: int) -> bool:
    """Whether instructions of a generation of GPUs can be had; plain Triton says the same, but slowly."""
    return ASSEMBLY and torch.cuda.get_device_capability(x.device)[0] >= generation


@triton.jit
def _place(fast, slow):
    """Which block along the fast and the slow axis this program has, and of which batch and split."""
    i = tl.program_id(0)
    return i % fast, i // fast % slow, (i // fast // slow).to(tl.int64)


@triton.jit(do_not_specialize=["I", "J"])
def _lay_out(x, out, I, J, height, columns, xb, xi, xj, scale, absent, TILE: tl.constexpr, PIECES: tl.constexpr):
    p, n, b = _place(tl.cdiv(columns, 64), tl.cdiv(height, 64))
    i = n.to(tl.int64) * 64 + tl.arange(0, 64)[:, None]
    j = p.to(tl.int64) * 64 + tl.arange(0, 64)[None, :]
    v = tl.load(x + b * xb + i * xi + j * xj, (i < I) & (j < J), 0.0).to(tl.float32)  # [64, 64]
    inside = (i < height) & (j < columns)
    if PIECES > 0:
        v *= tl.load(scale + b * height + i, i < height, 0.0)
    else:
        v = tl.where(v <= 0, absent, v * scale)
    rows: tl.constexpr = PIECES if PIECES > 0 else 1
    for piece in tl.static_range(rows):
        if out.dtype.element_ty != tl.int32:
            part = v.to(out.dtype.element_ty)
        elif x.dtype.element_ty == tl.float32:
            part = 1 - v.to(tl.int32, bitcast=True)
        else:
            part = 1 - v.to(x.dtype.element_ty).to(tl.int16, bitcast=True).to(tl.int32)
            part = (part << 16) | (part & 0xFFFF)
        row = (b * height + i) * rows + piece
        tl.store(out + row // TILE * TILE * columns + j * TILE + row % TILE, part, inside)
        v -= part.to(tl.float32)


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _add_columns(
    x, y, out, length, splits, rows, columns,
    R: tl.constexpr, C: tl.constexpr, U: tl.constexpr, SOFT: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """One tile ``[16R, 64C]``; R and C lie within a thread, so that each loaded value serves 8 or 16 pairs."""
    N: tl.constexpr = R * 16
    P: tl.constexpr = C * 64
    p, n, z = _place(columns, rows)
    batch, first, K = z // splits, z % splits * length, splits * length
    i = tl.arange(0, R)[:, None] * 16 + tl.arange(0, 16)[None, :]  # [R, 16]
    j = tl.arange(0, C)[:, None] * 64 + tl.arange(0, 64)[None, :]  # [C, 64]
    x += ((batch * rows + n) * K + first) * N
    y += ((batch * columns + p) * K + first) * P
    to = out + ((z * rows + n) * N + i[None, :, :, None]) * columns * P + p * P + j[:, None, None, :]
    # A load that never happens: the accumulator takes its layout from it, four columns a thread.
    sums = tl.load(to, tl.full((C, R, 16, 64), 0, tl.int32) > length, 0.0)
    xs, ys = x + i, y + j
    # A value of each 32 bytes of the next features, loaded early, brings them all near. To the compiler it is in use.
    ax, ay = x + tl.arange(0, U * N // 8) * 8, y + tl.arange(0, U * P // 8) * 8
    early_x, early_y = tl.full((U * N // 8,), 0.0, tl.float32), tl.full((U * P // 8,), 0.0, tl.float32)
    most_x, most_y = early_x, early_y
    for k in range(0, length, U):
        if SOFT:
            product = tl.full((C, R, 16, 64), 1.0, tl.float32)
        else:
            most_x, most_y = tl.maximum(most_x, early_x), tl.maximum(most_y, early_y)
            ax += U * N
            ay += U * P
            early_x = tl.load(ax, tl.full((U * N // 8,), k + U, tl.int32) < length, 0.0)
            early_y = tl.load(ay, tl.full((U * P // 8,), k + U, tl.int32) < length, 0.0)
        for u in tl.static_range(U):
            s = tl.load(xs + u * N)[None, :, :, None]
            t = tl.load(ys + u * P)[:, None, None, :]
            if SOFT:
                # Σ log2(1 + e) = log2 Π (1 + e), and e ≤ 1: one logarithm for U features.
                sums += tl.maximum(tl.minimum(s, t), 0.0)
                product += product * _approximate("ex2", -tl.abs(s - t), ASSEMBLY)
            else:
                sums += tl.minimum(s, t, propagate_nan=tl.PropagateNan.ALL)
        if SOFT:
            sums -= _approximate("lg2", product, ASSEMBLY)
        xs += U * N
        ys += U * P
    tl.store(to, sums * 0.6931471805599453 if SOFT else sums)
    if not SOFT:
        # Measures are not negative: nothing is stored.
        tl.store(ax, most_x, most_x < 0)
        tl.store(ay, most_y, most_y < 0)


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _weigh_columns(
    near, far, weight, out, length, splits, rows, columns,
    R: tl.constexpr, C: tl.constexpr, U: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """One tile ``[16R, 64C]`` of Σ_z g·σ(far − near), laid out as in ``_add_columns``."""
    X: tl.constexpr = R * 16
    F: tl.constexpr = C * 64
    f, n, z = _place(columns, rows)
    batch, first, Z = z // splits, z % splits * length, splits * length
    i = tl.arange(0, R)[:, None] * 16 + tl.arange(0, 16)[None, :]  # [R, 16]
    j = tl.arange(0, C)[:, None] * 64 + tl.arange(0, 64)[None, :]  # [C, 64]
    at = i[None, :, :, None] * columns * F + f * F + j[:, None, None, :]
    own = tl.load(near + (batch * rows + n) * X * columns * F + at)  # [C, R, 16, 64]
    gs = weight + ((batch * rows + n) * Z + first) * X + i
    fs = far + ((batch * columns + f) * Z + first) * F + j
    sums = own * 0.0
    for _ in range(0, length, U):
        for u in tl.static_range(0, U, 2):
            # g/s + h/t with one reciprocal, and s·t kept finite.
            g, h = tl.load(gs + u * X)[None, :, :, None], tl.load(gs + u * X + X)[None, :, :, None]
            s, t = tl.load(fs + u * F)[:, None, None, :], tl.load(fs + u * F + F)[:, None, None, :]
            s = 1.0 + _approximate("ex2", tl.minimum(own - s, 60.0), ASSEMBLY)
            t = 1.0 + _approximate("ex2", tl.minimum(own - t, 60.0), ASSEMBLY)
            sums += (g * t + h * s) * _approximate("rcp", s * t, ASSEMBLY)
        gs += U * X
        fs += U * F
    tl.store(out + (z * rows + n) * X * columns * F + at, sums)


@triton.jit
def _approximate(NAME: tl.constexpr, x, ASSEMBLY: tl.constexpr):
    """2^x, log2(x) or 1/x by the one instruction, without the care that Triton takes of subnormal numbers."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(NAME + ".approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, True, 1)
    return tl.exp2(x) if NAME == "ex2" else tl.log2(x) if NAME == "lg2" else 1.0 / x


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _add_by_matrix(
    x, y, out, length, splits, rows, columns,
    N: tl.constexpr, P: tl.constexpr, STEP: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """One tile ``[N, P]``, eight columns to an accumulator; N rows of ``x`` stay in registers for P rows of ``y``."""
    n, p, z = _place(rows, columns)
    batch, first, K = z // splits, z % splits * length, splits * length
    i, k, c = tl.arange(0, N), tl.arange(0, STEP), tl.arange(0, 8)
    xs = x + ((batch * rows + n) * N + i[:, None]) * K + first + k[None, :]  # [N, STEP]
    ys = y + (batch * columns + p) * P * K + first + k  # [STEP]
    column = tl.broadcast_to(c[None, :], (STEP, 8))
    sums = ()
    for _ in tl.static_range(P // 8):
        sums = sums + (tl.full((N, 8), 0.0, tl.float32),)  # noqa: RUF005
    for _ in range(0, length, STEP):
        s = tl.load(xs)
        added = ()
        for group in tl.static_range(P // 8):
            total = sums[group]
            for h in tl.static_range(8):
                t = tl.broadcast_to(tl.load(ys + (group * 8 + h) * K)[None, :], (N, STEP))
                least = _least(s, t, ASSEMBLY)
                total = tl.dot(least, tl.where(column == h, 1.0, 0.0).to(least.dtype), total)
            added = added + (total,)  # noqa: RUF005
        sums = added
        xs += STEP
        ys += STEP
    to = out + ((z * rows + n) * N + i[:, None]) * columns * P + p * P + c[None, :]
    for group in tl.static_range(P // 8):
        tl.store(to + group * 8, sums[group])


@triton.jit
def _least(s, t, ASSEMBLY: tl.constexpr):
    """The lesser of two 16-bit numbers, two at a time; NaN wins."""
    if not ASSEMBLY:
        return tl.minimum(s.to(tl.float32), t.to(tl.float32), propagate_nan=tl.PropagateNan.ALL)
    if s.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise("min.NaN.bf16x2 $0, $1, $2;", "=r,r,r", [s, t], s.dtype, True, 2)
    return tl.inline_asm_elementwise("min.NaN.f16x2 $0, $1, $2;", "=r,r,r", [s, t], s.dtype, True, 2)


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _weigh_by_matrix(
    tile, line, weight, unit, out, length, splits, rows, columns,
    X: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr, WIDE: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Σ_z g·w of ``X`` own rows and ``F`` features: shares ``[F, STEP]`` by the pieces of four rows ``[STEP, 8]``."""
    n, f, z = _place(rows, columns)
    batch, first, Z, K = z // splits, z % splits * length, splits * length, columns * F
    k, e, c = f * F + tl.arange(0, F), tl.arange(0, STEP), tl.arange(0, 8)
    row = (batch * rows + n) * X
    tiles = tile + (batch * K + k[:, None]) * Z + first + e[None, :]  # [F, STEP]
    lines = line + row * K + k  # [F]
    weights = weight + (row * 2 + c)[None, :] * Z + first + e[:, None]  # [STEP, 8]
    sums = ()
    for _ in tl.static_range(X // 4):
        sums = sums + (tl.full((F, 8), 0.0, tl.float32),)  # noqa: RUF005
    for _ in range(0, length, STEP):
        t = tl.load(tiles)
        added = ()
        for g in tl.static_range(X // 4):
            total = sums[g]
            for h in tl.static_range(4):
                own = tl.broadcast_to(tl.load(lines + (g * 4 + h) * K)[:, None], (F, STEP))
                v = tl.load(weights + g * 8 * Z, (c // 2 == h)[None, :], 0.0)
                total = tl.dot(_share(t, own, WIDE, ASSEMBLY), v, total)
            added = added + (total,)  # noqa: RUF005
        sums = added
        tiles += STEP
        weights += STEP
    for g in tl.static_range(X // 4):
        high, low = tl.split(tl.reshape(sums[g], (F, 4, 2)))
        member = g * 4 + tl.arange(0, 4)
        at = member[None, :] * K + k[:, None]
        # The share 1 is 2^-15 or 2^-23, see _share. Times the unit at once, that could be more than a float32 holds.
        total = (high + low) * (32768.0 if WIDE else 8388608.0) * tl.load(unit + row + member)[None, :]
        own = tl.load(line + row * K + at)
        own = own if WIDE else (own << 16) >> 16
        tl.store(out + (z * rows + n) * X * K + at, tl.where(own < 1, total, 0.0))


@triton.jit
def _share(t, own, WIDE: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Twice the share, from the bits of others' measures and 1 less our bits, as float16 numbers.

    Measures are not negative, so their bits are in their order, and the sum kept within 0 and 2 is twice the share.
    These are the bits of 0, 2^-24 and 2^-23; of wide ones, 8 places up for tensor cores to keep more of the sum, of 0,
    2^-16 and 2^-15.
    """
    if not ASSEMBLY:
        own = own if WIDE else (own << 16) >> 16
        twice = tl.minimum(tl.maximum(t.to(tl.int32) + own, 0), 2)
        return (twice << 8 if WIDE else twice).to(tl.int16).to(tl.float16, bitcast=True)
    if WIDE:
        return tl.inline_asm_elementwise(
            """{ .reg .b32 x, y; add.s32 x, $1, $3; min.s32.relu x, x, 2; add.s32 y, $2, $4; min.s32.relu y, y, 2;
            prmt.b32 $0, x, y, 0x4101; }""", "=r,r,r,r,r", [t, own], tl.float16, True, 2
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{ .reg .b32 d, two; mov.b32 two, 0x00020002; add.s16x2 d, $1, $2; min.s16x2.relu $0, d, two; }""",
        "=r,r,r,r", [t, own], tl.float16, True, 2
    )  # fmt: skip
