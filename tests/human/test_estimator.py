"""scikit-learn's own checks of an estimator, and what it is read as: a pickle, a universe, a pair."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import RegressorMixin
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_is_fitted, validate_data

from similitude.human import TverskySimilarityModel, confusions, morse

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
# Why a check of tables of numbers does not apply to pairs of objects.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "which pairs stop a fit depends on how many rows there are",
    "check_regressors_train": "its table of numbers has nothing to do with seven objects",
    "check_methods_subset_invariance": "few pairs and many take sums of float32 in another order",
    "check_array_api_input": "needs SCIPY_ARRAY_API",
}


class Placed(TverskySimilarityModel):
    """The model for any table of numbers: its first two columns are cut to places among seven objects."""

    def places(self, X, known):
        table = validate_data(self, X, reset=not known)
        return np.floor(np.abs(np.resize(table.T, (2, len(table))).T)).astype(int) % 7

    def fit(self, X, y=None, sample_weight=None):
        if y is None:
            return super().fit(X, y)
        pairs = self.places(X, known=False)
        columns = self.n_features_in_
        super().fit(pairs, y, sample_weight)
        self.n_features_in_ = columns
        return self

    def predict(self, X=None):
        check_is_fitted(self)
        return super().predict(self.places(X, known=True))

    def score(self, X, y, sample_weight=None):
        return RegressorMixin.score(self, X, y, sample_weight)


@pytest.mark.slow
def test_the_checks_of_scikit_learn_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Placed(8, 3, vectors=np.eye(7), restarts=1, steps=5, random_state=0)
        found = check_estimator(model, expected_failed_checks=EXPECTED, on_fail=None, on_skip=None)
    failed = {one["check_name"]: one["exception"] for one in found if one["status"] == "failed"}
    assert not failed
    assert sum(one["status"] == "passed" for one in found) > 45


def fitted(said=None, **settings):
    return TverskySimilarityModel(restarts=2, steps=15, random_state=0, **settings).fit(
        morse() if said is None else said
    )


def test_a_pickle_predicts_the_same():
    model = fitted(bias="object")
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(), model.predict())
    assert again.family_.name == model.family_.name
    assert not hasattr(pickle.loads(pickle.dumps(TverskySimilarityModel())), "family_")


def test_objects_are_sets_of_their_features():
    has = (np.random.default_rng(0).random((36, 5)) > 0.5).astype(float)
    model = fitted(features=has, feature_names=list("vwxyz"), intersection="min")
    u = model.universe()
    assert u.names == list(morse().objects)
    assert len(u["A"]) == has[0].sum()
    assert len(u("A & B")) == (has[0] * has[1]).sum()
    told, back = model.pair("A", "B"), model.pair("B", "A")
    assert told.similarity == pytest.approx(back.reverse)
    assert told.similarity + model.explain("A", "B").rest == pytest.approx(model.explain("A", "B").S, abs=1e-4)
    shared = [name for name, both in zip("vwxyz", has[0] * has[1]) if both]
    assert all(f"\n  {name} " in str(told) for name in shared)
    with pytest.raises(ValueError, match="two banks"):
        fitted(features=has, own="common+distinctive").pair("A", "B")


def test_the_explorer_opens_a_fitted_model(tmp_path):
    from similitude.reproduce.explored import session_of

    fitted().save(tmp_path)
    session = session_of(str(tmp_path))
    assert session.universe.names == list(morse().objects)
    assert session.content.about["title"] == f"Objects of {tmp_path.name}"


def test_unseen_objects_are_predicted_from_what_is_given():
    """Features made the judgements: weighted features tell those of objects that nobody judged, and others refuse."""
    random = np.random.default_rng(1)
    has = (random.random((11, 4)) < 0.5).astype(float)
    weight = np.array([2.0, 1.0, 0.5, 0.2])
    S = (has * weight) @ has.T
    said = confusions(1 / (1 + np.exp(1 - S)), objects=[f"o{i}" for i in range(11)])
    model = TverskySimilarityModel(features=has, restarts=1, steps=60, random_state=0).fit(said)
    table = model.compare(["weighted dot"], folds="objects", k=3, repeats=1, restarts=1)
    R2 = {row.name: row.measures["R2"] for row in table.rows}
    assert R2["weighted dot"] > 0.7
    assert R2["Tversky"] > 0.7
    with pytest.raises(ValueError, match="'mds' says nothing of unseen objects; there are weighted cosine"):
        model.compare(["mds"], folds="objects", k=4)
    with pytest.raises(ValueError, match="knows an object by its judgements"):
        fitted(said).compare([], folds="objects", k=4)
