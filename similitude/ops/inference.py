"""Inference on prototypes whose side was made before: what ``eval()`` under ``no_grad`` keeps, for every form.

Tables have a row for each feature, ``[K, P]``. A product with one object then reads them in order, and an object with
few features reads the rows of these alone. There are no gradients.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..form import Form
from . import pairwise, reference, separable
from .modes import wide
from .plan import looks_up
from .reference import Scalars

# Rows of a table that are compared at once with what an object has: they stay in a core's cache.
TILE = 64


class Side(NamedTuple):
    """The prototypes' side of a comparison, ready for inputs."""

    form: Form
    dtype: torch.dtype
    scalars: Scalars
    features: Tensor  # [K, D], padded
    columns: Tensor  # [D, K], the same
    threshold: Tensor | None  # [K], padded
    num_prototypes: int
    measures: Tensor | None  # [P, K], for what reads them as they are: the law, kernels, min-sums
    salience: Tensor | None  # f(B), [P]; None where no tables are read
    tables: dict[str, Tensor]  # [K, P] each, by what they hold

    def table(self, name: str) -> Tensor:
        if name not in self.tables:
            assert self.measures is not None
            self.tables[name] = _table(name, self.measures, self.scalars).mT.contiguous()
        return self.tables[name]


def prepare(
    b: Tensor, features: Tensor, threshold: Tensor | None, scalars: Scalars, form: Form, dtype: torch.dtype, P: int
) -> Side:
    """The side of prototypes with measures ``b [P, K]``, of which P count."""
    plain = form.backend == "reference" or (b.is_cuda and not (form.two_products and b.dtype == wide(b.dtype)))
    salience = None if plain else separable.salience(b)
    side = Side(form, dtype, scalars, features, features.mT, threshold, P, b, salience, {})
    if plain:
        return side
    # No object at all, for which every table is made that the form reads.
    project(side, b[:0])
    pairs_are_walked = not form.splits and (form.intersection, form.difference) != ("gmean", "ignorematch")
    return side if pairs_are_walked else side._replace(measures=None)


def _table(name: str, b: Tensor, scalars: Scalars) -> Tensor:
    """What is kept of measures, ``[P, K]``."""
    alpha, beta, theta = scalars
    match name:
        case "shared":  # of product + ignorematch
            return theta * b.relu() - alpha * separable.lacks(b)
        case "missing":
            return -beta * b.relu()
        case "positive":
            return b.relu()
        case "has":
            return separable.has(b)
        case "lacks":
            return separable.lacks(b)
    return separable.root(b)


def project(side: Side, a: Tensor) -> Tensor:
    """S of objects with measures ``a [N, K]``, which it may overwrite: ``[N, P]`` and, if padded, more."""
    if side.salience is None:
        assert side.measures is not None
        if side.form.backend == "reference":
            return reference.pairwise(a, side.measures, *side.scalars, *side.form[:4])
        return pairwise.similarity(a, side.measures, *side.scalars, side.form)
    (N, K), P, device = a.shape, len(side.salience), a.device.type
    found = Present.of(a) if looks_up(N, K, P, device) else None
    if found is not None and not looks_up(N, K, P, device, len(found.places)):
        found = None
    if side.form.two_products:
        return _two_products(side, a, found)
    return pairwise.combined(KeptPairs(a, side, found), *side.scalars, side.form)


def _two_products(side: Side, a: Tensor, found: "Present | None") -> Tensor:
    """A⁺(θB⁺ − α(1−J)) − (1−I)βB⁺: each feature of an object reads one of the two tables."""
    shared, missing = side.table("shared"), side.table("missing")
    if found is None:
        has = a.relu()
        return torch.addmm(torch.mm(a.le_(0), missing), has, shared)
    out = found.sum_of(shared, found.measures)
    return out.add_(found.sum_of_others(missing, -side.scalars[1] * side.salience))  # pyright: ignore


class Present(NamedTuple):
    """Which features each of a few objects has, one object after another."""

    N: int
    K: int
    places: Tensor  # [M], where in the flat table of measures
    features: Tensor  # [M]
    starts: Tensor  # [N], where each object's features start
    measures: Tensor  # [M]
    lacks: Tensor  # [N, K], whether an object lacks a feature

    @staticmethod
    def of(a: Tensor) -> "Present":
        N, K = a.shape
        lacks = a <= 0  # a measure that is not a number is present, and seen in the answer
        places = lacks.logical_not().view(-1).nonzero().view(-1)
        flat = a.reshape(-1).index_select(0, places)
        if N == 1:
            return Present(N, K, places, places, places.new_zeros(1), flat, lacks)
        return Present(N, K, places, places % K, _starts(places, N, K), flat, lacks)

    def sum_of(self, table: Tensor, weights: Tensor | None) -> Tensor:
        """Weighted sums of the rows of what each object has, ``[K, P]`` -> ``[N, P]``."""
        return _summed(table, self.features, self.starts, weights)

    def sum_of_others(self, table: Tensor, total: Tensor) -> Tensor:
        """Sums of the rows of what each object lacks; ``total [P]`` is that of all rows.

        Of few features it is the total less their rows, and nothing large cancels.
        """
        if 4 * len(self.places) <= self.N * self.K:
            return total - self.sum_of(table, None)
        places = self.lacks.view(-1).nonzero().view(-1)
        if self.N == 1:
            return _summed(table, places, self.starts, None)
        return _summed(table, places % self.K, _starts(places, self.N, self.K), None)

    def of_object(self, n: int) -> slice:
        """Where an object's features are among all."""
        end = self.starts[n + 1] if n + 1 < self.N else len(self.places)
        return slice(int(self.starts[n]), int(end))


def _starts(places: Tensor, N: int, K: int) -> Tensor:
    return torch.searchsorted(places, torch.arange(0, N * K, K, device=places.device))


def _summed(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor | None) -> Tensor:
    threads = torch.get_num_threads() if len(starts) == 1 and len(rows) >= TILE else 1
    if threads > 1:
        # A sum is one thread's work: one object's is made in parts.
        starts = torch.arange(threads, device=rows.device) * len(rows) // threads
    out = torch.embedding_bag(table, rows, starts, False, 0, False, weights)[0]
    return out.sum(0, keepdim=True) if threads > 1 else out


class KeptPairs(pairwise.Pairs):
    """The sums over all pairs, with the prototypes' side kept; few features are looked up."""

    def __init__(self, a: Tensor, side: Side, found: Present | None):
        b = side.measures if side.measures is not None else a[:0]  # min-sums alone read it
        super().__init__(a, b, pairwise.code_for(a, b, side.form) == "c++ min-sums")
        self.side, self.found = side, found

    def _by_measure(self, name: str) -> Tensor:
        """Σ_k a⁺ · table, ``[N, P]``."""
        table = self.side.table(name)
        return self.a.relu() @ table if self.found is None else self.found.sum_of(table, self.found.measures)

    def shared_sums(self) -> tuple[Tensor, Tensor]:
        if self._shared_sums is None:
            u, table = self._by_measure("has"), self.side.table("positive")
            v = separable.has(self.a) @ table if self.found is None else self.found.sum_of(table, None)
            self._shared_sums = u, v
        return self._shared_sums

    def lacking_sums(self) -> tuple[Tensor, Tensor]:
        a_only, table = self._by_measure("lacks"), self.side.table("positive")
        if self.found is None:
            return a_only, separable.lacks(self.a) @ table
        assert self.side.salience is not None
        return a_only, self.found.sum_of_others(table, self.side.salience)

    def product(self) -> Tensor:
        return self._by_measure("positive")

    def gmean(self) -> Tensor:
        table = self.side.table("root")
        if self.found is None:
            return separable.root(self.a) @ table
        return self.found.sum_of(table, self.found.measures.sqrt())

    def saliences(self) -> tuple[Tensor, Tensor]:
        assert self.side.salience is not None
        return separable.salience(self.a), self.side.salience

    def min_sum(self) -> Tensor:
        if self._min_sum is None and self.found is not None and self.found.N <= 8:
            self._min_sum = torch.stack([self._least(n) for n in range(self.found.N)])
        return super().min_sum()

    def _least(self, n: int) -> Tensor:
        """Σ_k min(a⁺, b⁺) of one object by the features that it has, ``[P]``."""
        found, table = self.found, self.side.table("positive")
        assert found is not None
        i = found.of_object(n)
        out = table.new_zeros(table.shape[1])
        for rows, measures in zip(found.features[i].split(TILE), found.measures[i].split(TILE), strict=True):
            out += table.index_select(0, rows).clamp_(max=measures.unsqueeze(1)).sum(0)
        return out
