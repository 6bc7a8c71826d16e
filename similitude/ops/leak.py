"""Gradients for features that an object lacks, which have none by Eq. 1–7; outputs do not change.

S is flat in a measure below 0, so a prototype without features, or a feature that no object has, would never move
again. With a leak λ a lacked feature gets λ times the gradient with respect to A⁺ = max(a, 0) at A⁺ = 0, like a leaky
ReLU in the backward pass only. With J = 1[b > 0]:

    dS/da = λ (θ c − α (1 − J))            ignorematch        for a ≤ 0
    dS/da = λ (θ c − α (1 − h) + β h)      subtractmatch

h = (1 + J)/2 is the slope of min(A⁺, B⁺), a tie of two zeros being shared half and half as everywhere; c is that of
the intersection: B⁺ for product, J/2 for mean, h for min, J σ(b) for softmin, and 0 for max, which B⁺ decides. The same
holds for b with α and β exchanged. The indicators' own jumps are ignored, as everywhere.
"""

from typing import Any

import torch
from torch import Tensor

from .modes import without_autocast
from .reference import Scalar
from .separable import has


def leaking(
    S: Tensor,
    a: Tensor,
    b: Tensor,
    alpha: Scalar,
    beta: Scalar,
    theta: Scalar,
    intersection: str,
    difference: str,
    leak: float,
) -> Tensor:
    """S of all pairs as it is, ``[..., N, P]``, whose gradient reaches features that objects lack as well.

    a, b: the measures that S was made of, ``[..., N, K]`` and ``[..., P, K]`` with equal leading axes.
    """
    return Leaking.apply(S, a, b, alpha, beta, theta, intersection, difference, leak)  # pyright: ignore


class Leaking(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    # All arguments by name: torch.compile tells by their number that there is no ctx among them.
    def forward(
        S: Tensor,
        a: Tensor,
        b: Tensor,
        alpha: Scalar,
        beta: Scalar,
        theta: Scalar,
        intersection: str,
        difference: str,
        leak: float,
    ) -> Tensor:
        return S.view_as(S)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, a, b, *scalars, ctx.intersection, ctx.difference, ctx.leak = inputs
        ctx.save_for_backward(a, b, *(s for s in scalars if isinstance(s, Tensor)))
        ctx.numbers = [None if isinstance(s, Tensor) else s for s in scalars]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b, *tensors = ctx.saved_tensors
        waiting = iter(tensors)
        alpha, beta, theta = (next(waiting) if n is None else n for n in ctx.numbers)
        options = (theta, ctx.intersection, ctx.difference)
        G = grad.to(a.dtype)
        with without_autocast(a.device.type):
            to_a = torch.where(a > 0, 0.0, ctx.leak * (G @ slopes(b, alpha, beta, *options)))
            to_b = torch.where(b > 0, 0.0, ctx.leak * (G.mT @ slopes(a, beta, alpha, *options)))
        return grad, to_a, to_b, *[None] * 6


def slopes(b: Tensor, own: Scalar, others: Scalar, theta: Scalar, intersection: str, difference: str) -> Tensor:
    """Slope of S in A⁺ at 0 for features of which the other side has the measures ``b``, of the shape of b.

    own: the constant of what the side that lacks them has alone, α for objects; others: the other, β.
    """
    had = has(b)
    least = (1 + had) / 2
    match intersection:
        case "product":
            common = b.relu()
        case "mean":
            common = had / 2
        case "min":
            common = least
        case "softmin":
            common = had * b.sigmoid()
        case _:
            common = torch.zeros_like(b)
    if difference == "ignorematch":
        return theta * common - own * (1 - had)
    return theta * common - own * (1 - least) + others * least
