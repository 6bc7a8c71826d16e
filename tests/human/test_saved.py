"""A saved model is the model; rows of a comparison are kept, and are done again when anything changes."""

import json
import warnings

import numpy as np
import pytest
import torch

from similitude.human import TverskySimilarityModel, directed, morse, ratings, triplets
from similitude.human import rivals as tables
from similitude.human.saved import NoModel, fitted_in

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUICK = {"restarts": 2, "steps": 20, "random_state": 0}
random = np.random.default_rng(0)
A, B = np.triu_indices(8, 1)
VALUE = random.random(len(A))


def fitted(said, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TverskySimilarityModel(**QUICK | settings).fit(said)


CASES = {
    "confusions": (morse(), {"bias": "row+column"}),
    "raters": (ratings(A, B, VALUE, rater=np.arange(len(A)) % 3), {"ordinal": False}),
    "ordinal": (ratings(A, B, VALUE.round(1)), {"ordinal": True}),
    "features": (
        ratings(A, B, VALUE),
        {
            "features": random.integers(0, 3, (8, 5)),
            "feature_names": list("abcde"),
            "own": "common+distinctive",
            "intersection": "min",
        },
    ),
    "vectors": (directed(A, B, 1 + A), {"vectors": random.normal(size=(8, 3)), "l2": np.float64(0.1)}),
    "triplets": (triplets(A[:20], B[:20], (B[:20] + 1) % 8 + 8 * (A[:20] == (B[:20] + 1) % 8)), {"dim": None}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_is_the_model(case, tmp_path):
    said, settings = CASES[case]
    model = fitted(said, **settings)
    model.save(tmp_path / "new" / "model")
    there = TverskySimilarityModel.load(tmp_path / "new" / "model")
    assert there.names_ == model.names_
    np.testing.assert_array_equal(there.predict(), model.predict())
    np.testing.assert_array_equal(there.measures(), model.measures())
    for name in ("alpha_", "beta_", "theta_", "best_restart_"):
        assert getattr(there, name) == getattr(model, name)
    assert str(there.explain(0, 1)) == str(model.explain(0, 1))
    assert there.score(there.judgements_) == model.score(said)
    assert there.warnings() == model.warnings()
    for name, value in vars(said).items():
        np.testing.assert_array_equal(getattr(there.judgements_, name), value)
    assert fitted_in(tmp_path / "new" / "model", model, said) is not None


def test_another_fit_is_not_taken_for_this_one(tmp_path):
    said = morse()
    model = fitted(said)
    model.save(tmp_path)
    assert fitted_in(tmp_path, TverskySimilarityModel(**QUICK, verbose=True), said) is not None
    for settings in ({"steps": 21}, {"bias": "object"}, {"difference": "ignorematch"}):
        assert fitted_in(tmp_path, TverskySimilarityModel(**QUICK | settings), said) is None
    assert fitted_in(tmp_path, model, said.only(said.value > 0.1)) is None
    assert fitted_in(tmp_path / "nowhere", model, said) is None


def test_a_folder_without_a_model_is_one_sentence(tmp_path):
    with pytest.raises(NoModel, match=r"no model in .*: model\.json is not there"):
        TverskySimilarityModel.load(tmp_path)
    fitted(morse()).save(tmp_path)
    about = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(about | {"format": 9}))
    with pytest.raises(NoModel, match="has format 9; this version reads 1"):
        TverskySimilarityModel.load(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps(about))
    (tmp_path / "model.safetensors").write_bytes(b"half")
    with pytest.raises(NoModel, match="holds no model that can be read"):
        TverskySimilarityModel.load(tmp_path)


def test_the_score_of_choices_is_of_their_shares():
    """S itself has no unit that shares could be told in."""
    model = fitted(directed(A, B, 1 + A), steps=300)
    assert 0 < model.score(model.judgements_) <= 1


@pytest.fixture
def counted(monkeypatch):
    """The names of the families that are fitted."""
    done, fit = [], tables.fit
    monkeypatch.setattr(
        tables, "fit", lambda family, *rest, **settings: done.append(family.name) or fit(family, *rest, **settings)
    )
    return done


def test_a_stopped_comparison_goes_on_and_ends_the_same(counted, tmp_path, monkeypatch):
    model = fitted(morse())
    asked = {"rivals": ["cosine", "dot", "bias only"], "k": 3, "repeats": 1, "restarts": 1, "dims": (2,)}
    whole = model.compare(**asked)
    counted.clear()

    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.compare(**asked, folder=tmp_path, progress=stop)
    assert len(counted) == 3
    assert len(list(tmp_path.glob("*.json"))) == 2
    counted.clear()
    told = []
    again = model.compare(**asked, folder=tmp_path, progress=lambda done, total: told.append((done, total)))
    assert counted == ["cosine", "dot", "constant + row and column bias"]
    assert told[-1][0] == told[-1][1]
    for one, other in zip(whole.rows, again.rows, strict=True):
        assert (one.name, one.parameters, one.measures, one.error) == (
            other.name,
            other.parameters,
            other.measures,
            other.error,
        )
        np.testing.assert_array_equal(one.by_fold, other.by_fold)
    counted.clear()
    assert str(model.compare(**asked, folder=tmp_path)) == str(again)
    assert not counted


@pytest.mark.parametrize(
    "change", [{"k": 4}, {"seed": 1}, {"restarts": 2}, {"dims": (3,)}, "form", "features", "judgements", "broken"]
)
def test_a_row_of_another_comparison_is_done_again(counted, tmp_path, change):
    X = torch.rand(8, 4).numpy()
    other = X.copy()
    other[7, :2] = other[7, 1::-1]
    said = ratings(A, B, VALUE)
    model = fitted(said, features=X, intersection="min")
    asked = {"rivals": ["cosine"], "k": 3, "repeats": 1, "restarts": 1, "dims": (2,), "folder": tmp_path}
    model.compare(**asked)
    both = list(counted)
    counted.clear()
    if change == "form":
        model = fitted(said, features=X, intersection="min", difference="ignorematch")
    elif change == "features":
        model = fitted(said, features=other, intersection="min")
    elif change == "judgements":
        asked["judgements"] = ratings(A, B, VALUE + 0.01)
    elif change == "broken":
        (tmp_path / "cosine.json").write_text("{")
    else:
        asked |= change
    model.compare(**asked)
    ours, rivals = both[:-1], both[-1:]
    again = {"form": ours, "features": ours, "broken": rivals}
    expected = rivals if change == {"dims": (3,)} else again.get(change, both) if isinstance(change, str) else both
    assert counted == expected
