"""TverskyCallback: TensorBoard logs of transformers' Trainer that show what the Tversky layers are doing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import MethodType

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
    """Writes what Trainer logs to TensorBoard and, along with each training loss, ``tversky/<layer's name>/...``:

    - ``alpha``, ``beta``, ``theta``;
    - ``inputs/present``, the share of all features that an input has, on average, and ``inputs/dead``, the share of
      features that no input has: of up to ``sample`` inputs of the last batch, on the first process;
    - ``prototypes/present``, ``prototypes/dead``: the same of up to ``sample`` prototypes.

    It stands in for transformers' TensorBoardCallback: leave "tensorboard" out of ``report_to``. The layers of a
    DataDomain, whose vectors are made anew for each batch, have the constants only.
    """

    def __init__(self, sample: int = 1024, tb_writer=None):
        super().__init__(tb_writer)
        if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
            raise ValueError(f"sample must be a whole number of 1 or more; got {sample!r}.")
        self.sample = sample
        self.layers: dict[str, nn.Module] = {}
        self.inputs: dict[nn.Module, Tensor] = {}
        self.undo: list[Callable[[], None]] = []

    def on_train_begin(self, args, state, control, **kwargs):
        model = kwargs["model"]
        if "tensorboard" in args.report_to:
            raise ValueError("TverskyCallback writes TensorBoard's logs itself; leave 'tensorboard' out of report_to.")
        kinds = TverskyProjection | TverskySimilarity | DataDomain
        self.layers = {name: m for name, m in model.named_modules() if isinstance(m, kinds) and hasattr(m, "alpha")}
        if not self.layers:
            raise ValueError(f"{type(model).__name__} has no Tversky layers; leave TverskyCallback out.")
        # A run that broke off has not come to its end.
        self._unwatch()
        for layer in self.layers.values():
            self._watch(layer)
        super().on_train_begin(args, state, control, **kwargs)

    def on_train_end(self, args, state, control, **kwargs):
        self._unwatch()
        super().on_train_end(args, state, control, **kwargs)

    def on_log(self, args, state, control, logs=None, **kwargs):
        super().on_log(args, state, control, logs=logs, **kwargs)
        if "loss" not in (logs or {}):
            return
        # On every process, since parameters may be sharded over them; the first one has a writer.
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
        features = unsharded(layer.features.weight)
        objects = {"inputs": self.inputs.get(layer)}
        if isinstance(layer, TverskyProjection):
            objects["prototypes"] = self._sampled(unsharded(layer.prototypes))
        for name, vectors in objects.items():
            if vectors is not None and len(vectors):
                present = vectors.to(features) @ features.mT > 0  # [sample, K]
                yield f"{name}/present", present.float().mean().item()
                yield f"{name}/dead", 1 - present.any(0).float().mean().item()

    def _sampled(self, vectors: Tensor) -> Tensor:
        """Up to ``sample`` of the vectors, evenly spread."""
        vectors = vectors.reshape(-1, vectors.shape[-1])
        return vectors[:: math.ceil(len(vectors) / self.sample) or 1]

    def _watch(self, layer: nn.Module) -> None:
        """Keeps a sample of what the layer is called on. Closures, since a copy of the model must not copy this."""
        if isinstance(layer, DataDomain):
            return

        def record(layer: nn.Module, args: tuple, kwargs: dict) -> None:
            x = next(iter((*args, *kwargs.values())))
            self.inputs[layer] = self._sampled(x.detach()).clone()

        self.undo.append(layer.register_forward_pre_hook(record, with_kwargs=True).remove)
        if isinstance(layer, TverskyProjection) and "cross_entropy" not in layer.__dict__:
            # No forward, so hooks do not see it.
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
