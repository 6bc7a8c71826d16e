"""The contrast model of product + ignorematch for small sizes, where each call of Python counts: one function from
vectors to similarities, with gradients of its own.

Objects ``x [N, D]``, prototypes ``p [P, D]``, features ``f [K, D]``, in float32 or wider, and thresholds ``[K]`` or
None. α, β, θ are numbers or tensors of one element.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .modes import apply, without_autocast
from .reference import Scalar


def project(
    x: Tensor, p: Tensor, f: Tensor, threshold: Tensor | None, alpha: Scalar, beta: Scalar, theta: Scalar
) -> Tensor:
    """S of all pairs, ``[N, P]``.

    Equivalent to: ``separable.product_ignorematch(x @ f.mT - threshold, p @ f.mT, alpha, beta, theta)``.
    """
    return apply(Small, x, p, f, threshold, alpha, beta, theta)


class Small(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: Tensor, f: Tensor, threshold: Tensor | None, *scalars: Scalar) -> Tensor:
        # Numbers, not tensors of one, make a product and its sum with another one call.
        alpha, beta, _ = ctx.numbers = [s.item() if isinstance(s, Tensor) else s for s in scalars]
        columns = f.mT
        a = torch.mm(x, columns) if threshold is None else torch.addmm(threshold, x, columns, beta=-1)
        b = torch.mm(p, columns)
        has_a, has_b = a.relu(), b.relu()
        lacks_a, lacks_b = a.le_(0), b.le_(0)
        side = torch.add(has_b * scalars[2], lacks_b, alpha=-alpha)
        missing = torch.mm(lacks_a, has_b.mT)
        tensors = [s if isinstance(s, Tensor) else None for s in scalars]
        ctx.save_for_backward(x, p, f, threshold, *tensors, has_a, has_b, lacks_a, lacks_b, side, missing)
        return torch.addmm(missing, has_a, side.mT, beta=-beta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, p, f, threshold, *scalars, has_a, has_b, lacks_a, lacks_b, side, missing = ctx.saved_tensors
        with without_autocast("cpu"):
            if torch.is_grad_enabled():
                scalars = [n if s is None else s for s, n in zip(scalars, ctx.numbers, strict=True)]
                return _differentiable(grad, (x, p, f, threshold, *scalars), ctx.needs_input_grad)
            sides = (has_a, has_b, lacks_a, lacks_b, side, missing)
            return _gradients(grad, (x, p, f), scalars, ctx.numbers, sides, ctx.needs_input_grad)


def _gradients(
    grad: Tensor, vectors: tuple, scalars: Sequence[Tensor | None], numbers: list, sides: tuple, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of all inputs, those of α, β, θ for tensors; numbers: the values of these."""
    (x, p, f), (alpha, beta, theta) = vectors, scalars
    has_a, has_b, lacks_a, lacks_b, side, missing = sides
    turned = grad.mT
    crossed = torch.mm(turned, has_a)  # [P, K]
    # Less its own part where the feature is lacked, which is 0 there.
    to_a = torch.mm(grad, side)
    to_a.addcmul_(to_a, lacks_a, value=-1)
    to_b = torch.addmm(crossed, turned, lacks_a, beta=numbers[2], alpha=-numbers[1])
    to_b.addcmul_(to_b, lacks_b, value=-1)
    crossed = crossed.view(-1)
    to_alpha = to_beta = to_theta = None
    if needs[4] and alpha is not None:
        to_alpha = torch.dot(crossed, lacks_b.view(-1)).neg_().view_as(alpha)
    if needs[5] and beta is not None:
        to_beta = torch.dot(grad.reshape(-1), missing.view(-1)).neg_().view_as(beta)
    if needs[6] and theta is not None:
        to_theta = torch.dot(crossed, has_b.view(-1)).view_as(theta)
    return (
        torch.mm(to_a, f) if needs[0] else None,
        torch.mm(to_b, f) if needs[1] else None,
        torch.addmm(torch.mm(to_a.mT, x), to_b.mT, p) if needs[2] else None,
        -to_a.sum(0) if needs[3] else None,
        to_alpha,
        to_beta,
        to_theta,
    )


def _differentiable(grad: Tensor, inputs: Any, needs: Any) -> Any:
    """The gradients with a graph of their own, by plain autograd: second derivatives are rare."""
    # Views, since one input may be made of another, whose gradient would then count that way twice.
    inputs = [i.view_as(i) if need else i for i, need in zip(inputs, needs, strict=True)]
    wanted = [i for i, need in zip(inputs, needs, strict=True) if need]
    found = iter(torch.autograd.grad(_plain(*inputs), wanted, grad, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def _plain(
    x: Tensor, p: Tensor, f: Tensor, threshold: Tensor | None, alpha: Scalar, beta: Scalar, theta: Scalar
) -> Tensor:
    a, b = x @ f.mT if threshold is None else x @ f.mT - threshold, p @ f.mT
    lacks_a, lacks_b = ((t.detach() <= 0).to(t.dtype) for t in (a, b))
    return a.relu() @ (theta * b.relu() - alpha * lacks_b).mT - beta * (lacks_a @ b.relu().mT)
