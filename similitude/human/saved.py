"""A fitted model as two files: its numbers as safetensors, its settings and names as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from .. import __version__
from ..files import make_folder, read_json, write_bytes, write_json
from .fitting import Fitted
from .judgements import Judgements

if TYPE_CHECKING:
    from .model import TverskySimilarityModel

NUMBERS, SETTINGS = "model.safetensors", "model.json"
CELLS = ("first", "second", "value", "answers", "question", "rater")
GIVEN = ("features", "vectors")
FORMAT = 1


class NoModel(OSError):
    """A folder without a saved model, or with one that cannot be read."""


def save(model: TverskySimilarityModel, folder: str | Path) -> None:
    """Writes model.safetensors and model.json, each whole or not at all."""
    folder, said, fitted = Path(folder), model.judgements_, model.fitted_
    tensors = {f"parameter.{name}": t.contiguous() for name, t in fitted.params.items()}
    tensors |= {f"fit.{name}": torch.tensor(getattr(fitted, name)) for name in ("held", "each", "l2")}
    tensors |= {f"said.{name}": torch.tensor(getattr(said, name)) for name in CELLS if getattr(said, name) is not None}
    settings = {name: _plain(value) for name, value in model.get_params().items() if name not in GIVEN}
    for name in GIVEN:
        if getattr(model, name) is not None:
            tensors[f"given.{name}"] = torch.tensor(np.asarray(getattr(model, name)), dtype=torch.float64)
    judgements = {name: _plain(getattr(said, name)) for name in ("kind", "objects", "symmetric", "counted", "scale")}
    make_folder(folder)
    write_bytes(folder / NUMBERS, bytes_of(tensors))
    about = {"format": FORMAT, "similitude": __version__, "settings": settings, "judgements": judgements}
    write_json(folder / SETTINGS, about)


def load(make: type[TverskySimilarityModel], folder: str | Path) -> TverskySimilarityModel:
    """The model that ``save`` wrote to the folder, with what it was fitted to."""
    folder = Path(folder)
    try:
        about, tensors = read_json(folder / SETTINGS), tensors_of((folder / NUMBERS).read_bytes())
        if about["format"] != FORMAT:
            raise NoModel(f"{folder / SETTINGS} has format {about['format']}; this version reads {FORMAT}.")
        parts: dict[str, dict[str, torch.Tensor]] = {"parameter": {}, "fit": {}, "said": {}, "given": {}}
        for name, tensor in tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        settings: dict[str, Any] = about["settings"] | {name: t.numpy() for name, t in parts["given"].items()}
        model = make(**settings)
        cells: dict[str, Any] = {name: t.numpy() for name, t in parts["said"].items()}
        judged: dict[str, Any] = about["judgements"]
        scale = None if judged.get("scale") is None else tuple(judged["scale"])
        said = Judgements(**judged | {"objects": tuple(judged["objects"]), "scale": scale}, **cells)
        held, each, l2 = (parts["fit"][name].numpy() for name in ("held", "each", "l2"))
        fitted = Fitted(parts["parameter"], held, each, l2)
    except FileNotFoundError as error:
        raise NoModel(f"no model in {folder}: {Path(error.filename).name} is not there.") from None
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        raise NoModel(f"{folder} holds no model that can be read: {error}.") from None
    model._take(said, fitted)
    return model


def fitted_in(folder: Path, model: TverskySimilarityModel, said: Judgements) -> TverskySimilarityModel | None:
    """The model in the folder if it was fitted to these judgements with these settings by this version, or None."""
    try:
        there, about = load(type(model), folder), read_json(folder / SETTINGS)
    except (NoModel, ValueError):
        return None
    same = about["similitude"] == __version__ and _same(vars(there.judgements_), vars(said))
    return there if same and _same(_settings(there), _settings(model)) else None


def _settings(model: TverskySimilarityModel) -> dict[str, Any]:
    return {name: _plain(value) for name, value in model.get_params().items() if name != "verbose"}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(np.array_equal(_comparable(one[name]), _comparable(other[name])) for name in one | other)


def _comparable(value: Any) -> Any:
    return np.asarray("nothing" if value is None else value)


def _plain(value: Any) -> Any:
    """A setting as JSON keeps it; a generator of random numbers is not kept."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(item) for item in value] if not isinstance(value, np.ndarray) else value.tolist()
    return None if isinstance(value, np.random.RandomState | np.random.Generator) else value
