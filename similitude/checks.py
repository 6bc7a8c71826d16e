"""Tensors and numbers that a caller may pass, and one sentence for anything else: what was given, what was expected."""

import math
from numbers import Integral

import torch
from torch import Tensor

from .form import check_choice as check_choice
from .ops.modes import HAS_TRITON, autocasts, eager, rounded


def check_scalar(name: str, value: object) -> None:
    """One number: a float, or a tensor with one floating element."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            given = f"a tensor of shape {list(value.shape)} and dtype {short(value.dtype)}"
            raise ValueError(f"{name} must be one number, a float or a floating tensor of one element; got {given}.")
    elif not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} must be one number, a float or a floating tensor of one element; got {value!r}.")
    elif not torch.compiler.is_compiling() and not _is_finite(value):  # a compiler may not know the value
        raise ValueError(f"{name} must be a finite number; got {value!r}.")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond any float
        return False


def check_sizes(**sizes: object) -> None:
    for name, size in sizes.items():
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} must be a whole number of 1 or more; got {size!r}.")


def check_positive(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number above 0; got {value!r}.")


def check_rate(name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of 0 or more; got {value!r}.")


def check_share(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number above 0, up to 1; got {value!r}.")
    return float(value)


def check_presence(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1:
        raise ValueError(f"presence must be a number between 0 and 1, such as 0.1; got {value!r}.")
    return float(value)


def check_hold(hold: object, presence: float | None) -> bool | int:
    if not isinstance(hold, int) or hold < 0:
        raise ValueError(f"hold must be True, False or a number of forward passes; got {hold!r}.")
    if hold and presence is None:
        raise ValueError(f"hold={hold} needs the presence to hold, such as presence=0.1.")
    return hold


def check_scale(value: object, model: str) -> float | None:
    if value is None:
        return None
    if model != "ratio":
        raise ValueError(f"scale={value!r} is for model='ratio'; the contrast model has theta, which scales it.")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ValueError(f"scale must be a number above 0, such as 4; got {value!r}.")
    return float(value)


def check_one(name: str, x: object, dim: int) -> None:
    """One object that can be explained."""
    if not isinstance(x, Tensor) or list(x.shape) != [dim]:
        given = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        hint = f": explain one at a time, {name}[0]" if isinstance(x, Tensor) and x.dim() > 1 else ""
        raise ValueError(f"{name} must be one object, a tensor of shape {[dim]}; got {given}{hint}.")
    check_vectors(name, x)
    if not x.isfinite().all():
        raise ValueError(f"{name} must be finite to be explained; some elements are NaN or infinite.")


def check_vectors(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(value).__name__}.")
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype; got {short(value.dtype)}: convert it with {name}.float().")
    if value.dim() == 0:
        raise ValueError(f"{name} must have at least one axis, [..., D]; got a tensor with no axes.")


def check_alike(**tensors: Tensor) -> torch.dtype:
    """The dtype that the tensors are compared in, autocast's where it is on; it must be one, as the device must."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not tensor.dim():
            check_vectors(name, tensor)
    first, *others = tensors.values()
    casts, device = autocasts(first), first.device
    dtype = rounded(first) if casts else first.dtype
    for other in others:
        if other.device != device or (rounded(other) if casts else other.dtype) is not dtype:
            given = ", ".join(f"{n} is {short(rounded(t))} on {t.device}" for n, t in tensors.items())
            raise ValueError(f"{', '.join(tensors)} must have one dtype and one device; {given}.")
    return dtype


def check_triton(prototypes: Tensor) -> None:
    """The backend named by hand runs, or says why it cannot."""
    if not HAS_TRITON:
        raise RuntimeError("backend='triton' needs the package triton, which does not import here; use backend='auto'.")
    if not prototypes.is_cuda:
        raise RuntimeError(
            f"backend='triton' needs tensors on a CUDA device; got {prototypes.device}; use backend='auto'."
        )
    if prototypes.dtype == torch.float64:
        raise RuntimeError("backend='triton' has no float64; use backend='torch'.")
    if prototypes.dim() != 2:
        raise RuntimeError("backend='triton' takes no batched prototypes; use backend='torch'.")


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_width(name: str, objects: Tensor, features: Tensor) -> None:
    if features.dim() != 2:
        raise ValueError(f"features must be [K, D]; got shape {list(features.shape)}.")
    if objects.shape[-1] != features.shape[-1]:
        raise ValueError(
            f"{name} and features must have the same width D; got {name} {list(objects.shape)} "
            f"and features {list(features.shape)}."
        )


def check_threshold(threshold: object, features: Tensor) -> None:
    check_vectors("threshold", threshold)
    assert isinstance(threshold, Tensor)
    if threshold.shape != features.shape[:1]:
        expected = f"[K] = {list(features.shape[:1])}, a number for each feature"
        raise ValueError(f"threshold must be {expected}; got shape {list(threshold.shape)}.")
    if threshold.device != features.device:
        raise ValueError(f"threshold must be on the device of features, {features.device}; got {threshold.device}.")


def check_all_pairs(x: Tensor, prototypes: Tensor, features: Tensor) -> None:
    """Shapes of inputs ``[..., D]`` and prototypes ``[P, D]``, or ``[..., N, D]`` and ``[..., P, D]``."""
    D = x.shape[-1]
    if features.dim() != 2 or features.shape[1] != D or prototypes.shape[-1] != D:
        check_width("x", x, features)
        check_width("prototypes", prototypes, features)
    if prototypes.dim() == 2:
        return
    if prototypes.dim() == 1:
        raise ValueError(
            f"prototypes must be [P, D] or [..., P, D]; got shape {list(prototypes.shape)}: "
            "for one prototype use prototypes[None]."
        )
    given = f"got x {list(x.shape)} and prototypes {list(prototypes.shape)}."
    if x.dim() < 2:
        raise ValueError(f"x must be [..., N, D] when prototypes are batched; {given}")
    try:
        torch.broadcast_shapes(x.shape[:-2], prototypes.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"x [..., N, D] and prototypes [..., P, D] must broadcast in all axes but the last two; {given}"
        ) from None


def check_targets(x: Tensor, target: object, prototypes: Tensor, ignore_index: int) -> None:
    if prototypes.dim() != 2:
        raise ValueError(f"prototypes must be [P, D], the same for all inputs; got shape {list(prototypes.shape)}.")
    if not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index must be a whole number; got {ignore_index!r}.")
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        given = short(target.dtype) if isinstance(target, Tensor) else type(target).__name__
        raise TypeError(
            f"target must be an int64 tensor, the index of each right prototype; got {given}: "
            "convert indices with target.long(), probabilities with target.argmax(-1)."
        )
    if target.shape != x.shape[:-1]:
        raise ValueError(
            f"target must have the shape of x without its last axis, {list(x.shape[:-1])}; "
            f"got target {list(target.shape)} and x {list(x.shape)}."
        )
    if target.device != x.device:
        raise ValueError(f"target must be on the device of x, {x.device}; got {target.device}.")
    # On a GPU the look would wait for all that is queued.
    if target.device.type == "cpu" and eager(target):
        wrong = target[((target < 0) | (target >= len(prototypes))) & (target != ignore_index)]
        if len(wrong):
            raise ValueError(
                f"target must be from 0 to {len(prototypes) - 1}, one of {len(prototypes)} prototypes, "
                f"or ignore_index={ignore_index}; got {wrong[0].item()}."
            )


def check_loss(bias: object, prototypes: Tensor, label_smoothing: float, z_loss: float) -> None:
    if bias is not None:
        check_vectors("bias", bias)
        assert isinstance(bias, Tensor)
        if bias.shape != prototypes.shape[:1]:
            expected = f"[P] = {list(prototypes.shape[:1])}, a number for each prototype"
            raise ValueError(f"bias must be {expected}; got shape {list(bias.shape)}.")
    check_scalar("label_smoothing", label_smoothing)
    check_scalar("z_loss", z_loss)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be from 0 to 1; got {label_smoothing!r}.")
    if z_loss < 0:
        raise ValueError(f"z_loss must be 0 or more; got {z_loss!r}.")
