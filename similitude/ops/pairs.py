"""Similarities of objects to their partners, S(a, b) of Eq. 6, in blocks whose measures stay in a core's cache.

Objects are ``[N, D]``, or ``[1, D]`` where all have the same partner. Many pairs need no N×K tensor: the backward of
large ones computes the measures of each block again.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..form import Form
from . import reference
from .leak import leaking
from .modes import eager, without_autocast
from .reference import Scalars
from .vectors import measures

# Measures of one side in a block.
BLOCK = {"cpu": 2**18, "cuda": 2**25}
# Measures of one side up to which a graph keeps them for the backward.
KEPT = {"cpu": 2**22, "cuda": 2**27}


def law(A: Tensor, B: Tensor, scalars: Scalars, form: Form) -> Tensor:
    """S of measures that broadcast: ``[..., K]``, ``[..., K]`` -> ``[...]``."""
    S = reference.similarity(A, B, *scalars, *form[:4])
    if not form.leak:
        return S
    A, B = (t.expand(*S.shape, -1).unsqueeze(-2) for t in (A, B))
    leaks = (*scalars, form.intersection, form.difference, form.leak)
    return leaking(S[..., None, None], A, B, *leaks)[..., 0, 0]


def in_blocks(a: Tensor, b: Tensor, K: int) -> bool:
    """Whether these objects, ``[..., D]``, are pairs that are more than a block."""
    rows = {x.shape[:-1].numel() for x in (a, b)}
    one_to_one = a.shape[:-1] == b.shape[:-1] or 1 in rows
    return one_to_one and eager(a) and max(rows) * K > _of(BLOCK, a)


def similarity(
    a: Tensor, b: Tensor, features: Tensor, threshold: Tensor | None, scalars: Scalars, form: Form
) -> Tensor:
    """S(a, b) of pairs in blocks: ``[..., D]``, ``[..., D]``, of equal shapes or one of them a single object.

    Equivalent to: ``law(a @ features.T - threshold, b @ features.T - threshold, scalars, form)``.
    """
    lead = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    rows = max(1, _of(BLOCK, a) // max(1, len(features)))
    given = [a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), features, threshold, *scalars]
    learned = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given)
    if learned and lead.numel() * len(features) > _of(KEPT, a):
        return Recomputed.apply(*given, form, rows).reshape(lead)  # pyright: ignore
    with torch.set_grad_enabled(learned):
        return _blocks(given, form, rows).reshape(lead)


def _of(sizes: dict[str, int], x: Tensor) -> int:
    return sizes.get(x.device.type, sizes["cpu"])


def _blocks(inputs: Sequence[Any], form: Form, rows: int) -> Tensor:
    """S of pairs, block by block. inputs: a, b, features, threshold, α, β, θ."""
    a, b, *rest = inputs
    N = max(len(a), len(b))
    sides = (x.split(rows) if len(x) == N else [x] * -(-N // rows) for x in (a, b))
    found = (_block([*xs, *rest], form) for xs in zip(*sides, strict=True))
    if torch.is_grad_enabled():
        return torch.cat(list(found))
    # One output from the start: small ones would lie between freed blocks, and keep these from being used again.
    out = a.new_empty(N)
    for start, S in zip(range(0, N, rows), found):
        out[start : start + rows] = S
    return out


def _block(inputs: Sequence[Any], form: Form) -> Tensor:
    a, b, features, threshold, *scalars = inputs
    A, B = (measures(x, features, form.normalize, threshold) for x in (a, b))
    if not form.two_products or form.backend == "reference" or form.leak:
        return law(A, B, (scalars[0], scalars[1], scalars[2]), form)
    # A⁺(θB⁺ − α(1−J)) − β(1−I)B⁺, in few passes, written so that no two large terms cancel.
    alpha, beta, theta = scalars
    A, B = A.relu(), B.relu()
    lacks_a, lacks_b = (x.detach().sign().sub_(1) for x in (A, B))
    return (A * (theta * B + alpha * lacks_b)).sum(-1) + beta * (lacks_a * B).sum(-1)


class Recomputed(torch.autograd.Function):
    """``_blocks`` that keeps nothing but its inputs."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *inputs, ctx.form, ctx.rows = given
        ctx.numbers = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.save_for_backward(*(x if isinstance(x, Tensor) else None for x in inputs))
        return _blocks(inputs, ctx.form, ctx.rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        inputs = [number if x is None else x for x, number in zip(ctx.saved_tensors, ctx.numbers, strict=True)]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad) if needed]
        found: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        with without_autocast(grad.device.type):
            if torch.is_grad_enabled():
                # To be differentiated again, by a graph that keeps its measures.
                out = _blocks(inputs, ctx.form, ctx.rows)
                parts = torch.autograd.grad(
                    out, [inputs[i] for i in wanted], grad, create_graph=True, allow_unused=True
                )
                for i, part in zip(wanted, parts, strict=True):
                    found[i] = part
                return tuple(found)
            for start in range(0, len(grad), ctx.rows):
                _add_block(found, inputs, grad[start : start + ctx.rows], start, wanted, ctx.form)
        return tuple(found)


def _add_block(
    found: list[Tensor | None], inputs: list[Any], grad: Tensor, start: int, wanted: list[int], form: Form
) -> None:
    """Adds the gradients of a block of pairs to those that were found."""
    N = max(len(inputs[0]), len(inputs[1]))
    rows = [slice(start, start + len(grad)) if i < 2 and len(inputs[i]) == N else slice(None) for i in range(2)]
    some = [x[rows[i]] if i < 2 else x for i, x in enumerate(inputs)]
    some = [x.detach().requires_grad_(i in wanted) if isinstance(x, Tensor) else x for i, x in enumerate(some)]
    with torch.enable_grad():
        S = _block(some, form)
    parts = torch.autograd.grad(S, [some[i] for i in wanted], grad, allow_unused=True)
    for i, part in zip(wanted, parts, strict=True):
        if part is None:
            continue
        total = found[i]
        if total is None:
            total = found[i] = torch.zeros_like(inputs[i])
        if i < 2:
            total = total[rows[i]]
        total += part
