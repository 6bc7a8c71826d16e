"""TverskyClassifier: one Tversky projection as a scikit-learn estimator, with defaults for raw tabular data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from . import fitting, tabular
from .explain import Explanation, explain
from .nn import TverskyProjection
from .pooling import ClassPooling

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import unique_labels
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError("TverskyClassifier needs scikit-learn ≥ 1.6: pip install 'similitude[sklearn]'.") from error

if TYPE_CHECKING:
    from .bank import Pruned, Usage

FEWEST_STEPS, PASSES = 300, 20
# Rows whose similarities are computed at once.
AT_ONCE = 2**14
# What a classifier pickled by version 0.1.0 was made with.
BEFORE: dict[str, Any] = dict(start="random", presence=0.1, bank_rate=1.0, prototypes_per_class=1, pooling="max")
# Times that a fit looks at its validation share and, if verbose, reports.
LOOKS = 50
# Steps after which partial_fit begins to slow down, by one over their root.
SLOWING = 10


class TverskyClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier: each class is a prototype, and a row belongs to the most similar one.

    Rows are standardised. Each feature has a threshold; after a random start it is the weight of a constant 1 beside
    the columns of rows and prototypes. Prototypes start at the means of their classes, features at random directions,
    and α, β, θ such that the similarities of a row to the classes have a standard deviation of about 1. The ratio model
    keeps α = β = 0.5 and has no weight decay.

    Args:
        num_features: K, the number of features.
        prototypes_per_class: Number of prototypes of each class, which start at the means of its clusters.
        pooling: Similarity to a class of several prototypes: "max" is that to the most similar one, "logsumexp" counts
            all.
        start: Where features start: "random" directions; "k-means", directions that the rows cluster around, each with
            a threshold; or "mixed", half from k-means, half random ones and their opposites; each row has one of two.
            Rows that are all equal have random ones; so have rows that lack a class, where "mixed" is asked for.
        presence: Fraction of the rows that has each feature at a start from k-means.
        bank_rate: Learning rate of the features and thresholds, as a multiple of ``learning_rate``.
        intersection: As TverskyProjection's.
        difference: As TverskyProjection's.
        level: As TverskyProjection's.
        model: As TverskyProjection's.
        normalize: As TverskyProjection's.
        max_iter: Steps of AdamW; "auto" is 20 passes over the rows, and at least 300 steps.
        batch_size: Rows in a step.
        learning_rate: Learning rate at the start. In ``fit`` it falls to 0 along a cosine; in ``partial_fit`` it falls
            as one over the root of the steps.
        weight_decay: AdamW's weight decay.
        label_smoothing: Share of each target that is spread over all classes.
        early_stopping: Whether to hold out ``validation_fraction`` of the rows and compute the loss on them 50 times
            during a fit. The fit stops when the loss has not fallen for ``n_iter_no_change`` of these times, and takes
            the parameters with the lowest loss.
        validation_fraction: Share of the rows that early stopping holds out.
        n_iter_no_change: Patience of early stopping, in looks at the held-out loss.
        random_state: Seed; the same seed gives the same classifier.
        verbose: Whether to print the loss 50 times during a fit.
        device: Where the classifier trains and predicts.

    Attributes:
        classes_: The classes, in the order of prototypes.
        start_: Where the features started, "mixed", "k-means" or "random".
        presence_: Fraction of the rows that had each feature from k-means at the start; None at a random one.
        prototypes_: ``(classes × prototypes_per_class, columns)``, in the units of X; those of a class are neighbours.
        features_: ``(features, columns)``, in the units of X. The measures of X are ``X @ features_.T - thresholds_``.
        thresholds_: ``(features,)``.
        alpha_: α; ``beta_`` and ``theta_`` are β and θ.
        bias_: A number added to the similarities to each prototype.
        layer_: The TverskyProjection.
        pooling_: The ClassPooling behind it.
        gain_: Factor of the similarities; 1 in the contrast model.
        scaler_: The StandardScaler.
        loss_curve_: Loss of each step.
        n_iter_: Number of steps.
    """

    n_features_in_: int

    def __init__(
        self,
        num_features: int = 128,
        *,
        prototypes_per_class: int = 1,
        pooling: str = "max",
        start: str = "random",
        presence: float = 0.1,
        bank_rate: float = 1.0,
        intersection: str = "product",
        difference: str = "ignorematch",
        level: str = "feature",
        model: str = "contrast",
        normalize: bool = False,
        max_iter: int | str = "auto",
        batch_size: int = 128,
        learning_rate: float = 0.03,
        weight_decay: float = 1.0,
        label_smoothing: float = 0.02,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        random_state: Any = None,
        verbose: bool = False,
        device: str = "cpu",
    ):
        self.num_features = num_features
        self.prototypes_per_class = prototypes_per_class
        self.pooling = pooling
        self.start = start
        self.presence = presence
        self.bank_rate = bank_rate
        self.intersection = intersection
        self.difference = difference
        self.level = level
        self.model = model
        self.normalize = normalize
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.label_smoothing = label_smoothing
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.random_state: Any = random_state
        self.verbose = verbose
        self.device = device

    @fitting.or_unchanged
    def fit(self, X, y, sample_weight=None) -> TverskyClassifier:
        """The classifier, trained from the start.

        Args:
            X: Rows, ``(n, columns)``.
            y: Their classes, ``(n,)``.
            sample_weight: Weight of each row, ``(n,)``, 0 or more.
        """
        tabular.check_settings(self)
        X, y, weights = self._rows(X, y, sample_weight, reset=True)
        classes, targets = np.unique(y, return_inverse=True)
        if len(X) <= self.batch_size:
            X, targets, weights = tabular.merged(X, targets, weights)
        random = check_random_state(self.random_state)
        rows, held = np.full(len(X), True), None
        if self.early_stopping:
            rows = ~tabular.held_out(X, targets, self.validation_fraction, random)
        self.classes_, self.scaler_, self._random = classes, StandardScaler(), random
        tabular.measure(self.scaler_, X[rows], weights[rows])
        self._choose_start(X[rows], targets[rows])
        batch = self._batch(X[rows], targets[rows], weights[rows])
        if self.early_stopping:
            held = self._batch(X[~rows], targets[~rows], weights[~rows])
        usual = max(FEWEST_STEPS, PASSES * math.ceil(len(batch[0]) / self.batch_size))
        steps = usual if self.max_iter == "auto" else self.max_iter
        with fitting.threads(self.batch_size * self.num_features * X.shape[1]):
            self._start(*batch)
            self._train(batch, int(steps), held, annealed=True)
        return self

    @fitting.or_unchanged
    def partial_fit(self, X, y, classes=None, sample_weight=None) -> TverskyClassifier:
        """The classifier after one more pass over these rows.

        Rows are standardised by the means and variances of all the rows given so far.

        Args:
            X: Rows, ``(n, columns)``.
            y: Their classes, ``(n,)``.
            classes: All the classes; the first call needs them.
            sample_weight: Weight of each row, ``(n,)``, 0 or more.
        """
        tabular.check_settings(self)
        first = not hasattr(self, "layer_")
        if first and classes is None:
            raise ValueError("the first call of partial_fit must name all the classes: partial_fit(X, y, classes=...).")
        X, y, weights = self._rows(X, y, sample_weight, reset=first)
        if first:
            self.classes_, self._random = unique_labels(classes), check_random_state(self.random_state)
            self.scaler_ = StandardScaler()
        elif classes is not None and not np.array_equal(unique_labels(classes), self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}; got {unique_labels(classes)}.")
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y must be of the classes {self.classes_}; got {unknown[0]!r}.")
        if not first:
            X, weights = (a.astype(self.prototypes_.dtype, copy=False) for a in (X, weights))
        tabular.measure(self.scaler_, X, weights)
        if first:
            self._choose_start(X, y)
        batch = self._batch(X, np.searchsorted(self.classes_, y), weights)
        with fitting.threads(self.batch_size * self.num_features * X.shape[1]):
            if first:
                self._start(*batch)
            self._train(batch, math.ceil(len(X) / self.batch_size), None, annealed=False)
        return self

    def objects(self, X: Any) -> Tensor:
        """Rows as ``layer_`` takes them: standardised and, after a random start, with a 1 in a last column."""
        check_is_fitted(self)
        rows: Any = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return self._objects(rows).to(self.layer_.prototypes.dtype)

    @torch.no_grad()
    def _similarities(self, X, take: Callable[[Tensor], Tensor] = lambda similarities: similarities) -> Tensor:
        """What ``take`` returns of the similarities, part by part of the rows."""
        tabular.check_device(self.device)
        objects, device = self.objects(X), torch.device(self.device)
        layer, found = self.layer_ if device.type == "cpu" else copy.deepcopy(self.layer_).to(device), []
        with fitting.threads(min(len(objects), AT_ONCE) * layer.features.weight.numel()):
            for (part,) in fitting.parts(len(layer.prototypes), objects, most=AT_ONCE):
                similarities = self.pooling_(self.gain_ * layer(part.to(device)).cpu())
                if not similarities.isfinite().all():
                    raise ValueError("similarities of rows so far from the mean overflow: scale X.")
                found.append(take(similarities))
        return torch.cat(found)

    def decision_function(self, X: Any) -> np.ndarray:
        """Similarity of each row to each class, ``(n, classes)``.

        With two classes it is the similarity to the second minus that to the first, ``(n,)``.
        """
        found = self._similarities(X)
        return (found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found).numpy()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class, ``(n, classes)``: the softmax of the similarities."""
        return self._similarities(X, lambda similarities: similarities.softmax(-1)).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """The most similar class of each row, ``(n,)``."""
        found = self._similarities(X, lambda similarities: similarities.argmax(-1))
        return self.classes_[found.numpy()]

    def explain(
        self, X: Any, label: Any = None, top: int = 6, feature_names: Sequence[str] | None = None
    ) -> list[Explanation] | Explanation:
        """An Explanation of each row's similarity to a class; a single one if X is a single row.

        Args:
            X: Rows, ``(n, columns)``, or one row, ``(columns,)``; in a Pipeline those that its other steps return.
            label: The class to explain, by default the predicted one.
            top: Number of features that are printed.
            feature_names: A name for each feature; by default those of ``feature_names()``.
        """
        check_is_fitted(self)
        if (hasattr(X, "columns") or hasattr(X, "to_frame")) and not hasattr(self, "feature_names_in_"):
            raise ValueError(
                "X has names of columns and fit got none: in a Pipeline give the rows that its other steps return, "
                "pipe[:-1].transform(X)."
            )
        one = np.ndim(X) == 1
        if one:
            X = X.to_frame().T if hasattr(X, "to_frame") else np.reshape(X, (1, -1))
        prototype = None
        if label is not None:
            matches = np.flatnonzero(self.classes_ == label)
            if not len(matches):
                raise ValueError(f"label must be one of the classes {self.classes_}; got {label!r}.")
            prototype = int(matches[0])
        names = self.feature_names() if feature_names is None else feature_names
        classes = [str(c) for c in self.classes_]
        model = nn.Sequential(self.layer_, self.pooling_)
        found = [explain(model, x, prototype, top, names, classes) for x in self.objects(X)]
        return found[0] if one else found

    def feature_names(self) -> list[str] | None:
        """Each feature by the two columns that weigh most in it; None without names of columns or if one has a name."""
        given = getattr(self, "feature_names_in_", None)
        return None if given is None or self.layer_.features.names else tabular.by_columns(self._directions(), given)

    def usage(self, X: Any) -> Usage:
        """How many of the rows have each feature, and which features are dead or duplicates; see bank.usage."""
        check_is_fitted(self)
        return self.layer_.features.usage(self.objects(X))

    def prune(self, X: Any, fold: bool = False) -> Pruned:
        """What was removed: the features that neither rows nor prototypes have.

        Args:
            X: Rows, ``(n, columns)``.
            fold: Whether features that only prototypes have are removed too; see bank.prune.
        """
        check_is_fitted(self)
        return self.layer_.prune(self.objects(X), fold=fold)

    @property
    def prototypes_(self) -> np.ndarray:
        return self.scaler_.inverse_transform(fitting.array(self.layer_.prototypes)[:, : self.n_features_in_])

    @property
    def features_(self) -> np.ndarray:
        return self._directions() / self.scaler_.scale_

    @property
    def thresholds_(self) -> np.ndarray:
        weight, threshold = self.layer_.features.cut()
        return self.features_ @ self.scaler_.mean_ + fitting.array(-weight[:, -1] if threshold is None else threshold)

    alpha_ = property(lambda self: self.layer_.alpha.item())
    beta_ = property(lambda self: self.layer_.beta.item())
    theta_ = property(lambda self: self.layer_.theta.item())

    @property
    def bias_(self) -> np.ndarray:
        assert self.layer_.bias is not None
        return fitting.array(self.layer_.bias)

    def _rows(self, X: Any, y: Any, sample_weight, reset: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """X, y and weights, checked, without the rows of weight 0."""
        checked: Any = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=reset)
        return tabular.counted(checked[0], checked[1], sample_weight)

    def __setstate__(self, state: dict[str, Any]) -> None:
        fitted = {"start_": "random", "presence_": None, "pooling_": ClassPooling()} if "layer_" in state else {}
        super().__setstate__({**BEFORE, **fitted, **state})

    def _choose_start(self, X: np.ndarray, y: np.ndarray) -> None:
        """``start_``; rows that are all equal cluster nowhere, and those of some classes say nothing of the others."""
        lacking = self.start == "mixed" and len(np.unique(y)) < len(self.classes_)
        self.start_: str = self.start if (X[0] != X).any() and not lacking else "random"
        if self.verbose:
            print(tabular.told_start(self.start_, self.presence))

    def _objects(self, X: np.ndarray) -> Tensor:
        z = torch.from_numpy(np.asarray(self.scaler_.transform(X), dtype=X.dtype))
        # Without thresholds the weight of a constant takes their place.
        return nn.functional.pad(z, (0, 1), value=1.0) if self.start_ == "random" else z

    def _directions(self) -> np.ndarray:
        """The features, ``(features, columns)``, in standard deviations of the columns."""
        return fitting.array(self.layer_.features.weight)[:, : self.n_features_in_]

    def _batch(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Objects, targets and weights of mean 1, on the device."""
        weights = weights / weights.mean()
        tensors = (self._objects(X), torch.from_numpy(np.asarray(targets, dtype=np.int64)), torch.from_numpy(weights))
        x, y, w = (t.to(self.device) for t in tensors)
        return x, y, w

    def _start(self, x: Tensor, targets: Tensor, weights: Tensor) -> None:
        """``layer_``, ``pooling_`` and ``gain_`` with their starting values."""
        K, D, each = int(self.num_features), x.shape[1], int(self.prototypes_per_class)
        clustered = self.start_ != "random"
        options: dict[str, Any] = {
            # Constants start from the data here, and are steps of an optimizer of our own.
            "init": "unit",
            "parametrization": "plain",
            "presence": float(self.presence) if clustered else None,
            # An α or β that falls below 0 brings the ratio model's denominator to 0.
            "learnable": self.model == "contrast",
            **{n: getattr(self, n) for n in ("intersection", "difference", "level", "model", "normalize")},
        }
        # Starting values should not advance torch's generator.
        with torch.random.fork_rng(devices=[]):
            layer = TverskyProjection(
                D, len(self.classes_) * each, K, bias=True, device=x.device, dtype=x.dtype, **options
            )
            self.gain_ = fitting.start(layer, each, x, targets, weights, self._random, tabular.STARTS[self.start_])
        self._moments, self.n_iter_ = {}, 0
        self.presence_: float | None = options["presence"]
        self.layer_: TverskyProjection = layer
        self.pooling_ = ClassPooling(each, self.pooling)
        self.loss_curve_: list[float] = []

    def _train(self, batch: tuple, steps: int, held: tuple | None, annealed: bool) -> None:
        """Makes ``steps`` of AdamW, over shuffled rows again and again."""
        layer = self.layer_.to(batch[0].device)
        # In the contrast model decay only softens the similarities; it would push the ratio model towards 0/0.
        decay = self.weight_decay if layer.model == "contrast" else 0.0
        optimizer, left = fitting.optimizer_of(layer, self.bank_rate, decay, self._moments), []
        stop = fitting.EarlyStopping(layer, self.n_iter_no_change)
        every = max(1, steps // LOOKS)
        for step in range(steps):
            share = (1 + math.cos(math.pi * step / steps)) / 2 if annealed else (1 + self.n_iter_ / SLOWING) ** -0.5
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate * group["rate"] * share
            left = left or fitting.shuffled(self._random, batch, self.batch_size)
            loss = self._step(optimizer, *left.pop())
            if (step + 1) % every and step + 1 < steps:
                continue
            told = f"step {step + 1} of {steps}  loss {loss:.4f}"
            if held is not None:
                found = self._held_loss(*held)
                told += f"  validation loss {found:.4f}"
                stop.look(found)
            if self.verbose:
                print(told)
            if stop.due:
                break
        stop.restore()
        if not all(parameter.isfinite().all() for parameter in layer.parameters()):
            self._diverged("are not finite before")
        # On the CPU, so that a pickle opens on a machine without the device.
        layer.cpu()
        state = optimizer.state_dict()["state"]
        self._moments = {i: {name: t.cpu() for name, t in of.items()} for i, of in state.items()}

    def _step(self, optimizer: torch.optim.Optimizer, x: Tensor, targets: Tensor, weights: Tensor) -> float:
        """The loss on these rows, before the step of the optimizer on it."""
        optimizer.zero_grad()
        similarities = self._classes(x)
        loss, gradient = fitting.loss_of(similarities, targets, weights, self.label_smoothing)
        told = loss.item() / len(x)
        if not math.isfinite(told):
            self._diverged("give no finite loss in")
        similarities.backward(gradient.div_(len(x)))
        optimizer.step()
        if self.start_ == "random":
            with torch.no_grad():
                # Prototypes are objects, and carry the constant that all objects carry.
                self.layer_.prototypes[:, -1] = 1
        self.loss_curve_.append(told)
        self.n_iter_ += 1
        return told

    @torch.no_grad()
    def _held_loss(self, x: Tensor, targets: Tensor, weights: Tensor) -> float:
        """Mean loss of the rows that are held out."""
        parts = fitting.parts(len(self.layer_.prototypes), x, targets, weights)
        losses = [fitting.loss_of(self._classes(x), y, w, self.label_smoothing)[0] for x, y, w in parts]
        return torch.stack(losses).sum().item() / len(x)

    def _classes(self, x: Tensor) -> Tensor:
        """Similarities of objects to the classes."""
        similarities = self.layer_(x)
        return self.pooling_(similarities if self.gain_ == 1 else self.gain_ * similarities)

    def _diverged(self, how: str) -> NoReturn:
        lower = f"learning_rate than {self.learning_rate:g} or weight_decay than {self.weight_decay:g}"
        raise ValueError(f"the parameters {how} step {self.n_iter_ + 1}; try a lower {lower}, or scale X.")
