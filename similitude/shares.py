"""What each feature adds to a similarity, by measures as a layer takes them, and the rows in which it is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from .checks import check_vectors, check_width
from .ops import reference
from .ops.modes import wide

if TYPE_CHECKING:
    from .nn import TverskyProjection, TverskySimilarity

    Layer = TverskyProjection | TverskySimilarity

Names = Sequence[str] | Mapping[int, str]


def objects(layer: Layer, vectors: Tensor) -> Tensor:
    """The vectors as the layer compares them, normalised if it does that, in float32 or better."""
    check_vectors("vectors", vectors)
    check_width("vectors", vectors, layer.features.weight)
    x = vectors.to(wide(vectors.dtype))
    return normalize(x, dim=-1) if layer.normalize else x


@torch.no_grad()
def measures(layer: Layer, vectors: Tensor, of_prototypes: bool = False) -> Tensor:
    """x · f_k − t_k of each vector and feature, as the layer takes them: ``[..., D]`` -> ``[..., K]``.

    Thresholds are for inputs: the measure of a prototype is p · f_k.
    """
    x, bank = objects(layer, vectors), layer.features
    found = x @ bank.weight.to(x.dtype).mT
    return found if bank.threshold is None or of_prototypes else found - bank.threshold.to(x.dtype)


def framed(layer: Layer) -> Tensor | None:
    """Which features are of the usual start in a bank that is partly from data, ``[K]`` of bool, or None."""
    bank = layer.features
    if not bank.notes.framed:
        return None
    found = torch.zeros(bank.num_features, dtype=torch.bool)
    found[sorted(bank.notes.framed)] = True
    return found


def shares_of(
    layer: Layer, a: Tensor, b: Tensor, constants: reference.Scalars | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What each feature adds to S(a, b) as common, as a's alone and as b's alone, for measures ``[K]``.

    By the layer's α, β, θ, or by those that are given.
    """
    alpha, beta, theta = constants or [getattr(layer, name).to(a.dtype) for name in ("alpha", "beta", "theta")]
    common = theta * reference.common_terms(a, b, layer.intersection)
    a_only = -alpha * reference.distinctive_terms(a, b, layer.difference)
    return common, a_only, -beta * reference.distinctive_terms(b, a, layer.difference)


def rows_of(
    heading: str,
    total: float,
    shares: Tensor,
    measured: list[tuple[str, Tensor]],
    top: int,
    names: Names | None,
) -> list[list[str]]:
    """Rows of a table: the heading with the total, the strongest features with their measures, the rest as one."""
    shown = strongest(shares, top)
    rows = [[heading, *(name for name, _ in measured), f"{total:+.4f}"]]
    for k in shown:
        rows.append([f"  {name_of(k, names)}", *(f"{m[k]:.4f}" for _, m in measured), f"{shares[k]:+.4f}"])
    more = int((shares != 0).sum()) - len(shown)
    if more:
        rest = shares.sum() - shares[shown].sum()
        rows.append([f"  {more} more", *("" for _ in measured), f"{rest.item():+.4f}"])
    return rows


def strongest(shares: Tensor, top: int) -> list[int]:
    order = shares.abs().argsort(descending=True, stable=True)[:top].tolist()
    return [k for k in order if shares[k] != 0]


def counted(shares: Tensor) -> str:
    n = int((shares != 0).sum())
    return f"{n} feature{'s' * (n != 1)}"


def by_origin(shares: Tensor, framed: Tensor | None, blank: int) -> list[list[str]]:
    """Two rows of a table: what features from data add, and what those of the usual start add."""
    if framed is None:
        return []
    framed = framed.to(shares.device)
    parts = (("of all, features from data", shares[~framed]), ("of all, those of the usual start", shares[framed]))
    return [[name, *[""] * blank, f"{part.sum():+.4f}"] for name, part in parts]


def names_of(layer: Layer, given: Sequence[str] | None) -> Names | None:
    """The names given, or those that the bank has."""
    return given if given is not None else layer.features.names or None


def name_of(feature: int, names: Names | None) -> str:
    """The name of a feature; a bank may have names for some."""
    if names is None or (isinstance(names, Mapping) and feature not in names):
        return f"feature {feature}"
    return str(names[feature])


def index_of(prototype: int | str, names: Sequence[str] | None) -> int:
    """Index of a prototype given by index or by name."""
    if isinstance(prototype, str) and names is not None and prototype in names:
        return list(names).index(prototype)
    if not isinstance(prototype, int):
        known = f" or one of {', '.join(map(str, names[:10]))}" if names is not None else ""
        raise TypeError(f"prototype must be the index of one, a whole number{known}; got {prototype!r}.")
    return prototype


def check_top(top: object) -> None:
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"top must be a whole number of 1 or more; got {top!r}.")


def check_explained(layer: Layer, top: object, feature_names: Sequence[str] | None) -> None:
    if (layer.level, layer.model) != ("feature", "contrast"):
        raise ValueError(
            "only level='feature' with model='contrast' is a sum over features that can be explained exactly; "
            f"this layer has level={layer.level!r}, model={layer.model!r}."
        )
    K = layer.features.num_features
    if feature_names is not None and len(feature_names) != K:
        raise ValueError(f"feature_names must have {K} names; got {len(feature_names)}.")
    check_top(top)
