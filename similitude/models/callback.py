"""TverskyCallback: TensorBoard logs of transformers' Trainer, with α, β, θ and the use of features of each layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..contrast import CONSTANTS
from ..distributed import unsharded
from ..nn import TverskyProjection, TverskySimilarity
from .data_domain import DataDomain

try:
    from transformers.integrations.integration_utils import TensorBoardCallback
except ImportError as error:
    raise ImportError(
        f"similitude.models.callback needs transformers: pip install 'similitude[hf]' ({error})."
    ) from error


class TverskyCallback(TensorBoardCallback):
    """Writes Trainer's logs to TensorBoard and, with each training loss, these values of ``tversky/<layer's name>/``:

    - ``alpha``, ``beta``, ``theta``;
    - ``inputs/present``, the mean fraction of features that an input has, and ``inputs/dead``, the fraction of
      features that no input has, for inputs of the last batch on the first process;
    - ``prototypes/present`` and ``prototypes/dead``, the same for prototypes.

    It replaces transformers' TensorBoardCallback: leave "tensorboard" out of ``report_to``. A DataDomain has α, β and θ
    only, since its vectors are encoded anew for each batch.

    Args:
        sample: how many inputs and prototypes are measured at most.
        tb_writer: a SummaryWriter to use instead of a new one.
    """

    def __init__(self, sample: int = 1024, tb_writer: Any = None):
        super().__init__(tb_writer)
        if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
            raise ValueError(f"sample must be a whole number of 1 or more; got {sample!r}.")
        self.sample: int = sample
        self.layers: dict[str, nn.Module] = {}
        self.inputs: dict[nn.Module, Tensor] = {}
        self.undo: list[Callable[[], None]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        model = kwargs["model"]
        if "tensorboard" in args.report_to:
            raise ValueError("TverskyCallback writes TensorBoard's logs itself; leave 'tensorboard' out of report_to.")
        kinds = TverskyProjection | TverskySimilarity | DataDomain
        self.layers = {name: m for name, m in model.named_modules() if isinstance(m, kinds) and hasattr(m, "alpha")}
        if not self.layers:
            raise ValueError(f"{type(model).__name__} has no Tversky layers; leave TverskyCallback out.")
        # A run that broke off has not called on_train_end.
        self._unwatch()
        for layer in self.layers.values():
            self._watch(layer)
        super().on_train_begin(args, state, control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._unwatch()
        super().on_train_end(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        super().on_log(args, state, control, logs=logs, **kwargs)
        if "loss" not in (logs or {}):
            return
        # On every process, since parameters may be sharded over them; only the first has a writer.
        found = {f"tversky/{name}/{key}": v for name, layer in self.layers.items() for key, v in self._values(layer)}
        if self.tb_writer is not None:
            for key, value in found.items():
                self.tb_writer.add_scalar(key, value, state.global_step)
            self.tb_writer.flush()

    @torch.no_grad()
    def _values(self, layer: nn.Module) -> Iterator[tuple[str, float]]:
        for name in CONSTANTS:
            yield name, unsharded(getattr(layer, name)).item()
        if isinstance(layer, DataDomain):
            return
        assert isinstance(layer, TverskyProjection | TverskySimilarity)
        features, threshold = unsharded(layer.features.weight), layer.features.threshold
        cut = torch.zeros(()) if threshold is None else unsharded(threshold)
        objects = {"inputs": self.inputs.get(layer)}
        if isinstance(layer, TverskyProjection):
            objects["prototypes"] = self._sampled(unsharded(layer.prototypes))
        for name, vectors in objects.items():
            if vectors is not None and len(vectors):
                # Thresholds are for inputs.
                present = vectors.to(features) @ features.mT > cut.to(features) * (name == "inputs")  # [sample, K]
                yield f"{name}/present", present.float().mean().item()
                yield f"{name}/dead", 1 - present.any(0).float().mean().item()

    def _sampled(self, vectors: Tensor) -> Tensor:
        """Up to ``sample`` of the vectors, evenly spaced."""
        vectors = vectors.reshape(-1, vectors.shape[-1])
        return vectors[:: math.ceil(len(vectors) / self.sample) or 1]

    def _watch(self, layer: nn.Module) -> None:
        """Keeps a sample of the layer's inputs, by closures, so that copies of the model have no part in it."""
        if isinstance(layer, DataDomain):
            return

        def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = next(iter((*args, *kwargs.values())))
            self.inputs[layer] = self._sampled(x.detach()).clone()

        self.undo.append(layer.register_forward_pre_hook(record, with_kwargs=True).remove)
        if isinstance(layer, TverskyProjection) and "cross_entropy" not in layer.__dict__:
            # Hooks see only forward.
            def cross_entropy(layer, *args, **kwargs):
                record(layer, args, kwargs)
                return type(layer).cross_entropy(layer, *args, **kwargs)

            layer.cross_entropy = MethodType(cross_entropy, layer)
            self.undo.append(lambda: layer.__dict__.pop("cross_entropy"))

    def _unwatch(self) -> None:
        for undo in self.undo:
            undo()
        self.undo.clear()
        self.inputs.clear()
