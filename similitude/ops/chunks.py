"""Logits of a chunk of rows, and the pull of their gradients, with what depends on the prototypes alone made once.

Measures are ``a [n, K]`` and ``b [P, K]`` without their negative values. A class has ``compare(a)``, which returns the
logits of a chunk and a function from their gradient to that of ``a``, and ``finish()``, which returns the others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..form import Form
from . import pairwise, separable
from .modes import has_kernels, wide, widest
from .separable import add_product_, least_quotient

# Numbers that are gone through element by element at once: they stay in a core's cache, or keep a GPU busy.
PART = {"cpu": 2**17, "cuda": 2**25}


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
        self.has_b, self.salience = self.b.sign(), separable.salience(self.b)
        dtype = wide(b.dtype)
        self.to_b = torch.zeros_like(self.b, dtype=dtype) if wanted[1] else None
        self.to_salience = torch.zeros_like(self.salience)
        self.to_scalars: list[Tensor | None] = [
            torch.zeros_like(s) if w else None for s, w in zip(scalars, wanted[2:5])
        ]

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        has_a, salience = a.sign(), separable.salience(a)
        u, v = wide_product(a, self.has_b.mT), wide_product(has_a, self.b.mT)
        out = torch.empty_like(u)
        parts = list(zip(*map(in_parts, (out, u, v)), salience.split(rows_of_part(u))))
        for S, *sums in parts:
            S.copy_(self._similarity(*sums, self.salience, *self.scalars))

        def pull(slope: Tensor, _) -> Tensor | None:
            to_salience = torch.zeros_like(salience)
            for (_S, *sums), g, part in zip(parts, in_parts(slope), to_salience.split(rows_of_part(u))):
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
            return (u @ self.has_b).add_(to_salience.unsqueeze(1)) if self.wanted[0] else None

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
        self.side = side_of(b, self.theta, self.alpha, kernels)
        self.learns = any(wanted[2:5])
        self.lacks = b.sign().sub_(1) if careful and self.learns else None
        divides = self.learns and self.lacks is None
        self.wants_b, self.to_b = wanted[1] or divides, None
        self.wants_a = wanted[0] or divides
        self.sums = b.new_zeros(3, dtype=widest(b))  # of the gradients of α, β, θ; or of ⟨A, dA⟩, its square, ⟨S, dS⟩

    def compare(self, a: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        tables = ()
        if self.lacks is None:
            out = wide_product(a, self.side.mT)
            add_product_(out, a.sign() - 1, self.b.mT, self.factor)
        else:
            # −f(A−B), −f(B−A), f(A∩B)
            tables = wide_product(a, self.lacks.mT), wide_product(a.sign() - 1, self.b.mT), wide_product(a, self.b.mT)
            out = self.alpha * tables[0] + self.beta * tables[1] + self.theta * tables[2]

        def pull(slope: Tensor, inner: Tensor) -> Tensor | None:
            if self.wants_b:
                side = side_of(a, self.theta, self.beta, self.kernels)
                if self.to_b is None:
                    self.to_b = wide_product(slope.mT, side)
                else:
                    add_product_(self.to_b, slope.mT, side)
            if tables:
                self.sums += torch.stack([inner_products(t, slope).sum() for t in tables])
            if not self.wants_a:
                return None
            to_a = slope @ self.side
            if self.learns and not tables:
                rows = inner_products(a, to_a, self.kernels)
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
            rows = inner_products(self.b, self.to_b, self.kernels)
            by_a, square_a, by_s = self.sums
            by_b = rows.sum()
            parts = torch.stack([by_s - by_b, by_s - by_a, by_a + by_b - by_s])
            if parts.abs().min() <= least_quotient(self.b) * (square_a + rows.square().sum()).sqrt():
                return to_b, None
            found = parts / torch.stack([self.alpha, self.beta, self.theta])
        return to_b, [g if w else None for g, w in zip(found.unbind(), self.wanted[2:5])]


def side_of(a: Tensor, gain: Tensor, weight: Tensor, kernels: bool) -> Tensor:
    """gain·a + weight·(sign a − 1), the factor that a side brings to a product; 1 − sign a is what it lacks."""
    if kernels and has_kernels(a):
        from .triton import cross_entropy as triton_cross_entropy

        return triton_cross_entropy.side(a, gain, weight)
    out = torch.empty_like(a)
    for part, some in zip(in_parts(out), in_parts(a)):
        torch.addcmul(gain * some, some.sign().sub_(1), weight, out=part)
    return out


def in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Some rows of a matrix at a time."""
    return x.split(rows_of_part(x))


def rows_of_part(x: Tensor) -> int:
    return max(1, PART.get(x.device.type, 2**24) // max(1, x.shape[1]))


def wide_product(x: Tensor, y: Tensor) -> Tensor:
    """``x @ y`` in 32 bits or more, in rows that start at multiples of 16: products with an odd P are slow on a GPU."""
    dtype, (n, P) = wide(x.dtype), (x.shape[0], y.shape[1])
    out = torch.empty(n, -(-P // 16) * 16, dtype=dtype, device=x.device)[:, :P]
    if x.is_cuda and x.dtype != dtype:
        return torch.mm(x, y, out_dtype=dtype, out=out)
    return torch.mm(x.to(dtype), y.to(dtype), out=out)


def inner_products(x: Tensor, y: Tensor, kernels: bool = False) -> Tensor:
    """Inner products of rows, in float64 since differences of their sums are taken."""
    if kernels and has_kernels(x):
        from .triton import cross_entropy as triton_cross_entropy

        return triton_cross_entropy.inner(x, y).to(widest(x))
    found = [(p * q).sum(-1, dtype=wide(x.dtype)).to(widest(x)) for p, q in zip(in_parts(x), in_parts(y))]
    return torch.cat(found)
