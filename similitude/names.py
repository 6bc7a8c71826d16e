"""Names of features: what is known of a bank's features, and features that are made from examples."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from . import checks
from ._text import as_html
from .ops.modes import without_autocast
from .presence import scattered, upper

if TYPE_CHECKING:
    from .bank import FeatureBank

# Examples of each kind that a feature is made from at least, and looked at at most.
LEAST, MOST = 10, 4096
# Penalties that are tried, as multiples of the examples' mean variance along an axis.
PENALTIES = [10.0**i for i in range(-3, 4)]
PARTS = 5
# Examples of each kind that are looked at where objects of unknown kind are, and the most of those.
FEW, AROUND = 512, 8192
# Penalty of the direction in those objects, as a multiple of their mean variance along an axis.
RIDGE = 0.3


@dataclass
class Notes:
    """What is known of single features; it is saved with a bank's state where there is something to save.

    Attributes:
        names: name of a feature by its index.
        scores: held-out MCC of a feature that was made from examples.
        fixed: features that do not train.
        framed: features of the usual start, opposite directions cut at 0, beside those that started from data.
    """

    names: dict[int, str] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    fixed: set[int] = field(default_factory=set)
    framed: set[int] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.names or self.scores or self.fixed or self.framed)

    def kept(self, indices: Iterable[int]) -> Notes:
        """The notes of a bank that has only these features left, in this order."""
        places = {old: new for new, old in enumerate(indices)}
        return Notes(
            {places[k]: name for k, name in self.names.items() if k in places},
            {places[k]: score for k, score in self.scores.items() if k in places},
            {places[k] for k in self.fixed if k in places},
            {places[k] for k in self.framed if k in places},
        )

    def without(self, feature: int | str) -> Notes:
        """The notes without the name of a feature, given by its index or name; if it was fixed, it is free."""
        feature = next((k for k, name in self.names.items() if name == feature), feature)
        if feature not in self.names:
            raise ValueError(f"feature {feature!r} has no name; those with names are {self.names or 'none'}.")
        names = {k: name for k, name in self.names.items() if k != feature}
        scores = {k: score for k, score in self.scores.items() if k != feature}
        return Notes(names, scores, self.fixed - {feature}, self.framed)

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "names": {str(k): v for k, v in sorted(self.names.items())},
            "scores": {str(k): v for k, v in sorted(self.scores.items())},
            "fixed": sorted(self.fixed),
            "framed": sorted(self.framed),
        }

    def tensor(self) -> Tensor:
        """As bytes, ``[n]``, which every format of checkpoints can hold."""
        return torch.frombuffer(bytearray(json.dumps(self.plain()).encode()), dtype=torch.uint8)

    @classmethod
    def of(cls, saved: Tensor | dict[str, Any], num_features: int) -> Notes:
        """Notes from what ``tensor`` or ``plain`` made."""
        try:
            given = json.loads(bytes(saved.cpu().tolist())) if isinstance(saved, Tensor) else saved
            names = {int(k): str(v) for k, v in given["names"].items()}
            scores = {int(k): float(v) for k, v in given["scores"].items()}
            notes = cls(names, scores, set(map(int, given["fixed"])), set(map(int, given["framed"])))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"the features' names cannot be read: {type(error).__name__}.") from None
        known = {*notes.names, *notes.scores, *notes.fixed, *notes.framed}
        if not all(0 <= k < num_features for k in known):
            raise ValueError(f"there are names of features {min(known)} to {max(known)}, and {num_features} features.")
        return notes


@dataclass(frozen=True)
class Named:
    """A feature that got a name. Print it.

    Attributes:
        feature: its index.
        name: its name.
        score: MCC between having the feature and being an example, on examples that were held out; None for a feature
            that was learned.
        positives, negatives: numbers of examples.
    """

    feature: int
    name: str
    score: float | None = None
    positives: int = 0
    negatives: int = 0

    def __str__(self) -> str:
        if self.score is None:
            return f"feature {self.feature} is named {self.name!r}, as it was learned"
        examples = f"{self.positives} examples and {self.negatives} others"
        return f"feature {self.feature} is {self.name!r}, made from {examples}: MCC {self.score:.2f} on those held out"

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def name_feature(
    bank: FeatureBank,
    name: str,
    positives: Tensor | None,
    negatives: Tensor | None,
    feature: int | None,
    presence: float | None,
    background: Tensor | None,
) -> Named:
    """See ``FeatureBank.name``."""
    notes = bank.notes
    _check_name(name, feature, bank)
    feature = None if feature is None else int(feature)
    if positives is None and negatives is None:
        if feature is None:
            raise ValueError("give positives and negatives to make a feature of, or the index of a learned one.")
        bank.note(Notes({**notes.names, feature: name}, notes.scores, notes.fixed, notes.framed))
        return Named(feature, name, notes.scores.get(feature))
    _check_examples(bank.dim, positives=positives, negatives=negatives)
    assert positives is not None
    assert negatives is not None
    if background is not None:
        _check_examples(bank.dim, background=background)
        background = background.to(bank.weight.device)
    share, weight = None if presence is None else checks.check_presence(presence), plain_weight(bank)
    if bank.threshold is None:
        raise ValueError("a feature that is made from examples has a threshold: make the bank with presence=0.1.")
    direction, threshold, score = from_examples(
        positives.to(weight.device), negatives.to(weight.device), share, background
    )
    if not (direction.norm() > 0 and direction.to(weight).isfinite().all() and threshold.to(weight).isfinite()):
        raise ValueError(f"no direction in {checks.short(weight.dtype)} tells these positives from the negatives.")
    feature = _most_like(bank, direction.to(weight)) if feature is None else feature
    weight[feature], bank.threshold[feature] = direction.to(weight), threshold.to(bank.threshold)
    names, scores = {**notes.names, feature: name}, {**notes.scores, feature: score}
    bank.note(Notes(names, scores, notes.fixed | {feature}, notes.framed - {feature}))
    return Named(feature, name, score, len(positives), len(negatives))


def _check_name(name: object, feature: object, bank: FeatureBank) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"a feature's name must be a text that is not empty; got {name!r}.")
    taken = next((k for k, other in bank.notes.names.items() if other == name and k != feature), None)
    if taken is not None:
        raise ValueError(f"feature {taken} is {name!r} already: call unname({taken}) first, or choose another name.")
    K, whole = bank.num_features, isinstance(feature, Integral) and not isinstance(feature, bool)
    if feature is not None and not (whole and 0 <= feature < K):  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"feature must be an index from 0 to {K - 1}; got {feature!r}.")


def plain_weight(bank: FeatureBank) -> nn.Parameter:
    weight = bank._parameters.get("weight")
    if weight is None:
        raise TypeError("the bank's features are computed from something else, so they cannot be changed here.")
    return weight


def _most_like(bank: FeatureBank, direction: Tensor) -> int:
    """The feature whose direction is most like this one, of those that have no name and train."""
    cosines = normalize(bank.weight, dim=-1) @ direction
    cosines[sorted(bank.notes.fixed | bank.notes.framed | set(bank.notes.names))] = -torch.inf
    if not cosines.isfinite().any():
        raise ValueError(
            "all features are named or fixed: say which is to be replaced, feature=<index>, or grow the bank."
        )
    return int(cosines.argmax())


def _check_examples(dim: int, **given: object) -> None:
    for kind, examples in given.items():
        checks.check_vectors(kind, examples)
        assert isinstance(examples, Tensor)
        if examples.dim() != 2 or examples.shape[1] != dim:
            raise ValueError(f"{kind} must be objects [n, {dim}]; got shape {list(examples.shape)}.")
        if len(examples) < LEAST:
            raise ValueError(f"a feature needs {LEAST} {kind} or more, to tell how well it does; got {len(examples)}.")
        if not examples.isfinite().all():
            raise ValueError(f"{kind} must be finite; some have NaN or infinite elements.")


@torch.no_grad()
def from_examples(
    positives: Tensor, negatives: Tensor, presence: float | None = None, background: Tensor | None = None
) -> tuple[Tensor, Tensor, float]:
    """A direction of length 1, its threshold, and its MCC on examples that were held out.

    The direction is that of ridge regression with both kinds weighing the same; its penalty is chosen by the error of
    each example when it is left out, and the threshold is what ``presence`` of those predictions exceed.

    Args:
        positives: Objects that have the feature, ``[n, D]``.
        negatives: Objects that do not, ``[m, D]``.
        presence: Fraction of all objects that have it; by default that of the examples.
        background: Objects of unknown kind, ``[N, D]``. The direction is then that in which those differ that are most
            like the positives, and the threshold what ``presence`` of them all exceed.
    """
    most = MOST if background is None else FEW
    positives, negatives = _some(positives, most).double(), _some(negatives, most).double()
    share = len(positives) / (len(positives) + len(negatives)) if presence is None else presence
    x = torch.cat([positives, negatives])
    y = torch.cat([torch.ones(len(positives)), torch.zeros(len(negatives))]).to(x.device) > 0
    with without_autocast(x.device.type):
        fit = _fit_alone if background is None else _fit_within(scattered(background, AROUND).double())
        direction, threshold = fit(x, y, share)
        # Each fifth is predicted by what is fitted to the rest, penalty and threshold included.
        part = torch.cat([torch.arange(n) % PARTS for n in (len(positives), len(negatives))]).to(x.device)
        having = torch.zeros_like(y)
        for i in range(PARTS):
            w, t = fit(x[part != i], y[part != i], share)
            having[part == i] = x[part == i] @ w > t
    return direction, threshold, _mcc(having, y, share).item()


def _some(examples: Tensor, most: int) -> Tensor:
    if len(examples) <= most:
        return examples
    return examples[torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))[:most]]


def _fit_alone(x: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Direction and threshold from examples alone."""
    weight, target = _balanced(y)
    centre, root = weight @ x, weight.sqrt()
    U, S, Vh = torch.linalg.svd(root[:, None] * (x - centre), full_matrices=False)
    left_out, found = _ridge(U, S.square(), weight, target)
    direction = Vh.mT @ (S * found)
    length = direction.norm().clamp(min=torch.finfo(direction.dtype).tiny)
    return normalize(direction, dim=0), _threshold(left_out, y, share) / length + centre @ normalize(direction, dim=0)


def _fit_within(background: Tensor) -> Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]:
    """A fit of direction and threshold to examples and to objects of unknown kind, ``[N, D]``.

    Examples tell by kernel ridge regression which of the objects are most like the positives; few examples bend such a
    boundary better than they turn a direction. The direction is then regressed on all the objects.
    """
    centre = background.mean(0)
    apart = background - centre
    covariance = apart.mT @ apart / len(apart)
    covariance.diagonal().add_((RIDGE * covariance.diagonal().mean()).clamp(min=torch.finfo(covariance.dtype).tiny))

    def fit(x: Tensor, y: Tensor, share: float) -> tuple[Tensor, Tensor]:
        scores = _kernel_ridge(x - centre, y, apart)
        told = scores > upper(scores[:, None], share)
        direction = normalize(torch.linalg.solve(covariance, apart[told].mean(0)), dim=0)
        return direction, upper((background @ direction)[:, None], share)[0]

    return fit


def _kernel_ridge(x: Tensor, y: Tensor, others: Tensor) -> Tensor:
    """How much each of the other objects is like the positives. The kernel is linear plus Gaussian."""
    weight, target = _balanced(y)
    root = weight.sqrt()
    tiny = torch.finfo(x.dtype).tiny
    size, width = x.square().sum(-1).mean().clamp(min=tiny), (torch.cdist(x, x).square().median() / 2).clamp(min=tiny)

    def kernel(a: Tensor) -> Tensor:
        found = a @ x.mT / size + (-torch.cdist(a, x).square() / width).exp()
        return found - (found @ weight)[:, None]

    # Centred on both sides, by the examples' weights.
    own = kernel(x)
    mean = weight @ own
    squares, U = torch.linalg.eigh(root[:, None] * (own - mean) * root)
    _, found = _ridge(U, squares.clamp(min=0), weight, target)
    return (kernel(others) - mean) @ (root * (U @ found))


def _balanced(y: Tensor) -> tuple[Tensor, Tensor]:
    """Weights of examples, both kinds weighing the same, and 1 for those that have the feature, −1 for others."""
    weight = torch.where(y, 0.5 / y.sum(), 0.5 / (~y).sum()).double()
    return weight, torch.where(y, 1.0, -1.0).to(weight)


def _ridge(U: Tensor, squares: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions of examples when each is left out, and what the weighted examples, U · S · Vᵀ, are multiplied by.

    By the penalty with the least error of them.
    """
    root = weight.sqrt()
    wanted = U.mT @ (root * target)
    best = None
    for penalty in PENALTIES:
        shrunk = squares / (squares + penalty * squares.mean())
        fitted = (U * (shrunk * wanted)).sum(-1) / root
        # Of a linear smoother: the error of an example when it is left out.
        leverage = (U.square() * shrunk).sum(-1) + weight
        left_out = target - (target - fitted) / (1 - leverage).clamp(min=1e-9)
        error = weight @ (target - left_out).square()
        if best is None or error < best[0]:
            best = error, left_out, wanted / (squares + penalty * squares.mean())
    assert best is not None
    return best[1], best[2]


def _threshold(scores: Tensor, y: Tensor, share: float) -> Tensor:
    """The value that this share of all objects exceeds, if the examples stand for those with and those without."""
    weight = torch.where(y, share / y.sum(), (1 - share) / (~y).sum()).to(scores)
    order = scores.argsort(descending=True)
    last = int((weight[order].cumsum(0) < share - 1e-9).sum()) + 1
    return scores[order[last - 1 : last + 1]].mean()


def _mcc(having: Tensor, y: Tensor, share: float) -> Tensor:
    """Correlation of two sets, ``[..., N]`` and ``[N]``, where this share of all objects is in the second."""
    right = (having & y).sum(-1).double() / y.sum()
    wrong = (having & ~y).sum(-1).double() / (~y).sum()
    presence = share * right + (1 - share) * wrong
    spread = (share * (1 - share) * presence * (1 - presence)).sqrt()
    return share * (1 - share) * (right - wrong) / spread.clamp(min=1e-12)
