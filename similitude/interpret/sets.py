"""Objects as sets of features, with an algebra: ``u = Universe(bank, names, vectors)``, ``u("bad & good - worse")``.

N objects, K features, D dim. An object x has feature k when x · f_k > t_k, strictly; t_k is 0 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._text import nearest
from ..checks import check_vectors, check_width
from ..form import check_choice
from ..nn import FeatureBank
from ..ops.modes import wide
from ..reach import class_names, projection, seen, seen_by_any
from . import bits
from .expression import evaluate, quote
from .reading import NOTE, of_length, reading_bank

# How vocabularies mark a token that begins a word: GPT-2's Ġ, SentencePiece's ▁.
WORD_STARTS = ("Ġ", "▁")
# Measures that are in memory at once.
AT_ONCE = 2**24
LABEL = 60

Object = str | int | Tensor


class Universe:
    """N named objects over one bank Ω of K features: ``u["good"]`` is the set of features that "good" has.

    ``u("bad & good - worse")`` evaluates an expression, with the grammar of similitude.interpret.expression. If names
    mark word starts, as GPT-2's do, ``good`` means ``Ġgood`` if there is one, and ``"good"`` in quotes means the token
    that is spelled exactly so; a space may stand for the mark, ``" good"``.

    Sets are computed when they are asked for. Tensors are shared with the model where dtypes allow, so make a new
    universe after more training.

    Args:
        bank: a FeatureBank, or its vectors ``[K, D]``.
        names: N distinct names; None for "0", "1", …
        vectors: the objects, ``[N, D]``: prototypes, tokens, encoded images.
        normalize: whether objects are scaled to length 1, as in a layer with ``normalize=True``.
        prototypes: whether the vectors are a layer's prototypes, for which a bank's thresholds do not count. They count
            for all other vectors.
    """

    note: str = ""  # what is not known about the scores
    vectors: Tensor
    features: Tensor
    names: list[str]
    threshold: Tensor | None
    cut: bool
    feature_names: dict[int, str]

    def __init__(
        self,
        bank: FeatureBank | Tensor,
        names: Sequence[str] | None,
        vectors: Tensor,
        *,
        normalize: bool = False,
        prototypes: bool = False,
    ):
        features, threshold = bank.cut() if isinstance(bank, FeatureBank) else (bank, None)
        check_vectors("bank", features)
        check_vectors("vectors", vectors)
        if vectors.dim() != 2:
            raise ValueError(f"vectors must be [N, D], a row for each object; got shape {list(vectors.shape)}.")
        check_width("vectors", vectors, features)
        self.vectors = vectors.detach().to(wide(torch.promote_types(features.dtype, vectors.dtype)))
        self.features = features.detach().to(self.vectors)
        self.threshold = None if threshold is None else threshold.detach().to(self.vectors)
        self.cut = self.threshold is not None and not prototypes
        # Names of features, by their index.
        self.feature_names = bank.names if isinstance(bank, FeatureBank) else {}
        if normalize:
            self.vectors = nn.functional.normalize(self.vectors, dim=-1)
        self.names = [str(i) for i in range(len(vectors))] if names is None else [str(name) for name in names]
        if len(self.names) != len(vectors):
            raise ValueError(
                f"there must be a name for each of the {len(vectors)} vectors; got {len(self.names)} names."
            )
        self._index = {name: i for i, name in reversed(list(enumerate(self.names)))}
        if len(self._index) < len(self.names):
            i, name = next((i, name) for i, name in enumerate(self.names) if self._index[name] != i)
            raise ValueError(f"names must be distinct; {name!r} stands at {self._index[name]} and at {i}.")
        self._marks = [mark for mark in WORD_STARTS if any(name.startswith(mark) for name in self.names)]
        self._packed: tuple[list[Any], np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(
        cls,
        model: Any,
        names: Sequence[str] | None = None,
        inputs: Any = None,
        layer: str | None = None,
        bank: str | None = None,
        presence: float = 0.1,
        num_features: int | None = None,
        objects: str = "inputs",
    ) -> Universe:
        """A universe over the bank of a model's Tversky layer, with its prototypes or a data set as objects.

        Args:
            model: a Tversky layer, a DataDomain network, a fitted TverskyClassifier or a Pipeline that ends in one, or
                any module with a TverskyProjection in it, such as a converted one.
            names: name of each object; by default a classifier's classes, or numbers.
            inputs: a data set of the model's inputs; objects are the vectors that reach the layer, see salience.seen.
            layer: name of the layer where the model has several; by default a model's own head, if it names one.
            bank: "k-means" or "random" fits a bank to those vectors, instead of the layer's; see reading.reading_bank.
                It reads any network, also one whose layer is an nn.Linear.
            presence, num_features: those of such a bank.
            objects: "inputs", or with such a bank "prototypes": the layer's prototypes, or rows of an nn.Linear, such
                as tokens, at the mean length of the vectors that reach it.
        """
        if bank is not None:
            return cls._read(model, names, inputs, layer, bank, presence, num_features, objects)
        if objects != "inputs":
            raise ValueError(f"objects={objects!r} is for bank='k-means'; without inputs= the objects are prototypes.")
        if inputs is not None:
            found, vectors = seen(model, inputs, layer)
        else:
            found = projection(model, layer)
            vectors = found.prototypes
            names = class_names(model) if names is None else names
        return cls(found.features, names, vectors, normalize=found.normalize, prototypes=inputs is None)

    @classmethod
    def _read(cls, model, names, inputs, layer, bank, presence, num_features, objects) -> Universe:
        check_choice("objects", objects, ("inputs", "prototypes"))
        if inputs is None:
            raise ValueError(f"bank={bank!r} is fitted to the vectors that reach the layer: give inputs=.")
        found, vectors = seen_by_any(model, inputs, layer)
        normalize = bool(getattr(found, "normalize", False))
        vectors = nn.functional.normalize(vectors, dim=-1) if normalize else vectors
        fitted = reading_bank(vectors, bank, presence, num_features)
        if objects == "prototypes":
            rows = found.weight if isinstance(found, nn.Linear) else found.prototypes
            vectors = of_length(rows, vectors)
            names = class_names(model) if names is None else names
        u = cls(fitted, names, vectors, normalize=normalize)
        u.note = NOTE
        return u

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name, False) is not None

    def __repr__(self) -> str:
        note = f"; {self.note}" if self.note else ""
        return f"Universe({len(self):,} objects, {len(self.features):,} features{note})"

    def find(self, name: str, exact: bool = False) -> int:
        """Index of the object with this name.

        Args:
            name: the name, with or without the mark of a word start.
            exact: whether the name without a mark comes before the name with one.
        """
        found = self._find(name, exact)
        if found is None:
            near = self._nearest_names(name)
            raise KeyError(f"no object is named {name!r}" + (f"; nearest names: {', '.join(near)}" if near else ""))
        return found

    def _find(self, name: str, exact: bool) -> int | None:
        spelled = [mark + name for mark in self._marks]
        spelled = [name, *spelled] if exact else [*spelled, name]
        if name.startswith(" "):
            spelled = [name, *(mark + name[1:] for mark in self._marks)]
        return next((self._index[s] for s in spelled if s in self._index), None)

    def _nearest_names(self, name: str) -> list[str]:
        """Up to three names to suggest; among many names, only those of nearly this length that begin or end alike."""
        bare = {n.lstrip("".join(WORD_STARTS)).lower() or n: n for n in reversed(self.names)}
        return [quote(bare[b]) for b in nearest(name.strip().lower(), bare)]

    def vector(self, of: Object) -> Tensor:
        """The vector ``[D]`` of an object, given by its name, its index, or as any vector."""
        if isinstance(of, Tensor):
            check_vectors("an object", of)
            if of.shape != self.features.shape[1:]:
                raise ValueError(
                    f"an object must be [D] = {list(self.features.shape[1:])}; got shape {list(of.shape)}."
                )
            return of.detach().to(self.vectors)
        return self.vectors[self._number(of)]

    def _number(self, of: str | int) -> int:
        if isinstance(of, str):
            return self.find(of)
        if not isinstance(of, int) or isinstance(of, bool):
            raise TypeError(f"an object must be a name, an index or a vector [D]; got {of!r}.")
        if not -len(self) <= of < len(self):
            raise IndexError(f"an object's index must be from 0 to {len(self) - 1}; got {of}.")
        return of % len(self)

    def measures(self, of: Object) -> Tensor:
        """x · f_k − t_k for each feature, ``[K]``; without the threshold for prototypes."""
        found = self.features @ self.vector(of)
        if self.threshold is None or not (self.cut or isinstance(of, Tensor)):
            return found
        return found - self.threshold

    def _sets(self) -> tuple[np.ndarray, np.ndarray]:
        """The sets of all objects as bits ``[N, W]``, and their sizes ``[N]``; made once for vectors and features."""
        of = [t for t in (self.vectors, self.features, self.threshold) if t is not None]
        state = bits.marks(of)
        if self._packed is None or self._packed[0] != state:
            cut = self.threshold if self.threshold is not None and self.cut else 0.0
            blocks = self.vectors.split(max(1, AT_ONCE // max(1, len(self.features))))
            rows = [bits.packed(block @ self.features.T > cut) for block in blocks]
            found = np.concatenate(rows)
            self._packed = state, found, bits.shared(found, ~np.zeros_like(found[0]))
        return self._packed[1:]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_packed": None}

    def __getitem__(self, of: Object) -> FeatureSet:
        """The set of an object: {f_k : x · f_k > t_k}."""
        if isinstance(of, Tensor):
            return FeatureSet(self, self.measures(of) > 0, "vector", of=of)
        number = self._number(of)
        return FeatureSet(self, self.measures(number) > 0, quote(self.names[number]), (number,), number)

    def __call__(self, expression: str, strongest: int | None = None) -> FeatureSet:
        """The set that an expression means.

        Args:
            expression: names, operators and parentheses, such as ``bad & good - worse``.
            strongest: how many of its strongest features each name stands for; by default all.
        """
        named: dict[int, None] = {}

        def lookup(name: str, quoted: bool) -> FeatureSet:
            number = self.find(name, exact=quoted)
            named[number] = None
            return self[number] if strongest is None else self[number].top(strongest)

        found = evaluate(expression, lookup)
        return FeatureSet(self, found.mask, expression.strip(), tuple(named), found.of)

    @property
    def everything(self) -> FeatureSet:
        """Ω."""
        return FeatureSet(self, torch.ones(len(self.features), dtype=torch.bool, device=self.features.device), "Ω")

    @property
    def nothing(self) -> FeatureSet:
        """The set without features."""
        return FeatureSet(self, torch.zeros_like(self.everything.mask), "∅")


class FeatureSet:
    """A set of features of a universe. Its elements are the features' indices: ``3 in s``, ``list(s)``, ``len(s)``.

    ``&``, ``|``, ``-``, ``^``, ``~`` make sets, ``<=``, ``<``, ``>=``, ``>``, ``==`` compare them.

    Args:
        universe: the universe of its features.
        mask: whether each feature is in the set, ``[K]`` of bool.
        label: how the set is printed.
        named: indices of the objects that it was made from.
        of: the object whose set it is, an index or a vector ``[D]``, or None.
    """

    universe: Universe
    mask: Tensor
    label: str
    named: tuple[int, ...]
    of: int | Tensor | None

    def __init__(
        self, universe: Universe, mask: Tensor, label: str, named: tuple[int, ...] = (), of: int | Tensor | None = None
    ):
        self.universe, self.mask, self.label, self.named, self.of = universe, mask, label, named, of

    def __and__(self, other: FeatureSet) -> FeatureSet:
        return self._with(other, "&", torch.logical_and)

    def __or__(self, other: FeatureSet) -> FeatureSet:
        return self._with(other, "|", torch.logical_or)

    def __xor__(self, other: FeatureSet) -> FeatureSet:
        return self._with(other, "^", torch.logical_xor)

    def __sub__(self, other: FeatureSet) -> FeatureSet:
        return self._with(other, "-", lambda a, b: a & ~b)

    def __invert__(self) -> FeatureSet:
        return FeatureSet(self.universe, ~self.mask, f"~{_bracketed(self.label)}", self.named)

    def __le__(self, other: FeatureSet) -> bool:
        return not (self - other)

    def __lt__(self, other: FeatureSet) -> bool:
        return self <= other and self != other

    def __ge__(self, other: FeatureSet) -> bool:
        return not (other - self)

    def __gt__(self, other: FeatureSet) -> bool:
        return self >= other and self != other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureSet):
            return NotImplemented
        return self.universe is other.universe and torch.equal(self.mask, other.mask)

    def __hash__(self) -> int:
        return hash((id(self.universe), self.mask.cpu().numpy().tobytes()))

    def __contains__(self, feature: object) -> bool:
        return isinstance(feature, Integral) and 0 <= int(feature) < len(self.mask) and bool(self.mask[int(feature)])

    def __iter__(self) -> Iterator[int]:
        return iter(self.mask.nonzero()[:, 0].tolist())

    def __len__(self) -> int:
        return int(self.mask.sum())

    def __repr__(self) -> str:
        return f"{self.label}: {len(self):,} of {len(self.mask):,} features"

    def _with(self, other: FeatureSet, sign: str, combine: Callable[[Tensor, Tensor], Tensor]) -> FeatureSet:
        if not isinstance(other, FeatureSet):
            return NotImplemented
        if other.universe is not self.universe:
            raise ValueError(
                f"both sets of {sign} must be of one universe; these are of {self.universe} and {other.universe}."
            )
        label = f"{_bracketed(self.label)} {sign} {_bracketed(other.label)}"
        named = tuple(dict.fromkeys((*self.named, *other.named)))
        return FeatureSet(self.universe, combine(self.mask, other.mask), label, named)

    def measure(self, of: Object) -> float:
        """How much of this set an object has: f(X ∩ F), the sum of its measures of the features of F that it has.

        A measure is never negative, and the measures of disjoint sets add up. That of Ω is the object's salience, Eq.
        2; ``(u["a"] - u["b"]).measure("a")`` is f(A−B) with ignorematch, Eq. 4.
        """
        return self.universe.measures(of)[self.mask].relu().sum().item()

    @property
    def salience(self) -> float:
        """f(A) of the object whose set this is, Eq. 2, over the features that ``top`` has kept."""
        if self.of is None:
            raise AttributeError(
                f"only an object has a salience, and {self.label} is the set of no one object: use .measure(object)."
            )
        return self.measure(self.of)

    def top(self, number: int, by: Object | None = None) -> FeatureSet:
        """The strongest features of the set, as in the paper's graphs.

        Args:
            number: how many features are kept.
            by: the object whose measures decide; by default the one whose set it is.
        """
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"top takes a whole number of features, 0 or more; got {number!r}.")
        of = self.of if by is None else by
        if of is None:
            raise ValueError(
                f"{self.label} is the set of no one object; say in which one to measure: .top({number}, by=...)."
            )
        strength = self.universe.measures(of).masked_fill(~self.mask, -torch.inf)
        strongest = strength.argsort(descending=True, stable=True)[:number]
        mask = torch.zeros_like(self.mask)
        mask[strongest] = True
        return FeatureSet(self.universe, mask & self.mask, self.label, self.named, self.of)

    def scores(self, vectors: Tensor | None = None) -> Tensor:
        """The paper's semantic score of each object in this field, s(x) = Σ_{f∈F} f · x, ``[N]``.

        Args:
            vectors: objects to score instead of the universe's, ``[..., D]``.

        Equivalent to: ``(vectors @ features[mask].T - threshold[mask]).sum(-1)``.
        """
        u = self.universe
        field = self.mask.to(u.features.dtype) @ u.features  # [D]
        cut = 0.0 if u.threshold is None else u.threshold[self.mask].sum()
        if vectors is None:
            return u.vectors @ field - cut * u.cut
        check_vectors("vectors", vectors)
        check_width("vectors", vectors, u.features)
        return vectors.detach().to(u.vectors) @ field - cut

    def rank(self, top: int = 20, named: bool = True) -> list[tuple[str, float]]:
        """The objects that score highest in this field, with their scores.

        Args:
            top: how many objects are listed.
            named: whether objects that the set is made from are listed too.
        """
        return self._listed(self.scores(), top, named)

    def nearest(
        self, top: int = 20, alpha: float = 1.0, beta: float = 1.0, named: bool = True
    ) -> list[tuple[str, float]]:
        """The objects whose own sets X are most like this set F, with their likeness, from 0 to 1.

        The likeness is Tversky's ratio model on numbers of features, ``|X∩F| / (|X∩F| + α|X−F| + β|F−X|)``. The first
        call computes every feature of every object, which the universe keeps as bits; later ones take milliseconds.

        Args:
            top: how many objects are listed.
            alpha: weight of the features that only the object has.
            beta: weight of the features that only this set has.
            named: whether objects that the set is made from are listed too.
        """
        rows, sizes = self.universe._sets()
        both, size = torch.from_numpy(bits.shared(rows, bits.packed(self.mask))), torch.from_numpy(sizes)
        parts = both + alpha * (size - both) + beta * (len(self) - both)
        return self._listed(torch.where(both > 0, both / parts, 0.0), top, named)

    def _listed(self, scores: Tensor, top: int, named: bool) -> list[tuple[str, float]]:
        if not isinstance(top, int) or isinstance(top, bool) or top < 1:
            raise ValueError(f"top must be a whole number of 1 or more; got {top!r}.")
        hidden = () if named else self.named
        # A stable sort keeps the order of equal scores.
        order = scores.argsort(descending=True, stable=True)[: top + len(hidden)].tolist()
        kept = [i for i in order if i not in hidden][:top]
        return [(self.universe.names[i], scores[i].item()) for i in kept]


def _bracketed(label: str) -> str:
    """A label as a part of another one, cut if it is long."""
    if len(label) > LABEL:
        label = label[:LABEL] + "…"
    return f"({label})" if " " in label and not label.startswith('"') else label
