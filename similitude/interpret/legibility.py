"""How legible features are: do their own sets match attributes that people can name, and do baselines match as well?

``legibility(layer, X, attributes)`` returns a value that prints. N objects, K features, J attributes, D dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._text import columns
from ..bank import FeatureBank
from ..checks import check_vectors, check_width
from ..clusters import spherical_means
from ..nn import TverskyProjection, TverskySimilarity
from ..ops.modes import wide
from ..reach import seen
from ..shares import measures, objects, shares_of
from ..usage import evaluating
from . import matching
from .matching import AT_ONCE, Bank

# An attribute is recovered if the set of a feature has at least this MCC with it.
RECOVERED = 0.5
# Objects of either half that must have, and must lack, an attribute; others are too few to choose or to score by.
FEWEST = 4
# Objects whose decisions are read, and the part of a decision that is explained.
DECISIONS, PART = 500, 0.8
# Attributes that are printed.
SHOWN = 12


@dataclass(frozen=True)
class Matches:
    """How well single features match each of J attributes: chosen on one half of the objects, scored on the other.

    Attributes:
        mcc: correlation (phi coefficient) of the attribute with the set of the feature that matches best, ``[J]``.
        feature: that feature, ``[J]``.
        probe: the same when feature and threshold are chosen, ``[J]``: a probe of one feature.
        auc: how well the feature that ranks best ranks the objects, ``[J]``; 0.5 is chance.
        purity: share of the commonest class among the 20 objects that have a feature most, mean over features.
        stable: mean correlation with the features of a second seed, matched one to one.
    """

    mcc: Tensor
    auc: Tensor
    feature: Tensor | None = None
    probe: Tensor | None = None
    purity: float | None = None
    stable: float | None = None

    @property
    def recovered(self) -> float:
        """Share of the attributes with an MCC of at least 0.5."""
        return (self.mcc >= RECOVERED).double().mean().item()

    def summary(self) -> dict[str, float]:
        """Means over the attributes, by name."""
        found = {"mcc": self.mcc.mean().item(), "recovered": self.recovered}
        if self.probe is not None:
            found["probe"] = self.probe.mean().item()
        found["auc"] = self.auc.mean().item()
        return found | {name: value for name in ("purity", "stable") if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Legibility:
    """How legible a layer's features are, beside baselines. Print it, or show it in a notebook.

    Attributes:
        layer: how well the layer's features match.
        kmeans: the same of k-means directions that nothing has trained, as many and with the same presence; None if
            there are fewer objects than features.
        random: the same of random directions.
        shuffled: the layer's features against attributes that are dealt to the objects at random.
        ceiling: a logistic probe of all columns that reach the layer.
        names: names of the J attributes.
        left_out: names of attributes that too few objects have or lack.
        objects: on how many objects features are chosen, and on how many they are scored.
        presence: share of the objects that have each feature, ``[K]``.
        featureless: share of the objects that have no feature.
        deciding: median number of features that make 80 % of a decision between the first class and the second; None
            where outputs are no sum over features.
        feature_names: the names of the layer's features that have one.
        impurity: by name of each feature called as an attribute, the share of its objects that lack it, or NaN.
        lacking: the share of all objects that lack the attribute, by the same names: chance.
    """

    layer: Matches
    kmeans: Matches | None
    random: Matches
    shuffled: Matches
    ceiling: Matches
    names: list[str]
    left_out: list[str]
    objects: tuple[int, int]
    presence: Tensor
    featureless: float
    deciding: float | None
    feature_names: dict[int, str]
    impurity: dict[str, float] = field(default_factory=dict)
    lacking: dict[str, float] = field(default_factory=dict)

    @property
    def dead(self) -> list[int]:
        """Features that no object has."""
        return (self.presence == 0).nonzero()[:, 0].tolist()

    @property
    def ever_present(self) -> list[int]:
        """Features that all objects have."""
        return (self.presence == 1).nonzero()[:, 0].tolist()

    def compared(self) -> dict[str, Matches]:
        """The layer and what stands beside it, by name."""
        rows = {
            "this layer": self.layer,
            "untrained k-means": self.kmeans,
            "random directions": self.random,
            "shuffled attributes": self.shuffled,
            "probe of all columns": self.ceiling,
        }
        return {name: found for name, found in rows.items() if found is not None}

    def rows(self) -> list[dict[str, Any]]:
        """For each attribute, the best first: its name, the layer's scores, and the MCC of what stands beside it."""
        found = []
        for j in self.layer.mcc.argsort(descending=True, stable=True).tolist():
            assert self.layer.feature is not None
            row: dict[str, Any] = {"attribute": self.names[j], "feature": int(self.layer.feature[j])}
            for name, matches in self.compared().items():
                row[name] = matches.mcc[j].item()
            row |= {name: getattr(self.layer, name)[j].item() for name in ("probe", "auc")}
            found.append(row)
        return found

    def summary(self) -> dict[str, Any]:
        """All numbers but those of single attributes, for a file."""
        keys = {"this layer": "layer", "untrained k-means": "k-means", "random directions": "random"}
        keys |= {"shuffled attributes": "shuffled", "probe of all columns": "ceiling"}
        found: dict[str, Any] = {keys[name]: matches.summary() for name, matches in self.compared().items()}
        if self.impurity:
            found |= {"impurity": _mean(self.impurity), "impurity by chance": _mean(self.lacking)}
        return found | {
            "presence": self.presence.mean().item(),
            "dead": len(self.dead),
            "ever_present": len(self.ever_present),
            "featureless": self.featureless,
            "deciding": self.deciding,
        }

    def _table(self) -> list[list[str]]:
        heads = {"mcc": "MCC", "recovered": "recovered", "probe": "1-probe", "auc": "AUC"}
        heads |= {name: name for name in ("purity", "stable") if getattr(self.layer, name) is not None}
        rows = [["", *heads.values()]]
        for name, found in self.compared().items():
            means = found.summary()
            rows.append([name, *(_cell(key, means.get(key)) for key in heads)])
        return rows

    def _by_attribute(self) -> list[list[str]]:
        keys = ["this layer", *(["untrained k-means"] if self.kmeans else []), "random directions", "probe", "auc"]
        heads = ["MCC", *(["of k-means"] if self.kmeans else []), "of random", "1-probe", "AUC", "feature"]
        rows = [["attribute", *heads]]
        for row in self.rows():
            feature = f"{row['feature']} {self.feature_names.get(row['feature'], '')}".strip()
            rows.append([row["attribute"], *(_number(row[key]) for key in keys), feature])
        return rows

    def _notes(self) -> list[str]:
        low, middle, high = self.presence.quantile(torch.tensor([0, 0.5, 1], dtype=torch.float64)).tolist()
        notes = [
            f"presence of a feature: {low:.1%} to {high:.1%}, median {middle:.1%}; {len(self.dead)} dead, "
            f"{len(self.ever_present)} ever present; {self.featureless:.1%} of the objects have no feature"
        ]
        if self.deciding is not None:
            notes.append(f"{self.deciding:g} features make {PART:.0%} of a decision (median)")
        if self.impurity:
            lacking = f"{_mean(self.impurity):.0%} of the objects that have one lack the attribute"
            notes.append(f"named features: {lacking}, and {_mean(self.lacking):.0%} of all objects do")
        if self.left_out:
            more = f", … {len(self.left_out) - 5} more" if len(self.left_out) > 5 else ""
            notes.append(f"left out, too rare or too common: {', '.join(self.left_out[:5])}{more}")
        return notes

    def _title(self) -> str:
        chosen, scored = self.objects
        return (
            f"{len(self.presence):,} features against {len(self.names)} attributes; features are chosen on "
            f"{chosen:,} objects and scored on {scored:,} others"
        )

    def __str__(self) -> str:
        by_attribute = self._by_attribute()
        shown, more = columns(by_attribute[: SHOWN + 1]), len(by_attribute) - 1 - SHOWN
        rest = [f"{more} more, all in .rows()"] if more > 0 else []
        return "\n".join([self._title(), columns(self._table()), *self._notes(), shown, *rest])

    def _repr_html_(self) -> str:
        """Both tables in full, for notebooks."""
        tables = []
        for head, *rows in (self._table(), self._by_attribute()):
            lines = ["".join(f"<th>{escape(cell)}</th>" for cell in head)]
            lines += ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
            tables.append(f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>")
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes())
        return f"<p>{escape(self._title())}</p>{tables[0]}{notes}{tables[1]}"


@torch.no_grad()
def legibility(
    model: Any,
    X: Any,
    attributes: tuple[Any, Sequence[str]] | Tensor,
    second: Any = None,
    *,
    classes: Any = None,
    train: Any = None,
    layer: str | None = None,
    seed: int = 0,
) -> Legibility:
    """How well single features of a layer match attributes that people can name, beside baselines that could refute it.

    A feature is chosen for each attribute on one half of the objects and scored on the other. Beside it stand k-means
    directions that nothing has trained and random directions, as many and with the same presence; the same features
    with shuffled attributes; and a probe of all columns, the ceiling.

    Args:
        model: a Tversky layer, a fitted TverskyClassifier, or any module with a TverskyProjection, as ``Universe.of``
            takes it; or a FeatureBank or nn.Linear, whose inputs X then are.
        X: N inputs of the model that it was not trained on.
        attributes: which objects have which attribute, bool ``[N, J]``, and the J names; or only the first.
        second: the same model from another seed, for stability.
        classes: class of each object, ``[N]``, for purity.
        train: inputs that the model was trained on: k-means is fitted to these, and without them to X.
        layer: name of the layer where the model has several.
        seed: draws the halves and the baselines.
    """
    found, vectors, bank = _read(model, X, layer)
    N, K = len(vectors), len(bank.weight)
    has, names = _attributes(attributes, N)
    first, other = halves(N, seed)
    kept = _enough(has[first]) & _enough(has[other])
    if not kept.any():
        raise ValueError(
            f"no attribute can be scored: at least {FEWEST} objects of either half must have it and as many lack it; "
            f"of {N} objects {', '.join(map(str, has.sum(0).tolist()[:10]))} have one."
        )
    names, left_out = ([name for name, k in zip(names, kept.tolist(), strict=True) if k == of] for of in (True, False))
    has = has[:, kept].to(vectors)
    labels = None if classes is None else _labels(classes, N).to(vectors.device)
    presence, featureless = matching.presence(bank, vectors)

    def read(bank: Bank, stable: float | None) -> Matches:
        return _matches(bank, vectors, has, labels, first, other, stable)

    def baseline(directions: Callable[[int], Tensor]) -> Matches:
        """As many directions, each with the presence of one of the layer's features."""
        one = matching.at_presence(directions(seed), presence, fitted)
        if second is None:
            return read(one, None)
        again = matching.at_presence(directions(seed + 1), presence, fitted)
        return read(one, matching.stability(one, vectors, again, vectors))

    fitted = vectors if train is None else _read(model, train, layer)[1]
    if not len(fitted):
        raise ValueError("train must be one input or more; got none: leave train out, and baselines are fitted to X.")
    feature_names = dict(getattr(model if found is None else found.features, "names", {}))
    called = {k: names.index(name) for k, name in feature_names.items() if name in names}
    of = bank.only(torch.tensor(list(called), dtype=torch.int64, device=vectors.device))
    impure = matching.impurity(of.measures(vectors), has[:, list(called.values())])
    pointing = fitted[fitted.any(-1)]
    twin = None if second is None else _read(second, X, layer)
    stable = None if twin is None else matching.stability(bank, vectors, twin[2], twin[1])
    dealt = has[torch.randperm(N, generator=torch.Generator().manual_seed(seed + 1)).to(has.device)]
    return Legibility(
        layer=read(bank, stable),
        kmeans=baseline(lambda s: spherical_means(pointing, K, seed=s)) if len(pointing) >= K else None,
        random=baseline(lambda s: _random(bank.weight, s)),
        shuffled=_matches(bank, vectors, dealt, None, first, other, None),
        ceiling=_ceiling(vectors, has, first, other),
        names=names,
        left_out=left_out,
        objects=(len(first), len(other)),
        presence=presence.double().cpu(),
        featureless=featureless,
        feature_names=feature_names,
        impurity={names[j]: share for j, share in zip(called.values(), impure.tolist(), strict=True)},
        lacking={names[j]: 1 - has[:, j].double().mean().item() for j in called.values()},
        deciding=None if found is None else _deciding(found, vectors[first[:DECISIONS]]),
    )


def _random(like: Tensor, seed: int) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed)).to(like)


def halves(N: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Indices of the objects that features are chosen on, and of those that they are scored on."""
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    return order[: N // 2], order[N // 2 :]


def _read(model: Any, X: Any, layer: str | None) -> tuple[Any, Tensor, Bank]:
    """The layer, if it is a Tversky one, the vectors that reach it, and its bank."""
    found = None
    if isinstance(model, FeatureBank | nn.Linear):
        check_vectors("X", X)
        check_width("X", X, model.weight)
        vectors, weight = X.reshape(-1, X.shape[-1]), model.weight
        vectors = vectors.to(wide(vectors.dtype))
        threshold = model.threshold if isinstance(model, FeatureBank) else model.bias
        threshold = -threshold if isinstance(model, nn.Linear) and threshold is not None else threshold
    else:
        found, vectors = seen(model, X, layer)
        vectors = objects(found, vectors)
        weight, threshold = found.features.cut()
    if not vectors.isfinite().all():
        raise ValueError("X must be finite; some of the vectors that reach the layer have NaN or infinite elements.")
    threshold = weight.new_zeros(len(weight)) if threshold is None else threshold
    return found, vectors.detach(), Bank(weight.detach().to(vectors), threshold.detach().to(vectors))


def _attributes(given: Any, N: int) -> tuple[Tensor, list[str]]:
    has, names = given if isinstance(given, tuple | list) and len(given) == 2 else (given, None)
    has = torch.as_tensor(has)
    if has.dtype != torch.bool or has.dim() != 2 or len(has) != N:
        raise ValueError(
            f"attributes must be bool [N, J], with a row for each of {N} objects; "
            f"got {str(has.dtype).removeprefix('torch.')} {list(has.shape)}."
        )
    names = [str(j) for j in range(has.shape[1])] if names is None else [str(name) for name in names]
    if len(names) != has.shape[1]:
        raise ValueError(f"there must be a name for each of {has.shape[1]} attributes; got {len(names)} names.")
    return has, names


def _enough(has: Tensor) -> Tensor:
    having = has.sum(0)
    return (having >= FEWEST) & (len(has) - having >= FEWEST)


def _labels(classes: Any, N: int) -> Tensor:
    labels = torch.from_numpy(np.unique(np.asarray(classes), return_inverse=True)[1]).flatten()
    if len(labels) != N:
        raise ValueError(f"classes must have a class for each of {N} objects; got {len(labels)}.")
    return labels


def _matches(
    bank: Bank, vectors: Tensor, has: Tensor, labels: Tensor | None, first: Tensor, other: Tensor, stable: float | None
) -> Matches:
    """Scores on the objects ``other`` of the features that match best on the objects ``first``."""
    known, truth = has[first], has[other]
    own, ranked, probed, cuts, pure = [], [], [], [], []
    for part in bank.parts(len(vectors)):
        found = part.measures(vectors)  # [N, k]
        if labels is not None:
            pure.append(matching.purity(found, labels))
        found = found[first]
        highest = found.sort(dim=0, descending=True).values
        own.append(matching.mcc(found > 0, known))
        ranked.append(matching.auc(found, highest, known))
        best, cut = matching.best_cut(found, highest, known)
        probed.append(best)
        cuts.append(cut)
    chosen, ranking, probing = (torch.cat(each).argmax(0) for each in (own, ranked, probed))  # [J] each
    by_set, by_rank, by_cut = (bank.only(k).measures(vectors[other]) for k in (chosen, ranking, probing))
    cut = torch.cat(cuts).gather(0, probing[None])[0]
    return Matches(
        mcc=_own(matching.mcc(by_set > 0, truth)),
        auc=_own(matching.auc(by_rank, by_rank.sort(dim=0, descending=True).values, truth)),
        feature=chosen.cpu(),
        probe=_own(matching.mcc(by_cut > cut, truth)),
        purity=torch.cat(pure).nanmean().item() if pure else None,
        stable=stable,
    )


def _own(found: Tensor) -> Tensor:
    """Of the scores of J features with J attributes, that of each with its own."""
    return found.diagonal().double().cpu()


def _deciding(layer: TverskyProjection | TverskySimilarity, vectors: Tensor) -> float | None:
    """Median number of features that make PART of the shares, by absolute value, in a decision."""
    if not isinstance(layer, TverskyProjection) or layer.out_features < 2:
        return None
    if (layer.level, layer.model) != ("feature", "contrast"):
        return None
    theirs = measures(layer, layer.prototypes.to(vectors), of_prototypes=True)  # [P, K]
    numbers = []
    for part in vectors.split(max(1, AT_ONCE // (8 * theirs.shape[1]))):
        with evaluating(layer):
            top = layer(part.to(layer.prototypes.dtype)).topk(2).indices
        mine = measures(layer, part)
        for_first, for_second = (torch.stack(shares_of(layer, mine, theirs[top[:, i]])).sum(0) for i in range(2))
        shares = (for_first - for_second).abs().sort(dim=-1, descending=True).values
        explained = shares.cumsum(-1) / shares.sum(-1, keepdim=True).clamp(min=1e-30)
        numbers.append((explained < PART).sum(-1) + 1)
    return torch.cat(numbers).double().median().item()


def _mean(shares: dict[str, float]) -> float:
    """The mean of those that are known."""
    known = [share for share in shares.values() if not math.isnan(share)]
    return sum(known) / len(known) if known else math.nan


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0%}" if key == "recovered" else _number(value)


def _number(value: float) -> str:
    """Two digits after the point, and no sign of a zero."""
    return f"{round(value, 2) + 0.0:.2f}"


def _ceiling(vectors: Tensor, has: Tensor, first: Tensor, other: Tensor) -> Matches:
    """A logistic regression of each attribute on all columns, with a penalty of half the squared length."""
    mean, deviation = vectors[first].mean(0), vectors[first].std(0)
    x = (vectors - mean) / torch.where(deviation > 0, deviation, 1.0)
    weight = x.new_zeros(x.shape[1], has.shape[1], requires_grad=True)
    bias = x.new_zeros(has.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = nn.functional.binary_cross_entropy_with_logits(x[first] @ weight + bias, has[first], reduction="sum")
        found = (found + weight.square().sum() / 2) / len(first)
        found.backward()
        return found

    with torch.enable_grad():
        optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    scores = x[other] @ weight.detach() + bias.detach()
    highest = scores.sort(dim=0, descending=True).values
    return Matches(_own(matching.mcc(scores > 0, has[other])), _own(matching.auc(scores, highest, has[other])))
