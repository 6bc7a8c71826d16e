"""TverskyClassifier: scikit-learn's own suite, accuracy beside logistic regression, and what it says of itself."""

import pickle
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import InconsistentVersionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.utils._python_dispatch import TorchDispatchMode

from similitude import fitting
from similitude.estimator import TverskyClassifier
from similitude.tabular import STARTS, held_out

IRIS = load_iris(return_X_y=True)


def quick(**options) -> TverskyClassifier:
    return TverskyClassifier(**{"num_features": 16, "max_iter": 60, "random_state": 0, **options})


CHECKED = [{}, {"model": "ratio"}, {"early_stopping": True}, dict(intersection="gmean", level="set", normalize=True)]


# The steps are few, so that a hundred fits take seconds.
@parametrize_with_checks([TverskyClassifier(num_features=32, max_iter=30, **options) for options in CHECKED])
def test_scikit_learn_checks(estimator, check, monkeypatch):
    # Or the check with array API dispatch is skipped.
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([TverskyClassifier(**options) for options in CHECKED])
def test_scikit_learn_checks_with_all_steps(estimator, check):
    check(estimator)


def logistic(X, y, folds) -> float:
    """The better of logistic regression on standardised and on raw columns."""
    standardised = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    raw = LogisticRegression(max_iter=5000)
    return max(cross_val_score(model, X, y, cv=folds).mean() for model in (standardised, raw))


def test_digits_are_within_a_point_of_logistic_regression():
    X, y = load_digits(return_X_y=True)
    found = cross_val_score(TverskyClassifier(random_state=0), X, y, cv=3).mean()
    assert found >= logistic(X, y, 3) - 0.01


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_defaults_suit_other_tables(load):
    X, y = load(return_X_y=True)
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    found = cross_val_score(TverskyClassifier(random_state=0), X, y, cv=folds).mean()
    standardised = make_pipeline(StandardScaler(), LogisticRegression())
    assert found >= cross_val_score(standardised, X, y, cv=folds).mean() - 0.02


@pytest.mark.parametrize(
    "options",
    [
        dict(intersection="min", difference="subtractmatch"),
        dict(intersection="min", difference="subtractmatch", level="set"),
        dict(intersection="softmin", level="set"),
        dict(intersection="mean", model="ratio"),
        dict(model="ratio"),
        dict(normalize=True),
    ],
    ids=str,
)
def test_other_similarities_learn_too(options):
    X, y = load_wine(return_X_y=True)
    model = quick(max_iter=200, **options).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.9


def test_the_ratio_model_does_not_decay():
    X, y = IRIS
    model = TverskyClassifier(model="ratio", level="set", intersection="mean", random_state=0).fit(X[::2], y[::2])
    assert model.score(X[1::2], y[1::2]) > 0.9
    assert (model.alpha_, model.beta_) == (0.5, 0.5)


def test_a_seed_gives_the_same_classifier_and_leaves_torch_alone():
    before = torch.get_rng_state()
    first, second, other = (quick(random_state=s).fit(*IRIS) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first.predict_proba(IRIS[0]), second.predict_proba(IRIS[0]))
    np.testing.assert_array_equal(first.features_, second.features_)
    assert not np.array_equal(first.features_, other.features_)


def test_small_tables_are_fitted_by_one_thread_and_the_number_is_put_back(monkeypatch):
    threads, used = torch.get_num_threads(), []
    train = TverskyClassifier._train
    monkeypatch.setattr(
        TverskyClassifier,
        "_train",
        lambda *args, **kwargs: used.append(torch.get_num_threads()) or train(*args, **kwargs),
    )
    torch.set_num_threads(2)
    try:
        quick(max_iter=2).fit(*IRIS).predict(IRIS[0])
        assert torch.get_num_threads() == 2
        quick(max_iter=2, num_features=2**16).fit(*IRIS)
    finally:
        torch.set_num_threads(threads)
    assert used == [1, 2]


@pytest.mark.parametrize("start", STARTS)
def test_measures_can_be_worked_out_by_hand_in_the_units_of_the_table(start):
    X, y = IRIS
    model = quick(start=start).fit(X, y)
    measures = X @ model.features_.T - model.thresholds_
    found = model.explain(X)
    np.testing.assert_allclose(measures, np.stack([e.input_measures for e in found]), atol=1e-9)
    # Prototypes have no threshold but after a random start.
    zero = model.thresholds_ if start == "random" else model.scaler_.mean_ @ model.features_.T
    theirs = model.prototypes_ @ model.features_.T - zero
    a, b = np.maximum(measures, 0)[:, None], np.maximum(theirs, 0)[None]
    similarity = model.theta_ * (a * b).sum(-1) - model.alpha_ * (a * (b == 0)).sum(-1)
    similarity += model.bias_ - model.beta_ * (b * (a == 0)).sum(-1)
    np.testing.assert_allclose(model.decision_function(X), similarity, atol=1e-9)
    assert model.prototypes_.shape == (3, 4)
    assert model.features_.shape == (16, 4)


@pytest.mark.parametrize("model", ["contrast", "ratio"])
def test_prototypes_start_at_the_means_of_their_classes_and_similarities_spread_by_one(model):
    X, y = IRIS
    weights = np.random.RandomState(0).uniform(0.1, 2, len(y))
    found = quick(max_iter=1, learning_rate=1e-12, model=model).fit(X, y, weights)
    for c, prototype in enumerate(found.prototypes_):
        np.testing.assert_allclose(prototype, np.average(X[y == c], axis=0, weights=weights[y == c]), atol=1e-6)
    out = found.decision_function(X)
    means = np.average(out, axis=0, weights=weights)
    np.testing.assert_allclose(means, means.mean(), atol=1e-6)
    unbiased = out - found.gain_ * found.bias_
    apart = np.average((unbiased - unbiased.mean(1, keepdims=True)) ** 2, axis=0, weights=weights)
    assert apart.mean() ** 0.5 == pytest.approx(1, rel=1e-6)


def test_explanations_name_the_class_and_add_up():
    X, y = IRIS
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    model = quick().fit(X, labels)
    found = model.explain(X[:3], top=2)
    assert [e.prototype_name for e in found] == model.predict(X[:3]).tolist()
    for explanation, row in zip(found, model.decision_function(X[:3])):
        total = sum(part.sum().item() for _, part in explanation.parts()) + explanation.bias
        assert total == pytest.approx(row.max())
    one = model.explain(X[0], label="virginica", feature_names=[f"f{k}" for k in range(16)])
    assert one.prototype_name == "virginica"
    assert one.similarity == pytest.approx(model.decision_function(X[:1])[0, 2])
    assert "f" in str(one)
    with pytest.raises(ValueError, match=r"label must be one of the classes .* got 'rose'"):
        model.explain(X[0], label="rose")


def test_features_are_named_by_the_columns_of_a_table():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(IRIS[0], columns=["sepal length", "sepal width", "petal length", "petal width"])
    model = quick().fit(table, IRIS[1])
    assert model.feature_names_in_.tolist() == table.columns.tolist()
    explanation = model.explain(table.iloc[70])
    k = 5
    weight = model.features_[k] * IRIS[0].std(0)
    first, second = np.argsort(-np.abs(weight))[:2]
    signs = ["+" if weight[d] > 0 else "−" for d in (first, second)]
    assert explanation.feature_names[k] == f"5: {signs[0]}{table.columns[first]} {signs[1]}{table.columns[second]}"


def test_early_stopping_takes_the_best_of_its_looks(capsys):
    rng = np.random.RandomState(0)
    X = rng.standard_normal((80, 10))
    y = (X[:, 0] + 2 * rng.standard_normal(80) > 0).astype(int)
    model = quick(max_iter=400, early_stopping=True, n_iter_no_change=3, validation_fraction=0.25, verbose=True)
    model.fit(X, y)
    started, *lines = capsys.readouterr().out.splitlines()
    assert started == "starts from random directions"
    losses = [float(line.split()[-1]) for line in lines]
    assert lines[0].startswith("step 8 of 400  loss ")
    best = int(np.argmin(losses))
    assert len(lines) == best + 4 < 50
    assert model.n_iter_ == 8 * len(lines) == len(model.loss_curve_)
    # What the kept parameters lose on the rows that were held back, worked out again: a quarter, of each class alike.
    held = held_out(X, y, 0.25, np.random.RandomState(0))
    assert held.sum() == 20
    assert abs(y[held].mean() - y.mean()) < 0.05
    logits = model._similarities(X[held])
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(y[held]), label_smoothing=0.02).item()
    assert loss == pytest.approx(losses[best], abs=1e-4)


def test_without_verbose_nothing_is_printed(capsys):
    quick().fit(*IRIS)
    assert capsys.readouterr().out == ""


def test_partial_fit_learns_from_pieces_and_goes_on_after_a_pickle():
    X, y = load_digits(return_X_y=True)
    X, y = X.astype(np.float32), y
    order = np.random.RandomState(0).permutation(len(X))
    train, test = order[:1400], order[1400:]
    model = TverskyClassifier(random_state=0)
    for turn in range(5):
        for part in np.array_split(train, 5):
            model.partial_fit(X[part], y[part], classes=range(10))
            if turn == 2:
                model = pickle.loads(pickle.dumps(model))
    assert model.n_iter_ == 5 * 5 * 3
    assert model.score(X[test], y[test]) > 0.93
    np.testing.assert_allclose(model.scaler_.mean_, X[train].mean(0), atol=1e-3)
    # Rows of another precision are taken as they are.
    model.partial_fit(X[train[:50]].astype(np.float64), y[train[:50]])


def test_a_pickle_between_two_pieces_changes_nothing():
    X, y = IRIS
    models = [quick().partial_fit(X, y, classes=[0, 1, 2]) for _ in range(2)]
    models[1] = pickle.loads(pickle.dumps(models[1]))
    found = [model.partial_fit(X, y).predict_proba(X) for model in models]
    np.testing.assert_array_equal(*found)
    assert models[0]._moments[0]["step"] == 4


def test_a_classifier_pickled_by_an_earlier_version_answers_the_same():
    X, y = IRIS
    with open(Path(__file__).with_name("classifier-0.1.0.pickle"), "rb") as file, warnings.catch_warnings():
        # Of another version of scikit-learn's own scaler.
        warnings.simplefilter("ignore", InconsistentVersionWarning)
        saved = pickle.load(file)
    model = saved["model"]
    np.testing.assert_allclose(model.decision_function(X[::10]), saved["similarities"], atol=1e-9)
    np.testing.assert_allclose(model.thresholds_, saved["thresholds"], atol=1e-12)
    assert (model.start_, model.presence_, model.get_params()["start"]) == ("random", None, "random")
    assert clone(model).fit(X, y).score(X, y) > 0.9
    assert model.explain(X[0]).prototype_name == "0"
    assert model.partial_fit(X, y).n_iter_ == 62


def test_partial_fit_goes_on_where_fit_ended():
    X, y = IRIS
    model = quick(max_iter=200).fit(X, y)
    before = model.prototypes_
    model.partial_fit(X, y)
    assert model.n_iter_ == 202
    assert 0 < np.abs(model.prototypes_ - before).max() < 0.2


def test_a_class_that_comes_later_is_learned():
    X, y = IRIS
    model = quick(start="mixed").partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    for _ in range(100):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.9
    # Its rows had no part in the start.
    assert model.start_ == "random"
    assert quick(start="mixed").partial_fit(X, y, classes=[0, 1, 2]).start_ == "mixed"


def test_weights_count_rows_as_often_as_they_say():
    X, y = IRIS
    weights = np.random.RandomState(0).randint(0, 4, len(y))
    weighted = quick(batch_size=1000).fit(X, y, sample_weight=weights)
    repeated = quick(batch_size=1000).fit(X.repeat(weights, 0), y.repeat(weights))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-7)


def test_clones_searches_and_pickles_work():
    X, y = IRIS
    model = quick(intersection="min")
    assert clone(model).get_params() == model.get_params()
    search = GridSearchCV(model, {"num_features": np.array([4, 8]), "max_iter": np.arange(20, 40, 10)}, cv=2).fit(X, y)
    assert search.best_score_ > 0.5
    fitted = search.best_estimator_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
def test_the_loss_and_its_gradient_are_those_of_cross_entropy(smoothing):
    torch.manual_seed(0)
    similarities = (5 * torch.randn(7, 4, dtype=torch.float64)).requires_grad_()
    targets, weights = torch.randint(4, (7,)), torch.rand(7, dtype=torch.float64)
    loss, gradient = fitting.loss_of(similarities, targets, weights, smoothing)
    each = torch.nn.functional.cross_entropy(similarities, targets, reduction="none", label_smoothing=smoothing)
    (weights @ each).backward()
    torch.testing.assert_close(loss, weights @ each.detach())
    torch.testing.assert_close(gradient, similarities.grad)


def test_single_precision_stays_single():
    X, y = IRIS
    model = quick().fit(X.astype(np.float32), y)
    assert model.predict_proba(X.astype(np.float32)).dtype == np.float32
    assert model.prototypes_.dtype == np.float32
    assert model.predict(X).shape == (150,)


@pytest.mark.parametrize("start", STARTS)
def test_usage_and_pruning_keep_the_answers(start):
    X, y = load_digits(return_X_y=True)
    model = quick(num_features=256, max_iter=100, start=start).fit(X[:500], y[:500])
    before, used = model.decision_function(X[:500]), model.usage(X[:500])
    assert used.objects == 500
    np.testing.assert_allclose(used.presence, (X[:500] @ model.features_.T > model.thresholds_).mean(0), atol=1e-9)
    bank = model.layer_.features
    with torch.no_grad():
        # Nobody has a feature whose only part is the constant, with a minus, or one behind a high threshold.
        if start == "random":
            bank.weight[7] = -torch.eye(65, dtype=torch.float64)[-1]
        else:
            bank.threshold[7] = 1e6
    before = model.decision_function(X[:500])
    found = model.prune(X[:500], fold=True)
    assert 7 in found.removed
    np.testing.assert_allclose(model.decision_function(X[:500]), before, atol=1e-12)


def test_learning_goes_on_after_pruning_and_growing():
    X, y = IRIS
    model = quick().fit(X, y)
    model.layer_.features.grow(500)
    model.partial_fit(X, y)
    assert model.features_.shape == (516, 4)
    assert [m["exp_avg"].shape for m in model._moments.values()] == [p.shape for p in model.layer_.parameters()]
    assert model._moments[0]["step"] == 2


SETTINGS = {
    "num_features": (0, "num_features must be a whole number of 1 or more; got 0."),
    "batch_size": (2.5, "batch_size must be a whole number of 1 or more; got 2.5."),
    "max_iter": ("all", "max_iter must be one of auto; got 'all'."),
    "learning_rate": (0, "learning_rate must be a number above 0; got 0."),
    "weight_decay": (-1.0, "weight_decay must be a number of 0 or more; got -1.0."),
    "label_smoothing": (2, "label_smoothing must be a number from 0 to 1; got 2."),
    "validation_fraction": (1.0, "validation_fraction must be a number between 0 and 1; got 1.0."),
    "intersection": (
        "produkt",
        "intersection must be one of product, min, max, mean, gmean, softmin; got 'produkt'. Did you mean 'product'?",
    ),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_one_clear_sentence_and_leaves_what_was_fitted(setting):
    X, y = IRIS
    value, message = SETTINGS[setting]
    model = quick(max_iter=2).fit(X, y)
    before = model.predict_proba(X)
    model.set_params(**{setting: value})
    with pytest.raises(ValueError) as error:  # noqa: PT011
        model.fit(X[:, :2], y)
    assert str(error.value) == message
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_partial_fit_wants_its_classes_first_and_no_others():
    X, y = IRIS
    with pytest.raises(ValueError, match="must name all the classes"):
        quick().partial_fit(X, y)
    model = quick().partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ValueError, match=r"classes must be those of the first call, \[0 1 2\]; got \[0 1\]"):
        model.partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"y must be of the classes \[0 1 2\]; got"):
        model.partial_fit(X, y + 1)


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    for module in list(sys.modules):
        if module == "similitude.estimator" or module.split(".")[0] == "sklearn":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match=r"pip install 'similitude\[sklearn\]'"):
        import similitude.estimator  # noqa: F401


def test_what_is_not_fitted_has_no_usage():
    with pytest.raises(NotFittedError):
        TverskyClassifier().usage(np.ones((2, 3)))


def test_values_without_a_variance_are_refused():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match=r"within ±1e\+150.*got 7.9e\+200: scale it"):
        TverskyClassifier().fit(X * 1e200, y)


class Largest(TorchDispatchMode):
    """Numbers in the largest tensor that was made."""

    found = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for x in made if isinstance(made, list | tuple) else [made]:
            self.found = max(self.found, x.numel() if isinstance(x, torch.Tensor) else 0)
        return made


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("early_stopping", [False, True])
def test_no_table_of_all_rows_by_all_classes_is_made(monkeypatch, early_stopping, start):
    N, P = 3000, 1500
    X, y = np.random.RandomState(0).standard_normal((N, 4)), np.arange(N) % P
    whole = quick(max_iter=2, early_stopping=early_stopping, start=start).fit(X, y)
    monkeypatch.setattr(fitting, "AT_ONCE", 2**16)
    with Largest() as largest:
        parted = quick(max_iter=2, early_stopping=early_stopping, start=start).fit(X, y)
        found = parted.predict(X)
    assert largest.found < N * P / 10
    np.testing.assert_array_equal(found, whole.predict(X))
    np.testing.assert_allclose(parted.predict_proba(X), whole.predict_proba(X), atol=1e-9)


def test_rows_that_are_held_out_leave_a_row_of_each_class_and_do_not_part_equal_rows():
    random = np.random.RandomState(0)
    X = random.randint(0, 9, (60, 2)).astype(float)
    for y in (np.arange(60) % 20, np.r_[np.zeros(59, int), 1], np.arange(60) % 2):
        held = held_out(X, y, 0.1, np.random.RandomState(1))
        assert held.any()
        assert set(y[~held]) == set(y)
        rows = {tuple(row) for row in np.column_stack([X, y])[held]}
        assert not rows & {tuple(row) for row in np.column_stack([X, y])[~held]}
        # Neither the order of rows nor how often they come matters.
        order = random.permutation(np.arange(60).repeat(random.randint(1, 4, 60)))
        assert {
            tuple(r)
            for r in np.column_stack([X, y])[order][held_out(X[order], y[order], 0.1, np.random.RandomState(1))]
        } == rows


def test_nothing_can_be_held_out_of_one_row_a_class():
    with pytest.raises(
        ValueError, match=r"^early_stopping holds rows out, .* got n_samples=3 of 3 classes: use early_s"
    ):
        quick(early_stopping=True).fit(IRIS[0][[0, 60, 120]], [0, 1, 2])


UNHEALTHY = {
    "weights of 1e300": (
        dict(),
        1e300,
        "f8",
        r"sample weights must be 0, or from 1e-146 to 1e\+146; got 1e\+300: divide",
    ),
    "weights of 1e-300": (
        dict(),
        1e-300,
        "f8",
        r"sample weights must be 0, or from 1e-146 to 1e\+146; got 1e-300: divide",
    ),
    "large single weights": (
        dict(),
        1e19,
        "f4",
        r"sample weights must be 0, or from 1e-18 to 1e\+18; got 1e\+19: divide",
    ),
    "a large rate": (
        dict(learning_rate=1e10),
        1,
        "f8",
        r"no finite loss in step \d+; try a lower learning_rate than 1e\+10",
    ),
    "in the last step": (
        dict(max_iter=1, learning_rate=1e30, weight_decay=1e30),
        1,
        "f4",
        "are not finite before step",
    ),
    "much decay": (dict(weight_decay=1e100), 1, "f8", r"no finite loss in step 2; try .* or weight_decay than 1e\+100"),
    "a rate beyond floats": (dict(learning_rate=10**400), 1, "f8", "learning_rate must be a number above 0; got 10000"),
    "no such device": (dict(device="tpu"), 1, "f8", r"device='tpu' cannot be used here \(.*\); use device='cpu'\.$"),
}


@pytest.mark.parametrize("case", UNHEALTHY)
def test_what_would_end_in_nan_is_one_sentence_and_leaves_what_was_fitted(case):
    X, y = IRIS
    options, weight, dtype, message = UNHEALTHY[case]
    model = quick().fit(X, y)
    before = model.predict_proba(X)
    model.set_params(**options)
    with pytest.raises(ValueError, match=message) as error:
        model.fit(X.astype(dtype), y, sample_weight=np.full(150, weight))
    assert "\n" not in str(error.value)
    model.set_params(**quick().get_params())
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.n_iter_ == len(model.loss_curve_) == 60


def test_a_part_that_cannot_be_learned_leaves_what_was_learned_before():
    X, y = IRIS
    models = [quick().fit(X, y) for _ in range(2)]
    with pytest.raises(ValueError, match=r"no finite loss in step \d+"):
        models[0].set_params(weight_decay=1e100, batch_size=10).partial_fit(X * 2, y)
    models[0].set_params(**models[1].get_params())
    found = [model.partial_fit(X, y).predict_proba(X) for model in models]
    np.testing.assert_array_equal(*found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_sentence_to_fit_and_to_predict():
    model = quick(max_iter=2).fit(*IRIS).set_params(device="cuda")
    for call in (lambda: model.fit(*IRIS), lambda: model.predict(IRIS[0]), lambda: model.partial_fit(*IRIS)):
        with pytest.raises(ValueError, match=r"^device='cuda' cannot be used here \(.*\); use device='cpu'\.$"):
            call()


def test_rows_too_large_to_predict_are_one_sentence():
    X, y = IRIS
    model = quick(max_iter=2).fit(X.astype(np.float32), y)
    for call in (model.predict, model.predict_proba, model.decision_function):
        with pytest.raises(ValueError, match=r"similarities of rows .* overflow: scale X\.$"):
            call((X * 4e37).astype(np.float32))


def test_rows_and_weights_that_overflow_together_are_one_sentence():
    X, y = IRIS
    with pytest.raises(
        ValueError, match=r"^X times its sample weights has no variance; got 7\.9e\+140 in X: scale it\.$"
    ):
        quick().fit(X * 1e140, y, np.full(150, 1e145))
