"""TverskySimilarityModel: Tversky's model of people's similarity judgements, as a scikit-learn estimator."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import form as forms
from ..bank import FeatureBank
from ..explain import Pair, pair
from ..interpret.sets import Universe
from ..names import Notes
from ..nn import TverskySimilarity
from . import families, folds, given, saved
from .families import Family, Params, with_bias
from .fitting import Fitted, Told, expected, fit, pair_scores
from .found import Contrasted, Found, Summary, answered, contrasted, summarise
from .judgements import Array, Judgements, places, ratings
from .rivals import Comparison, candidates, compare

try:
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError("TverskySimilarityModel needs scikit-learn ≥ 1.6: pip install 'similitude[sklearn]'.") from error

OWN = ("one", "common+distinctive", "common")
BIASES = ("none", "object", "row+column")


class TverskySimilarityModel(RegressorMixin, BaseEstimator):
    """Tversky's contrast model fitted to what people said about pairs of objects.

    S(a, b) = c + θ f(A∩B) − α f(A−B) − β f(B−A), and with a bias + r_a − r_b. What S says people answer depends on the
    judgements: a share of "same" is floor + (1 − floor) σ(S), a choice is a softmax over its question, a rating is S in
    its unit. Several restarts train together; their predictions are averaged, and the best is there to read.

    Args:
        num_features: K, of features that are learned.
        dim: Dimensions of the objects' vectors, whose products with the features are measures; None learns measures.
        bias: none; object, one number for each object, added where it comes first and taken where it comes second; or
            row+column, a number for each place.
        intersection, difference, level, model: The form of the comparison, as in ``functional.tversky_similarity``.
        features: Features that people listed, ``[N, J]``, 0 or more: each gets a weight, and no others are learned.
        feature_names: Names of these features.
        own: With ``features``: one weight each (one), one where it is common and one where it is distinctive
            (common+distinctive), or common features only (common).
        vectors: Objects as vectors, ``[N, D]``, such as word vectors: the bank is learned.
        sides: With ``vectors``: whether to add a linear term of each of the two objects.
        ordinal: Whether ratings are ordered categories, and not numbers.
        l2: Weight decay, or several of which the held-out judgements choose; "auto" are those of the family.
        restarts: Fits from different starts.
        steps: Steps of Adam.
        learning_rate: Its highest rate.
        validation_fraction: Share of the pairs that stop a fit early; 0 trains on all to the end.
        random_state: Seed.
        verbose: Whether to show progress.

    Attributes:
        alpha_, beta_, theta_: Weights of what only the first has, only the second has, and both have.
        bias_: Bias of each object, ``[N]`` or ``[2, N]``, or None.
        objects_: Vectors of the objects, ``[N, D]``.
        features_: The bank, ``[K, D]``; an object's measure of a feature is their product.
        names_: Names of the objects.
        layer_: The best restart as a TverskySimilarity.
        restarts_: α, β, θ and the held-out loss of each restart.
    """

    def __init__(
        self,
        num_features: int = 24,
        dim: int | None = 4,
        *,
        bias: str = "none",
        intersection: str = "product",
        difference: str = "subtractmatch",
        level: str = "feature",
        model: str = "contrast",
        features: Any = None,
        feature_names: Sequence[str] | None = None,
        own: str = "one",
        vectors: Any = None,
        sides: bool = True,
        ordinal: bool = False,
        l2: float | Sequence[float] | str = "auto",
        restarts: int = 8,
        steps: int = 300,
        learning_rate: float = 0.05,
        validation_fraction: float = 0.1,
        random_state: Any = None,
        verbose: bool = False,
    ):
        self.num_features = num_features
        self.dim = dim
        self.bias = bias
        self.intersection = intersection
        self.difference = difference
        self.level = level
        self.model = model
        self.features = features
        self.feature_names = feature_names
        self.own = own
        self.vectors = vectors
        self.sides = sides
        self.ordinal = ordinal
        self.l2 = l2
        self.restarts = restarts
        self.steps = steps
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.random_state: Any = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> TverskySimilarityModel:
        """The model fitted to judgements, or to pairs ``[M, 2]`` of places or names and their ratings ``[M]``."""
        said = self._judgements(X, y, sample_weight)
        family = self._family(said)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        train, held = folds.holdout(said, self.validation_fraction, seed)
        self._take(said, fit(family, said, train, held, seed=seed, **self._settings()))
        for sentence in self.warnings():
            warnings.warn(sentence, UserWarning, stacklevel=2)
        return self

    def predict(self, X: Any = None) -> Array:
        """What people are expected to answer to the pairs ``[M, 2]``, by place or name; of all pairs, ``[N, N]``.

        For choices this is S: the larger, the sooner chosen.
        """
        check_is_fitted(self)
        N = len(self.names_)
        first, second = np.divmod(np.arange(N * N), N) if X is None else self._pairs(X)
        told, p = Told.of(self.judgements_, self.ordinal), self._restarts()
        with torch.no_grad():
            S = pair_scores(self.family_, p, torch.tensor(first), torch.tensor(second), N, self.judgements_.symmetric)
            answers = expected(p, S, told).mean(0).double().numpy()
        return answers.reshape(N, N) if X is None else answers

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R² of the predictions of ``X``: judgements, or pairs and what was said; of choices, R² of their shares."""
        check_is_fitted(self)
        said = self._judgements(X, y, sample_weight, known=True)
        value, guess = answered(self, said)
        error = np.average((value - guess) ** 2, weights=said.answers)
        spread = np.average((value - np.average(value, weights=said.answers)) ** 2, weights=said.answers)
        return float(1 - error / spread) if spread > 0 else math.nan

    def compare(
        self,
        rivals: Sequence[str] | str = "all",
        judgements: Any = None,
        *,
        folds: str = "pairs",
        k: int = 10,
        repeats: int = 2,
        restarts: int = 3,
        dims: Sequence[int] = (3, 5),
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
        folder: Path | None = None,
    ) -> Comparison:
        """This model and its rivals, fitted to the same folds of the judgements: one table of what each predicts.

        Args:
            rivals: Names among mds, mds-choice, slide vector, unfolding, cosine, dot, bilinear, common only, nmf and
                bias only; with features weighted cosine, weighted dot, weighted city block and weighted Euclid; with
                vectors cosine of vectors, cosine with sides, sides only, bilinear with sides, distance with sides and
                network; or all of these that the data allow.
            judgements: By default those that the model was fitted to.
            folds: What is held out: cells, pairs, directions, objects or raters.
            k: Folds of each repeat.
            repeats: How often the folds are drawn anew.
            restarts: Fits of each model to each fold, whose predictions are averaged.
            dims: Dimensions of the rivals, from which held-out judgements choose.
            seed: Seed of folds and starts.
            progress: Is told how many models of how many are done.
            folder: Keeps each model's row as soon as it is done, so that the same call goes on where it stopped.
        """
        said = self._judgements(self.judgements_ if judgements is None else judgements, None, None)
        ours = self._family(said)
        models = [("Tversky" if self.bias == "none" else ours.name, [ours])]
        if self.bias == "none" and not said.symmetric:
            models.append(("Tversky + one bias", [with_bias(ours, "object")]))
        known = {name: None if getattr(self, name) is None else self._table(name) for name in ("features", "vectors")}
        models += list(candidates(rivals, dims, **known, unseen=folds == "objects"))
        settings = {**self._settings(), "restarts": restarts, "progress": None, "l2": None}
        return compare(
            models, said, folds, k, repeats, seed=seed, **settings | {"progress": progress, "folder": folder}
        )

    def warnings(self) -> list[str]:
        """What the data cannot say about this fit, a sentence each."""
        check_is_fitted(self)
        said, out = self.judgements_, []
        N = len(said.objects)
        count = self.family_.parameters(N)
        if len(said) < count:
            out.append(f"{len(said):,} judgements are fewer than the {count:,} numbers that the model learns.")
        spread = said.value.std() if said.kind != "choice" else (said.value / said.answers).std()
        if spread < 1e-9:
            out.append("all judgements are the same, so nothing is told about features, α, β or θ.")
        if (self.bias == "none" and said.symmetric) or self._is_symmetric():
            out.append("the judgements are the same in both directions, so α and β cannot be told apart.")
        elif self.own != "common" and "beta" in self._restarts():
            signs = np.sign(self.restarts_["alpha"] - self.restarts_["beta"])
            if len(signs) > 1 and abs(signs.sum()) < len(signs):
                share = max((signs > 0).mean(), (signs < 0).mean())
                bias = "; a bias explains such asymmetry as well (bias='object')" if self.bias == "none" else ""
                out.append(
                    f"restarts disagree on whether α or β is larger ({share:.0%} agree), so the judgements do not "
                    f"tell{bias}."
                )
        return out

    def summary(self, bootstrap: int = 20, progress: Callable[[int, int], None] | None = None) -> Summary:
        """α, β, θ with intervals from a bootstrap over pairs, the fit, and what the data cannot say."""
        check_is_fitted(self)
        return summarise(self, bootstrap, progress)

    def measures(self) -> Array:
        """Measure of each feature in each object, ``[N, K]``; an object has a feature whose measure is above 0."""
        check_is_fitted(self)
        return self.objects_ @ self.features_.T

    def salience(self) -> dict[str, float]:
        """f(A) of each object, the sum of the measures that it has, the largest first."""
        total = self.measures().clip(0).sum(1)
        return {self.names_[i]: float(total[i]) for i in np.argsort(-total)}

    def found(self, top: int = 8) -> list[Found]:
        """The features, those with the largest sum of measures first, each with the objects that have it most."""
        measures = self.measures().clip(0)
        names = self._feature_names(measures.shape[1])
        out = []
        for k in np.argsort(-measures.sum(0)):
            order = [i for i in np.argsort(-measures[:, k])[:top] if measures[i, k] > 0]
            owners = int((measures[:, k] > 0).sum())
            out.append(Found(names[k], int(k), owners, [(self.names_[i], float(measures[i, k])) for i in order]))
        return [one for one in out if one.count]

    def explain(self, a: Any, b: Any, top: int = 8) -> Contrasted:
        """What each feature adds to S(a, b), and to S(b, a)."""
        check_is_fitted(self)
        first, second = self._pairs([[a, b]])
        return contrasted(self, int(first[0]), int(second[0]), top)

    def pair(self, a: Any, b: Any, top: int = 8) -> Pair:
        """The same two objects as the library explains any pair: shares of all features, both ways round."""
        check_is_fitted(self)
        if self.distinctive_ is not self.features_:
            raise ValueError("own weights for common and distinctive features are two banks; explain tells of both.")
        x = torch.tensor(self.objects_)
        first, second = (int(place[0]) for place in self._pairs([[a, b]]))
        names = self.names_[first], self.names_[second]
        return pair(self.layer_, x[first], x[second], top, names)

    def universe(self) -> Universe:
        """The objects as sets of their features, for expressions, fields, graphs and the explorer."""
        check_is_fitted(self)
        return Universe(self.layer_.features, self.names_, torch.tensor(self.objects_))

    def save(self, folder: str | Path) -> None:
        """Writes the fitted model to the folder, as model.safetensors and model.json."""
        check_is_fitted(self)
        saved.save(self, folder)

    @classmethod
    def load(cls, folder: str | Path) -> TverskySimilarityModel:
        """The model that ``save`` wrote to the folder."""
        return saved.load(cls, folder)

    def __getstate__(self) -> dict[str, Any]:
        # A family is made of functions, which cannot be pickled; the settings make it again.
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "family_"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "judgements_" in state:
            self.family_ = self._family(self.judgements_)

    # What follows is for the methods above.

    def _take(self, said: Judgements, fitted: Fitted) -> None:
        """This fit to these judgements, as attributes."""
        self.judgements_, self.family_, self.names_ = said, self._family(said), said.objects
        self.fitted_ = fitted
        self._read()

    def _feature_names(self, count: int) -> list[str]:
        return list(self.feature_names) if self.feature_names is not None else [f"feature {k}" for k in range(count)]

    def _judgements(self, X: Any, y: Any, weight: Any, known: bool = False) -> Judgements:
        if isinstance(X, Judgements):
            if y is not None:
                raise ValueError("judgements hold what people said; y is for pairs given as an array.")
            return X
        if y is None:
            raise ValueError(
                "TverskySimilarityModel requires y to be passed, but the target y is None: fit takes judgements, made "
                "by confusions, ratings, directed, triplets, rankings or similarities, or pairs and what was said."
            )
        pairs: Any = validate_data(self, X, reset=not known, dtype=None)
        if pairs.shape[1] != 2:
            raise ValueError(f"pairs of shape {pairs.shape} are given; [M, 2] is expected, two objects in each row.")
        y = column_or_1d(y, warn=True)
        objects = self.names_ if known else None
        rows = self._given_rows()
        if objects is None and rows is not None and np.issubdtype(pairs.dtype, np.number):
            objects = tuple(range(rows))
        elif known and np.issubdtype(pairs.dtype, np.number):
            pairs = np.stack(self._pairs(pairs), 1)
            objects = tuple(range(len(self.names_)))
        said = ratings(pairs[:, 0], pairs[:, 1], y, objects=objects)
        if weight is None:
            return said
        weight = np.asarray(weight, dtype=np.float64)
        if weight.shape != (len(pairs),) or not (weight >= 0).all() or not weight.sum() > 0:
            raise ValueError(f"sample_weight must be {len(pairs)} numbers of 0 or more, not all of them zero.")
        kept = ~np.isnan(np.asarray(y, dtype=np.float64))
        return Judgements(**{**vars(said), "answers": weight[kept]}).only(weight[kept] > 0)

    def _given_rows(self) -> int | None:
        given = self.features if self.features is not None else self.vectors
        return None if given is None else len(given)

    def _family(self, said: Judgements) -> Family:
        self._check()
        rows = self._given_rows()
        if rows is not None and rows != len(said.objects):
            raise ValueError(f"{rows} rows of features or vectors are given for {len(said.objects)} objects.")
        settings: dict[str, Any] = {"symmetric": said.symmetric, **self._form()}
        if self.features is not None:
            family = given.listed(self._table("features"), self.own, **settings)
        elif self.vectors is not None:
            family = given.vectors(self._table("vectors"), self.num_features, sides=self.sides, **settings)
        elif self.dim is None:
            family = families.direct(self.num_features, **settings)
        else:
            family = families.tversky(self.num_features, self.dim, **settings)
        return with_bias(family, self.bias)

    def _form(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("intersection", "difference", "level", "model")}

    def _check(self) -> None:
        forms.check_choice("bias", self.bias, BIASES)
        forms.check_choice("own", self.own, OWN)
        if self.features is not None and self.vectors is not None:
            raise ValueError(
                "features and vectors are both given; features are people's lists, vectors are embeddings: give one."
            )
        for name in ("num_features", "restarts", "steps"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name}={value!r} is not a whole number of 1 or more.")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction={self.validation_fraction!r} is not a share from 0 to below 1.")

    def _table(self, name: str) -> Tensor:
        values = torch.as_tensor(np.asarray(getattr(self, name), dtype=np.float32))
        if values.dim() != 2 or not values.isfinite().all():
            raise ValueError(
                f"{name} must be a table of finite numbers, [N, columns]; its shape is {tuple(values.shape)}."
            )
        if name == "features" and (values < 0).any():
            raise ValueError(
                f"features must be 0 or more, such as how many people listed each; {values.min():g} is given."
            )
        if name == "vectors":
            values = (values - values.mean(0)) / values.std(0).clamp_min(1e-6) / math.sqrt(values.shape[1]) * 2
        return values

    def _settings(self) -> dict[str, Any]:
        from .progress import bar

        l2 = None if self.l2 == "auto" else (self.l2,) if isinstance(self.l2, int | float) else tuple(self.l2)
        shown = bar("fitting") if self.verbose else None
        settings = {"restarts": self.restarts, "steps": self.steps, "lr": self.learning_rate, "ordinal": self.ordinal}
        return {**settings, "l2": l2, "progress": shown}

    def _restarts(self) -> Params:
        return {name: t[0] for name, t in self.fitted_.params.items()}

    def _is_symmetric(self) -> bool:
        table = self.judgements_.table()
        both = ~np.isnan(table) & ~np.isnan(table.T)
        return bool(np.allclose(table[both], table.T[both]))

    def _read(self) -> None:
        """What the best restart found, as attributes."""
        p = self._restarts()
        alpha, theta = p["alpha"], p["theta"]
        beta = p.get("beta", alpha)
        self.restarts_ = {
            "alpha": alpha.numpy(),
            "beta": beta.numpy(),
            "theta": theta.numpy(),
            "loss": self.fitted_.each[0],
        }
        best = int(self.fitted_.each[0].argmin())
        self.best_restart_ = best
        self.alpha_, self.beta_, self.theta_ = float(alpha[best]), float(beta[best]), float(theta[best])
        objects, features, apart = self._vectors(best)
        self.objects_: Array = objects.numpy()
        self.features_: Array = features.numpy()
        self.distinctive_: Array = self.features_ if apart is None else apart.numpy()
        self.bias_ = None
        if "r" in p:
            self.bias_ = p["r"][best].numpy() if "s" not in p else torch.stack([p["r"][best], p["s"][best]]).numpy()
        bank = FeatureBank(*self.features_.shape)
        with torch.no_grad():
            bank.weight.copy_(torch.tensor(self.features_))
        if self.feature_names is not None:
            bank.note(Notes(dict(enumerate(map(str, self.feature_names)))))
        constants: dict[str, Any] = {"alpha": self.alpha_, "beta": self.beta_, "parametrization": "plain"}
        if self.model == "contrast":
            constants["theta"] = self.theta_
        self.layer_ = TverskySimilarity(self.features_.shape[1], features=bank, **constants, **self._form())

    def _vectors(self, best: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Objects and bank of a restart, and the bank of distinctive features where it is another."""
        p = {name: t[best : best + 1] for name, t in self._restarts().items()}
        if self.features is not None:
            bank = torch.diag(given.weights_of(p, "v", "scale")[0])
            other = torch.diag(given.weights_of(p, "v2", "scale2")[0]) if self.own == "common+distinctive" else None
            return self._table("features"), bank, other
        if self.vectors is not None:
            vectors = self._table("vectors")
            return torch.cat([vectors, torch.ones(len(vectors), 1)], 1), p["F"][0], None
        if self.dim is None:
            return p["A"][0], torch.eye(self.num_features), None
        return p["X"][0], p["F"][0], None

    def _pairs(self, X: Any) -> tuple[Array, Array]:
        return places(self.names_, X)
