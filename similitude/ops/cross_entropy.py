"""Cross entropy of all-pairs similarities without the N×P logits.

Measures are ``a [N, K]`` and ``b [P, K]`` without their negative values, on which no similarity depends; gradients are
those of the measures as they were. The logits of a chunk of rows are computed, turned into losses and into their own
gradient, and dropped: memory is O(chunk·P + NK + PK). One walk over the chunks computes loss and gradients; the
backward only scales them.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..form import Form
from . import pairwise
from .chunks import Graphs, Products, SharedSums, in_parts, rows_of_part
from .modes import eager, has_kernels, wide, widest, without_autocast
from .reference import Scalar

REDUCTIONS = ("mean", "sum", "none")
# Logits in a chunk: few beside all of them, and enough to keep a GPU busy.
CHUNK = {"cpu": 2**22, "cuda": 2**25}


class Loss(NamedTuple):
    """How logits become a loss. kernels: whether Triton may be used."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    kernels: bool = True


def cross_entropy(
    a: Tensor,
    b: Tensor,
    alpha: Scalar,
    beta: Scalar,
    theta: Scalar,
    form: Form,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    loss: Loss,
    P: int,
    scale: Tensor | None = None,
) -> Tensor:
    """Loss of the rows whose target is not ``ignore_index``, in float32 or wider: a number, or ``[N]`` for "none".

    Equivalent to: ``plain(pairwise.similarity(a, b, alpha, beta, theta, form), bias, ..., scale)``, gradients included.
    """
    if not eager(target):
        logits = pairwise.similarity(a, b, alpha, beta, theta, form)[:, :P]
        return plain(logits, bias, target, ignore_index, reduction, loss, scale)
    dtype = wide(a.dtype)
    scalars = [s if isinstance(s, Tensor) else a.new_full((), s, dtype=dtype) for s in (alpha, beta, theta)]
    bias, scale = (None if x is None else x.to(dtype) for x in (bias, scale))
    rows = (target != ignore_index).nonzero().squeeze(-1)
    each, learning = reduction == "none", torch.is_grad_enabled()
    out: Tensor = ChunkedLoss.apply(a, b, *scalars, bias, scale, rows, target[rows], form, loss, each, learning, P)  # pyright: ignore
    if each:
        return out.new_zeros(len(target)).index_copy(0, rows, out)
    if reduction == "mean":
        # As torch: the mean of no rows is NaN, and its gradients are 0.
        return out / len(rows) if len(rows) else out + math.nan
    return out


def plain(
    logits: Tensor,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    loss: Loss,
    scale: Tensor | None = None,
) -> Tensor:
    """The loss of given logits ``[N, P]``: F.cross_entropy plus ``z_loss`` times log-sum-exp squared."""
    logits = logits.to(wide(logits.dtype))
    if scale is not None:
        logits = logits * scale.to(logits.dtype)
    if bias is not None:
        logits = logits + bias.to(logits.dtype)
    out = torch.nn.functional.cross_entropy(
        logits, target, ignore_index=ignore_index, reduction=reduction, label_smoothing=loss.label_smoothing
    )
    if loss.z_loss == 0:
        return out
    kept = target != ignore_index
    square = loss.z_loss * torch.where(kept, logits.logsumexp(-1).square(), 0.0)
    if reduction == "none":
        return out + square
    return out + square.sum() / (kept.sum() if reduction == "mean" else 1)


class ChunkedLoss(torch.autograd.Function):
    """The losses of ``rows`` of ``a``: each of them, ``[len(rows)]``, or their sum."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *inputs, rows, target, form, loss, each, learning, P = given  # a, b, α, β, θ, bias, scale
        ctx.form, ctx.loss, ctx.each, ctx.P = form, loss, each, P
        ctx.dtypes = [None if x is None else x.dtype for x in inputs]
        wanted = [learning and not each and w for w in ctx.needs_input_grad[:7]]
        losses, gradients = _walk(inputs, rows, target, form, loss, wanted, P)
        # The weight of each row is known only in the backward, which then walks again.
        ctx.save_for_backward(*((*inputs, rows, target) if each else (*inputs[:2], *gradients)))
        return losses if each else losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            # Gradients made in the forward would pass for constants.
            raise RuntimeError(
                "tversky_cross_entropy has no second derivatives, which create_graph=True asks for; "
                "use torch.nn.functional.cross_entropy of tversky_projection for them."
            )
        (a, b, *gradients), scale = ctx.saved_tensors, grad
        if ctx.each:
            *inputs, rows, target = ctx.saved_tensors
            wanted = ctx.needs_input_grad[:7]
            with without_autocast(grad.device.type):
                gradients = _walk(inputs, rows, target, ctx.form, ctx.loss, wanted, ctx.P, weight=grad)[1]
            scale = grad.new_ones(())
        measures = (a, b, *[None] * 5)
        return *(_scaled(g, scale, dtype, m) for g, dtype, m in zip(gradients, ctx.dtypes, measures)), *[None] * 7


def _scaled(gradient: Tensor | None, scale: Tensor, dtype: torch.dtype, measures: Tensor | None) -> Tensor | None:
    """The gradient times the scale; that of measures only where they are positive."""
    if gradient is None:
        return None
    if measures is None:
        return (gradient.to(scale.dtype) * scale).to(dtype)
    out = torch.empty_like(gradient, dtype=dtype)
    for part, given, measure in zip(*map(in_parts, (out, gradient, measures))):
        # Multiplied in the scale's dtype: the scale of a mean over many rows underflows in half precision.
        part.copy_(torch.ops.aten.threshold_backward(given.to(scale.dtype) * scale, measure.to(scale.dtype), 0))
    return out


def _walk(
    inputs: Sequence[Tensor],
    rows: Tensor,
    target: Tensor,
    form: Form,
    loss: Loss,
    wanted: Sequence[bool],
    P: int,
    weight: Tensor | None = None,
    careful: bool = False,
) -> tuple[Tensor, list[Tensor | None]]:
    """Losses of ``rows``, and the wanted gradients of their sum, weighted if weights are given, by all inputs."""
    a, b, *scalars, bias, scale = inputs
    code = pairwise.code_for(a, b, form)
    if form.two_products:
        chunks = Products(b, scalars, wanted, careful or _unequal(a, b, scalars), loss.kernels)
    elif code == "triton pooled":
        from .triton.pooled import Chunks

        chunks = Chunks(b, scalars, form[:4], wanted)
    elif form.splits and form.intersection != "product":
        chunks = SharedSums(b, scalars, form, wanted)
    else:
        chunks = Graphs(b, scalars, form, code, wanted)
    losses = a.new_empty(len(rows), dtype=wide(a.dtype))
    to_a = torch.zeros_like(a) if wanted[0] else None
    to_bias = torch.zeros_like(bias) if wanted[5] else None
    to_scale = torch.zeros_like(scale) if wanted[6] else None
    for start in range(0, len(rows), n := _chunk_rows(a, b)):
        i = slice(start, start + n)
        logits, pull = chunks.compare(a[rows[i]].detach())
        if scale is not None:
            logits = logits * scale
        of_rows = None if weight is None else weight[i]
        # Products take slopes as halves; other sums of them nearly cancel and need more digits.
        dtype = (a.dtype if isinstance(chunks, Products) else logits.dtype) if any(wanted) else None
        losses[i], slope, inner = loss_and_gradient_(logits, target[i], bias, of_rows, loss, dtype, P)
        if slope is not None:
            # Of the logits' products with their gradients, the scale has the same part as the similarities.
            if to_scale is not None and scale is not None and inner is not None:
                to_scale += inner.sum().to(to_scale.dtype) / scale
            to_chunk = pull(slope if scale is None else slope * scale, inner)
            if to_a is not None:
                to_a[rows[i]] = to_chunk
            if to_bias is not None:
                to_bias += slope[:, :P].sum(0, dtype=to_bias.dtype)
        # Before the next chunk is made.
        del logits, slope, pull
    to_b, to_scalars = chunks.finish()
    if to_scalars is None:
        of_scalars = [False, False, *wanted[2:5], False, False]
        to_scalars = _walk(inputs, rows, target, form, loss, of_scalars, P, weight, careful=True)[1][2:5]
    return losses, [to_a, to_b, *to_scalars, to_bias, to_scale]


def _chunk_rows(a: Tensor, b: Tensor) -> int:
    """Rows of a chunk: CHUNK logits, or a share of K if that is more, since each chunk costs some passes over b."""
    return max(1, CHUNK.get(a.device.type, 2**24) // max(1, len(b)), a.shape[1] // (4 if a.is_cuda else 2))


def _unequal(a: Tensor, b: Tensor, scalars: Sequence[Tensor]) -> bool:
    """Whether one of α, β, θ adds so much less to S than another that a difference of sums would lose its gradient.

    Their parts of S have the sizes of α·a, β·b and θ·a·b, estimated from some rows.
    """
    alpha, beta, theta = scalars
    size_a, size_b = (x[:1024].to(wide(x.dtype)).square().mean().sqrt() for x in (a, b))
    sizes = torch.stack([alpha * size_a, beta * size_b, theta * size_a * size_b]).abs()
    return bool(sizes.min() < 0.1 * sizes.max())


def loss_and_gradient_(
    logits: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    loss: Loss,
    dtype: torch.dtype | None,
    P: int,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Loss of each row of ``logits [n, W]``, its gradient in ``dtype``, and the product of the row with its gradient.

    target: ``[n]``; bias: ``[P]``, added to the logits, not part of the product; weight: ``[n]``, multiplies the
    gradients of rows; dtype: None for no gradient; P: how many of the W logits count, the gradient of the rest being 0.
    The gradient may take the place of the logits.

    Equivalent to: ``F.cross_entropy(z, target, reduction="none", label_smoothing=...) + z_loss * z.logsumexp(-1) ** 2``
    of ``z = logits + bias``.
    """
    smoothing, z_loss, kernels = loss
    if kernels and has_kernels(logits):
        from .triton import cross_entropy as triton_cross_entropy

        return triton_cross_entropy.loss_and_gradient_(logits, target, bias, weight, smoothing, z_loss, dtype, P)
    losses, inner = logits.new_empty(len(logits)), None
    if dtype is not None:
        inner = torch.empty_like(losses, dtype=widest(losses))
        logits[:, P:] = 0
    for start in range(0, len(logits), n := rows_of_part(logits)):
        i = slice(start, start + n)
        z = logits[i, :P] if bias is None else logits[i, :P] + bias
        probability = z.softmax(-1)
        # The likeliest has the probability 1 / Σ exp(z − max z).
        lse = z.amax(-1) - probability.amax(-1).log()
        losses[i] = (1 - smoothing) * (lse - z.gather(1, target[i].unsqueeze(1)).squeeze(1)) + z_loss * lse.square()
        if smoothing:
            losses[i] += smoothing * (lse - z.mean(-1))
        if inner is None:
            continue
        # softmax · (1 + 2 z_loss · lse) − smoothing / P − (1 − smoothing) at the target
        slope = probability
        if z_loss:
            slope.mul_((1 + 2 * z_loss * lse).unsqueeze(1))
        if smoothing:
            slope.sub_(smoothing / P)
        slope[torch.arange(len(slope), device=slope.device), target[i]] -= 1 - smoothing
        if weight is not None:
            slope.mul_(weight[i].unsqueeze(1))
        inner[i] = (slope * logits[i, :P]).sum(-1)
        logits[i, :P] = slope
    return losses, None if dtype is None else logits.to(dtype), inner
