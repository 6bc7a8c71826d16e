"""The door: Tversky similarity of pairs and of all pairs, and the measures that it is made of.

What a caller passes is checked here, by checks.py; ops/ trusts its inputs. Objects are ``[..., D]``, banks ``[K, D]``.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from .checks import (
    BACKENDS,
    DIFFERENCES,
    INTERSECTIONS,
    MODELS,
    check_choice,
    check_leak,
    check_loss,
    check_options,
    check_scalar,
    check_targets,
    check_width,
)
from .checks import LEVELS as LEVELS
from .ops import cross_entropy, pairwise, reference
from .ops.leak import leaking
from .ops.separable import Sides, prepared_product_ignorematch
from .ops.separable import prepare as prepare_sides
from .precision import aligned, aligned_size, autocasts, exact, fits_whole, wide

Scalar = Tensor | float


def tversky_similarity(
    a: Tensor,
    b: Tensor,
    features: Tensor,
    alpha: Scalar = 0.5,
    beta: Scalar = 0.5,
    theta: Scalar = 1.0,
    intersection: str = "product",
    difference: str = "ignorematch",
    level: str = "feature",
    model: str = "contrast",
    normalize: bool = False,
    backend: str = "auto",
    leak: float = 0.0,
) -> Tensor:
    """Similarity of each ``a`` to its ``b``, S(a, b) of Eq. 6: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcasting.

    Axes in which only one of the two is wider are compared all with all, without an N×P×K tensor.
    leak: the part of the gradient that a feature gets which an object lacks, 0 in the paper; values are the same.
    ops/leak.py has its equations. It is for level="feature" and model="contrast", and not for gmean.

    Equivalent to, for the defaults::

        A, B = a @ features.T, b @ features.T                        # measures, [..., K]
        common = (A * B * ((A > 0) & (B > 0))).sum(-1)               # f(A∩B), Eq. 3
        a_only = (A * ((A > 0) & (B <= 0))).sum(-1)                  # f(A−B), Eq. 4
        b_only = (B * ((B > 0) & (A <= 0))).sum(-1)                  # f(B−A)
        theta * common - alpha * a_only - beta * b_only
    """
    options = check_options(intersection, difference, level, model)
    check_choice("backend", backend, BACKENDS)
    leak = check_leak(leak, *options)
    if backend == "triton":
        raise RuntimeError("backend='triton' is for all pairs, by tversky_projection or .pairwise; use backend='auto'.")
    with exact(a=a, b=b, features=features) as (inputs, dtype):
        A, B = _paired_measures(*inputs, normalize=normalize)
        scalars = _scalars(A, alpha, beta, theta)
        leaks = (*scalars, *options[:2], leak)

        def law(A: Tensor, B: Tensor) -> Tensor:
            S = reference.similarity(A, B, *scalars, *options)
            if not leak:
                return S
            A, B = (t.expand(*S.shape, -1).unsqueeze(-2) for t in (A, B))
            return leaking(S[..., None, None], A, B, *leaks)[..., 0, 0]

        def fast(A: Tensor, B: Tensor) -> Tensor:
            S = pairwise.similarity(A, B, *scalars, *options)
            return leaking(S, A, B, *leaks) if leak else S

        return (law(A, B) if backend == "reference" else _broadcast(A, B, law, fast)).to(dtype)


def tversky_projection(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    alpha: Scalar = 0.5,
    beta: Scalar = 0.5,
    theta: Scalar = 1.0,
    intersection: str = "product",
    difference: str = "ignorematch",
    level: str = "feature",
    model: str = "contrast",
    normalize: bool = False,
    backend: str = "auto",
    leak: float = 0.0,
) -> Tensor:
    """Similarity of each input to each prototype, Eq. 7: ``[..., D]``, ``[P, D]`` -> ``[..., P]``, like F.linear.

    Prototypes may be batched: ``[..., N, D]``, ``[..., P, D]`` -> ``[..., N, P]``, leading axes broadcasting.
    leak: as in tversky_similarity.

    Equivalent to: ``tversky_similarity(x[..., None, :], prototypes, features, ...)``, without its N×P×K tensor.
    """
    options = check_options(intersection, difference, level, model)
    check_choice("backend", backend, BACKENDS)
    leak = check_leak(leak, *options)
    whole = fused(options) and not normalize and backend in ("auto", "triton") and fits_whole(x, prototypes, features)
    with exact(x=x, prototypes=prototypes, features=features, backend=backend, rounded=not whole) as (inputs, dtype):
        if whole:
            out = _whole(inputs, (alpha, beta, theta), dtype)
        else:
            A, B = _all_pairs_measures(*aligned(*inputs), normalize=normalize)
            scalars = _scalars(A, alpha, beta, theta)
            if backend == "reference":
                out = reference.pairwise(A, B, *scalars, *options)
            else:
                out = pairwise.similarity(A, B, *scalars, *options, kernels=backend != "torch")
        out = out[..., : prototypes.shape[-2]]
        if leak and torch.is_grad_enabled():
            A, B = _all_pairs_measures(*inputs, normalize=normalize)
            out = leaking(out, A, B, *_scalars(A, alpha, beta, theta), *options[:2], leak)
        out = out.to(dtype)
    return out.reshape(*x.shape[:-1], prototypes.shape[0]) if prototypes.dim() == 2 else out


class Prepared(NamedTuple):
    """The prototypes' side of a projection, for inference: what does not depend on the input."""

    measures: Tensor  # [P, K], aligned
    sides: Sides | None  # for product + ignorematch in 32 bits or more
    features: Tensor  # [K, D], aligned
    num_prototypes: int


@torch.no_grad()
def prepare(
    prototypes: Tensor,
    features: Tensor,
    alpha: Scalar,
    beta: Scalar,
    theta: Scalar,
    intersection: str,
    difference: str,
    level: str,
    model: str,
    normalize: bool,
    backend: str,
    leak: float = 0.0,
) -> Prepared:
    """What tversky_projection makes of prototypes ``[P, D]`` and features, to be used again by project_prepared.

    It is for inference, to which a leak is nothing.
    """
    options = check_options(intersection, difference, level, model)
    with exact(prototypes=prototypes, features=features, backend=backend) as ((prototypes, features), _):
        P = prototypes.shape[0]
        _, prototypes, features = aligned(prototypes, prototypes, features)
        B = _measures(prototypes, features, normalize)
        sides = None
        if fused(options) and B.dtype == wide(B.dtype):
            sides = prepare_sides(B, *_scalars(B, alpha, beta, theta)[::2])
    return Prepared(B, sides, features, P)


@torch.no_grad()
def project_prepared(
    x: Tensor,
    prepared: Prepared,
    alpha: Scalar,
    beta: Scalar,
    theta: Scalar,
    intersection: str,
    difference: str,
    level: str,
    model: str,
    normalize: bool,
    backend: str,
    leak: float = 0.0,
) -> Tensor:
    """``tversky_projection`` on prototypes that were prepared with the same arguments: ``[..., D]`` -> ``[..., P]``."""
    options = check_options(intersection, difference, level, model)
    B, sides, features, P = prepared
    with exact(x=x, backend=backend) as ((wide,), dtype):
        check_width("x", wide, features)
        A = _measures(wide, features, normalize)
        A = A.flatten(0, -2) if A.dim() > 1 else A.unsqueeze(0)
        scalars = _scalars(A, alpha, beta, theta)
        if backend == "reference":
            out = reference.pairwise(A, B, *scalars, *options)
        elif sides is not None:
            out = prepared_product_ignorematch(A, sides, scalars[1])
        else:
            out = pairwise.similarity(A, B, *scalars, *options, kernels=backend != "torch")
    return out[:, :P].to(dtype).reshape(*x.shape[:-1], P)


def tversky_cross_entropy(
    x: Tensor,
    target: Tensor,
    prototypes: Tensor,
    features: Tensor,
    alpha: Scalar = 0.5,
    beta: Scalar = 0.5,
    theta: Scalar = 1.0,
    intersection: str = "product",
    difference: str = "ignorematch",
    level: str = "feature",
    model: str = "contrast",
    normalize: bool = False,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    backend: str = "auto",
    leak: float = 0.0,
) -> Tensor:
    """Cross entropy of the similarities to all prototypes, without their N×P table: ``[..., D]``, ``[...]`` -> ``[]``.

    target: the index of the right prototype, or ``ignore_index``; prototypes: ``[P, D]``; bias: ``[P]``, added to the
    similarities; z_loss: weight of the squared log-sum-exp, which is added to each loss before the reduction.
    reduction: "mean" of the targets that are not ignored (NaN if all are), "sum", or "none", the shape of target with 0
    where ignored. Gradients are made along with the loss, and cannot be differentiated again; torch.compile,
    torch.func and a leak do make the table. A target that is no prototype is an error on CPU, and unchecked on a GPU.

    Equivalent to::

        logits = tversky_projection(x, prototypes, features, ...).flatten(0, -2) + bias          # [N, P]
        F.cross_entropy(logits, target.flatten(), ...) + z_loss * logits.logsumexp(-1).square().mean()
    """
    options = check_options(intersection, difference, level, model)
    check_choice("backend", backend, BACKENDS)
    check_choice("reduction", reduction, cross_entropy.REDUCTIONS)
    leak = check_leak(leak, *options)
    with exact(x=x, prototypes=prototypes, features=features, backend=backend) as (inputs, dtype):
        check_targets(x, target, prototypes, ignore_index)
        check_loss(bias, prototypes, label_smoothing, z_loss)
        A, B = _all_pairs_measures(*(inputs if leak else aligned(*inputs)), normalize=normalize)
        if not leak:
            # Only positive measures count, and the others are not kept.
            A, B = A.relu(), B.relu()
        scalars = _scalars(A, alpha, beta, theta)
        how = cross_entropy.Loss(float(label_smoothing), float(z_loss), kernels=backend != "torch")
        rest = (bias, target.flatten(), ignore_index, reduction, how)
        if backend == "reference" or leak:
            law = reference.pairwise if backend == "reference" else pairwise.similarity
            S = law(A, B, *scalars, *options)
            S = leaking(S, A, B, *scalars, *options[:2], leak) if leak else S
            out = cross_entropy.plain(S, *rest)
        else:
            out = cross_entropy.cross_entropy(A, B, *scalars, options, *rest, P=prototypes.shape[0])
    # Autocast keeps losses in 32 bits, and outside it the answer has the dtype of x.
    out = out.to(wide(dtype) if autocasts(x) else dtype)
    return out.reshape(target.shape) if reduction == "none" else out


def salience(objects: Tensor, features: Tensor) -> Tensor:
    """Total measure of the features that each object has, f(A) of Eq. 2: ``[..., D]`` -> ``[...]``, never negative.

    Equivalent to: ``(objects @ features.T).relu().sum(-1)``.
    """
    with exact(objects=objects, features=features) as ((objects, features), dtype):
        check_width("objects", objects, features)
        return reference.salience(objects @ features.mT).to(dtype)


def common(
    a: Tensor,
    b: Tensor,
    features: Tensor,
    intersection: str = "product",
    level: str = "feature",
    normalize: bool = False,
) -> Tensor:
    """Measure of the features that both have, f(A∩B) of Eq. 3: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcast."""
    intersection, _, level, _ = check_options(intersection, DIFFERENCES[0], level, MODELS[0])
    with exact(a=a, b=b, features=features) as (inputs, dtype):
        A, B = _paired_measures(*inputs, normalize=normalize)
        law = lambda A, B: reference.common(A, B, intersection, level)  # noqa: E731
        fast = lambda A, B: pairwise.common(pairwise.Pairs(A, B), intersection, level)  # noqa: E731
        return _broadcast(A, B, law, fast).to(dtype)


def distinctive(
    a: Tensor,
    b: Tensor,
    features: Tensor,
    difference: str = "ignorematch",
    level: str = "feature",
    normalize: bool = False,
) -> Tensor:
    """Measure of what ``a`` has and ``b`` lacks, f(A−B) of Eq. 4–5: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcast.

    f(B−A) is ``distinctive(b, a, features)``.
    """
    _, difference, level, _ = check_options(INTERSECTIONS[0], difference, level, MODELS[0])
    with exact(a=a, b=b, features=features) as (inputs, dtype):
        A, B = _paired_measures(*inputs, normalize=normalize)
        law = lambda A, B: reference.distinctive(A, B, difference, level)  # noqa: E731
        fast = lambda A, B: pairwise.distinctive(pairwise.Pairs(A, B), difference, level)[0]  # noqa: E731
        return _broadcast(A, B, law, fast).to(dtype)


def _scalars(like: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    check_scalar("alpha", alpha)
    check_scalar("beta", beta)
    check_scalar("theta", theta)
    return _scalar(like, alpha), _scalar(like, beta), _scalar(like, theta)


def _scalar(like: Tensor, value: Scalar) -> Scalar:
    dtype = wide(like.dtype)
    return value.reshape(()).to(device=like.device, dtype=dtype) if isinstance(value, Tensor) else float(value)


def _measures(objects: Tensor, features: Tensor, normalize: bool) -> Tensor:
    """x · f_k of every object and feature: ``[..., D]``, ``[K, D]`` -> ``[..., K]``."""
    if normalize:
        objects = torch.nn.functional.normalize(objects, dim=-1)
    return objects @ features.mT


def fused(options: tuple[str, ...]) -> bool:
    """Whether the options are the usual ones, for which there are functions with fewer products."""
    return (options[0], options[1], options[3]) == ("product", "ignorematch", "contrast")


def _whole(inputs: list[Tensor], scalars: tuple[Scalar, Scalar, Scalar], dtype: torch.dtype) -> Tensor:
    """S of all pairs by the kernels that make measures as well, ``[N, P]`` and more columns where that is faster."""
    from .ops.triton import separable as triton_separable

    x, prototypes, features = inputs
    check_width("x", x, features)
    check_width("prototypes", prototypes, features)
    flat = x.reshape(-1, x.shape[-1])
    alpha, beta, theta = pairwise.tensors(_scalars(x, *scalars), x)
    size = aligned_size(flat.shape[0], prototypes.shape[0], features.shape[0])
    return triton_separable.projection(flat, prototypes, features, alpha, beta, theta, dtype, size)


def _paired_measures(a: Tensor, b: Tensor, features: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    check_width("a", a, features)
    check_width("b", b, features)
    try:
        torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"a and b must broadcast in all axes but the last; got a {list(a.shape)} and b {list(b.shape)}. "
            "For all pairs use tversky_projection or TverskySimilarity.pairwise."
        ) from None
    return _measures(a, features, normalize), _measures(b, features, normalize)


def _all_pairs_measures(x: Tensor, prototypes: Tensor, features: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Measures with equal leading axes, ``[..., N, K]`` and ``[..., P, K]``."""
    check_width("x", x, features)
    check_width("prototypes", prototypes, features)
    if prototypes.dim() == 1:
        raise ValueError(
            f"prototypes must be [P, D] or [..., P, D]; got shape {list(prototypes.shape)}: "
            "for one prototype use prototypes[None]."
        )
    A, B = _measures(x, features, normalize), _measures(prototypes, features, normalize)
    if B.dim() == 2:
        return A.flatten(0, -2) if A.dim() > 1 else A.unsqueeze(0), B
    if A.dim() < 2:
        raise ValueError(
            f"x must be [..., N, D] when prototypes are batched; got x {list(x.shape)} "
            f"and prototypes {list(prototypes.shape)}."
        )
    try:
        lead = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    except RuntimeError:
        raise ValueError(
            "x [..., N, D] and prototypes [..., P, D] must broadcast in all axes but the last two; "
            f"got x {list(x.shape)} and prototypes {list(prototypes.shape)}."
        ) from None
    return A.expand(*lead, *A.shape[-2:]), B.expand(*lead, *B.shape[-2:])


Measure = Callable[[Tensor, Tensor], Tensor]


def _broadcast(A: Tensor, B: Tensor, law: Measure, all_pairs: Measure) -> Tensor:
    """``law(A, B)``, by ``all_pairs`` where broadcasting would pair everything with everything.

    ``[..., K]``, ``[..., K]`` -> ``[...]``. Axes are sorted into shared ones, A's own and B's own.
    """
    rank = max(A.dim(), B.dim()) - 1
    A = A.reshape((1,) * (rank - A.dim() + 1) + A.shape)
    B = B.reshape((1,) * (rank - B.dim() + 1) + B.shape)
    own_a = [i for i in range(rank) if A.shape[i] != B.shape[i] and B.shape[i] == 1]
    own_b = [i for i in range(rank) if A.shape[i] != B.shape[i] and A.shape[i] == 1]
    if not own_a or not own_b:
        return law(A, B)
    shared = [i for i in range(rank) if i not in own_a and i not in own_b]
    order = shared + own_a + own_b
    lead = [A.shape[i] for i in shared]
    wide_a = A.permute(*order, rank).reshape(*lead, math.prod(A.shape[i] for i in own_a), A.shape[-1])
    wide_b = B.permute(*order, rank).reshape(*lead, math.prod(B.shape[i] for i in own_b), B.shape[-1])
    out = all_pairs(wide_a, wide_b)
    out = out.reshape(*lead, *(A.shape[i] for i in own_a), *(B.shape[i] for i in own_b))
    return out.permute([order.index(i) for i in range(rank)])
