"""What the page shows of a model: its layer, its features, its prototypes and examples, as JSON, arrays and images.

N objects, P prototypes, K features, H of the objects on the page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..bank import FeatureBank
from ..interpret.legibility import Legibility
from ..interpret.sets import Universe
from ..ops.modes import wide
from ..reach import class_names, evaluating, pooling, seen
from ..shares import measures
from ..usage import Counts, Usage, earlier
from .labels import indices_of, most_frequent
from .pictures import Sprite, of_images, of_parameters, of_weights
from .table import of_table

# Titles of pages that are given none.
LAYER, WORDS = "A Tversky layer", "Words as sets of features"
# Objects on a page at most, and bytes of their measures: beyond the first they are rounded to float16, and beyond the
# second there are fewer objects.
OBJECTS, EXACT, ROUNDED = 2000, 2**22, 2**23
# Measures of all prototypes at most.
PROTOTYPES = 2**22
# Features that are listed as the nearest of each, and numbers that are in memory at once.
NEAREST, AT_ONCE = 8, 2**24
# Attributes of a report that are listed.
ATTRIBUTES = 12
# Cosine above which a feature is a duplicate of another one.
DUPLICATE = 0.99


Progress = Callable[[int, int, str], object]


@dataclass(frozen=True)
class Content:
    """What the page shows.

    Attributes:
        about: what is text or a single number, as JSON has it.
        arrays: all other numbers, by name; ``measures`` ``[H, K]`` is the largest.
        sprites: many small images in one, by what they show: "examples", "prototypes", "features".
    """

    about: dict[str, Any]
    arrays: dict[str, np.ndarray]
    sprites: dict[str, Sprite] = field(default_factory=dict)


@torch.no_grad()
def content(
    model: Any,
    inputs: Any,
    labels: Sequence[int] | Sequence[str] | Tensor | None = None,
    names: Sequence[str] | None = None,
    *,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    images: Tensor | None = None,
    layer: str | None = None,
    title: str = LAYER,
    traces: Mapping[str, Sequence[float]] | None = None,
    report: Legibility | None = None,
    exact: int = EXACT,
    rounded: int = ROUNDED,
    objects: int = OBJECTS,
    progress: Progress = lambda done, steps, what: None,
) -> Content:
    """What the page shows of a model's Tversky layer and of a data set.

    Args:
        model: what has a TverskyProjection, as in ``Universe.of``.
        inputs: the data set, N inputs of the model.
        labels: index of the right prototype of each input, or name of its class, ``[N]``.
        names: name of each input; by default its number.
        classes: name of each prototype; by default a classifier's classes.
        columns: names of the inputs' columns, where inputs are a table; by default a data frame's.
        images: what is shown of each input, ``[N, H, W]`` or ``[N, C, H, W]``, 0 to 1; by default the inputs, if they
            are images.
        layer: name of the layer where the model has several.
        title: heading of the page.
        traces: ``step``, ``alpha``, ``beta`` and ``theta`` over the training, as a run's log has them.
        report: how legible the features are, from ``interpret.legibility``.
        exact: bytes up to which measures are float32, so that sums are those of the layer.
        rounded: bytes of measures at most, in float16.
        objects: examples on the page at most.
        progress: called with (steps done, steps, what is done).
    """
    found, vectors = seen(model, inputs, layer)
    N, K = len(vectors), found.features.num_features
    names = _names("names", names, N)
    classes = _names("classes", _prototypes(model) if classes is None else classes, found.out_features)
    if labels is not None and (m := pooling(model).prototypes_per_class) > 1:
        raise ValueError(f"labels are of classes, and the page shows prototypes, {m} of each class: leave labels out.")
    right = None if labels is None else indices_of(labels, classes, N, found.out_features)
    if found.out_features * K > PROTOTYPES:
        raise ValueError(
            f"a page holds prototypes with {PROTOTYPES:,} measures in all; these are {found.out_features:,} of {K:,}: "
            "show them as objects, explore(Universe.of(model, names))."
        )
    H, dtype = held(N, K, objects, exact, rounded)
    with evaluating(found):
        outputs = torch.cat([found(part) for part in vectors.split(max(1, AT_ONCE // K))])
    constants = torch.cat([getattr(found, name).reshape(1).double() for name in ("alpha", "beta", "theta")])
    if not (constants.isfinite().all() and outputs.isfinite().all()):
        raise ValueError("the layer's constants and answers must be finite to be shown; some are NaN or infinite.")
    gain = float(getattr(model[-1] if hasattr(model, "named_steps") else model, "gain_", 1.0))
    about = {
        "title": str(title),
        "layer": _about(found, gain),
        "classes": classes,
        "signed": True,
        "names": None if names is None else names[:H],
        "objects": N,
        "left_out": left_out(N, H, dtype),
    }
    if traces:
        about["traces"] = {name: list(values) for name, values in traces.items()}
    if report is not None:
        about["legibility"] = _legible(report)
    shown = measures(found, vectors[:H])
    arrays = {
        "measures": _array(shown, dtype),
        "salience": _array(shown.relu().sum(-1)),
        "prototypes": _array(measures(found, found.prototypes, of_prototypes=True)),
        "bias": _array(torch.zeros(found.out_features) if found.bias is None else found.bias),
        # What the layer answers, not what rounded measures would.
        "answers": outputs[:H].argmax(-1).cpu().numpy().astype(np.int32),
        **_of_bank(found.features, vectors, found.normalize, about, progress),
        **of_table(model, inputs, columns, found, vectors, H, about),
    }
    if right is not None:
        arrays["labels"] = right[:H].numpy().astype(np.int32)
        _score(outputs.argmax(-1).cpu(), right, about, arrays)
    images = _images(inputs, N) if images is None else images
    if images is not None and (len(images) != N or images.dim() not in (3, 4)):
        raise ValueError(f"images must be [{N}, H, W] or [{N}, C, H, W], one for each input; got {list(images.shape)}.")
    if isinstance(getattr(model, "features", None), Tensor):
        about["signed"] = bool((model.features < 0).any())
    sprites = _sprites(model, found, images, H)
    if "features" in sprites:
        tile = sprites["features"]
        # What is drawn on has the size of an image, whatever size its thumbnail has.
        about["shape"] = list(getattr(model, "shape", (1, tile.height, tile.width)))
        about["rebuilt"] = not hasattr(model, "shape")
    return Content(about, arrays, sprites)


@torch.no_grad()
def content_of_words(
    u: Universe,
    title: str = WORDS,
    exact: int = EXACT,
    rounded: int = ROUNDED,
    objects: int = OBJECTS,
    progress: Progress = lambda done, steps, what: None,
) -> Content:
    """What the page shows of a universe: named objects as sets of features, without prototypes that answer.

    Args:
        u: the universe.
        title, exact, rounded, objects, progress: as in ``content``.
    """
    N, K = len(u), len(u.features)
    H, dtype = held(N, K, objects, exact, rounded)
    threshold = u.threshold if u.cut else None
    measured = u.vectors[:H] @ u.features.mT - (0.0 if threshold is None else threshold)
    presence = None if threshold is None else 0.5
    # Starting values would be drawn in vain.
    bank = FeatureBank(K, u.features.shape[1], presence=presence, device="meta", dtype=u.features.dtype)
    bank.to_empty(device=u.features.device)
    bank.weight.copy_(u.features)
    if threshold is not None and bank.threshold is not None:
        bank.threshold.copy_(threshold)
    about: dict[str, Any] = {
        "title": str(title),
        "layer": {"objects_only": True, "num_features": K, "dim": u.features.shape[1], "num_prototypes": 0}
        | {"intersection": "product", "difference": "ignorematch", "level": "feature", "model": "contrast"}
        | {"alpha": 1.0, "beta": 1.0, "theta": 1.0, "scale": 1.0, "normalize": False, "thresholds": u.cut}
        | {"parameters": u.features.numel()},
        "classes": [],
        "signed": True,
        "names": u.names[:H],
        "objects": N,
        "left_out": left_out(N, H, dtype),
        "note": u.note,
    }
    arrays = {"measures": _array(measured, dtype), "salience": _array(measured.relu().sum(-1))}
    arrays["prototypes"] = np.zeros((0, K), np.float32)
    arrays |= {"bias": np.zeros(0, np.float32), **_of_bank(bank, u.vectors, False, about, progress)}
    about["features"] = {str(k): name for k, name in u.feature_names.items()}
    return Content(about, arrays)


def held(N: int, K: int, objects: int, exact: int, rounded: int) -> tuple[int, type]:
    """How many objects are on the page, and the dtype of their measures."""
    H = min(N, objects)
    if exact >= H * K * 4:
        return H, np.float32
    return max(1, min(H, rounded // (2 * K))), np.float16


def left_out(N: int, H: int, dtype: type) -> list[str]:
    """Sentences on what the page does not have."""
    found = []
    if H < N:
        found.append(f"The page holds {H:,} of {N:,} examples; each feature's presence is that among all of them.")
    if dtype is np.float16:
        found.append("Measures are rounded to three digits (float16), and so is every number made of them.")
    return found


def _about(layer: Any, gain: float) -> dict[str, Any]:
    """The layer's options and constants."""
    options = {name: getattr(layer, name) for name in ("intersection", "difference", "level", "model", "normalize")}
    constants = {name: getattr(layer, name).item() for name in ("alpha", "beta", "theta")}
    sizes = {
        "num_features": layer.features.num_features,
        "num_prototypes": layer.out_features,
        "dim": layer.in_features,
    }
    scale = gain if layer.scale is None else gain * layer.scale.item()
    parameters = sum(p.numel() for p in layer.parameters())
    more = {"scale": scale, "thresholds": layer.features.threshold is not None, "bias": layer.bias is not None}
    return {**options, **constants, **sizes, **more, "parameters": parameters, "objects_only": False}


def _legible(report: Legibility) -> dict[str, Any]:
    """The report's means, for the layer and what stands beside it, and the attributes that match best."""
    means = [[name, matches.summary()] for name, matches in report.compared().items()]
    return {
        "objects": list(report.objects),
        "means": [[name, *(found[key] for key in ("mcc", "recovered", "auc"))] for name, found in means],
        "best": [[row["attribute"], row["feature"], row["this layer"]] for row in report.rows()[:ATTRIBUTES]],
        "attributes": len(report.names),
    }


def _of_bank(
    bank: FeatureBank, vectors: Tensor, normalize: bool, about: dict[str, Any], progress: Progress
) -> dict[str, np.ndarray]:
    """Presence of each feature among all objects, its mean measure where it is had, and the features most like it."""
    objects = nn.functional.normalize(vectors, dim=-1) if normalize else vectors
    counts = Counts(bank)
    for part in objects.split(max(1, AT_ONCE // len(bank.weight))):
        counts.add(part)
        progress(counts.objects, len(objects), "counting who has each feature")
    like, cosines, duplicates = nearest(bank.weight, progress)
    return of_usage(bank, Usage.of(counts, duplicates, DUPLICATE), like, cosines, about)


def of_usage(
    bank: FeatureBank, used: Usage, like: Tensor, cosines: Tensor, about: dict[str, Any]
) -> dict[str, np.ndarray]:
    """How a bank is used, as arrays and in ``about``, with the features most like each."""
    about["features"] = {str(k): name for k, name in bank.names.items()}
    about["dead"], about["ever_present"] = used.dead, used.ever_present
    about["duplicates"] = [list(found) for found in used.duplicates]
    threshold = torch.zeros(bank.num_features) if bank.threshold is None else bank.threshold
    return {
        "thresholds": _array(threshold),
        "presence": _array(used.presence),
        "strength": _array(used.measure),
        "nearest": like.numpy().astype(np.int32),
        "cosines": _array(cosines),
    }


def nearest(weight: Tensor, progress: Progress) -> tuple[Tensor, Tensor, list[tuple[int, int, float]]]:
    """The features most like each by cosine, ``[K, n]``, these cosines, and duplicates as in ``Usage``."""
    unit = nn.functional.normalize(weight.detach().to(wide(weight.dtype)), dim=-1)
    n, found, duplicates = min(NEAREST, len(unit) - 1), [], []
    for start in range(0, len(unit), step := max(1, AT_ONCE // len(unit))):
        cosines = unit[start : start + step] @ unit.mT
        duplicates += earlier(cosines, start, DUPLICATE)
        rows = torch.arange(len(cosines), device=unit.device)
        cosines[rows, start + rows] = -2.0
        found.append(cosines.topk(n, dim=-1))
        progress(start + len(cosines), len(unit), "comparing features")
    like, cosines = (torch.cat([part[i] for part in found]).cpu() for i in (1, 0))
    return like, cosines, duplicates


def _score(answers: Tensor, labels: Tensor, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Accuracy over all objects, that of one answer for all, and how often each label has which answer, ``[P, P]``."""
    P = about["layer"]["num_prototypes"]
    about["accuracy"], about["most_frequent"] = (answers == labels).double().mean().item(), most_frequent(labels)
    if P <= 1000:
        arrays["confusion"] = (
            torch.bincount(labels * P + answers, minlength=P * P).reshape(P, P).numpy().astype(np.int32)
        )


def _sprites(model: Any, layer: Any, images: Tensor | None, H: int) -> dict[str, Sprite]:
    found = {} if images is None else {"examples": of_images(images[:H])}
    shape = getattr(model, "shape", None)
    if shape is not None and getattr(model, "features", None) is not None:
        # A network whose prototypes and features are images.
        found |= {name: of_parameters(getattr(model, name)) for name in ("prototypes", "features")}
    elif images is not None and layer.in_features == images[0].numel() and images[0].squeeze().dim() == 2:
        size = images[0].squeeze().shape
        weight = layer.features.weight
        # A prototype made of the features that it has: in pixels that no feature looks at it may be anything.
        rebuilt = measures(layer, layer.prototypes, of_prototypes=True).relu() @ weight.to(wide(weight.dtype))
        found |= {
            name: of_weights(rows.reshape(-1, *size)) for name, rows in (("prototypes", rebuilt), ("features", weight))
        }
    return found


def _prototypes(model: Any) -> list[str] | None:
    """Names of a classifier's prototypes: its classes, or where they have several each "ant (1 of 3)"."""
    pool, classes = pooling(model), class_names(model)
    m = pool.prototypes_per_class
    return classes and [pool.name(p, classes[p // m]) for p in range(m * len(classes))]


def _images(inputs: Any, N: int) -> Tensor | None:
    """The inputs, if they are images of one or three channels."""
    if not isinstance(inputs, Tensor) or len(inputs) != N:
        return None
    return inputs if inputs.dim() == 4 and inputs.shape[1] in (1, 3) else None


def _names(kind: str, names: Sequence[str] | None, size: int) -> list[str] | None:
    if names is None:
        return None
    if len(names) != size:
        raise ValueError(f"{kind} must be {size}, one for each; got {len(names)}.")
    return [str(name) for name in names]


def _array(values: Tensor, dtype: type = np.float32) -> np.ndarray:
    return values.detach().cpu().double().numpy().astype(dtype)
