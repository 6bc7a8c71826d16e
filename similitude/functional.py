"""The door: Tversky similarity of pairs and of all pairs, and the parts that it is made of.

Arguments are checked here, and the options become one Form; ops/ trusts its inputs. Objects are ``[..., D]``, banks
``[K, D]``.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .checks import (
    check_alike,
    check_all_pairs,
    check_loss,
    check_scalar,
    check_targets,
    check_threshold,
    check_triton,
    check_width,
)
from .form import BACKENDS as BACKENDS
from .form import DIFFERENCES as DIFFERENCES
from .form import INTERSECTIONS as INTERSECTIONS
from .form import LEVELS as LEVELS
from .form import MODELS as MODELS
from .form import Form, check_choice
from .ops import pairs, pairwise, reference, vectors
from .ops.cross_entropy import REDUCTIONS
from .ops.leak import leaking
from .ops.modes import autocasts, wide, without_autocast
from .ops.reference import Scalar, Scalars

__all__ = ["common", "distinctive", "salience", "tversky_cross_entropy", "tversky_projection", "tversky_similarity"]


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
    threshold: Tensor | None = None,
) -> Tensor:
    """Similarity of each ``a`` to its ``b``, S(a, b) of Eq. 6: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcasting.

    Axes along which only one of the two is wider are compared all with all, without an N×P×K tensor.

    Args:
        a: Objects, ``[..., D]``.
        b: Objects they are compared with, ``[..., D]``.
        features: The feature bank Ω, ``[K, D]``.
        alpha: Weight of what ``a`` has and ``b`` lacks: a number or a tensor of one element.
        beta: Weight of what ``b`` has and ``a`` lacks.
        theta: Weight of what both have; the ratio model has none.
        intersection: Ψ, which measures a shared feature: product, min, max, mean, gmean or softmin.
        difference: What is distinctive: features the other lacks (ignorematch), or also the excess of those that both
            have (subtractmatch).
        level: Whether Ψ and the excess are taken of each feature (feature) or of sums over shared features (set).
        model: Tversky's contrast model, Eq. 1, or his ratio model, whose similarities lie in [0, 1].
        normalize: Whether objects are scaled to length 1 first.
        backend: Which code may run: auto, reference (the equations), torch, or triton (all pairs only).
        leak: Share of the gradient that reaches features an object lacks, 0 in the paper; outputs do not change. For
            ``level="feature"`` and ``model="contrast"``, and not for gmean; ops/leak.py has the equations.
        threshold: What a measure must exceed for an object to have the feature, ``[K]``: measures are x · f_k − t_k,
            those of the paper for the objects [x, 1] and the features [f_k, −t_k]. By default 0.

    Equivalent to, for the defaults::

        A, B = a @ features.T, b @ features.T                        # measures, [..., K]
        common = (A * B * ((A > 0) & (B > 0))).sum(-1)               # f(A∩B), Eq. 3
        a_only = (A * ((A > 0) & (B <= 0))).sum(-1)                  # f(A−B), Eq. 4
        b_only = (B * ((B > 0) & (A <= 0))).sum(-1)                  # f(B−A)
        theta * common - alpha * a_only - beta * b_only
    """
    form = Form.of(intersection, difference, level, model, normalize, backend, leak)
    if backend == "triton":
        raise RuntimeError("backend='triton' is for all pairs, by tversky_projection or .pairwise; use backend='auto'.")
    dtype = check_alike(a=a, b=b, features=features)
    with without_autocast(a.device.type):
        a, b, features, threshold = _paired(a, b, features, dtype, threshold)
        constants = scalars(a, alpha, beta, theta)
        if pairs.in_blocks(a, b, len(features)):
            return pairs.similarity(a, b, features, threshold, constants, form).to(dtype)
        A, B = (vectors.measures(x, features, normalize, threshold) for x in (a, b))

        def law(A: Tensor, B: Tensor) -> Tensor:
            return pairs.law(A, B, constants, form)

        def fast(A: Tensor, B: Tensor) -> Tensor:
            S = pairwise.similarity(A, B, *constants, form)
            return leaking(S, A, B, *constants, form.intersection, form.difference, form.leak) if leak else S

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
    threshold: Tensor | None = None,
) -> Tensor:
    """Similarity of each input to each prototype, Eq. 7: ``[..., D]``, ``[P, D]`` -> ``[..., P]``, like F.linear.

    Args:
        x: Inputs, ``[..., D]``.
        prototypes: ``[P, D]``, the same for all inputs; or batched, ``[..., P, D]`` for ``x [..., N, D]``, leading axes
            broadcasting, which returns ``[..., N, P]``.
        features: The feature bank Ω, ``[K, D]``.
        alpha: Weight of what an input has and a prototype lacks.
        beta: Weight of what a prototype has and an input lacks.
        theta: Weight of what both have.
        intersection, difference, level, model, normalize, backend, leak: As in ``tversky_similarity``.
        threshold: As in ``tversky_similarity``, for the inputs. A prototype's measures are p · f_k, those of [p, 0]
            beside inputs [x, 1], so that it has the features on whose side it lies.

    Equivalent to: ``tversky_similarity(x[..., None, :], prototypes, features, ...)``, without its N×P×K tensor.
    """
    form = Form.of(intersection, difference, level, model, normalize, backend, leak)
    dtype = check_alike(x=x, prototypes=prototypes, features=features)
    check_all_pairs(x, prototypes, features)
    if threshold is not None:
        check_threshold(threshold, features)
    if backend == "triton":
        check_triton(prototypes)
    with without_autocast(x.device.type):
        constants = scalars(x, alpha, beta, theta, axes=True)
        out = vectors.project(x, prototypes, features, constants, form, dtype, threshold)
    if prototypes.dim() != 2 or x.dim() == 2:
        return out
    return out.reshape(*x.shape[:-1], prototypes.shape[0])


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
    threshold: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Cross entropy of the similarities to all prototypes, without their N×P table: ``[..., D]``, ``[...]`` -> ``[]``.

    Gradients are computed along with the loss and cannot be differentiated again. torch.compile, torch.func and a leak
    do make the N×P table. An index out of range is an error on the CPU; on a GPU it is not checked.

    Args:
        x: Inputs, ``[..., D]``.
        target: Index of the right prototype of each input, ``[...]``, or ``ignore_index``.
        prototypes: ``[P, D]``.
        features: The feature bank Ω, ``[K, D]``.
        alpha, beta, theta: Weights, as in ``tversky_projection``.
        intersection, difference, level, model, normalize, backend, leak: As in ``tversky_similarity``.
        bias: Added to the similarities, ``[P]``.
        ignore_index: Target of inputs that do not count.
        reduction: "mean" over the targets that count (NaN if none does), "sum", or "none", which has the shape of
            ``target`` and is 0 where ignored.
        label_smoothing: Share of each target that is spread evenly over all prototypes.
        z_loss: Weight of the squared log-sum-exp, which is added to each loss before the reduction.
        threshold: As in ``tversky_projection``.
        scale: Factor of the similarities, a tensor of one number; the ratio model's lie in [0, 1] and need one.

    Equivalent to::

        logits = scale * tversky_projection(x, prototypes, features, ...).flatten(0, -2) + bias  # [N, P]
        F.cross_entropy(logits, target.flatten(), ...) + z_loss * logits.logsumexp(-1).square().mean()
    """
    form = Form.of(intersection, difference, level, model, normalize, backend, leak)
    check_choice("reduction", reduction, REDUCTIONS)
    dtype = check_alike(x=x, prototypes=prototypes, features=features)
    check_all_pairs(x, prototypes, features)
    check_targets(x, target, prototypes, ignore_index)
    check_loss(bias, prototypes, label_smoothing, z_loss)
    if threshold is not None:
        check_threshold(threshold, features)
    if backend == "triton":
        check_triton(prototypes)
    how = (bias, target.flatten(), ignore_index, reduction, float(label_smoothing), float(z_loss), threshold, scale)
    with without_autocast(x.device.type):
        out = vectors.loss(x, prototypes, features, scalars(x, alpha, beta, theta), form, dtype, *how)
    # Autocast keeps losses in 32 bits, and outside it the answer has the dtype of x.
    out = out.to(wide(dtype) if autocasts(x) else dtype)
    return out.reshape(target.shape) if reduction == "none" else out


def salience(objects: Tensor, features: Tensor, threshold: Tensor | None = None) -> Tensor:
    """Total measure of the features that each object has, f(A) of Eq. 2: ``[..., D]`` -> ``[...]``, never negative.

    Args:
        objects: ``[..., D]``.
        features: The feature bank Ω, ``[K, D]``.
        threshold: As in ``tversky_similarity``.

    Equivalent to: ``(objects @ features.T - threshold).relu().sum(-1)``.
    """
    dtype = check_alike(objects=objects, features=features)
    check_width("objects", objects, features)
    with without_autocast(objects.device.type):
        objects, features = vectors.widened(dtype, objects, features)
        threshold = _cut(threshold, features, dtype)
        return reference.salience(vectors.measures(objects, features, False, threshold)).to(dtype)


def common(
    a: Tensor,
    b: Tensor,
    features: Tensor,
    intersection: str = "product",
    level: str = "feature",
    normalize: bool = False,
    threshold: Tensor | None = None,
) -> Tensor:
    """Measure of the features that both have, f(A∩B) of Eq. 3: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcast.

    Args:
        a, b: Objects, ``[..., D]``, which broadcast.
        features: The feature bank Ω, ``[K, D]``.
        intersection, level, normalize, threshold: As in ``tversky_similarity``.
    """
    form = Form.of(intersection, level=level, normalize=normalize)
    law = lambda A, B: reference.common(A, B, form.intersection, form.level)  # noqa: E731
    fast = lambda A, B: pairwise.common(pairwise.Pairs(A, B), form.intersection, form.level)  # noqa: E731
    return _part(form, a, b, features, threshold, law, fast)


def distinctive(
    a: Tensor,
    b: Tensor,
    features: Tensor,
    difference: str = "ignorematch",
    level: str = "feature",
    normalize: bool = False,
    threshold: Tensor | None = None,
) -> Tensor:
    """Measure of what ``a`` has and ``b`` lacks, f(A−B) of Eq. 4–5: ``[..., D]``, ``[..., D]`` -> ``[...]``, broadcast.

    f(B−A) is ``distinctive(b, a, features)``.

    Args:
        a, b: Objects, ``[..., D]``, which broadcast.
        features: The feature bank Ω, ``[K, D]``.
        difference, level, normalize, threshold: As in ``tversky_similarity``.
    """
    form = Form.of(difference=difference, level=level, normalize=normalize)
    law = lambda A, B: reference.distinctive(A, B, form.difference, form.level)  # noqa: E731
    fast = lambda A, B: pairwise.distinctive(pairwise.Pairs(A, B), form.difference, form.level)[0]  # noqa: E731
    return _part(form, a, b, features, threshold, law, fast)


Measure = Callable[[Tensor, Tensor], Tensor]


def _part(
    form: Form, a: Tensor, b: Tensor, features: Tensor, threshold: Tensor | None, law: Measure, fast: Measure
) -> Tensor:
    """A part of S(a, b) of pairs that broadcast, from their measures."""
    dtype = check_alike(a=a, b=b, features=features)
    with without_autocast(a.device.type):
        a, b, features, threshold = _paired(a, b, features, dtype, threshold)
        A, B = (vectors.measures(x, features, form.normalize, threshold) for x in (a, b))
        return _broadcast(A, B, law, fast).to(dtype)


def scalars(like: Tensor, *values: Scalar, axes: bool = False) -> Scalars:
    """α, β, θ checked, as numbers or tensors in the dtype that sums are made in, without axes unless asked for."""
    dtype, device, out = wide(like.dtype), like.device, []
    for name, value in zip(("alpha", "beta", "theta"), values, strict=True):
        if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
            value = value if axes or not value.dim() else value.reshape(())
            out.append(value.to(device, dtype))
            continue
        check_scalar(name, value)
        out.append(float(value))  # pyright: ignore[reportArgumentType]
    alpha, beta, theta = out
    return alpha, beta, theta


def _paired(
    a: Tensor, b: Tensor, features: Tensor, dtype: torch.dtype, threshold: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Vectors that broadcast, and thresholds, as measures are made of them."""
    check_width("a", a, features)
    check_width("b", b, features)
    try:
        torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
    except RuntimeError:
        raise ValueError(
            f"a and b must broadcast in all axes but the last; got a {list(a.shape)} and b {list(b.shape)}. "
            "For all pairs use tversky_projection or TverskySimilarity.pairwise."
        ) from None
    a, b, features = vectors.widened(dtype, a, b, features)
    return a, b, features, _cut(threshold, features, dtype)


def _cut(threshold: Tensor | None, features: Tensor, dtype: torch.dtype) -> Tensor | None:
    if threshold is None:
        return None
    check_threshold(threshold, features)
    return vectors.widened(dtype, threshold)[0]


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
