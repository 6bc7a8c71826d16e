"""What our transformers models share: options in a config, starting values that no checkpoint brings, clear errors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..contrast import CONSTANTS
from ..initialize import fill_prototypes_
from ..nn import OPTIONS, FeatureBank, TverskyProjection

LAYER = (*OPTIONS, *CONSTANTS, "learnable", "parametrization", "init")


def layer_options(config) -> dict:
    """What a config says of its Tversky layers, as TverskyProjection takes it."""
    return {name: getattr(config, name) for name in LAYER}


def settle(config, layer: TverskyProjection) -> None:
    """Options as they go into JSON; ``layer`` was made of them, and has checked them."""
    config.difference = layer.difference
    config.alpha, config.beta, config.theta = layer.starting_constants
    if not isinstance(config.learnable, bool | str):
        config.learnable = sorted(config.learnable)


@torch.no_grad()
def fill_missing(module: nn.Module) -> None:
    """Starting values of a Tversky layer or bank, where transformers has not marked them as loaded."""
    from transformers import initialization

    if isinstance(module, FeatureBank) and _is_missing(module.weight):
        module.reset_parameters()
    if isinstance(module, TverskyProjection):
        if module.owns_prototypes and _is_missing(module.prototypes):
            fill_prototypes_(module.prototypes, module.init, module.features.weight)
        units = [getattr(module, f"{name}_unit") for name in CONSTANTS if hasattr(module, f"{name}_unit")]
        own = [*module.learned(), *units]
        loaded = [(tensor, tensor.clone()) for tensor in own if not _is_missing(tensor)]
        if len(loaded) < len(own):
            module.reset_constants()
            for tensor, value in loaded:
                tensor.copy_(value)
        if module.bias is not None:
            initialization.zeros_(module.bias)


def _is_missing(tensor: Tensor) -> bool:
    return not getattr(tensor, "_is_hf_initialized", False)


def load(from_pretrained: Callable, name, *args, ignore_mismatched_sizes: bool = False, **kwargs) -> tuple:
    """The model and what transformers says of its loading, or one sentence for weights that are damaged or misfit."""
    kwargs.update(ignore_mismatched_sizes=True, output_loading_info=True)
    with damage_named(name):
        model, info = from_pretrained(name, *args, **kwargs)
    if info["mismatched_keys"] and not ignore_mismatched_sizes:
        tensor, there, here = sorted(info["mismatched_keys"])[0]
        more = len(info["mismatched_keys"]) - 1
        raise ValueError(
            f"{tensor} is {list(there)} in the weights of {str(name)!r} and {list(here)} by the config"
            f"{f', and {more} more differ' if more else ''}; give the config they were saved with."
        )
    return model, info


@contextmanager
def damage_named(name: object):
    """Where weights cannot be read, the error says whose."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(
            f"the weights of {str(name)!r} are cut short or damaged ({error}); save or download them again."
        ) from error
