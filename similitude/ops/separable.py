"""All pairs by matrix products: whatever of Eq. 1–7 splits into an object's side times a prototype's side.

Measures are ``a [..., N, K]`` and ``b [..., P, K]`` with equal leading axes; nothing is larger than N×P, N×K or P×K.
Sums over shared features are products with 0/1 indicators, which carry no gradient.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from .reference import Scalar


def without_autocast(device: str):
    """Context in which products are taken in the dtype of their factors."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def has(a: Tensor) -> Tensor:
    """1 where the object has the feature, 0 elsewhere, in the dtype of ``a``."""
    return (a > 0).to(a.dtype)


def salience(a: Tensor) -> Tensor:
    """f(A) of Eq. 2: ``[..., N, K] -> [..., N]``."""
    return a.relu().sum(-1)


def shared_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """u and v: how much of the shared features the object and the prototype have, each ``[..., N, P]``."""
    return a.relu() @ has(b).mT, has(a) @ b.relu().mT


def product(a: Tensor, b: Tensor) -> Tensor:
    """Σ_k a·b over shared features, ``[..., N, P]``."""
    return a.relu() @ b.relu().mT


def gmean(a: Tensor, b: Tensor) -> Tensor:
    """Σ_k √(a·b) over shared features, ``[..., N, P]``."""
    return root(a) @ root(b).mT


def root(a: Tensor) -> Tensor:
    """√a where ``a > 0``, else 0, with a finite gradient everywhere."""
    present = a > 0
    return torch.where(present, a, 1.0).sqrt() * present


def product_ignorematch(a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> Tensor:
    """The contrast model of product + ignorematch in two products forward and two backward.

    S = A⁺(θB⁺ + αJ)ᵀ − α sal(A) + β(I B⁺ᵀ − sal(B)).

    Equivalent to: ``theta * product(a, b) - alpha * (salience(a)[..., None] - u) - beta * (salience(b) - v)``.
    """
    a, b = a.relu(), b.relu()
    if torch.compiler.is_compiling():
        # Tracing needs no help to fuse the element-wise part, and takes no branch on values.
        return _forward(a, b, alpha, beta, theta)[0]
    return ProductIgnorematch.apply(a, b, alpha, beta, theta)[0]  # pyright: ignore


def _missing(a: Tensor, b: Tensor) -> Tensor:
    """−f(B−A), the derivative of S by β, ``[..., N, P]``."""
    return a.sign() @ b.mT - b.sum(-1).unsqueeze(-2)


def _side(a: Tensor, gain: Scalar, weight: Scalar) -> Tensor:
    """gain·a⁺ + weight·1[a>0], the factor that a side brings to a product."""
    return gain * a + weight * a.sign()


def _forward(a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> tuple[Tensor, Tensor]:
    """S and −f(B−A)."""
    missing = _missing(a, b)
    shared = a @ _side(b, theta, alpha).mT - alpha * a.sum(-1).unsqueeze(-1)  # [..., N, P]
    return shared + beta * missing, missing


class ProductIgnorematch(torch.autograd.Function):
    """On measures that are not negative, A⁺ and B⁺, whose signs are the indicators I and J."""

    @staticmethod
    def forward(a, b, alpha, beta, theta):
        return _forward(a, b, alpha, beta, theta)

    @staticmethod
    def setup_context(ctx, inputs, output):
        a, b, *scalars = inputs
        missing = output[1]
        ctx.mark_non_differentiable(missing)
        # S itself is not kept: an output may be written to by its receiver, as a ReLU in place does.
        learning = any(ctx.needs_input_grad[2:])
        tensors = [s for s in scalars if isinstance(s, Tensor)]
        ctx.save_for_backward(a, b, missing if learning else None, *tensors)
        ctx.numbers = [None if isinstance(s, Tensor) else s for s in scalars]

    @staticmethod
    def vmap(info, in_dims, *inputs):
        mapped = torch.vmap(_forward, in_dims, randomness="error")
        return mapped(*inputs), (0, 0)

    @staticmethod
    def backward(ctx, grad, _):
        a, b, missing, *tensors = ctx.saved_tensors
        waiting = iter(tensors)
        alpha, beta, theta = (next(waiting) if n is None else n for n in ctx.numbers)
        with without_autocast(a.device.type):
            rows = grad.sum(-1, keepdim=True)  # [..., N, 1]
            columns = grad.sum(-2).unsqueeze(-1)  # [..., P, 1]
            to_a = grad @ _side(b, theta, alpha) - alpha * rows
            to_b = grad.mT @ _side(a, theta, beta) - beta * columns
            to_scalars = (None, None, None)
            if missing is not None:
                to_scalars = _scalar_gradients(grad, a, b, rows, missing, to_a, to_b, alpha, beta, theta)
        needed = ctx.needs_input_grad
        return to_a, to_b, *(s if n else None for s, n in zip(to_scalars, needed[2:], strict=True))


def _scalar_gradients(grad, a, b, rows, missing, to_a, to_b, alpha, beta, theta):
    """Gradients of α, β, θ: S is linear in them and homogeneous in A⁺ and in B⁺, so no further product is needed.

    ⟨A⁺, dA⟩ = θ dθ + α dα and ⟨B⁺, dB⟩ = θ dθ + β dβ. Where that means a division by almost nothing, or the gradient
    is itself to be differentiated, one product more gives them directly.
    """
    if torch.is_grad_enabled():
        missing = _missing(a, b)
    to_beta = _inner(grad, missing)
    if not torch.is_grad_enabled():
        by_a, by_b, by_beta = _inner(a, to_a), _inner(b, to_b), beta * to_beta
        by_theta, by_alpha = by_b - by_beta, by_a - by_b + by_beta
        size = by_a.abs() + by_b.abs() + by_beta.abs()
        if torch.minimum(by_theta.abs(), by_alpha.abs()) > 1e-3 * size:
            return tuple(g.to(grad.dtype) for g in (by_alpha / alpha, to_beta, by_theta / theta))
    crossed = grad.mT @ a  # [..., P, K]
    to_alpha = _inner(crossed, b.sign()) - _inner(rows, a.sum(-1).unsqueeze(-1))
    return tuple(g.to(grad.dtype) for g in (to_alpha, to_beta, _inner(crossed, b)))


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Sum of the element-wise product, in float64 across rows since differences of such sums are taken."""
    return (x * y).sum(-1).sum(dtype=torch.float32 if x.device.type == "mps" else torch.float64)
