"""What our transformers models share: options in a config, starting values, and loading of whole checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..contrast import CONSTANTS, UNITS
from ..form import Form
from ..initialize import fill_prototypes_
from ..nn import FeatureBank, TverskyProjection

LAYER = (*Form._fields, *CONSTANTS, "scale", "learnable", "parametrization", "init")
# Marks layers whose constants are still to be calibrated.
UNCALIBRATED = "_uncalibrated"
# Buffers that some versions of transformers save and others do not.
BUFFERS = (".attn.bias", ".masked_bias", ".num_batches_tracked")


@dataclass(kw_only=True)
class TverskyOptions:
    """Fields of a transformers config that describe its Tversky layers; the names are TverskyProjection's.

    transformers' configs are dataclasses: list this one before the config that it extends.
    """

    num_features: int
    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "feature"
    model: str = "contrast"
    normalize: bool = False
    alpha: float | None = None
    beta: float | None = None
    theta: float | None = None
    scale: float | None = None
    learnable: bool | Collection[str] = True
    parametrization: str = "gain"
    init: str = "calibrated"
    backend: str = "auto"
    leak: float = 0.0
    presence: float | None = None
    hold: bool | int = False
    # Names of features, as a bank's notes have them; written when a model is saved.
    feature_notes: dict[str, Any] | None = None

    def layer_options(self) -> dict[str, Any]:
        """Keyword arguments of the config's TverskyProjections."""
        return {name: getattr(self, name) for name in LAYER}

    def settle(self, layer: TverskyProjection) -> None:
        """Replaces options by their JSON form; ``layer`` was made from them, and has checked them."""
        self.difference = layer.difference
        self.alpha, self.beta, self.theta = layer.starting_constants
        if not isinstance(self.learnable, bool | str):
            self.learnable = sorted(self.learnable)


class TverskyPreTrained(nn.Module):
    """Starting values and clear errors in transformers' loading; list this one before a PreTrainedModel."""

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values of the tensors that no checkpoint has loaded, but for constants."""
        super()._init_weights(module)  # pyright: ignore
        fill_missing(module)

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, whose last step it is in construction and loading: constants can be calibrated now."""
        super().tie_weights(*args, **kwargs)  # pyright: ignore
        for module in self.modules():
            if module.__dict__.pop(UNCALIBRATED, False):
                start_missing_constants(module)
            if isinstance(module, FeatureBank):
                # What is made of notes is no part of a checkpoint, and transformers leaves it without values.
                module.note(module.notes)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with the names of features in the config."""
        notes = next((m.notes for m in self.modules() if isinstance(m, FeatureBank)), None)
        cast(Any, self).config.feature_notes = notes.plain() if notes else None
        return super().save_pretrained(*args, **kwargs)  # pyright: ignore

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: Any, *args: Any, output_loading_info: bool = False, **kwargs: Any
    ) -> Any:
        """As in transformers, with a one-sentence error for damaged weights and for other shapes."""
        theirs = super().from_pretrained  # pyright: ignore
        model, info = load_checked(theirs, pretrained_model_name_or_path, *args, **kwargs)
        return (model, info) if output_loading_info else model


@torch.no_grad()
def fill_missing(module: nn.Module) -> None:
    """Sets the tensors of a Tversky layer or bank that transformers has not loaded to their starting values.

    Constants depend on prototypes, which may be tied to what has no values yet: ``start_missing_constants`` sets them.
    """
    from transformers import initialization

    if isinstance(module, FeatureBank) and is_missing(module) and is_missing(module.weight):
        module.reset_parameters()
    elif isinstance(module, FeatureBank) and module.threshold is not None and is_missing(module.threshold):
        # The checkpoint is of a bank without thresholds.
        module.reset_thresholds()
    if isinstance(module, TverskyProjection):
        if module.owns_prototypes and is_missing(module.prototypes):
            # Prototypes depend on the bank; if transformers comes to it later, its mark says that it is done.
            fill_missing(module.features)
            cast(Any, module.features)._is_hf_initialized = True
            fill_prototypes_(module.prototypes, module.init, module.features.weight)
        if module.bias is not None:
            initialization.zeros_(module.bias)
        if module.starting_scale is not None and is_missing(module.scale_log):
            module.reset_scale()
        module.__dict__[UNCALIBRATED] = any(map(is_missing, _constants(module)))


@torch.no_grad()
def start_missing_constants(layer: nn.Module) -> None:
    """Sets those of the layer's constants that transformers has not loaded to their starting values."""
    assert isinstance(layer, TverskyProjection)
    loaded = [(tensor, tensor.clone()) for tensor in _constants(layer) if not is_missing(tensor)]
    layer.reset_constants()
    for tensor, value in loaded:
        tensor.copy_(value)


def _constants(layer: TverskyProjection) -> list[Tensor]:
    return [*layer.learned(), *(getattr(layer, unit) for unit in UNITS if hasattr(layer, unit))]


def is_missing(part: Tensor | nn.Module) -> bool:
    """Whether transformers has neither loaded nor started it."""
    return not getattr(part, "_is_hf_initialized", False)


def load(kind: Any, source: str | PathLike[str], spare: tuple[str, ...] = (), **options: Any) -> Any:
    """The pretrained model, with every tensor from its checkpoint.

    Args:
        kind: a model class of transformers, such as GPT2LMHeadModel.
        source: a name on the hub, or a folder.
        spare: prefixes of tensors that the caller does not need; the checkpoint may lack them or have others.
        options: settings of the config to change, and ``dtype`` or ``local_files_only`` of ``from_pretrained``.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the checkpoint is of another type of model, or lacks tensors, or has others; the error names them.
        OSError: the weights cannot be read.
    """
    from transformers import AutoConfig

    path, wanted = fspath(source), kind.config_class.model_type
    outside = not isinstance(source, str) or path.count("/") > 1 or path.startswith((".", "/", "~"))
    if outside and not Path(path).is_dir():
        raise FileNotFoundError(f"there is no folder {path!r} with a {wanted} model.")
    loading = {name: options.pop(name) for name in ("dtype", "local_files_only") if name in options}
    config = AutoConfig.from_pretrained(path, local_files_only=loading.get("local_files_only", False), **options)
    if config.model_type != wanted:
        hint = ": load it by from_pretrained" if config.model_type == f"tversky_{wanted}" else ""
        raise ValueError(f"{path!r} must be of type {wanted!r}; it is of type {config.model_type!r}{hint}.")
    model, info = load_checked(kind.from_pretrained, path, spare=spare, config=config, **loading)
    missing, surplus = (
        sorted(n for n in info[keys] if not n.endswith(BUFFERS) and not n.startswith(spare))
        for keys in ("missing_keys", "unexpected_keys")
    )
    if missing or surplus:
        wrong = [f"lack {_named(missing)}"] if missing else []
        wrong += [f"have {_named(surplus)}, which the model has not"] if surplus else []
        raise ValueError(f"the weights of {path!r} are not those of a {kind.__name__}: they {' and '.join(wrong)}.")
    return model


def load_checked(
    from_pretrained: Callable[..., Any],
    name: Any,
    *args: Any,
    ignore_mismatched_sizes: bool = False,
    spare: tuple[str, ...] = (),
    **kwargs: Any,
) -> tuple[Any, dict[str, Any]]:
    """The model and transformers' account of its loading; one error for damaged weights and for wrong shapes."""
    kwargs.update(ignore_mismatched_sizes=True, output_loading_info=True)
    try:
        model, info = from_pretrained(name, *args, **kwargs)
    except SafetensorError as error:
        raise OSError(
            f"the weights of {str(name)!r} are cut short or damaged ({error}); save or download them again."
        ) from error
    misfits = sorted(misfit for misfit in info["mismatched_keys"] if not misfit[0].startswith(spare))
    if misfits and not ignore_mismatched_sizes:
        tensor, there, here = misfits[0]
        more = f", and {len(misfits) - 1} more differ" if len(misfits) > 1 else ""
        raise ValueError(
            f"{tensor} is {list(there)} in the weights of {str(name)!r} and {list(here)} by the config{more}; "
            "give the config they were saved with."
        )
    return model, info


def _named(tensors: Iterable[str], most: int = 3) -> str:
    first, rest = (found := list(tensors))[:most], len(found) - most
    return ", ".join(first) + (f" and {rest} more" if rest > 0 else "")
