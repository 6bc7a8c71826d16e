"""S of all pairs without an N×P×K tensor: matrix products where Eq. 1–7 factor, min-sums where they do not.

Measures are ``a [..., N, K]`` and ``b [..., P, K]`` with equal leading axes. They are halves only where kernels take
halves; the result is then a half or float32.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..form import Form
from . import minsum, separable
from .modes import HALVES, eager
from .plan import plan
from .reference import Scalar, contrast, pooled, ratio


def tensors(scalars: Sequence[Scalar], like: Tensor) -> list[Tensor]:
    """The scalars as kernels take them."""
    return [s if isinstance(s, Tensor) else like.new_full((), s, dtype=torch.float32) for s in scalars]


def code_for(a: Tensor, b: Tensor, form: Form) -> str:
    """Name of the code that serves these measures; see plan.py."""
    (N, K), P = a.shape[-2:], b.shape[-2]
    return plan(form, N, P, K, a.dtype, a.device.type, vectors=False, eager=eager(a)).code


def similarity(
    a: Tensor, b: Tensor, alpha: Scalar, beta: Scalar, theta: Scalar, form: Form, code: str | None = None
) -> Tensor:
    """S of all pairs, Eq. 7: ``[..., N, K]``, ``[..., P, K]`` -> ``[..., N, P]``, by the code of ``code_for``.

    Equivalent to: ``reference.pairwise(a, b, alpha, beta, theta, *form[:4])``.
    """
    intersection, difference, level, model = form[:4]
    code = code or code_for(a, b, form)
    if a.dtype in HALVES and (intersection, level) == ("gmean", "feature"):
        # The root's slope at small measures is too steep for halves.
        a, b = a.float(), b.float()
    if code == "two products":
        return separable.product_ignorematch(a, b, alpha, beta, theta)
    if code == "triton two products":
        from .triton import separable as triton_separable

        return triton_separable.product_ignorematch(a, b, *tensors((alpha, beta, theta), a))
    if code == "triton pooled":
        from .triton import pooled as triton_pooled

        return triton_pooled.similarity(a, b, tensors((alpha, beta, theta), a), intersection, difference, level, model)
    return combined(Pairs(a, b, code in ("triton min-sums", "c++ min-sums")), alpha, beta, theta, form)


def combined(pairs: "Pairs", alpha: Scalar, beta: Scalar, theta: Scalar, form: Form) -> Tensor:
    """S of the sums over all pairs, ``[..., N, P]``."""
    intersection, difference, level, model = form[:4]
    shared = common(pairs, intersection, level)
    a_only, b_only = distinctive(pairs, difference, level)
    if model == "ratio":
        if intersection in ("min", "max"):
            # Pairs that share nothing may have slopes so steep that they drown the others when gradients are summed.
            shared = torch.where(shared > 0, shared, 0.0)
        return ratio(shared, a_only, b_only, alpha, beta)
    return contrast(shared, a_only, b_only, alpha, beta, theta)


class Pairs:
    """The sums over all pairs that make up f(A∩B) and f(A−B); each is computed once, on first use."""

    a: Tensor
    b: Tensor
    kernels: bool

    def __init__(self, a: Tensor, b: Tensor, kernels: bool = True):
        self.a, self.b, self.kernels = a, b, kernels
        self._shared_sums: tuple[Tensor, Tensor] | None = None
        self._saliences: tuple[Tensor, Tensor] | None = None
        self._min_sum: Tensor | None = None

    @classmethod
    def of_sums(cls, u: Tensor, v: Tensor, all_a: Tensor, all_b: Tensor) -> "Pairs":
        """Pairs of which only the shared sums ``[N, P]`` and the saliences ``[N]``, ``[P]`` are known."""
        pairs = cls(all_a, all_b)
        pairs._shared_sums, pairs._saliences = (u, v), (all_a, all_b)
        return pairs

    def shared_sums(self) -> tuple[Tensor, Tensor]:
        if self._shared_sums is None:
            self._shared_sums = separable.shared_sums(self.a, self.b)
        return self._shared_sums

    def has_shared_sums(self) -> bool:
        return self._shared_sums is not None

    def saliences(self) -> tuple[Tensor, Tensor]:
        if self._saliences is None:
            self._saliences = separable.salience(self.a), separable.salience(self.b)
        return self._saliences

    def lacking_sums(self) -> tuple[Tensor, Tensor]:
        return separable.lacking_sums(self.a, self.b)

    def product(self) -> Tensor:
        return separable.product(self.a, self.b)

    def gmean(self) -> Tensor:
        return separable.gmean(self.a, self.b)

    def min_sum(self) -> Tensor:
        if self._min_sum is None:
            self._min_sum = minsum.min_sum(self.a, self.b, self.kernels)
        return self._min_sum


def common(pairs: Pairs, intersection: str, level: str) -> Tensor:
    """f(A∩B) of all pairs, ``[..., N, P]``."""
    if intersection == "product":
        return pairs.product()
    if level == "feature" and intersection == "gmean":
        return pairs.gmean()
    if level == "feature" and intersection in minsum.COMMON:
        return minsum.common_sum(pairs.a, pairs.b, intersection, pairs.kernels)
    if level == "feature" and intersection == "min":
        return pairs.min_sum()
    u, v = pairs.shared_sums()
    if level == "feature" and intersection == "max":
        return u + v - pairs.min_sum()
    if intersection == "gmean":
        return separable.root(u) * separable.root(v)
    return pooled(u, v, intersection)


def distinctive(pairs: Pairs, difference: str, level: str) -> tuple[Tensor, Tensor]:
    """f(A−B) and f(B−A) of all pairs, each ``[..., N, P]``: the salience of one side less its matched part.

    Unless the shared sums are there already, the unmatched part is summed directly: the same cost, and exactly 0 where
    nothing is unmatched.
    """
    if difference == "ignorematch" and not pairs.has_shared_sums():
        return pairs.lacking_sums()
    if difference == "ignorematch":
        matched_a, matched_b = pairs.shared_sums()
    elif level == "feature":
        matched_a = matched_b = pairs.min_sum()
    else:
        matched_a = matched_b = torch.minimum(*pairs.shared_sums())
    all_a, all_b = pairs.saliences()
    return all_a.unsqueeze(-1) - matched_a, all_b.unsqueeze(-2) - matched_b
