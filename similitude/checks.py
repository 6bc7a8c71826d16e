"""What a caller may pass, and the one sentence for anything else: what was given, and what was expected."""

import difflib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .ops.cross_entropy import eager

INTERSECTIONS = ("product", "min", "max", "mean", "gmean", "softmin")
DIFFERENCES = ("ignorematch", "subtractmatch")
LEVELS = ("feature", "set")
MODELS = ("contrast", "ratio")
BACKENDS = ("auto", "reference", "torch", "triton")

# The paper's spelling.
SPELLINGS = {"substractmatch": "subtractmatch"}


def check_options(intersection: str, difference: str, level: str, model: str) -> tuple[str, str, str, str]:
    """The four options as ops/ spells them, or one error that names the choices and the nearest."""
    return (
        check_choice("intersection", intersection, INTERSECTIONS),
        check_choice("difference", SPELLINGS.get(str(difference), difference), DIFFERENCES),
        check_choice("level", level, LEVELS),
        check_choice("model", model, MODELS),
    )


def check_choice(name: str, value: str, choices: Sequence[str]) -> str:
    if isinstance(value, str) and value in choices:
        return value
    near = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(choices)}; got {value!r}.{hint}")


def check_flag(name: str, value: bool) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"{name} must be True or False; got {value!r}.")


def check_scalar(name: str, value: object) -> None:
    """One number: a float, or a tensor with one floating element."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or not value.is_floating_point():
            given = f"a tensor of shape {list(value.shape)} and dtype {short(value.dtype)}"
            raise ValueError(f"{name} must be one number, a float or a floating tensor of one element; got {given}.")
    elif not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} must be one number, a float or a floating tensor of one element; got {value!r}.")
    elif not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number; got {value!r}.")


def check_share(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise ValueError(f"{name} must be a number above 0, up to 1; got {value!r}.")
    return float(value)


def check_presence(value: object) -> float:
    if not isinstance(value, int | float) or not 0.5 <= value < 1:
        raise ValueError(f"presence must be a number from 0.5 to below 1; got {value!r}.")
    return float(value)


def check_leak(leak: object, intersection: str, difference: str, level: str, model: str) -> float:
    """The leak, or one error: options for which a lacked feature has no gradient of its own to take a part of."""
    if not isinstance(leak, int | float) or isinstance(leak, bool) or not 0 <= leak <= 1:
        raise ValueError(f"leak must be a number from 0, none, to 1; got {leak!r}.")
    if not leak:
        return 0.0
    plain = intersection in ("product", "mean") and difference == "ignorematch"
    if level == "set" and not plain:
        raise ValueError(f"leak={leak} needs level='feature'; at set level features have no share of their own in S.")
    if model != "contrast":
        raise ValueError(f"leak={leak} is for model='contrast'; got model={model!r}.")
    if intersection == "gmean":
        raise ValueError(
            f"leak={leak} does not go with intersection='gmean', which is infinitely steep at 0; try 'product'."
        )
    return float(leak)


def check_vectors(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(value).__name__}.")
    if not value.is_floating_point():
        raise TypeError(f"{name} must have a floating dtype; got {short(value.dtype)}: convert it with {name}.float().")
    if value.dim() == 0:
        raise ValueError(f"{name} must have at least one axis, [..., D]; got a tensor with no axes.")


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
