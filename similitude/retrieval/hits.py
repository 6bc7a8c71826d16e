"""What goes into a search and what comes out of it: queries and documents as measures, hits, their explanation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from ..explain import Pair
from ..ops.modes import wide
from ..shares import check_explained, measures, names_of, shares_of
from .codes import Vectors, vectors_of

Progress = Callable[[int, int], None]


class Hits(NamedTuple):
    """What a search found, best first; equal values in the order in which the documents were added.

    Attributes:
        values: S(query, document), or S(document, query) of a reversed search, in float64: ``[k]`` or ``[Q, k]``.
        ids: the documents' ids, a list for each query.
        certified: whether these are what comparing all documents would find, ``[]`` or ``[Q]`` of bool.
    """

    values: Tensor
    ids: list[Any]
    certified: Tensor


def checked(layer: Any, vectors: Vectors, name: str) -> Tensor:
    """Vectors ``[N, D]`` as a tensor, or one sentence."""
    x, D = vectors_of(vectors, name), layer.features.dim
    if x.dim() != 2 or x.shape[-1] != D:
        raise ValueError(f"{name} must be [N, {D}], as wide as the layer's features; got shape {list(x.shape)}.")
    return x


def measured(layer: Any, x: Tensor, name: str) -> Tensor:
    """Measures of vectors ``[N, D]``, 0 where they lack a feature, in the bank's dtype or float32."""
    if not x.isfinite().all():
        raise ValueError(f"{name} must be finite; some have NaN or infinite numbers.")
    weight = layer.features.weight
    dtype = wide(weight.dtype)
    found = measures(layer, x.to(weight.device, dtype)).relu().cpu()
    if not found.isfinite().all():
        raise ValueError(f"{name} are too large: some of their measures are infinite in {str(dtype)[6:]}.")
    return found


def explained(
    layer: Any, a: Tensor, b: Tensor, by: tuple[float, float, float], top: int, names: tuple[str, str]
) -> Pair:
    """Why a document is as similar to a query as it is, from their measures ``[K]`` in float64."""
    check_explained(layer, top, None)
    forth, back = shares_of(layer, a, b, by), shares_of(layer, b, a, by)
    value, reverse = ((common + first + second).sum().item() for common, first, second in (forth, back))
    return Pair(value, reverse, *forth, a, b, top, names, names_of(layer, None))
