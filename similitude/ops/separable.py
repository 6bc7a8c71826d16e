"""All pairs by matrix products: the parts of Eq. 1–7 that factor into an object's side and a prototype's side.

Measures are ``a [..., N, K]`` and ``b [..., P, K]`` with equal leading axes; nothing is larger than N×P, N×K or P×K.
Sums over shared features are products with 0/1 indicators, which carry no gradient.
"""

import math
from typing import Any

import torch
from torch import Tensor

from .modes import apply, refuse_second_derivatives, wide, widest, without_autocast
from .reference import Scalar


def has(a: Tensor) -> Tensor:
    """1 where the object has the feature, 0 elsewhere, in the dtype of ``a``."""
    return (a > 0).to(a.dtype)


def lacks(a: Tensor) -> Tensor:
    """1 where the object lacks the feature, 0 elsewhere, in the dtype of ``a``."""
    return (a <= 0).to(a.dtype)


def salience(a: Tensor) -> Tensor:
    """f(A) of Eq. 2: ``[..., N, K] -> [..., N]``, in 32 bits or more."""
    return a.relu().sum(-1, dtype=wide(a.dtype))


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right.mT``, in 32 bits or more."""
    if left.dtype in (torch.bfloat16, torch.float16):
        return WideProduct.apply(left, right)  # pyright: ignore
    return left @ right.mT


class WideProduct(torch.autograd.Function):
    """A product of halves that is kept in float32; their gradients are products of halves."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        if left.is_cuda:
            return torch.mm(left, right.mT, out_dtype=torch.float32)
        return left.float() @ right.float().mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        refuse_second_derivatives()
        left, right = ctx.saved_tensors
        half = grad.to(left.dtype)
        with without_autocast(left.device.type):
            to_left = half @ right if ctx.needs_input_grad[0] else None
            to_right = half.mT @ left if ctx.needs_input_grad[1] else None
        return to_left, to_right


def shared_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """u and v: how much of the shared features the object and the prototype have, each ``[..., N, P]``."""
    return multiply(a.relu(), has(b)), multiply(has(a), b.relu())


def lacking_sums(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """f(A−B) and f(B−A), Eq. 4: how much each has of the features that the other lacks, each ``[..., N, P]``."""
    return multiply(a.relu(), 1 - has(b)), multiply(1 - has(a), b.relu())


def product(a: Tensor, b: Tensor) -> Tensor:
    """Σ_k a·b over shared features, ``[..., N, P]``."""
    return multiply(a.relu(), b.relu())


def gmean(a: Tensor, b: Tensor) -> Tensor:
    """Σ_k √(a·b) over shared features, ``[..., N, P]``."""
    return multiply(root(a), root(b))


def root(a: Tensor) -> Tensor:
    """√a where ``a > 0``, else 0, with a finite gradient everywhere."""
    present = a > 0
    return torch.where(present, a, 1.0).sqrt() * present


def product_ignorematch(a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> Tensor:
    """The contrast model of product + ignorematch in two products forward and two backward.

    S = A⁺(θB⁺ − α(1−J))ᵀ − β(1−I)B⁺ᵀ, written so that no two large terms cancel.

    Equivalent to: ``theta * product(a, b) - alpha * (salience(a)[..., None] - u) - beta * (salience(b) - v)``.
    """
    a, b = a.relu(), b.relu()
    if torch.compiler.is_compiling():
        # The compiler fuses the element-wise part itself, and cannot branch on values.
        return _forward(a, b, alpha, beta, theta)[0]
    return apply(ProductIgnorematch, a, b, alpha, beta, theta)[0]


def _missing(a: Tensor, b: Tensor) -> Tensor:
    """−f(B−A), the derivative of S by β, ``[..., N, P]``."""
    return a.sign().sub_(1) @ b.mT


def _side(a: Tensor, gain: Scalar, weight: Scalar) -> Tensor:
    """gain·a⁺ − weight·1[a≤0], the factor that a side brings to a product."""
    return _plus(gain * a, weight, a.sign().sub_(1))


def _plus(x: Tensor, factor: Scalar, y: Tensor) -> Tensor:
    """x + factor·y in one pass."""
    return torch.addcmul(x, y, factor) if isinstance(factor, Tensor) else torch.add(x, y, alpha=factor)


def _forward(a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> tuple[Tensor, Tensor]:
    """S and −f(B−A)."""
    missing = _missing(a, b)
    return _plus(a @ _side(b, theta, alpha).mT, beta, missing), missing


class ProductIgnorematch(torch.autograd.Function):
    """Takes A⁺ and B⁺, measures without their negative values, whose signs are the indicators I and J."""

    @staticmethod
    def forward(a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> tuple[Tensor, Tensor]:
        return _forward(a, b, alpha, beta, theta)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, *scalars = inputs
        missing = output[1]
        ctx.mark_non_differentiable(missing)
        # S itself is not saved: its receiver may write to it, as an in-place ReLU does.
        learning = any(ctx.needs_input_grad[2:])
        tensors = [s for s in scalars if isinstance(s, Tensor)]
        ctx.save_for_backward(a, b, missing if learning else None, *tensors)
        ctx.numbers = [None if isinstance(s, Tensor) else s for s in scalars]

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        mapped = torch.vmap(_forward, in_dims, randomness="error")
        return mapped(*inputs), (0, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        a, b, missing, *tensors = ctx.saved_tensors
        waiting = iter(tensors)
        alpha, beta, theta = (next(waiting) if n is None else n for n in ctx.numbers)
        with without_autocast(a.device.type):
            to_a = grad @ _side(b, theta, alpha)
            to_b = grad.mT @ _side(a, theta, beta)
            to_scalars = (None, None, None)
            if missing is not None:
                to_scalars = _scalar_gradients(grad, a, b, missing, to_a, to_b, alpha, beta, theta)
        needed = ctx.needs_input_grad
        return to_a, to_b, *(s if n else None for s, n in zip(to_scalars, needed[2:], strict=True))


def _scalar_gradients(grad, a, b, missing, to_a, to_b, alpha, beta, theta):
    """Gradients of α, β, θ: S is linear in them and homogeneous in A⁺ and in B⁺, so no further product is needed.

    ⟨A⁺, dA⟩ = θ dθ + α dα and ⟨B⁺, dB⟩ = θ dθ + β dβ. One more product gives them directly where this would divide by
    almost nothing, where the gradient is to be differentiated again, and on a GPU, where looking at values would wait
    for the queue and break CUDA graphs.
    """
    if torch.is_grad_enabled():
        missing = _missing(a, b)
    to_beta = _inner(grad, missing).sum()
    if not torch.is_grad_enabled() and not a.is_cuda:
        rows_a, rows_b, by_beta = _inner(a, to_a), _inner(b, to_b), beta * to_beta
        by_a, by_b = rows_a.sum(), rows_b.sum()
        by_theta, by_alpha = by_b - by_beta, by_a - by_b + by_beta
        size = (rows_a.square().sum() + rows_b.square().sum()).sqrt()
        if torch.minimum(by_theta.abs(), by_alpha.abs()) > least_quotient(a) * size:
            return tuple(g.to(grad.dtype) for g in (by_alpha / alpha, to_beta, by_theta / theta))
    crossed = grad.mT @ a  # [..., P, K]
    to_alpha, to_theta = _inner(crossed, b.sign() - 1).sum(), _inner(crossed, b).sum()
    return tuple(g.to(grad.dtype) for g in (to_alpha, to_beta, to_theta))


def least_quotient(a: Tensor) -> float:
    """Smallest safe quotient of a sum of rows by the norm of those rows, each of which carries its own rounding error.

    It keeps nine digits in float64 and four in float32; in halves, whose rounding averages out over K features, one.
    """
    eps = torch.finfo(a.dtype).eps
    return eps**0.4 if eps < 1e-6 else 8 * eps / math.sqrt(a.shape[-1])


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Inner products of rows, in float64 because callers subtract their sums."""
    return (x * y).sum(-1).to(widest(x))


def add_product_(total: Tensor, x: Tensor, y: Tensor, factor: float = 1.0) -> None:
    """``total += factor * x @ y``, added in the dtype of ``total``."""
    if total.dtype == x.dtype:
        total.addmm_(x, y, alpha=factor)
    elif x.is_cuda:
        torch.addmm(total, x, y, out_dtype=total.dtype, alpha=factor, out=total)
    else:
        total.addmm_(x.to(total.dtype), y.to(total.dtype), alpha=factor)
