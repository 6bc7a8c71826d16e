"""TverskySimilarityModel: scikit-learn's manners, honest warnings, and parts that add up to S."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import KFold, cross_val_score

from similitude.human import TverskySimilarityModel, confusions, morse, similarities
from similitude.reproduce.data import people

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUICK = {"restarts": 4, "steps": 120, "random_state": 0}


@pytest.fixture(scope="module")
def fitted() -> TverskySimilarityModel:
    said, _ = people.simulated(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TverskySimilarityModel(24, 8, l2=3e-4, restarts=4, steps=300, random_state=0).fit(said)


def test_it_finds_the_contrast_model_that_made_the_judgements(fitted):
    said, has = people.simulated(0)
    assert fitted.score(said) > 0.95
    assert (fitted.restarts_["alpha"] > fitted.restarts_["beta"]).all()
    from similitude.reproduce.human import auc

    assert (auc(fitted.measures().clip(0), has).max(0) > 0.95).mean() >= 0.9


def test_parts_of_an_explanation_add_up(fitted):
    told = fitted.explain("3", "7")
    assert pytest.approx(sum(told.sums.values()) + told.rest, abs=1e-5) == told.S
    p = {name: t[0, fitted.best_restart_] for name, t in fitted.fitted_.params.items()}
    assert told.rest == pytest.approx(float(p["c"]), abs=1e-4)
    assert told.back == pytest.approx(fitted.explain("7", "3").S, abs=1e-5)
    assert "3 only" in str(told)


def test_the_layer_is_the_model(fitted):
    x = torch.tensor(fitted.objects_)
    S = fitted.layer_(x[3], x[7]).item()
    told = fitted.explain(3, 7)
    assert S + told.rest == pytest.approx(told.S, abs=1e-4)


def test_salience_and_features_are_read_from_measures(fitted):
    salience = fitted.salience()
    assert list(salience.values()) == sorted(salience.values(), reverse=True)
    first = fitted.found()[0]
    assert first.objects[0][1] == pytest.approx(fitted.measures()[:, first.place].max())


def test_it_is_an_estimator_of_scikit_learn(fitted):
    with pytest.raises(NotFittedError):
        TverskySimilarityModel().predict()
    copy = clone(fitted)
    assert copy.get_params()["num_features"] == 24
    assert not hasattr(copy, "layer_")
    random = np.random.default_rng(0)
    a, b = np.triu_indices(12, 1)
    place = random.normal(size=(12, 2))
    y = 5 - np.linalg.norm(place[a] - place[b], axis=1)
    pairs = np.stack([a, b], 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TverskySimilarityModel(12, 3, vectors=place, sides=False, **QUICK)
        scores = cross_val_score(model, pairs, y, cv=KFold(3, shuffle=True, random_state=0))
    assert scores.mean() > 0.5


def test_the_same_seed_gives_the_same_fit():
    said, _ = people.simulated(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (TverskySimilarityModel(**{**QUICK, "steps": 20}).fit(said).predict() for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_symmetric_judgements_do_not_tell_alpha_from_beta():
    random = np.random.default_rng(0)
    table = random.random((8, 8))
    table = (table + table.T) / 2
    for said in (similarities(table), confusions(table)):
        with pytest.warns(UserWarning, match="α and β cannot be told apart"):
            model = TverskySimilarityModel(**QUICK).fit(said)
    assert model.warnings()


@pytest.mark.parametrize(("bias", "advised"), [("none", True), ("object", False)])
def test_a_bias_is_advised_to_those_who_have_none(bias, advised):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TverskySimilarityModel(bias=bias, restarts=2, steps=5, random_state=0).fit(morse())
    model.restarts_ |= {"alpha": np.array([1.0, 2.0]), "beta": np.array([2.0, 1.0])}
    (sentence,) = (one for one in model.warnings() if "restarts disagree" in one)
    assert ("bias='object'" in sentence) == advised
    assert sentence.endswith(".")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (np.zeros((6, 6)), "all judgements are the same"),
        (np.full((6, 6), 0.5), "all judgements are the same"),
        (np.random.default_rng(0).random((5, 5)), "fewer than the"),
    ],
    ids=["zeros", "constant", "five objects"],
)
def test_data_that_cannot_tell_says_so(table, message):
    with pytest.warns(UserWarning, match=message):
        model = TverskySimilarityModel(**QUICK).fit(confusions(table))
    assert np.isfinite(model.predict()).all()


def test_a_summary_has_intervals_and_says_what_is_not_told():
    said = morse()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = TverskySimilarityModel(bias="object", **QUICK).fit(said)
    summary = model.summary(bootstrap=8)
    for value, low, high in summary.constants.values():
        assert low < high
        assert np.isfinite(value)
    assert any("do not tell" in sentence for sentence in summary.warnings) == (0.025 < summary.agree < 0.975)
    assert "range of 8 resampled fits" in str(summary)
    with pytest.raises(ValueError, match="bootstrap=1 is too few"):
        model.summary(bootstrap=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bias": "column"}, "bias must be one of none, object, row"),
        ({"own": "both"}, "own must be one of one, common"),
        ({"restarts": 0}, "restarts=0 is not a whole number"),
        ({"features": -np.ones((36, 2))}, "features must be 0 or more"),
        ({"features": np.ones((4, 2))}, "4 rows of features or vectors are given for 36 objects"),
        ({"features": np.ones((36, 2)), "vectors": np.ones((36, 2))}, "both given"),
        ({"intersection": "mni"}, "mni"),
        ({"validation_fraction": 1.0}, "not a share"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, message):
    said, _ = people.simulated(0)
    with pytest.raises(ValueError, match=message):
        TverskySimilarityModel(**{**QUICK, **settings}).fit(said)


def test_pairs_need_what_was_said_and_known_objects(fitted):
    with pytest.raises(ValueError, match="fit takes judgements"):
        TverskySimilarityModel().fit(np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"pairs of shape \(3, 3\)"):
        TverskySimilarityModel().fit(np.zeros((3, 3)), np.zeros(3))
    with pytest.raises(ValueError, match="'tiger' is not among the 36 objects"):
        fitted.predict([["1", "tiger"]])
