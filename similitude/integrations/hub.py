"""TverskyHubMixin: models with Tversky layers on the Hugging Face hub, with a card that says what they compare."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from safetensors import safe_open
from safetensors.torch import load_model
from torch import nn

from .. import __version__
from ..bank import FeatureBank, bank_of
from ..contrast import Contrast
from ..nn import TverskySimilarity

__all__ = ["TverskyHubMixin"]

# Marks a bank among the options in config.json.
BANK = "FeatureBank"
CARD = """---
{{ card_data }}
---

# {{ title }}

{{ layers }}

## Load

```python
{{ load }}
```

Saved by similitude {{ version }} with torch {{ torch }}.
"""


class TverskyHubMixin(PyTorchModelHubMixin, library_name="similitude", tags=["tversky"]):
    """``save_pretrained``, ``from_pretrained`` and ``push_to_hub`` for a model with Tversky layers.

    List it before the class that it extends. As with huggingface_hub's own mixin, arguments of ``__init__`` that JSON
    can hold go to config.json; so does a FeatureBank, as its options. The card lists each layer with its form, α, β, θ,
    presence and the names of its features. A bank that was pruned or grown is loaded as it was saved.

    Example:
        >>> class Head(TverskyHubMixin, TverskyProjection): ...
        >>> Head(8, 3, num_features=32).save_pretrained("head")
        >>> Head.from_pretrained("head")
    """

    def __init_subclass__(cls, *, coders: Any = None, **kwargs: Any) -> None:
        # huggingface_hub's own mixin does not hand coders down.
        super().__init_subclass__(coders={FeatureBank: (_options, _bank), **(coders or {})}, **kwargs)

    def push_to_hub(self, repo_id: str, *, model_card_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> str:
        """As huggingface_hub's; the card's line that loads the model names the repository."""
        card = {"repo_id": repo_id, **(model_card_kwargs or {})}
        return super().push_to_hub(repo_id, model_card_kwargs=card, **kwargs)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> ModelCard:
        """The card of the model as it is now."""
        name = type(self).__name__
        load = kwargs.pop("load", f'model = {name}.from_pretrained("{kwargs.get("repo_id", "FOLDER OR NAME")}")')
        return ModelCard.from_template(
            card_data=self._hub_mixin_info.model_card_data,
            template_str=CARD,
            title=kwargs.pop("title", name),
            layers=described(self),  # pyright: ignore[reportArgumentType]
            load=load,
            version=__version__,
            torch=torch.__version__,
            **kwargs,
        )

    @classmethod
    def _from_pretrained(cls, *, model_id: str, strict: bool = True, **kwargs: Any) -> Any:
        given: dict[str, Any] = {name: _bank(value) if _is_options(value) else value for name, value in kwargs.items()}
        return super()._from_pretrained(model_id=model_id, strict=strict, **given)

    @classmethod
    def _load_as_safetensor(cls, model: Any, model_file: str, map_location: str, strict: bool) -> Any:
        _resize(model, Path(model_file))
        load_model(model, model_file, strict=strict, device=map_location)
        return model.eval()


def described(model: nn.Module) -> str:
    """The model's Tversky layers in Markdown: a table of them, and the named features of each bank."""
    heading = "| layer | compares | features | presence | α | β | θ |\n|---|---|---|---|--:|--:|--:|"
    rows, named, banks = [], [], {}
    for name, layer in _layers(model):
        bank = bank_of(layer.features)
        first = banks.setdefault(bank, name)
        shared = "" if first == name else f", shared with {first}"
        whom = "pairs" if isinstance(layer, TverskySimilarity) else f"with {layer.prototypes.shape[0]:,} prototypes"
        compares = f"objects of width {bank.dim:,} {whom}, {layer.form.described()}"
        values = [_number(value) for value in layer.constants().values()]
        presence = "no thresholds" if bank.presence is None else f"{bank.presence:g}{', held' if bank.hold else ''}"
        if layer.form.model == "ratio":
            values[2] = "–"
        rows.append(f"| {name} | {compares} | {bank.num_features:,}{shared} | {presence} | {' | '.join(values)} |")
        if bank.names and not shared:
            named.append(f"## Named features of {name}\n\n| feature | name | made from examples |\n|--:|---|---|")
            scores = {k: f"MCC {score:.2f} on held-out ones" for k, score in bank.notes.scores.items()}
            named[-1] += "".join(f"\n| {k} | {_cell(n)} | {scores.get(k, 'no')} |" for k, n in bank.names.items())
    return "\n\n".join(["\n".join([heading, *rows]), *named])


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(module, Contrast) and isinstance(module._modules.get("features"), nn.Module):
            yield f"`{name}`" if name else type(module).__name__, module


def _number(value: torch.Tensor) -> str:
    return f"{value.item():.4g}"


def _cell(text: str) -> str:
    """Text in a cell of a table, where names that people gave cannot become Markdown."""
    plain = " ".join(escape(text).split())
    return "".join(f"\\{c}" if c in "\\`*_[]|#<>" else c for c in plain)


def bank_options(bank: FeatureBank) -> dict[str, Any]:
    """Arguments of a FeatureBank into which the state of this one loads."""
    # Where holding has ended, the state says so, and still has what holding needs.
    hold = bank.hold or bank.passes is not None
    return {**{name: getattr(bank, name) for name in ("num_features", "dim", "init", "presence")}, "hold": hold}


def _options(bank: FeatureBank) -> dict[str, Any]:
    return {BANK: bank_options(bank)}


def _is_options(value: object) -> bool:
    return isinstance(value, dict) and set(value) == {BANK}


def _bank(options: dict[str, Any]) -> FeatureBank:
    return FeatureBank(**options[BANK])


def _resize(model: nn.Module, file: Path) -> None:
    """Gives each bank as many features as the file has of it; layers that share a bank find it at one of its names."""
    with safe_open(file, framework="pt") as saved:
        sizes = {name: saved.get_slice(name).get_shape() for name in saved.keys()}  # noqa: SIM118
    for name, bank in model.named_modules(remove_duplicate=False):
        found = sizes.get(f"{name}.weight" if name else "weight")
        if not isinstance(bank, FeatureBank) or found is None or found == list(bank.weight.shape):
            continue
        K, D = found
        if bank.dim != D:
            raise ValueError(f"{file.name} has features of width {D} for {name}, and the model width {bank.dim}.")
        bank.weight = nn.Parameter(bank.weight.new_empty(K, D))
        if bank.threshold is not None:
            threshold = bank.threshold.new_empty(K)
            bank.threshold = nn.Parameter(threshold) if isinstance(bank.threshold, nn.Parameter) else threshold
