"""All pairs of Σ_k min(a⁺, b⁺) and of the feature-level softmin, in Triton: the kernels behind ``minsum`` on a GPU.

Measures are ``a [N, K]`` and ``b [P, K]``, or both with one batch axis in front. ``_lay_out`` copies them without their
negative values, padded to whole tiles and in reading order, so that no inner loop has a mask; then

- ``_add_columns`` adds min, or softmin, one feature at a time: two instructions an element for min, in float32.
- ``_add_by_matrix`` is for 16-bit measures: their min is exact and comes in pairs, and tensor cores add it up, as a
  product with one-hot columns.
- ``_weigh_by_matrix`` is the gradient of min. The share of each pair (0, ½, 1) is exact and comes in pairs, and tensor
  cores multiply it by the incoming gradient, whose bfloat16 pieces lie side by side in columns that would be idle.
- ``_weigh_columns`` is the gradient of softmin, one pair at a time.

Sums are float32, the order of addition is fixed, and nothing is larger than O(NP + NK + PK).
"""
# Kernels are a language of their own, which pyright does not read.
# pyright: reportAssignmentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# The interpreter takes no inline assembly and no bfloat16 matrices: there the same values are plain float32.
ASSEMBLY = not triton.knobs.runtime.interpret
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
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

    At a tie of ``min`` each side has half. Differences of measures under 2^-123 count as ties, and measures are taken
    to be under 2^121.
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
    splits, k = _split(B * math.prod(tiles), K, unroll)
    # Absent features stand so far from everything, and from each other, that e^-|a-b| counts for nothing.
    scale, absent = (LOG2E, (-200.0, -400.0)) if soft else (1.0, (0.0, 0.0))
    x = _lay(a, n, k, torch.float32, tile=n, scale=scale, absent=absent[0])  # [B, N/n, K, n]
    y = _lay(b, p, k, torch.float32, tile=p, scale=scale, absent=absent[1])  # [B, P/p, K, p]
    out = x.new_empty(B, splits, tiles[0] * n, tiles[1] * p)
    with _device(a):
        _add_columns[_grid(out, n, p)](
            x, y, out, k // splits, splits, *tiles, rows, columns, 16, 64, unroll, soft, num_warps=8
        )
    return _gather(out, N, P)


def _pair_sum_by_matrix(a: Tensor, b: Tensor) -> Tensor:
    (B, N, K), P = a.shape, b.shape[1]
    n, p, step = min(256, max(32, _power(N))), min(16, max(8, _power(P))), 32
    tiles = _blocks(N, n), _blocks(P, p)
    splits, k = _split(B * math.prod(tiles), K, step)
    x = _lay(a, n, k, a.dtype)  # [B, N, K]
    y = _lay(b, p, k, b.dtype)  # [B, P, K]
    out = x.new_empty(B, splits, tiles[0] * n, tiles[1] * p, dtype=torch.float32)
    with _device(a):
        _add_by_matrix[_grid(out, n, p)](
            x, y, out, k // splits, splits, *tiles, n, p, step, ASSEMBLY, num_warps=2, num_stages=3
        )
    return _gather(out, N, P)


def _min_gradient(grad: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Σ_z g·w of ``own [B, X, K]`` against ``other [B, Z, K]``, with w = 1 where own < other, ½ at a tie."""
    (B, X, K), Z = own.shape, other.shape[1]
    packed = own.dtype == other.dtype == torch.bfloat16
    dtype = torch.bfloat16 if packed else torch.float32
    # Three pieces carry all 24 bits of a float32; two are plenty beside measures of 8 bits, and one is a bfloat16.
    pieces = 1 if grad.dtype == torch.bfloat16 else 2 if packed else 3
    lanes = 4 if pieces == 3 else pieces
    x, f, step = min(16, max(8 // lanes, _power(X))), 128 if packed else 64, 64
    tiles = _blocks(X, x), _blocks(K, f)
    splits, z = _split(B * math.prod(tiles), Z, step)
    tile = _lay(other.mT, f, z, dtype)  # [B, K, Z]
    line = _lay(own, x, tiles[1] * f, dtype, scale=-1.0)  # [B, X, K]
    weight = _lay(grad, x, z, torch.bfloat16, pieces=pieces)  # [B, X, pieces, Z]
    out = line.new_empty(B, splits, *line.shape[1:], dtype=torch.float32)
    with _device(own):
        _weigh_by_matrix[_grid(out, x, f)](
            tile, line, weight, out, z // splits, splits, *tiles, 0, x, f, step, pieces, lanes, packed, ASSEMBLY,
            num_warps=2, num_stages=3 if packed else 2,
        )  # fmt: skip
    return _gather(out, X, K)


def _softmin_gradient(grad: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Σ_z g·σ(other − own) over shared features, of ``own [B, X, K]`` against ``other [B, Z, K]``."""
    (B, X, K), Z = own.shape, other.shape[1]
    rows, columns = min(4, _power(X, 16)), min(2, _power(K, 64))
    x, f, unroll = 16 * rows, 64 * columns, 4
    tiles = _blocks(X, x), _blocks(K, f)
    splits, z = _split(B * math.prod(tiles), Z, unroll)
    near = _lay(own, x, tiles[1] * f, torch.float32, scale=LOG2E)  # [B, X, K]
    far = _lay(other.mT, f, z, torch.float32, tile=f, scale=LOG2E, absent=-200.0)  # [B, K/f, Z, f]
    weight = _lay(grad, x, z, torch.float32, tile=x, pieces=1)  # [B, X/x, Z, x]
    out = near.new_empty(B, splits, *near.shape[1:])
    with _device(own):
        _weigh_columns[_grid(out, x, f)](
            near, far, weight, out, z // splits, splits, *tiles, rows, columns, 16, 64, unroll, num_warps=8
        )
    return torch.where(own > 0, _gather(out, X, K), 0.0)


def _lay(x: Tensor, rows: int, columns: int, dtype, tile=1, scale=1.0, absent=0.0, pieces=0) -> Tensor:
    """``x [B, I, J]`` padded to a multiple of ``rows`` and to ``columns``, in the order that a kernel reads.

    With a tile, ``[B, I/tile, J, tile]``. With pieces ``x`` is a gradient, kept as it is in as many terms of ``dtype``;
    without, it is measures: positive ones are scaled and others become ``absent``.
    """
    B, I, J = x.shape
    height = _blocks(I, rows) * rows
    out = torch.empty(B, height * max(1, pieces), columns, dtype=dtype, device=x.device)
    with _device(x):
        _lay_out[(_blocks(height, 64) * _blocks(columns, 64) * B,)](
            x, out, I, J, height, columns, *x.stride(), scale, absent, tile, pieces, num_warps=4
        )
    return out


def _gather(out: Tensor, rows: int, columns: int) -> Tensor:
    """``[B, rows, columns]`` of the padded partial sums ``[B, splits, ...]``."""
    out = out.squeeze(1) if out.shape[1] == 1 else out.sum(1)
    return out[:, :rows, :columns]


def _grid(out: Tensor, rows: int, columns: int) -> tuple[int]:
    """Programs for padded partial sums: one axis, for the others of a GPU's grid end at 65,535."""
    return (out.numel() // (rows * columns),)


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


def _device(x: Tensor):
    return torch.cuda.device_of(x)


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
    if PIECES == 0:
        v = tl.where(v <= 0, absent, v * scale)
    rows: tl.constexpr = PIECES if PIECES > 0 else 1
    for piece in tl.static_range(rows):
        part = v.to(out.dtype.element_ty)
        row = (b * height + i) * rows + piece
        tl.store(out + row // TILE * TILE * columns + j * TILE + row % TILE, part, inside)
        v -= part.to(tl.float32)


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _add_columns(
    x, y, out, length, splits, rows, columns,
    R: tl.constexpr, C: tl.constexpr, TN: tl.constexpr, TP: tl.constexpr, U: tl.constexpr, SOFT: tl.constexpr,
):  # fmt: skip
    """One tile ``[R·TN, C·TP]``; R and C lie within a thread, so that each loaded value serves 8 or 16 pairs."""
    N: tl.constexpr = R * TN
    P: tl.constexpr = C * TP
    p, n, z = _place(columns, rows)
    batch, first, K = z // splits, z % splits * length, splits * length
    i = tl.arange(0, R)[:, None] * TN + tl.arange(0, TN)[None, :]  # [R, TN]
    j = tl.arange(0, C)[:, None] * TP + tl.arange(0, TP)[None, :]  # [C, TP]
    x += ((batch * rows + n) * K + first) * N
    y += ((batch * columns + p) * K + first) * P
    to = out + ((z * rows + n) * N + i[None, :, :, None]) * columns * P + p * P + j[:, None, None, :]
    # A load that never happens: the accumulator takes its layout from it, four columns a thread.
    sums = tl.load(to, tl.full((C, R, TN, TP), 0, tl.int32) > length, 0.0)
    xs, ys = x + i, y + j
    for _ in range(0, length, U):
        if SOFT:
            product = tl.full((C, R, TN, TP), 1.0, tl.float32)
        for u in tl.static_range(U):
            s = tl.load(xs + u * N)[None, :, :, None]
            t = tl.load(ys + u * P)[:, None, None, :]
            if SOFT:
                # Σ log2(1 + e) = log2 Π (1 + e), and e ≤ 1: one logarithm for U features.
                sums += tl.maximum(tl.minimum(s, t), 0.0)
                product += product * tl.exp2(-tl.abs(s - t))
            else:
                sums += tl.minimum(s, t, propagate_nan=tl.PropagateNan.ALL)
        if SOFT:
            sums -= tl.log2(product)
        xs += U * N
        ys += U * P
    tl.store(to, sums * 0.6931471805599453 if SOFT else sums)


@triton.jit(do_not_specialize=["splits", "rows", "columns"])
def _weigh_columns(
    near, far, weight, out, length, splits, rows, columns,
    R: tl.constexpr, C: tl.constexpr, TX: tl.constexpr, TF: tl.constexpr, U: tl.constexpr,
):  # fmt: skip
    """One tile ``[R·TX, C·TF]`` of Σ_z g·σ(far − near), laid out as in ``_add_columns``."""
    X: tl.constexpr = R * TX
    F: tl.constexpr = C * TF
    f, n, z = _place(columns, rows)
    batch, first, Z = z // splits, z % splits * length, splits * length
    i = tl.arange(0, R)[:, None] * TX + tl.arange(0, TX)[None, :]  # [R, TX]
    j = tl.arange(0, C)[:, None] * TF + tl.arange(0, TF)[None, :]  # [C, TF]
    at = i[None, :, :, None] * columns * F + f * F + j[:, None, None, :]
    own = tl.load(near + (batch * rows + n) * X * columns * F + at)  # [C, R, TX, TF]
    gs = weight + ((batch * rows + n) * Z + first) * X + i
    fs = far + ((batch * columns + f) * Z + first) * F + j
    sums = own * 0.0
    for _ in range(0, length, U):
        for u in tl.static_range(U):
            g = tl.load(gs + u * X)[None, :, :, None]
            t = tl.load(fs + u * F)[:, None, None, :]
            sums += g / (1.0 + tl.exp2(own - t))
        gs += U * X
        fs += U * F
    tl.store(out + (z * rows + n) * X * columns * F + at, sums)


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
    tile, line, weight, out, length, splits, rows, columns, still,
    X: tl.constexpr, F: tl.constexpr, STEP: tl.constexpr, PIECES: tl.constexpr, LANES: tl.constexpr,
    PACKED: tl.constexpr, ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Σ_z g·w of ``X`` own rows and ``F`` features: matrices of shares ``[F, STEP]`` by columns of pieces of g.

    ``line`` holds own measures with their sign turned, so that own < other reads tile + line > 0.
    """
    group: tl.constexpr = 8 // LANES
    n, f, z = _place(rows, columns)
    batch, first, Z, K = z // splits, z % splits * length, splits * length, columns * F
    k, e, c = f * F + tl.arange(0, F), tl.arange(0, STEP), tl.arange(0, 8)
    row = (batch * rows + n) * X
    tiles = tile + (batch * K + k[:, None]) * Z + first + e[None, :]  # [F, STEP]
    lines = line + row * K + k  # [F]
    piece, member = c % LANES, c // LANES
    weights = weight + ((row + member) * PIECES + piece)[None, :] * Z + first + e[:, None]  # [STEP, 8]
    sums = ()
    for _ in tl.static_range(X // group):
        sums = sums + (tl.full((F, 8), 0.0, tl.float32),)  # noqa: RUF005
    for _ in range(0, length, STEP):
        t = tl.load(tiles)
        added = ()
        for g in tl.static_range(X // group):
            total = sums[g]
            for h in tl.static_range(group):
                own = tl.broadcast_to(tl.load(lines + (g * group + h) * K)[:, None], (F, STEP))
                ours = ((member == h) & (piece < PIECES))[None, :]
                v = tl.load(weights + g * group * PIECES * Z, ours, 0.0)
                share = _share(t, own, PACKED, ASSEMBLY)
                total = tl.dot(share, v.to(share.dtype), total)
            added = added + (total,)  # noqa: RUF005
        sums = added
        tiles += STEP
        weights += STEP
        # Always 0, but the compiler must not know: the lines then come through shared memory, ahead of time.
        lines += still
    for g in tl.static_range(X // group):
        # Shares are counted in 2^-7, see _share.
        total = sums[g] * 128.0  # [F, group · LANES]
        if LANES == 4:
            left, right = tl.split(tl.reshape(total, (F, group * 2, 2)))
            total = left + right
        if LANES >= 2:
            left, right = tl.split(tl.reshape(total, (F, group, 2)))
            total = left + right
        at = (g * group + tl.arange(0, group))[None, :] * K + k[:, None]
        has = tl.load(line + row * K + at).to(tl.float32) < 0
        tl.store(out + (z * rows + n) * X * K + at, tl.where(has, total, 0.0))


@triton.jit
def _share(t, own, PACKED: tl.constexpr, ASSEMBLY: tl.constexpr):
    """2^-7 where t + own > 0, 2^-8 where it is 0, and 0 where it is negative, in bfloat16: two at a time.

    The sum's upper 16 bits are read as a float16, where times 2^15 plus 0.9375, kept within 0 and 1, gives 1, 0.9375 or
    0. Read as bfloat16, the same bits are 2^-7, 2^-8 and 0.
    """
    if not ASSEMBLY:
        sign = t.to(tl.float32) + own.to(tl.float32)
        return tl.where(sign > 0, 0.0078125, tl.where(sign == 0, 0.00390625, 0.0))
    if PACKED:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 d, one, scale, tie;
            mov.b32 one, 0x3f803f80;
            mov.b32 scale, 0x78007800;
            mov.b32 tie, 0x3b803b80;
            fma.rn.bf16x2 d, $1, one, $2;
            fma.rn.sat.f16x2 $0, d, scale, tie;
            }""", "=r,r,r", [t, own], tl.bfloat16, True, 2
        )  # fmt: skip
    return tl.inline_asm_elementwise(
        """{
        .reg .f32 x, y;
        .reg .b32 u, v, d, scale, tie;
        mov.b32 scale, 0x78007800;
        mov.b32 tie, 0x3b803b80;
        add.f32 x, $1, $3;
        add.f32 y, $2, $4;
        mov.b32 u, x;
        mov.b32 v, y;
        prmt.b32 d, u, v, 0x7632;
        fma.rn.sat.f16x2 $0, d, scale, tie;
        }""", "=r,f,f,f,f", [t, own], tl.bfloat16, True, 2
    )  # fmt: skip
