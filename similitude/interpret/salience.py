"""Salience, f(A) of Eq. 2, over a data set: who has the most features, and whether that goes with good form.

All views of examples take a layer and the vectors that reach it; ``seen`` returns both for a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .. import functional as F
from .._text import as_html, columns
from ..nn import TverskyProjection
from ..reach import projection as projection
from ..reach import seen as seen
from ..shares import objects

__all__ = ["Form", "Ranking", "form", "ink", "rank", "seen", "stroke_width", "typicality"]

# Elements of a matrix that are made at once.
ELEMENTS = 2**24
# Classes that are printed.
SHOWN = 20


@dataclass(frozen=True)
class Ranking:
    """A data set from low to high salience. Print it.

    Attributes:
        salience: salience of each example, ``[N]``, in the data set's order.
        order: indices of the examples from the lowest salience to the highest, ``[N]``.
        labels: class of each example, ``[N]``, or None.
    """

    salience: Tensor
    order: Tensor
    labels: Tensor | None = None

    def of(self, label: int | None = None) -> Tensor:
        """Indices from low to high, of one class or of all."""
        if label is None:
            return self.order
        found = self.order[self._labels()[self.order] == label]
        if not len(found):
            raise ValueError(f"no example has label {label}; there are {self.classes()}.")
        return found

    def lowest(self, n: int = 10, label: int | None = None) -> Tensor:
        """Indices of the n least salient, from the lowest."""
        return self.of(label)[:n]

    def highest(self, n: int = 10, label: int | None = None) -> Tensor:
        """Indices of the n most salient, from the highest."""
        return self.of(label).flip(0)[:n]

    def strip(self, n: int = 10, label: int | None = None) -> Tensor:
        """n indices at even steps from the lowest to the highest, as in the paper's figure."""
        if n < 1:
            raise ValueError(f"n must be 1 or more; got {n}.")
        order = self.of(label)
        steps = torch.linspace(0, len(order) - 1, min(n, len(order))).round().long()
        return order[steps.to(order.device)]

    def classes(self) -> list[int]:
        """The labels that there are."""
        return [] if self.labels is None else self.labels.unique().tolist()

    def _labels(self) -> Tensor:
        if self.labels is None:
            raise ValueError("the ranking has no labels; give them to rank(layer, vectors, labels).")
        return self.labels

    def __str__(self) -> str:
        classes = self.classes()
        rows = [("all", self.salience)] + [(str(c), self.salience[self.of(c)]) for c in classes[:SHOWN]]
        cells = [
            [name, f"{len(s):,}", *(f"{v.item():.3f}" for v in (s.min(), s.median(), s.mean(), s.max()))]
            for name, s in rows
        ]
        more = [[f"… {len(classes) - SHOWN} more"]] if len(classes) > SHOWN else []
        return columns([["class", "examples", "lowest", "median", "mean", "highest"], *cells, *more])

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def rank(layer: TverskyProjection, vectors: Tensor, labels: Tensor | None = None) -> Ranking:
    """The vectors in the order of their salience in the layer's bank; equal ones keep their order.

    Args:
        layer: a TverskyProjection, of which the bank and ``normalize`` are used.
        vectors: the data set, ``[N, D]``, with one row or more.
        labels: class of each vector, ``[N]``; then classes can be ranked by themselves.

    Equivalent to: ``F.salience(vectors, *layer.features.cut()).argsort()``.
    """
    x = objects(layer, vectors)
    if x.dim() != 2 or not len(x):
        raise ValueError(f"vectors must be [N, D] with one row or more; got shape {list(vectors.shape)}.")
    if labels is not None:
        labels = torch.as_tensor(labels, device=x.device)
        if labels.shape != x.shape[:1]:
            raise ValueError(f"labels must be [{len(x)}], one for each vector; got shape {list(labels.shape)}.")
    bank, threshold = (None if t is None else t.detach().to(x.dtype) for t in layer.features.cut())
    assert bank is not None
    parts = x.split(max(1, ELEMENTS // len(bank)))
    salience = torch.cat([F.salience(part, bank, threshold=threshold) for part in parts])
    return Ranking(salience, salience.argsort(stable=True), labels)


def ink(images: Tensor) -> Tensor:
    """Mean brightness of each image, ``[N]``.

    Args:
        images: ``[N, ..., H, W]``.
    """
    return _pictures(images).mean((1, 2))


def stroke_width(images: Tensor) -> Tensor:
    """Width of the strokes of each image in pixels, ``[N]``: twice the ink over its outline.

    A bar of length L and width w has ink Lw and outline 2L + 2w, so that a long one gives w. The outline is the sum of
    the lengths of the image's gradient, which needs no threshold. An image of one brightness gives 0.

    Args:
        images: ``[N, ..., H, W]``.
    """
    x = nn.functional.pad(_pictures(images), (1, 1, 1, 1))
    down, right = x[:, 1:, :-1] - x[:, :-1, :-1], x[:, :-1, 1:] - x[:, :-1, :-1]
    outline = (down.square() + right.square()).sqrt().sum((1, 2))
    return torch.where(outline > 0, 2 * x.sum((1, 2)) / outline.clamp(min=1e-12), 0.0)


def typicality(images: Tensor, labels: Tensor) -> Tensor:
    """Cosine of each image with the mean image of its class, ``[N]``.

    Args:
        images: ``[N, ..., H, W]``.
        labels: Their classes, ``[N]``.
    """
    x, out = _pictures(images).flatten(1), torch.zeros(len(images), device=images.device)
    for c in labels.unique():
        rows = labels == c
        out[rows] = nn.functional.cosine_similarity(x[rows], x[rows].mean(0, keepdim=True)).to(out.dtype)
    return out


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two ``[N]``, with mean ranks for ties; NaN if one of them is constant."""
    if a.dim() != 1 or a.shape != b.shape:
        raise ValueError(f"both must be [N] and of one length; got shapes {list(a.shape)} and {list(b.shape)}.")
    ranks = torch.stack([_ranks(a), _ranks(b)])
    ranks = ranks - ranks.mean(1, keepdim=True)
    length = ranks.norm(dim=1)
    return (ranks[0] @ ranks[1] / length.prod()).item() if length.all() else math.nan


@dataclass(frozen=True)
class Form:
    """Rank correlations of salience with measures of form. Print it.

    Over all examples a measure may correlate with salience only because classes differ in both; within a class it
    cannot.

    Attributes:
        overall: correlation over all examples, by measure.
        by_class: correlation within each class, by class and measure.
    """

    overall: dict[str, float]
    by_class: dict[int, dict[str, float]]

    def within(self, measure: str) -> float:
        """Mean of the correlations within the classes, without those that are NaN."""
        found = [of[measure] for of in self.by_class.values() if not math.isnan(of[measure])]
        return sum(found) / len(found) if found else math.nan

    def __str__(self) -> str:
        rows = [["Spearman with salience", "all", *(("within", *self.by_class) if self.by_class else ())]]
        for name, value in self.overall.items():
            inside = (self.within(name), *(of[name] for of in self.by_class.values())) if self.by_class else ()
            rows.append([name, *map(_signed, (value, *inside))])
        return columns(rows)

    __repr__ = __str__
    _repr_html_ = as_html


def form(ranking: Ranking, images: Tensor, **more: Tensor) -> Form:
    """Rank correlations of salience with ink, stroke width and, with labels, typicality.

    Args:
        ranking: what ``rank`` returned for the same examples.
        images: the examples as images, ``[N, ..., H, W]``; 0 is the ground.
        more: further measures of the images by name, ``[N]`` each.
    """
    N, labels = len(ranking.salience), ranking.labels
    if len(images) != N:
        raise ValueError(f"images must be as many as were ranked, {N}; got {len(images)}.")
    found = {"ink": ink(images), "stroke width": stroke_width(images)}
    if labels is not None:
        found["typicality"] = typicality(images, labels.to(images.device))
    found |= {name.replace("_", " "): values for name, values in more.items()}
    salience = ranking.salience.cpu()
    found = {name: values.cpu() for name, values in found.items()}
    overall = {name: spearman(salience, values) for name, values in found.items()}
    members = {c: ranking.of(c).cpu() for c in ranking.classes()}
    by_class = {
        c: {name: spearman(salience[rows], values[rows]) for name, values in found.items()}
        for c, rows in members.items()
    }
    return Form(overall, by_class)


def _ranks(x: Tensor) -> Tensor:
    """Ranks in float64; equal values share their mean rank."""
    _, inverse, counts = x.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    return (last - (counts - 1).double() / 2)[inverse]


def _signed(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:+.2f}"


def _pictures(images: Tensor) -> Tensor:
    if not isinstance(images, Tensor) or images.dim() < 3:
        raise ValueError(f"images must be a tensor [N, ..., H, W]; got {_shown(images)}.")
    x = images.float()
    return x if x.dim() == 3 else x.flatten(1, -3).mean(1)


def _shown(value: object) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
