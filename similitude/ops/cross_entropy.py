"""Cross entropy of all-pairs similarities without the N×P logits.

Measures are ``a [N, K]`` and ``b [P, K]`` without their negative values, on which no similarity depends. The logits of
a chunk of rows are computed, turned into losses and into their own gradient, and dropped: memory is
O(chunk·P + NK + PK). One walk over the chunks computes loss and gradients; the backward only scales them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..form import Form
from . import pairwise, separable
from .modes import eager, has_kernels, wide, widest, without_autocast
from .reference import Scalar
from .separable import add_product_, least_quotient

REDUCTIONS = ("mean", "sum", "none")
# Logits in a chunk: few beside all of them, and enough to keep a GPU busy.
CHUNK = {"cpu": 2**22, "cuda": 2**25}
# Numbers in a part of it that is gone through element by element: they stay in a core's cache.
PART = {"cpu": 2**17, "cuda": 2**25}


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
        ctx.save_for_backward(*((*inputs, rows, target) if each else gradients))
        return losses if each else losses.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if torch.is_grad_enabled():
            # Gradients made in the forward would pass for constants.
            raise RuntimeError(
                "tversky_cross_entropy has no second derivatives, which create_graph=True asks for; "
                "use torch.nn.functional.cross_entropy of tversky_projection for them."
            )
        gradients, scale = ctx.saved_tensors, grad
        if ctx.each:
            *inputs, rows, target = ctx.saved_tensors
            wanted = ctx.needs_input_grad[:7]
            with without_autocast(grad.device.type):
                gradients = _walk(inputs, rows, target, ctx.form, ctx.loss, wanted, ctx.P, weight=grad)[1]
            scale = grad.new_ones(())
        return *(_scaled(g, scale, dtype) for g, dtype in zip(gradients, ctx.dtypes)), *[None] * 7


def _scaled(gradient: Tensor | None, scale: Tensor, dtype: torch.dtype) -> Tensor | None:
    if gradient is None:
        return None
    # Multiplied in the scale's dtype: the scale of a mean over many rows underflows in half precision.
    return torch.mul(gradient.to(scale.dtype), scale, out=torch.empty_like(gradient, dtype=dtype))


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
    elif (form.level == "set" and form.intersection != "product") or form.intersection == "mean":
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
    """Rows of a chunk: CHUNK logits, or K/4 rows if that is more, since each chunk costs some passes over b."""
    return max(1, CHUNK.get(a.device.type, 2**24) // max(1, len(b)), a.shape[1] // 4)


class Graphs:
    """Logits of chunks and their gradients by autograd, for any options."""

    form: Form
    code: str
    wants_a: bool
    leaves: list[Tensor]
    totals: list[Tensor | None]

    def __init__(self, b: Tensor, scalars: Sequence[Tensor], form: Form, code: str, wanted: Sequence[bool]):
        self.form, self.code, self.wants_a = form, code, wanted[0]
        self.leaves = [x.detach().requires_grad_(w) for x, w in zip((b, *scalars), wanted[1:5])]
        self.totals = [torch.zeros_like(x, dtype=wide(x.dtype)) if x.requires_grad else None for x in self.leaves]

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        """Logits of a chunk; and a function from their gradient to that of ``a``, which adds to those of the others.

        The function also takes the products of rows of logits with their gradients.
        """
        a.requires_grad_(self.wants_a)
        with torch.enable_grad():
            b, alpha, beta, theta = self.leaves
            out = pairwise.similarity(a, b, alpha, beta, theta, self.form, self.code)

        def pull(slope: Tensor, _) -> Tensor | None:
            if not out.requires_grad:
                return None
            inputs = [x for x in (a, *self.leaves) if x.requires_grad]
            found = iter(torch.autograd.grad(out, inputs, slope, allow_unused=True))
            to_a = next(found) if self.wants_a else None
            for total in self.totals:
                if total is not None and (part := next(found)) is not None:
                    total += part
            return to_a

        return out.detach(), pull

    def finish(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients of b and of α, β, θ."""
        return self.totals[0], self.totals[1:]


class SharedSums:
    """The same for what follows from the sums over shared features: u = A Jᵀ and v = I Bᵀ, four products for a chunk.

    I and J are the signs of A and B. What is made of u, v and the saliences is differentiated by autograd in parts.
    """

    def __init__(self, b: Tensor, scalars: Sequence[Tensor], form: Form, wanted: Sequence[bool]):
        self.b, self.scalars, self.form, self.wanted = b.detach(), [s.detach() for s in scalars], form, wanted
        self.salience = separable.salience(self.b)
        dtype = wide(b.dtype)
        self.to_b = torch.zeros_like(self.b, dtype=dtype) if wanted[1] else None
        self.to_salience = torch.zeros_like(self.salience)
        pairs = zip(scalars, wanted[2:5], strict=True)
        self.to_scalars: list[Tensor | None] = [torch.zeros_like(s) if w else None for s, w in pairs]

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        has_a, salience = a.sign(), separable.salience(a)
        u, v = _product(a, self.b.mT.sign()), _product(has_a, self.b.mT)
        out = torch.empty_like(u)
        parts = list(zip(*map(_parts, (out, u, v)), salience.split(len(_parts(u)[0]) if len(u) else 1)))
        for S, *sums in parts:
            S.copy_(self._similarity(*sums, self.salience, *self.scalars))

        def pull(slope: Tensor, _) -> Tensor | None:
            to_salience = torch.zeros_like(salience)
            for (_S, *sums), g, part in zip(parts, _parts(slope), to_salience.split(len(parts[0][0]))):
                leaves = [x.detach().requires_grad_() for x in (*sums, self.salience, *self.scalars)]
                with torch.enable_grad():
                    S = self._similarity(*leaves)
                found = torch.autograd.grad(S, leaves, g, allow_unused=True)
                places = (*sums[:2], part, self.to_salience, *self.to_scalars)
                for place, gradient, add in zip(places, found, (False, False, True, True, True, True, True)):
                    if place is not None:
                        gradient = torch.zeros_like(place) if gradient is None else gradient
                        place.add_(gradient) if add else place.copy_(gradient)
            if self.to_b is not None:
                add_product_(self.to_b, v.mT, has_a)
            return (u @ self.b.sign()).add_(to_salience.unsqueeze(1)) if self.wanted[0] else None

        return out, pull

    def _similarity(self, u: Tensor, v: Tensor, all_a: Tensor, all_b: Tensor, *scalars: Tensor) -> Tensor:
        alpha, beta, theta = scalars
        return pairwise.combined(pairwise.Pairs.of_sums(u, v, all_a, all_b), alpha, beta, theta, self.form)

    def finish(self) -> tuple[Tensor | None, list[Tensor | None]]:
        """Gradients of b and of α, β, θ."""
        if self.to_b is not None:
            self.to_b.add_(self.to_salience.unsqueeze(1))
        return self.to_b, self.to_scalars


class Products:
    """The same for the contrast model of product + ignorematch, with what depends on b alone made once.

    S = A(θB + α(J−1))ᵀ + β(I−1)Bᵀ, where I and J are the signs of A and B: four products for a chunk, no other pass
    over b. The gradients of α, β, θ then come from those of A, B and S, as in separable; careful: from a fifth product.
    """

    b: Tensor
    alpha: Tensor
    beta: Tensor
    theta: Tensor
    to_b: Tensor | None
    sums: Tensor

    def __init__(self, b: Tensor, scalars: Sequence[Tensor], wanted: Sequence[bool], careful: bool, kernels: bool):
        self.b, self.wanted, self.kernels = b, wanted, kernels
        self.alpha, self.beta, self.theta = scalars
        self.factor = self.beta.item()
        self.side = _side(b, self.theta, self.alpha, kernels)
        self.learns = any(wanted[2:5])
        self.lacks = b.sign().sub_(1) if careful and self.learns else None
        divides = self.learns and self.lacks is None
        self.wants_b, self.to_b = wanted[1] or divides, None
        self.wants_a = wanted[0] or divides
        self.sums = b.new_zeros(3, dtype=widest(b))  # of the gradients of α, β, θ; or of ⟨A, dA⟩, its square, ⟨S, dS⟩

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        tables = ()
        if self.lacks is None:
            out = _product(a, self.side.mT)
            add_product_(out, a.sign() - 1, self.b.mT, self.factor)
        else:
            # −f(A−B), −f(B−A), f(A∩B)
            tables = _product(a, self.lacks.mT), _product(a.sign() - 1, self.b.mT), _product(a, self.b.mT)
            out = self.alpha * tables[0] + self.beta * tables[1] + self.theta * tables[2]

        def pull(slope: Tensor, inner: Tensor) -> Tensor | None:
            if self.wants_b:
                side = _side(a, self.theta, self.beta, self.kernels)
                if self.to_b is None:
                    self.to_b = _product(slope.mT, side)
                else:
                    add_product_(self.to_b, slope.mT, side)
            if tables:
                self.sums += torch.stack([_inner(t, slope).sum() for t in tables])
            if not self.wants_a:
                return None
            to_a = slope @ self.side
            if self.learns and not tables:
                rows = _inner(a, to_a, self.kernels)
                self.sums += torch.stack([rows.sum(), rows.square().sum(), inner.sum(dtype=rows.dtype)])
            return to_a

        return out, pull

    def finish(self) -> tuple[Tensor | None, list[Tensor | None] | None]:
        """Gradients of b and of α, β, θ; None for these where only differences of almost equal sums would give them.

        ⟨A, dA⟩ = θ dθ + α dα, ⟨B, dB⟩ = θ dθ + β dβ, ⟨S, dS⟩ = θ dθ + α dα + β dβ.
        """
        if self.wants_b and self.to_b is None:
            self.to_b = torch.zeros_like(self.b, dtype=wide(self.b.dtype))
        to_b = self.to_b if self.wanted[1] else None
        found = self.sums
        if self.learns and self.lacks is None and self.to_b is not None:
            rows = _inner(self.b, self.to_b, self.kernels)
            by_a, square_a, by_s = self.sums
            by_b = rows.sum()
            parts = torch.stack([by_s - by_b, by_s - by_a, by_a + by_b - by_s])
            if parts.abs().min() <= least_quotient(self.b) * (square_a + rows.square().sum()).sqrt():
                return to_b, None
            found = parts / torch.stack([self.alpha, self.beta, self.theta])
        return to_b, [g if w else None for g, w in zip(found.unbind(), self.wanted[2:5])]


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
    n = max(1, PART.get(logits.device.type, 2**24) // max(1, P))
    for start in range(0, len(logits), n):
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


def _side(a: Tensor, gain: Tensor, weight: Tensor, kernels: bool) -> Tensor:
    """gain·a + weight·(sign a − 1), the factor that a side brings to a product; 1 − sign a is what it lacks."""
    if kernels and has_kernels(a):
        from .triton import cross_entropy as triton_cross_entropy

        return triton_cross_entropy.side(a, gain, weight)
    out = torch.empty_like(a)
    for part, some in zip(_parts(out), _parts(a)):
        torch.addcmul(gain * some, some.sign().sub_(1), weight, out=part)
    return out


def _parts(x: Tensor) -> tuple[Tensor, ...]:
    """Rows of a matrix, some at a time, that stay in a core's cache."""
    return x.split(max(1, PART.get(x.device.type, 2**24) // max(1, x.shape[1])))


def _product(x: Tensor, y: Tensor) -> Tensor:
    """``x @ y`` in 32 bits or more, in rows that start at multiples of 16: products with an odd P are slow on a GPU."""
    dtype, (n, P) = wide(x.dtype), (x.shape[0], y.shape[1])
    out = torch.empty(n, -(-P // 16) * 16, dtype=dtype, device=x.device)[:, :P]
    if x.is_cuda and x.dtype != dtype:
        return torch.mm(x, y, out_dtype=dtype, out=out)
    return torch.mm(x.to(dtype), y.to(dtype), out=out)


def _inner(x: Tensor, y: Tensor, kernels: bool = False) -> Tensor:
    """Inner products of rows, in float64 since differences of their sums are taken."""
    if kernels and has_kernels(x):
        from .triton import cross_entropy as triton_cross_entropy

        return triton_cross_entropy.inner(x, y).to(widest(x))
    found = [(p * q).sum(-1, dtype=wide(x.dtype)).to(widest(x)) for p, q in zip(_parts(x), _parts(y))]
    return torch.cat(found)
