"""What S can be at most and at least, from sums over features that are cheap to have for all documents at once.

A form that is an inner product of codes needs one product. Others need a few sums, each known up to its rounding. At
feature level the sum of min(a, b) is bracketed by two linear functions of a document's code; softmin has no useful
bracket. Rounding is counted in: a bound holds for the numbers that a computer adds up, in any order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..form import Form
from ..ops.reference import pooled, similarity
from .codes import Weights, weights

Sums = dict[str, Tensor]


class Asked(NamedTuple):
    """Queries as they are compared, with the constants that weigh their side and the documents'.

    Attributes:
        a: measures of the features that queries have, 0 for others, ``[Q, K]`` in float64.
        scalars: α of what only the query has, β of what only the document has, θ.
        form: the options.
        reverse: whether the documents are the first of each pair, so that α is the layer's β.
    """

    a: Tensor
    scalars: tuple[float, float, float]
    form: Form
    reverse: bool = False

    def law(self, a: Tensor, b: Tensor) -> Tensor:
        """S of measures of queries and documents, ``[n, K]`` each, as the law has it to the last bit."""
        alpha, beta, theta = self.scalars
        if self.reverse:
            return similarity(b, a, beta, alpha, theta, *self.form[:4])
        return similarity(a, b, alpha, beta, theta, *self.form[:4])

    @property
    def all(self) -> Tensor:
        """f(A), ``[Q, 1]``."""
        return self.a.sum(-1, keepdim=True)

    def part(self, start: int, stop: int) -> Asked:
        return self._replace(a=self.a[start:stop])


class Reach(NamedTuple):
    """How large the documents' measures are: no document of an index goes beyond.

    Attributes:
        longest: of ‖b‖.
        total: of f(B).
        most: measure of each feature, ``[K]`` in float64.
        sums, counts: of the measures of each feature, and how many documents have it, ``[K]``; these only choose.
    """

    longest: float
    total: float
    most: Tensor
    sums: Tensor
    counts: Tensor

    @classmethod
    def of(cls, b: Tensor) -> Reach:
        """Of documents' measures ``[N, K]``, 0 where they lack a feature."""
        K, up = b.shape[1], 1 + 1e-5
        if not len(b):
            return cls(0.0, 0.0, *torch.zeros(3, K, dtype=torch.float64))
        longest, total = b.norm(dim=-1).max().item() * up, b.sum(-1).max().item() * up
        return cls(longest, total, b.amax(0).double(), b.sum(0).double(), (b > 0).sum(0).double())

    def and_of(self, other: Reach) -> Reach:
        longest, total = max(self.longest, other.longest), max(self.total, other.total)
        most = torch.maximum(self.most, other.most)
        return Reach(longest, total, most, self.sums + other.sums, self.counts + other.counts)


def rounding(K: int, dtype: torch.dtype) -> float:
    """Error of a sum of some K products, as a part of the sum of their sizes.

    The classical bound with room for the few other operations, for the law's own rounding in float64, and for a
    subtraction afterwards.
    """
    return 8 * (K + 8) * torch.finfo(dtype).eps


def needed(form: Form) -> list[str]:
    """Which sums over features S is made of, in this form.

    u: Σ a over shared features; v: Σ b over them; alone: Σ b over what only the document has; product: Σ ab;
    roots: Σ √a√b; least: Σ min(a, b); soft: Σ softmin(a, b) over shared features.
    """
    names = ["u", "v", "alone"]
    if form.intersection == "product":
        names.append("product")
    if form.level == "feature":
        own = {"gmean": "roots", "softmin": "soft", "min": "least", "max": "least"}.get(form.intersection)
        names += [own] if own else []
        if form.difference == "subtractmatch" and own != "least":
            names.append("least")
    return names


def is_bracketed(form: Form) -> bool:
    """Whether min(a, b) is summed by feature, which takes a bracket or a walk by feature."""
    return "least" in needed(form) or "soft" in needed(form)


def parts(form: Form, all_a: Tensor, low: Sums, high: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """The least that f(A∩B), f(A−B) and f(B−A) can be, given the least and the most that each sum can be.

    Called with both exchanged, the most; with the same sums twice, what they are.
    """
    intersection, difference, level = form[:3]
    if intersection == "product":
        shared = low["product"]
    elif level == "feature":
        if intersection in ("gmean", "softmin", "min"):
            shared = low[{"gmean": "roots", "softmin": "soft", "min": "least"}[intersection]]
        else:
            shared = low["u"] + low["v"]
            shared = shared / 2 if intersection == "mean" else shared - high["least"]
    elif intersection == "gmean":
        shared = low["u"].clamp(min=0).sqrt() * low["v"].clamp(min=0).sqrt()
    else:
        shared = pooled(low["u"], low["v"], intersection)
    if difference == "ignorematch":
        return shared, all_a - high["u"], low["alone"]
    least = high["least"] if level == "feature" else torch.minimum(high["u"], high["v"])
    return shared, all_a - least, low["alone"] + low["v"] - least


def bounds(asked: Asked, low: Sums, high: Sums) -> tuple[Tensor, Tensor]:
    """The least and the most that S can be, given those of each sum, in float64; -inf and inf where a ratio may have a
    pole."""
    alpha, beta, theta = asked.scalars
    lows, highs = parts(asked.form, asked.all, low, high), parts(asked.form, asked.all, high, low)
    factors = (1.0, alpha, beta) if asked.form.model == "ratio" else (theta, -alpha, -beta)
    bottom = top = size = torch.zeros_like(lows[0])
    for factor, l, h in zip(factors, lows, highs, strict=True):
        l, h = (factor * l, factor * h) if factor >= 0 else (factor * h, factor * l)
        bottom, top, size = bottom + l, top + h, size + torch.maximum(l.abs(), h.abs())
    slack = 1e-14 * size
    bottom, top = bottom - slack, top + slack
    if asked.form.model == "contrast":
        return bottom, top
    pole = (bottom <= 0) & (top >= 0)
    quotients = torch.stack([shared / whole for shared in (lows[0], highs[0]) for whole in (bottom, top)])
    least, most = quotients.amin(0), quotients.amax(0)
    slack = 1e-14 * torch.maximum(least.abs(), most.abs())
    return (least - slack).masked_fill(pole, -torch.inf), (most + slack).masked_fill(pole, torch.inf)


def upper_weights(asked: Asked, reach: Reach) -> Weights | None:
    """A query's code whose products with documents' codes are S or more, in the contrast model at feature level.

    Σ min(a, b) is bounded from above by a where documents that have the feature mostly have more of it, else by b; from
    below by ab / max(a, the most that any has). None if the form has no such bound.
    """
    form, (alpha, beta, theta) = asked.form, asked.scalars
    if form.model != "contrast" or form.level != "feature" or form.intersection == "softmin":
        return None
    a, has = asked.a, (asked.a > 0).double()
    zero, constant = torch.zeros_like(a), -alpha * asked.all[:, 0]
    measured, had, roots, lacked = zero, zero, None, -beta
    # f(A∩B), but for what it has of min(a, b).
    least = {"min": theta, "max": -theta}.get(form.intersection, 0.0)
    match form.intersection:
        case "product":
            measured = theta * a
        case "mean":
            measured, had = theta / 2 * has, theta / 2 * a
        case "max":
            measured, had = theta * has, theta * a
        case "gmean":
            roots = theta * a.sqrt()
    # α (f(A) − u) + β (f(B) − v), or with Σ min(a, b) in place of u and v.
    measured = measured - beta
    if form.difference == "ignorematch":
        measured, had = measured + beta * has, had + alpha * a
    else:
        least += alpha + beta
    if least > 0:
        usual = reach.sums / reach.counts.clamp(min=1)
        measured, had = measured + least * has * (a >= usual), had + least * a * (a < usual)
    elif least < 0:
        measured = measured + least * torch.where(a > 0, a / torch.maximum(a, reach.most), 0.0)
    return Weights(measured, had, roots, lacked, constant)


def linear_weights(asked: Asked) -> Weights | None:
    """The query's code whose products are S itself, or None."""
    return weights(asked.form, asked.a, *asked.scalars)


def bracket(asked: Asked, reach: Reach) -> dict[str, Weights]:
    """Codes whose products are the least and the most that Σ min(a, b) can be."""
    a, has = asked.a, (asked.a > 0).double()
    usual, zero = reach.sums / reach.counts.clamp(min=1), torch.zeros_like(asked.a)
    below = torch.where(a > 0, a / torch.maximum(a, reach.most), 0.0)
    constant = a.new_zeros(len(a))
    return {
        "below": Weights(below, zero, None, 0.0, constant),
        "above": Weights(has * (a >= usual), a * (a < usual), None, 0.0, constant),
    }


def sum_weights(asked: Asked, name: str) -> Weights:
    """The query's code whose products are one of the sums of ``needed`` that are linear in a document's code."""
    a, has = asked.a, (asked.a > 0).double()
    zero, constant = torch.zeros_like(a), a.new_zeros(len(a))
    match name:
        case "u":
            return Weights(zero, a, None, 0.0, constant)
        case "v":
            return Weights(has, zero, None, 0.0, constant)
        case "alone":
            return Weights(1 - has, zero, None, 1.0, constant)
        case "product":
            return Weights(a, zero, None, 0.0, constant)
        case "roots":
            return Weights(zero, zero, a.sqrt(), 0.0, constant)
    raise ValueError(f"{name} is no sum that is linear in a code")
