"""Usage of a feature bank: how many of some objects have each feature, which are dead, and which are duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from . import checks
from ._text import as_html
from .batches import batches, inputs_of
from .ops import vectors
from .ops.modes import wide
from .reach import evaluating

if TYPE_CHECKING:
    from .bank import FeatureBank

Through = Callable[[Any], Any]

# Measures that are made at once: few enough for the processor's cache, where counting them takes a seventh of the time.
AT_ONCE = 2**21
SHOWN = 8


@dataclass(frozen=True)
class Usage:
    """How the counted objects use each feature of a bank. Print it.

    Attributes:
        objects: Number of objects.
        presence: Share of the objects that have each feature, ``[K]``.
        measure: Mean measure of each feature in the objects that have it, ``[K]``; 0 if none has it.
        duplicates: ``(feature, earlier feature, cosine)`` for each feature whose cosine to an earlier one is above the
            threshold.
        threshold: That threshold.
    """

    objects: int
    presence: Tensor
    measure: Tensor
    duplicates: list[tuple[int, int, float]]
    threshold: float

    @classmethod
    def of(cls, counts: Counts, duplicates: list[tuple[int, int, float]], threshold: float) -> Usage:
        """What was counted, beside duplicates."""
        if not counts.objects:
            raise ValueError("there are no objects to count: the data has no rows, or its loader was used up before.")
        presence = counts.having.double() / counts.objects
        measure = counts.total / counts.having.clamp(min=1)
        return cls(counts.objects, presence.cpu(), measure.cpu(), duplicates, threshold)

    @property
    def dead(self) -> list[int]:
        """Features that no object has."""
        return (self.presence == 0).nonzero()[:, 0].tolist()

    @property
    def ever_present(self) -> list[int]:
        """Features that all objects have, so that their presence separates none."""
        return (self.presence == 1).nonzero()[:, 0].tolist()

    def __str__(self) -> str:
        shares = self.presence.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)).tolist()
        copies = [f"{j} of {i}" for j, i, _ in self.duplicates]
        rows = (
            ("dead", self.dead),
            ("ever-present", self.ever_present),
            (f"duplicates (cosine > {self.threshold:g})", copies),
        )
        lines = [f"{len(self.presence)} features, {self.objects:,} objects"]
        lines += [f"{name}: {len(found)}{_listed(found)}" for name, found in rows]
        lines.append("present in (least, quartiles, most): " + " ".join(f"{share:.1%}" for share in shares))
        return "\n".join(lines)

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def usage(
    bank: FeatureBank, objects: Tensor | Iterable[Any], through: Through | None = None, threshold: float = 0.99
) -> Usage:
    """How many of the objects have each feature and how strongly, and which features are dead or duplicates.

    Args:
        bank: The feature bank.
        objects: A tensor ``[..., D]``, or a loader: batches of such tensors, or tuples whose first item is one.
        through: Function from a batch to vectors, such as a backbone; a module runs in ``eval()``.
        threshold: Cosine above which a feature is a duplicate of an earlier one.
    """
    counts = Counts(bank)
    with evaluating(through):
        for batch in batches(objects, name="objects"):
            inputs = inputs_of(batch, bank.weight.device)
            counts.add(inputs if through is None else through(inputs))
    return Usage.of(counts, _duplicates(bank.weight, threshold), threshold)


@dataclass
class Counts:
    """How many of the objects so far have each feature of a bank, and its total measure in them."""

    bank: FeatureBank
    normalize: bool = False
    objects: int = 0
    having: Tensor = field(init=False)  # [K]
    total: Tensor = field(init=False)  # [K], of positive measures

    def __post_init__(self) -> None:
        weight = self.bank.weight
        self.having = torch.zeros(len(weight), device=weight.device, dtype=torch.int64)
        self.total = torch.zeros(len(weight), device=weight.device, dtype=torch.float64)

    def add(self, objects: object) -> None:
        checks.check_vectors("objects", objects)
        assert isinstance(objects, Tensor)
        weight = self.bank.weight
        checks.check_width("objects", objects, weight)
        dtype = wide(torch.promote_types(objects.dtype, weight.dtype))
        weight = weight.to(dtype)
        threshold = None if self.bank.threshold is None else self.bank.threshold.to(dtype)
        for rows in objects.reshape(-1, objects.shape[-1]).split(max(1, AT_ONCE // len(weight))):
            if not rows.isfinite().all():
                raise ValueError("objects must be finite; some have NaN or infinite elements.")
            measures = vectors.measures(rows.to(weight), weight, self.normalize, threshold).relu()
            self.objects += len(rows)
            self.having += measures.count_nonzero(0)
            self.total += measures.sum(0, dtype=torch.float64)


@contextmanager
def observed(layers: Mapping[str, Any], counts: Mapping[str, Counts]) -> Iterator[None]:
    """A context in which the objects of every call of the layers are counted, whichever method takes them."""
    wrapped = []
    try:
        for name, layer in layers.items():
            for method in ("forward", "pairwise", "cross_entropy"):
                if hasattr(layer, method):
                    own = layer.__dict__.get(method)
                    wrapped.append((layer, method, own))
                    layer.__dict__[method] = _counting(getattr(layer, method), layer, counts[name])
        yield
    finally:
        for layer, method, own in wrapped:
            if own is None:
                del layer.__dict__[method]
            else:
                layer.__dict__[method] = own


def _counting(call: Callable, layer: Any, counts: Counts) -> Callable:
    sides = ("x",) if is_projection(layer) else ("a", "b")

    @wraps(call)
    def counted(*args, **kwargs):
        for i, side in enumerate(sides):
            counts.add(args[i] if i < len(args) else kwargs[side])
        return call(*args, **kwargs)

    return counted


def is_projection(layer: object) -> bool:
    return hasattr(layer, "prototypes")


def _duplicates(weight: Tensor, threshold: float) -> list[tuple[int, int, float]]:
    unit = nn.functional.normalize(weight.to(wide(weight.dtype)), dim=-1)
    found = []
    for start in range(0, len(unit), step := max(1, AT_ONCE // len(unit))):
        found += earlier(unit[start : start + step] @ unit.mT, start, threshold)
    return found


def earlier(cosines: Tensor, start: int, threshold: float) -> list[tuple[int, int, float]]:
    """Duplicates among some features, from their cosines with all, ``[n, K]``; ``start`` is the first one's index."""
    above, rows = cosines > threshold, torch.arange(len(cosines), device=cosines.device)
    # Most features are like none but themselves, and no more is done for them.
    rows = rows[above.sum(-1) > above[rows, start + rows].int()]
    before = above[rows] & (torch.arange(cosines.shape[1], device=rows.device) < (start + rows)[:, None])
    first = before.int().argmax(-1)
    found = zip(before.any(-1).tolist(), rows.tolist(), first.tolist(), cosines[rows, first].tolist(), strict=True)
    return [(start + row, k, cosine) for has, row, k, cosine in found if has]


def _listed(found: list) -> str:
    if not found:
        return ""
    more = f", … {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f" ({', '.join(map(str, found[:SHOWN]))}{more})"
