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
        alpha, beta, theta = scalars
        columns = f.mT
        a = torch.mm(x, columns) if threshold is None else torch.addmm(threshold, x, columns, beta=-1)
        b = torch.mm(p, columns)
        has_a, has_b = a.relu(), b.relu()
        lacks_a, lacks_b = a.le_(0), b.le_(0)
        side = _less(theta * has_b, alpha, lacks_b)
        missing = torch.mm(lacks_a, has_b.mT)
        tensors = [s if isinstance(s, Tensor) else None for s in scalars]
        ctx.numbers = [None if isinstance(s, Tensor) else s for s in scalars]
        ctx.save_for_backward(x, p, f, threshold, *tensors, has_a, has_b, lacks_a, lacks_b, side, missing)
        return _less(torch.mm(has_a, side.mT), beta, missing)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, p, f, threshold, *scalars, has_a, has_b, lacks_a, lacks_b, side, missing = ctx.saved_tensors
        scalars = [n if s is None else s for s, n in zip(scalars, ctx.numbers, strict=True)]
        with without_autocast("cpu"):
            if torch.is_grad_enabled():
                return _differentiable(grad, (x, p, f, threshold, *scalars), ctx.needs_input_grad)
            sides = (has_a, has_b, lacks_a, lacks_b, side, missing)
            return _gradients(grad, x, p, f, scalars, sides, ctx.needs_input_grad)


def _gradients(
    grad: Tensor, x: Tensor, p: Tensor, f: Tensor, scalars: Sequence[Scalar], sides: tuple, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    has_a, has_b, lacks_a, lacks_b, side, missing = sides
    _, beta, theta = scalars
    turned = grad.mT
    to_a = torch.ops.aten.threshold_backward(torch.mm(grad, side), has_a, 0)
    to_b = torch.mm(turned, _less(theta * has_a, beta, lacks_a))
    to_b = torch.ops.aten.threshold_backward(to_b, has_b, 0)
    of_scalars: list[Tensor | None] = [None, None, None]
    if needs[4] or needs[5] or needs[6]:
        crossed = torch.mm(turned, has_a).view(-1)
        pairs = (crossed, lacks_b), (grad.reshape(-1), missing), (crossed, has_b)
        for i, (scalar, (left, right)) in enumerate(zip(scalars, pairs, strict=True)):
            if needs[4 + i] and isinstance(scalar, Tensor):
                total = torch.dot(left, right.view(-1))
                of_scalars[i] = (total if i == 2 else total.neg_()).view_as(scalar)
    return (
        torch.mm(to_a, f) if needs[0] else None,
        torch.mm(to_b, f) if needs[1] else None,
        torch.addmm(torch.mm(to_a.mT, x), to_b.mT, p) if needs[2] else None,
        -to_a.sum(0) if needs[3] else None,
        *of_scalars,
    )


def _less(x: Tensor, factor: Scalar, y: Tensor) -> Tensor:
    """x − factor·y in one pass."""
    return torch.addcmul(x, y, factor, value=-1) if isinstance(factor, Tensor) else torch.sub(x, y, alpha=factor)


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
