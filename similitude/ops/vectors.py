"""From vectors to similarities: measures are made, compared by the code that plan.py names, and padding is cut off.

Vectors are checked, ``x [..., D]`` or, if prototypes are batched, ``[..., N, D]``; α, β, θ are numbers or tensors
without axes. Callers switch autocast off. An input's measure is x · f_k − t_k where there are thresholds ``[K]``, and a
prototype's is p · f_k: the law on [x, 1], [p, 0] and [f_k, −t_k].
"""

import math

import torch
from torch import Tensor

from ..form import Form
from . import cross_entropy, inference, pairwise, reference, small
from .leak import leaking
from .modes import eager, has_kernels, padded, wide
from .plan import Plan, in_bfloat16, plan
from .reference import Scalars

PLAIN = (Tensor, torch.nn.Parameter)


def project(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    scalars: Scalars,
    form: Form,
    dtype: torch.dtype,
    threshold: Tensor | None = None,
) -> Tensor:
    """S of all pairs in ``dtype``: ``[N, P]`` for prototypes ``[P, D]``, else ``[..., N, P]``.

    scalars: numbers or tensors of one element.
    """
    how = plan_of(x, prototypes, features, form, dtype, threshold)
    if how.code == "small":
        out = _small(*_taken(x, prototypes, features, threshold, form, dtype, how), scalars, form.normalize)
    elif how.code == "triton whole":
        out = _whole(x, prototypes, features, without_axes(scalars), dtype, how)
    else:
        scalars = without_axes(scalars)
        A, B = _measured(x, prototypes, features, threshold, form, dtype, how)
        if how.code == "reference":
            out = reference.pairwise(A, B, *scalars, *form[:4])
        else:
            out = pairwise.similarity(A, B, *scalars, form, how.code)
    if out.shape[-1] != prototypes.shape[-2]:
        out = out[..., : prototypes.shape[-2]]
    if form.leak and torch.is_grad_enabled():
        A, B = all_pairs(*_taken(x, prototypes, features, threshold, form, dtype, None), form.normalize)
        out = leaking(out, A, B, *without_axes(scalars), form.intersection, form.difference, form.leak)
    return out.to(dtype)


def loss(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    scalars: Scalars,
    form: Form,
    dtype: torch.dtype,
    bias: Tensor | None,
    target: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    threshold: Tensor | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Cross entropy of S, in 32 bits or more: a number, or ``[N]`` for ``reduction="none"``."""
    options = cross_entropy.Loss(label_smoothing, z_loss, kernels=form.backend != "torch")
    rest = (bias, target, ignore_index, reduction, options)
    if form.leak or form.backend == "reference":
        A, B = all_pairs(*_taken(x, prototypes, features, threshold, form, dtype, None), form.normalize)
        law = form.backend == "reference"
        S = reference.pairwise(A, B, *scalars, *form[:4]) if law else pairwise.similarity(A, B, *scalars, form)
        if form.leak:
            S = leaking(S, A, B, *scalars, form.intersection, form.difference, form.leak)
        return cross_entropy.plain(S, *rest, scale)
    # Only positive measures count, and the others are not kept.
    how = plan_of(x, prototypes, features, form, dtype, threshold)
    inputs = _taken(x, prototypes, features, threshold, form, dtype, how)
    A, B = all_pairs(*inputs, form.normalize)
    if eager(x):
        # The loss gives no gradient to measures that were negative.
        with torch.no_grad():
            A, B = A.relu_(), B.relu_()
    return cross_entropy.cross_entropy(A, B, *scalars, form, *rest, P=prototypes.shape[0], scale=scale)


@torch.no_grad()
def prepare(
    prototypes: Tensor,
    features: Tensor,
    scalars: Scalars,
    form: Form,
    dtype: torch.dtype,
    threshold: Tensor | None = None,
) -> inference.Side:
    """What ``project`` makes of prototypes ``[P, D]`` and features, for ``project_on``. A leak is nothing to it."""
    P, how = prototypes.shape[0], plan_of(prototypes, prototypes, features, form, dtype, threshold)
    if _in_bfloat16(prototypes, features, threshold, form, dtype):
        features = features.to(dtype)
        B = measures(prototypes.to(dtype), features, False).float()
    else:
        _, prototypes, features, threshold = _taken(prototypes, prototypes, features, threshold, form, dtype, how)
        B = measures(prototypes, features, form.normalize)
    return inference.prepare(B, features, threshold, scalars, form, dtype, P)


def project_on(side: inference.Side, x: Tensor) -> Tensor:
    """``project`` on prototypes that were prepared for the same arguments: ``[..., D]`` -> ``[..., P]``."""
    dtype, own = side.dtype, side.features.dtype
    rounded = x if x.dtype is dtype is own else x.to(dtype).to(own)
    rounded = rounded if x.dim() == 2 else rounded.reshape(-1, x.shape[-1])
    if side.form.normalize:
        rounded = torch.nn.functional.normalize(rounded, dim=-1)
    if side.threshold is None:
        A = torch.mm(rounded, side.columns)
        A = A.float() if own is torch.bfloat16 and A.device.type == "cpu" else A
    else:
        A = torch.addmm(side.threshold, rounded, side.columns, beta=-1)
    out = inference.project(side, A)
    if out.shape[1] != side.num_prototypes:
        out = out[:, : side.num_prototypes]
    out = out if out.dtype is dtype else out.to(dtype)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], side.num_prototypes)


def plan_of(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    form: Form,
    dtype: torch.dtype,
    threshold: Tensor | None = None,
) -> Plan:
    """Which code compares all inputs with all prototypes; see plan.py."""
    N = x.shape[0] if x.dim() == 2 else math.prod(x.shape[:-1])
    P, K = prototypes.shape[-2], features.shape[0]
    batched = prototypes.dim() != 2
    # Of tensors that stand for others, such as those without data, no values are read on a CPU.
    looks = eager(x) and (x.is_cuda or (type(x) in PLAIN and type(features) in PLAIN))
    return plan(form, N, P, K, dtype, x.device.type, batched, eager=looks, thresholds=threshold is not None)


def compared(objects: Tensor, form: Form) -> Tensor:
    """Objects as they are compared: of length 1, if the form says so."""
    return torch.nn.functional.normalize(objects, dim=-1) if form.normalize else objects


def measures(objects: Tensor, features: Tensor, normalize: bool, threshold: Tensor | None = None) -> Tensor:
    """x · f_k − t_k of every object and feature: ``[..., D]``, ``[K, D]``, ``[K]`` -> ``[..., K]``."""
    if normalize:
        objects = torch.nn.functional.normalize(objects, dim=-1)
    if threshold is None:
        return objects @ features.mT
    return torch.nn.functional.linear(objects, features, -threshold)


def unexplained(x: Tensor, features: Tensor, threshold: Tensor | None) -> Tensor:
    """Share of the variance of ``x`` ``[..., D]`` that is left when inputs are rebuilt from the features they have.

    One factor for all of them, and their mean, are those that leave least.
    """
    x, features = widened(x.dtype, x.reshape(-1, x.shape[-1]), features)
    threshold = None if threshold is None else threshold.to(x)
    rebuilt = measures(x, features, False, threshold).relu() @ torch.nn.functional.normalize(features, dim=-1)
    # What the best factor leaves of x; with no measure or no variance at all nothing is explained.
    x, rebuilt = (torch.nn.functional.normalize((t - t.mean(0)).flatten(), dim=0, eps=0.0) for t in (x, rebuilt))
    return (1 - (x.nan_to_num() @ rebuilt.nan_to_num()).relu().square()).clamp(min=0)


def longer(objects: Tensor, constant: float = 1.0) -> Tensor:
    """Objects with a constant as their last coordinate: [x, 1], for which [f_k, −t_k] is a feature with a threshold."""
    return torch.nn.functional.pad(objects, (0, 1), value=constant)


def all_pairs(
    x: Tensor, prototypes: Tensor, features: Tensor, threshold: Tensor | None, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Measures with equal leading axes, ``[..., N, K]`` and ``[..., P, K]``."""
    A, B = measures(x, features, normalize, threshold), measures(prototypes, features, normalize)
    if B.dim() == 2:
        return A.flatten(0, -2) if A.dim() > 1 else A.unsqueeze(0), B
    lead = torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    return A.expand(*lead, *A.shape[-2:]), B.expand(*lead, *B.shape[-2:])


def widened(dtype: torch.dtype, *tensors: Tensor) -> list[Tensor]:
    """The tensors rounded to the dtype, as autocast rounds, and then in float32 or wider."""
    dtypes = (dtype, wide(dtype))
    return [t.to(dtypes[0]).to(dtypes[1]) for t in tensors]


def _taken(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    threshold: Tensor | None,
    form: Form,
    dtype: torch.dtype,
    how: Plan | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The vectors as the code for all pairs takes them: kernels take halves, padded, and add up in float32."""
    if x.dtype is prototypes.dtype is features.dtype is dtype in (torch.float32, torch.float64) and not x.is_cuda:
        return (
            x,
            prototypes,
            features,
            threshold if threshold is None or threshold.dtype is dtype else threshold.to(dtype),
        )
    if not (x.is_cuda and form.backend in ("auto", "triton") and has_kernels(x) and prototypes.dim() == 2):
        x, prototypes, features = widened(dtype, x, prototypes, features)
        return x, prototypes, features, None if threshold is None else widened(dtype, threshold)[0]
    x, prototypes, features = x.to(dtype), prototypes.to(dtype), features.to(dtype)
    threshold = None if threshold is None else threshold.to(dtype)
    if how is None:
        return x, prototypes, features, threshold
    if threshold is not None:
        # A feature of zeros with the threshold 0 belongs to no object.
        threshold = torch.nn.functional.pad(threshold, (0, how.num_features - len(threshold)))
    return x, padded(prototypes, how.num_prototypes), padded(features, how.num_features), threshold


def _measured(
    x: Tensor,
    prototypes: Tensor,
    features: Tensor,
    threshold: Tensor | None,
    form: Form,
    dtype: torch.dtype,
    how: Plan,
) -> tuple[Tensor, Tensor]:
    """Measures of all as the code for all pairs takes them."""
    if _in_bfloat16(x, features, threshold, form, dtype):
        A, B = all_pairs(x.to(dtype), prototypes.to(dtype), features.to(dtype), None, False)
        return A.float(), B.float()
    return all_pairs(*_taken(x, prototypes, features, threshold, form, dtype, how), form.normalize)


def _in_bfloat16(x: Tensor, features: Tensor, threshold: Tensor | None, form: Form, dtype: torch.dtype) -> bool:
    K, D = features.shape
    return in_bfloat16(form, D, K, dtype, x.device.type, threshold is not None, eager(x))


def without_axes(scalars: Scalars) -> Scalars:
    alpha, beta, theta = (s.reshape(()) if isinstance(s, Tensor) else s for s in scalars)
    return alpha, beta, theta


def _small(
    x: Tensor, prototypes: Tensor, features: Tensor, threshold: Tensor | None, scalars: Scalars, normalize: bool
) -> Tensor:
    if normalize:
        x, prototypes = (torch.nn.functional.normalize(t, dim=-1) for t in (x, prototypes))
    return small.project(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]), prototypes, features, threshold, *scalars)


def _whole(x: Tensor, prototypes: Tensor, features: Tensor, scalars: Scalars, dtype: torch.dtype, how: Plan) -> Tensor:
    """S of all pairs by the kernels that make measures as well, ``[N, P]`` and more columns where that is faster."""
    from .triton import separable as triton_separable

    flat = x.reshape(-1, x.shape[-1])
    alpha, beta, theta = pairwise.tensors(scalars, x)
    size = (how.num_prototypes, how.num_features)
    return triton_separable.projection(flat, prototypes, features, alpha, beta, theta, dtype, size)
