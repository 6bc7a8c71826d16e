"""Exact explanations of a layer's answers, feature by feature: one similarity, a pair of objects, a decision, a Venn.

With ``level="feature"`` and ``model="contrast"`` a similarity is a sum over features, so each has its signed share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._text import as_html, columns
from .checks import check_one
from .ops.modes import wide
from .pooling import ClassPooling
from .reach import check_head, class_names, comparison, evaluating, naming, one, pooling, projection, seen
from .shares import (
    Names,
    by_origin,
    check_explained,
    check_top,
    counted,
    framed,
    index_of,
    measures,
    name_of,
    names_of,
    objects,
    rows_of,
    shares_of,
    strongest,
)

if TYPE_CHECKING:
    from .nn import TverskyProjection, TverskySimilarity

    Layer = TverskyProjection | TverskySimilarity

# Features of each kind that are printed: three kinds of them with headings fit a screen.
TOP = 6

# Of the bars in a notebook: common, input only, prototype only.
COLOURS = ("#0072b2", "#d55e00", "#cc79a7")


@dataclass(frozen=True)
class Explanation:
    """Why an input is as similar as it is to a prototype. Print it, or show it in a notebook.

    Attributes:
        prototype: index of the prototype.
        similarity: the output, the sum of the three kinds of shares over all features, of the bias and of ``others``.
        bias: the layer's bias for the prototype, 0 without one.
        common: θ·Ψ of each shared feature, ``[K]``.
        input_only: −α times what only the input has, ``[K]``.
        prototype_only: −β times what only the prototype has, ``[K]``.
        input_measures: x · f_k − t_k, ``[K]``.
        prototype_measures: p · f_k, ``[K]``.
        top: how many features of each kind are printed.
        feature_names: names of all K features, or of some by their index, or None.
        prototype_name: name of the prototype, or None.
        framed: which features are of the usual start in a bank that is partly from data, ``[K]`` of bool, or None.
        others: what the class's other prototypes add, behind a ClassPooling by logsumexp; else 0.
    """

    prototype: int
    similarity: float
    bias: float
    common: Tensor
    input_only: Tensor
    prototype_only: Tensor
    input_measures: Tensor
    prototype_measures: Tensor
    top: int
    feature_names: Names | None = None
    prototype_name: str | None = None
    framed: Tensor | None = None
    others: float = 0.0

    def parts(self) -> list[tuple[str, Tensor]]:
        """The three kinds of shares by name, ``[K]`` each."""
        return [("common", self.common), ("input only", self.input_only), ("prototype only", self.prototype_only)]

    def shares(self) -> Tensor:
        """What each feature adds to the similarity, ``[K]``."""
        return self.common + self.input_only + self.prototype_only

    def strongest(self, shares: Tensor) -> list[int]:
        """Up to ``top`` features with the largest shares by absolute value, without those whose share is 0."""
        return strongest(shares, self.top)

    def __str__(self) -> str:
        measured = [("input", self.input_measures), ("prototype", self.prototype_measures)]
        rows = []
        for name, part in self.parts():
            heading = f"{name}, {counted(part)}"
            rows += rows_of(heading, part.sum().item(), part, measured, self.top, self.feature_names)
        rows += by_origin(self.shares(), self.framed, 2)
        rows += [[name, "", "", f"{value:+.4f}"] for name, value in self._constants()]
        return f"{self._title()}  similarity {self.similarity:+.4f}\n{columns(rows)}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A table with bars, for notebooks."""
        largest = max([part.abs().max().item() for _, part in self.parts()] + [1e-12])
        rows = ["<tr><th>feature</th><th>input</th><th>prototype</th><th>share</th><th></th></tr>"]
        head = "<tr><th colspan=3 style='text-align:left'>{}</th><th>{:+.4f}</th><td></td></tr>"
        for (label, part), colour in zip(self.parts(), COLOURS, strict=True):
            rows.append(head.format(label, part.sum()))
            for k in self.strongest(part):
                share = part[k].item()
                style = f"background:{colour};height:0.8em;width:{round(120 * abs(share) / largest)}px"
                measures = (f"{m[k]:.4f}" for m in (self.input_measures, self.prototype_measures))
                cells = (
                    escape(name_of(k, self.feature_names)),
                    *measures,
                    f"{share:+.4f}",
                    f"<div style='{style}'></div>",
                )
                rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
        rows += [head.format(*constant) for constant in self._constants()]
        caption = f"<caption>{escape(self._title())}, similarity {self.similarity:+.4f}</caption>"
        return f"<table>{caption}{''.join(rows)}</table>"

    def _constants(self) -> list[tuple[str, float]]:
        """What no feature adds, by name."""
        constants = (("bias", self.bias), ("other prototypes", self.others))
        return [(name, value) for name, value in constants if value]

    def _title(self) -> str:
        return f"input against prototype {self.prototype_name or self.prototype}"


@torch.no_grad()
def explain(
    model: Any,
    x: Any,
    prototype: int | str | None = None,
    top: int = TOP,
    feature_names: Sequence[str] | None = None,
    prototype_names: Sequence[str] | None = None,
    *,
    layer: str | None = None,
) -> Explanation:
    """Shares of all features in the similarity of one input to one prototype.

    Behind a ClassPooling that is the prototype of the class that is most like the input.

    Args:
        model: what has a TverskyProjection with ``level="feature"`` and ``model="contrast"``: as in ``Universe.of``.
        x: one input of the model; of a layer, ``[D]``.
        prototype: index of the prototype, or behind a ClassPooling of the class, or its name among ``prototype_names``;
            by default the most similar one.
        top: how many features of each kind are printed.
        feature_names: names of all K features.
        prototype_names: names of all P prototypes, or classes; by default a classifier's.
        layer: name of the layer where the model has several.
    """
    return _explanation(*_given(model, x, layer, prototype_names), prototype, top, naming(model, feature_names))


def _given(model: Any, x: Any, layer: str | None, names: Sequence[str] | None) -> tuple[Any, ClassPooling, Tensor, Any]:
    """The model's projection, what pools its prototypes, the vector that reaches it for x, and names of the classes."""
    names = class_names(model) if names is None else names
    return projection(model, layer), pooling(model), one(model, x, layer), names


def _explanation(
    layer: TverskyProjection,
    pool: ClassPooling,
    x: Tensor,
    names: Sequence[str] | None,
    prototype: int | str | None,
    top: int,
    feature_names: Sequence[str] | None,
) -> Explanation:
    check_explained(layer, top, feature_names)
    check_one("x", x, layer.features.dim)
    with evaluating(layer):  # a held presence follows inputs of training alone
        similarities = layer(x)
    output = pool(similarities)
    if names is not None and len(names) != len(output):
        raise ValueError(f"prototype_names must have {len(output)} names; got {len(names)}.")
    chosen = int(output.argmax()) if prototype is None else index_of(prototype, names)
    if not 0 <= chosen < len(output):
        raise ValueError(f"prototype must be from 0 to {len(output) - 1}; got {prototype}.")
    p = int(pool.winners(similarities)[chosen])
    a, b = measures(layer, x), measures(layer, layer.prototypes[p].to(wide(x.dtype)), of_prototypes=True)
    bias = 0.0 if layer.bias is None else layer.bias[p].item()
    name = None if names is None else pool.name(p, str(names[chosen]))
    others = (output[chosen] - similarities[p]).item()
    shares, named = shares_of(layer, a, b), names_of(layer, feature_names)
    return Explanation(p, output[chosen].item(), bias, *shares, a, b, top, named, name, framed(layer), others)


@dataclass(frozen=True)
class Pair:
    """Why two objects are as similar as they are under a layer's bank and α, β, θ. Print it.

    Attributes:
        similarity: S(a, b), the sum of ``common``, ``a_only`` and ``b_only`` over all features.
        reverse: S(b, a), which differs where α and β do.
        common: θ·Ψ of each shared feature, ``[K]``.
        a_only: −α times what only A has, ``[K]``.
        b_only: −β times what only B has, ``[K]``.
        a_measures: a · f_k − t_k, ``[K]``.
        b_measures: b · f_k − t_k, ``[K]``.
        top: how many features of each kind are printed.
        names: names of the two objects.
        feature_names: names of all K features, or None.
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
    feature_names: Names | None = None

    def __str__(self) -> str:
        a, b = self.names
        rows = [[f"S({a}, {b})", "", "", f"{self.similarity:+.4f}"], [f"S({b}, {a})", "", "", f"{self.reverse:+.4f}"]]
        parts = ((f"{a} ∩ {b}", self.common), (f"{a} − {b}", self.a_only), (f"{b} − {a}", self.b_only))
        measured = [(a, self.a_measures), (b, self.b_measures)]
        for name, part in parts:
            heading = f"{name}, {counted(part)}"
            rows += rows_of(heading, part.sum().item(), part, measured, self.top, self.feature_names)
        return columns(rows)

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def pair(
    model: Any,
    a: Any,
    b: Any,
    top: int = TOP,
    names: tuple[str, str] = ("A", "B"),
    feature_names: Sequence[str] | None = None,
    *,
    layer: str | None = None,
) -> Pair:
    """Shares of all features in the similarity of two objects, both ways round.

    Args:
        model: what has a Tversky layer, as in ``Universe.of``; of the layer the bank, α, β, θ and options are used.
        a: the first object, an input of the model; of a layer, ``[D]``.
        b: the second object.
        top: how many features of each kind are printed.
        names: names of the two objects.
        feature_names: names of all K features.
        layer: name of the layer where the model has several.
    """
    found = comparison(model, layer)
    check_explained(found, top, feature_names)
    a, b = one(model, a, layer, "a"), one(model, b, layer, "b")
    check_one("a", a, found.features.dim)
    check_one("b", b, found.features.dim)
    a, b = measures(found, torch.stack([a, b]))
    parts, back = shares_of(found, a, b), shares_of(found, b, a)
    forth, reverse = ((common + first + second).sum().item() for common, first, second in (parts, back))
    return Pair(forth, reverse, *parts, a, b, top, names, names_of(found, naming(model, feature_names)))


@dataclass(frozen=True)
class Decision:
    """Which features decide for one class over another. Print it.

    Attributes:
        chosen: index of the class decided for.
        other: index of the class decided against.
        difference: the output for ``chosen`` minus that for ``other``: the sum of ``shares``, ``bias`` and ``others``.
        bias: the difference of the two biases.
        shares: what each feature adds to the difference, ``[K]``.
        for_chosen: explanation of the similarity to ``chosen``.
        for_other: explanation of the similarity to ``other``.
        top: how many features are printed.
        others: the difference of what the classes' other prototypes add.
    """

    chosen: int
    other: int
    difference: float
    bias: float
    shares: Tensor
    for_chosen: Explanation
    for_other: Explanation
    top: int
    others: float = 0.0

    def strongest(self) -> list[int]:
        """Up to ``top`` features with the largest shares by absolute value."""
        return strongest(self.shares, self.top)

    def __str__(self) -> str:
        mine, theirs = self.for_chosen, self.for_other
        chosen, other = (str(e.prototype_name or e.prototype) for e in (mine, theirs))
        prototypes = [(chosen, mine.prototype_measures), (other, theirs.prototype_measures)]
        measured = [("input", mine.input_measures), *prototypes]
        heading = f"{chosen} over {other}, by feature"
        rows = rows_of(heading, self.difference, self.shares, measured, self.top, mine.feature_names)
        rows += by_origin(self.shares, mine.framed, 3)
        constants = (("bias", self.bias), ("other prototypes", self.others))
        rows += [[f"  {name}", "", "", "", f"{value:+.4f}"] for name, value in constants if value]
        return columns(rows)

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def decision(
    model: Any,
    x: Any,
    chosen: int | str | None = None,
    other: int | str | None = None,
    top: int = 10,
    feature_names: Sequence[str] | None = None,
    prototype_names: Sequence[str] | None = None,
    *,
    layer: str | None = None,
) -> Decision:
    """Shares of all features in the difference of an input's similarities to two classes.

    Args:
        model: what has a TverskyProjection with ``level="feature"`` and ``model="contrast"``: as in ``Universe.of``.
        x: one input of the model; of a layer, ``[D]``.
        chosen: index or name of the class decided for; by default the most similar one.
        other: index or name of the class decided against, such as the right one after a wrong answer; by default
            the runner-up.
        top: how many features are printed.
        feature_names: names of all K features.
        prototype_names: names of all P classes; by default a classifier's.
        layer: name of the layer where the model has several.
    """
    check_head(model, x, layer)
    found, pool, x, names = _given(model, x, layer, prototype_names)
    if found.out_features < 2 * pool.prototypes_per_class:
        raise ValueError("a layer with one prototype has no runner-up.")
    chosen, other = (None if p is None else index_of(p, names) for p in (chosen, other))
    check_one("x", x, found.features.dim)
    with evaluating(found):
        order = pool(found(x)).argsort(descending=True, stable=True).tolist()
    first = next(p for p in order if p != other) if chosen is None else chosen
    second = next(p for p in order if p != first) if other is None else other
    if first == second:
        raise ValueError(f"chosen and other must be two classes; got {first} twice.")
    mine, theirs = (_explanation(found, pool, x, names, p, top, naming(model, feature_names)) for p in (first, second))
    difference, bias, others = (getattr(mine, n) - getattr(theirs, n) for n in ("similarity", "bias", "others"))
    return Decision(first, second, difference, bias, mine.shares() - theirs.shares(), mine, theirs, top, others)


@dataclass(frozen=True)
class Region:
    """A set of features, and the examples that show it best.

    Attributes:
        name: ``A−B``, ``A∩B`` or ``B−A``.
        features: indices of the features.
        examples: indices into the data set, best first; none for an empty set.
        scores: semantic scores of the examples.
    """

    name: str
    features: list[int]
    examples: list[int]
    scores: list[float]

    def __str__(self) -> str:
        found = ", ".join(f"{i} ({s:.3f})" for i, s in zip(self.examples, self.scores, strict=True)) or "none"
        n = len(self.features)
        return f"{self.name}: {n} feature{'s' * (n != 1)}; best shown by {found}"

    __repr__ = __str__
    _repr_html_ = as_html


@dataclass(frozen=True)
class Venn:
    """Two objects as sets, each part with its best examples; ``regions()`` has all three. Print it.

    Attributes:
        a_only, common, b_only: What only A has, what both have, what only B has.
    """

    a_only: Region
    common: Region
    b_only: Region

    def regions(self) -> tuple[Region, Region, Region]:
        return self.a_only, self.common, self.b_only

    def __str__(self) -> str:
        return "\n".join(map(str, self.regions()))

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def venn(model: Any, a: Any, b: Any, vectors: Any, top: int = 9, *, layer: str | None = None) -> Venn:
    """The examples that best show A−B, A∩B and B−A for two objects.

    An example's score in a set F is the paper's semantic score, s(x) = Σ_{f∈F} f·x.

    Args:
        model: what has a Tversky layer, as in ``Universe.of``; of the layer the bank and ``normalize`` are used.
        a: the first object, an input of the model; of a layer, ``[D]``.
        b: the second object.
        vectors: the data set to take examples from, N inputs of the model; of a layer, ``[N, D]``.
        top: how many examples of each set.
        layer: name of the layer where the model has several.
    """
    found = comparison(model, layer)
    check_top(top)
    a, b = one(model, a, layer, "a"), one(model, b, layer, "b")
    check_one("a", a, found.features.dim)
    check_one("b", b, found.features.dim)
    a_has, b_has = (measures(found, x) > 0 for x in (a, b))
    x = objects(found, vectors if found is model else seen(model, vectors, layer)[1])
    if x.dim() != 2:
        raise ValueError(f"vectors must be [N, D]; got shape {list(x.shape)}.")
    sets = {"A−B": a_has & ~b_has, "A∩B": a_has & b_has, "B−A": b_has & ~a_has}
    return Venn(*(_region(name, members, found, x, top) for name, members in sets.items()))


def _region(name: str, members: Tensor, layer: Layer, x: Tensor, top: int) -> Region:
    scores = x @ layer.features.weight[members].to(x.dtype).sum(0)
    if layer.features.threshold is not None:
        scores -= layer.features.threshold[members].to(x.dtype).sum()
    order = scores.argsort(descending=True, stable=True)[: top if members.any() else 0]
    return Region(name, members.nonzero()[:, 0].tolist(), order.tolist(), scores[order].tolist())
