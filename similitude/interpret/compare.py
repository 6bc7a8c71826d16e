"""Two objects by what they share and what they do not, and a prediction by what decided it over the runner-up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..explain import Explanation, explain, number_of
from ..nn import TverskyProjection
from ..ops import reference
from .salience import measures, objects


@dataclass(frozen=True)
class Region:
    """A set of features, and the examples that show it best.

    features: their numbers. examples: indices into the data set, best first, and their semantic scores; fewer than
    asked for if the data set is small, and none if the set is empty, as no example shows an empty set.
    """

    name: str
    features: list[int]
    examples: list[int]
    scores: list[float]

    def __str__(self) -> str:
        found = ", ".join(f"{i} ({s:.3f})" for i, s in zip(self.examples, self.scores, strict=True)) or "none"
        return f"{self.name}: {_counted(len(self.features))}; best shown by {found}"


@dataclass(frozen=True)
class Venn:
    """Two objects as sets: what only A has, what both have, what only B has, each with its best examples. Print it."""

    a_only: Region
    common: Region
    b_only: Region

    def regions(self) -> tuple[Region, Region, Region]:
        return self.a_only, self.common, self.b_only

    def __str__(self) -> str:
        return "\n".join(map(str, self.regions()))


@torch.no_grad()
def venn(layer: TverskyProjection, a: Tensor, b: Tensor, vectors: Tensor, top: int = 9) -> Venn:
    """The examples out of ``vectors`` ``[N, D]`` that best show A−B, A∩B and B−A, for two objects ``[D]``.

    An example's semantic score in a set F is the paper's s(x) = Σ_{f∈F} f·x: one vector sum, and one product for all.
    """
    _check_top(top)
    a_has, b_has = (measures(layer, _one(name, x, layer)) > 0 for name, x in (("a", a), ("b", b)))
    x = objects(layer, vectors)
    if x.dim() != 2:
        raise ValueError(f"vectors must be [N, D]; got shape {list(x.shape)}.")
    sets = {"A−B": a_has & ~b_has, "A∩B": a_has & b_has, "B−A": b_has & ~a_has}
    return Venn(*(_region(name, members, layer, x, top) for name, members in sets.items()))


def _region(name: str, members: Tensor, layer: TverskyProjection, x: Tensor, top: int) -> Region:
    scores = semantic_score(layer.features.weight[members].to(x.dtype), x)
    order = scores.argsort(descending=True, stable=True)[: top if members.any() else 0]
    return Region(name, members.nonzero()[:, 0].tolist(), order.tolist(), scores[order].tolist())


def semantic_score(features: Tensor, x: Tensor) -> Tensor:
    """s(x) = Σ_{f∈F} f·x: features ``[n, D]``, objects ``[..., D]`` -> ``[...]``."""
    return x @ features.sum(0)


@dataclass(frozen=True)
class Pair:
    """Why two objects are as similar as they are under a layer's bank and α, β, θ. Print it.

    similarity: S(a, b), the sum of ``common``, ``a_only`` and ``b_only`` over all features, ``[K]`` each: θ·Ψ of shared
    features, −α times what only A has, −β times what only B has. reverse: S(b, a), which differs where α and β do.
    a_measures, b_measures: a · f_k and b · f_k.
    """

    similarity: float
    reverse: float
    common: Tensor
    a_only: Tensor
    b_only: Tensor
    a_measures: Tensor
    b_measures: Tensor
    top: int
    names: tuple[str, str] = ("A", "B")
    feature_names: Sequence[str] | None = None

    def __str__(self) -> str:
        a, b = self.names
        parts = ((f"{a} ∩ {b}", self.common), (f"{a} − {b}", self.a_only), (f"{b} − {a}", self.b_only))
        rows = [[f"S({a}, {b})", "", "", f"{self.similarity:+.4f}"], [f"S({b}, {a})", "", "", f"{self.reverse:+.4f}"]]
        for label, part in parts:
            rows.append([f"{label}, {_counted(int((part != 0).sum()))}", a, b, f"{part.sum().item():+.4f}"])
            rows += [
                [f"  {_name(k, self.feature_names)}", *_measured(k, self.a_measures, self.b_measures), _share(part, k)]
                for k in _strongest(part, self.top)
            ]
        return _table(rows)


@torch.no_grad()
def pair(
    layer: TverskyProjection,
    a: Tensor,
    b: Tensor,
    top: int = 10,
    names: tuple[str, str] = ("A", "B"),
    feature_names: Sequence[str] | None = None,
) -> Pair:
    """The similarity of two objects ``[D]`` feature by feature, by the layer's bank, constants and options."""
    _check_explainable(layer)
    _check_top(top)
    _check_names(feature_names, layer)
    a, b = measures(layer, torch.stack([_one("a", a, layer), _one("b", b, layer)]))
    alpha, beta, theta = (getattr(layer, n).detach().to(a.dtype) for n in ("alpha", "beta", "theta"))
    common = theta * reference.common_terms(a, b, layer.intersection)
    first, second = (reference.distinctive_terms(*sides, layer.difference) for sides in ((a, b), (b, a)))
    forth = (common - alpha * first - beta * second).sum().item()
    back = (common - alpha * second - beta * first).sum().item()
    return Pair(forth, back, common, -alpha * first, -beta * second, a, b, top, names, feature_names)


@dataclass(frozen=True)
class Decision:
    """What decided for a class over another one. Print it.

    difference: the layer's output for ``chosen`` less that for ``other``: the sum of ``shares``, ``[K]``, one for each
    feature, and of ``bias``, the difference of the two. ``for_chosen`` and ``for_other`` are the two explanations.
    """

    chosen: int
    other: int
    difference: float
    bias: float
    shares: Tensor
    for_chosen: Explanation
    for_other: Explanation
    top: int

    def strongest(self) -> list[int]:
        """Up to ``top`` features that moved the difference most, either way."""
        return _strongest(self.shares, self.top)

    def __str__(self) -> str:
        mine, theirs = self.for_chosen, self.for_other
        chosen, other = (str(e.prototype_name or e.prototype) for e in (mine, theirs))
        rows = [[f"{chosen} over {other}, by feature", "input", chosen, other, f"{self.difference:+.4f}"]]
        strongest = self.strongest()
        for k in strongest:
            measured = _measured(k, mine.input_measures, mine.prototype_measures, theirs.prototype_measures)
            rows.append([f"  {_name(k, mine.feature_names)}", *measured, _share(self.shares, k)])
        rest = int((self.shares != 0).sum()) - len(strongest)
        if rest:
            left = (self.shares.sum() - self.shares[strongest].sum()).item()
            rows.append([f"  {rest} more", "", "", "", f"{left:+.4f}"])
        if self.bias:
            rows.append(["  bias", "", "", "", f"{self.bias:+.4f}"])
        return _table(rows)


@torch.no_grad()
def decision(
    layer: TverskyProjection,
    x: Tensor,
    chosen: int | str | None = None,
    other: int | str | None = None,
    top: int = 10,
    feature_names: Sequence[str] | None = None,
    prototype_names: Sequence[str] | None = None,
) -> Decision:
    """Which features of an input ``[D]`` decide for the class it is given, over the runner-up.

    chosen, other: other classes than the two most similar ones, such as the right one where the answer was wrong, by
    number or by name among ``prototype_names``.
    """
    if layer.out_features < 2:
        raise ValueError("a layer with one prototype has no runner-up.")
    chosen, other = (None if p is None else number_of(p, prototype_names) for p in (chosen, other))
    order = layer(_one("x", x, layer)).argsort(descending=True, stable=True).tolist()
    first = next(p for p in order if p != other) if chosen is None else chosen
    second = next(p for p in order if p != first) if other is None else other
    if first == second:
        raise ValueError(f"chosen and other must be two classes; got {first} twice.")
    mine, theirs = (explain(layer, x, p, top, feature_names, prototype_names) for p in (first, second))
    shares = sum(p for _, p in mine.parts()) - sum(p for _, p in theirs.parts())
    assert isinstance(shares, Tensor)
    difference, bias = mine.similarity - theirs.similarity, mine.bias - theirs.bias
    return Decision(first, second, difference, bias, shares, mine, theirs, top)


def _one(name: str, x: Tensor, layer: TverskyProjection) -> Tensor:
    if not isinstance(x, Tensor) or list(x.shape) != [layer.in_features]:
        given = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise ValueError(f"{name} must be one object, a tensor of shape {[layer.in_features]}; got {given}.")
    return x


def _check_top(top: object) -> None:
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"top must be a whole number of 1 or more; got {top!r}.")


def _check_names(names: Sequence[str] | None, layer: TverskyProjection) -> None:
    K = layer.features.num_features
    if names is not None and len(names) != K:
        raise ValueError(f"feature_names must have {K} names; got {len(names)}.")


def _check_explainable(layer: TverskyProjection) -> None:
    if (layer.level, layer.model) != ("feature", "contrast"):
        raise ValueError(
            "only level='feature' with model='contrast' is a sum over features that can be explained exactly; "
            f"this layer has level={layer.level!r}, model={layer.model!r}."
        )


def _strongest(shares: Tensor, top: int) -> list[int]:
    order = shares.abs().argsort(descending=True, stable=True)[:top].tolist()
    return [k for k in order if shares[k] != 0]


def _name(k: int, names: Sequence[str] | None) -> str:
    return f"feature {k}" if names is None else str(names[k])


def _counted(n: int) -> str:
    return f"{n} feature{'s' * (n != 1)}"


def _measured(k: int, *of: Tensor) -> list[str]:
    return [f"{m[k].item():.4f}" for m in of]


def _share(part: Tensor, k: int) -> str:
    return f"{part[k].item():+.4f}"


def _table(rows: list[list[str]]) -> str:
    """Rows as text, the first column to the left and all others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
