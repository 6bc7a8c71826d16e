"""Several prototypes a class: the pooling, how it trains, and explanations that name the prototype that won."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

from similitude import TverskyProjection
from similitude.estimator import TverskyClassifier
from similitude.explain import decision, explain
from similitude.pooling import POOLINGS, ClassPooling
from similitude.tabular import STARTS

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])


def rings(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Two classes of two clusters each, at the corners of a square that lie across from each other."""
    random = np.random.RandomState(0)
    corner = random.randint(0, 4, n)
    means = np.array([[1, 1], [-1, -1], [1, -1], [-1, 1]])
    return means[corner] + 0.3 * random.standard_normal((n, 2)), corner // 2


def quick(**options) -> TverskyClassifier:
    usual = {"num_features": 16, "max_iter": 60, "random_state": 0, "prototypes_per_class": 3}
    return TverskyClassifier(**{**usual, **options})


@parametrize_with_checks(
    [quick(max_iter=30, num_features=32, pooling=pooling, start=s) for pooling in POOLINGS for s in STARTS]
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    check(estimator)


def test_a_class_is_as_similar_as_its_most_similar_prototype():
    similarities = torch.tensor([[1.0, 5.0, 2.0, 3.0], [4.0, 0.0, -1.0, -2.0]])
    assert ClassPooling(2)(similarities).tolist() == [[5, 3], [4, -1]]
    soft = ClassPooling(2, "logsumexp")(similarities)
    np.testing.assert_allclose(soft, similarities.exp().view(2, 2, 2).sum(-1).log(), rtol=1e-6)
    assert ClassPooling(2)(similarities[0]).tolist() == [5, 3]
    assert ClassPooling(2).winners(similarities).tolist() == [[1, 3], [0, 2]]
    assert ClassPooling(2).name(3, "seven") == "seven (2 of 2)"


def test_one_prototype_a_class_is_the_class():
    similarities = torch.randn(5, 4)
    for pooling in POOLINGS:
        assert torch.equal(ClassPooling(1, pooling)(similarities), similarities)
        assert ClassPooling(1, pooling).winners(similarities).tolist() == [list(range(4))] * 5
    assert ClassPooling().name(3, "seven") == "seven"


@pytest.mark.parametrize("pooling", POOLINGS)
def test_gradients_of_a_pooling_are_right_and_shared_at_a_tie(pooling):
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ClassPooling(3, pooling), x)
    tied = torch.zeros(2, requires_grad=True)
    ClassPooling(2, pooling)(tied).sum().backward()
    assert tied.grad.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ClassPooling(0), "prototypes_per_class must be"),
        (lambda: ClassPooling(2, "maks"), "pooling must be one of max, logsumexp; got 'maks'. Did you mean 'max'?"),
        (
            lambda: ClassPooling(2)(torch.zeros(4, 3)),
            r"similarities must be \[..., a multiple of 2\], 2 prototypes for each class; got shape \[4, 3\]\.",
        ),
        (lambda: quick(pooling="mean").fit(X, Y), "pooling must be one of max, logsumexp; got 'mean'"),
        (
            lambda: quick(start="kmeans").fit(X, Y),
            "start must be one of mixed, k-means, random; got 'kmeans'. Did you mean",
        ),
        (
            lambda: quick(prototypes_per_class=0).fit(X, Y),
            "prototypes_per_class must be a whole number of 1 or more; g",
        ),
        (lambda: quick(presence=1.0).fit(X, Y), r"presence must be a number between 0 and 1; got 1\.0"),
        (lambda: quick(bank_rate=-1).fit(X, Y), "bank_rate must be a number of 0 or more; got -1"),
    ],
)
def test_wrong_options_are_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_clusters_of_a_class_get_prototypes_of_their_own(pooling):
    points, classes = rings()
    options = dict(prototypes_per_class=2, pooling=pooling, max_iter=1, learning_rate=1e-12)
    found = quick(**options).fit(points, classes)
    assert found.prototypes_.shape == (4, 2)
    assert found.bias_.shape == (4,)
    for c, corners in enumerate([[[-1, -1], [1, 1]], [[-1, 1], [1, -1]]]):
        own = sorted(found.prototypes_[2 * c : 2 * c + 2].tolist())
        np.testing.assert_allclose(own, corners, atol=0.15)
    model = quick(prototypes_per_class=2, pooling=pooling).fit(points, classes)
    assert model.score(points, classes) > 0.95
    assert model.decision_function(points).shape == (400,)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("start", ["random", "k-means"])
def test_explanations_name_the_prototype_that_won_and_add_up(pooling, start):
    model = quick(pooling=pooling, start=start).fit(X, NAMES[Y])
    rows = X[::10]
    similarities = model.gain_ * model.layer_(model.objects(rows)).detach().numpy().reshape(len(rows), 3, 3)
    out, chosen = model.decision_function(rows), model.predict(rows)
    for i, told in enumerate(model.explain(rows)):
        c = int(np.flatnonzero(chosen[i] == NAMES)[0])
        won = int(similarities[i, c].argmax())
        assert told.prototype_name == f"{chosen[i]} ({won + 1} of 3)"
        assert told.prototype == 3 * c + won
        assert told.similarity == pytest.approx(out[i, c])
        assert told.shares().sum().item() + told.bias + told.others == pytest.approx(out[i, c])
        assert (told.others == 0) == (pooling == "max")
    told = model.explain(X[0], label="virginica")
    assert told.prototype_name.startswith("virginica (")
    assert ("other prototypes" in str(told)) == ("other prototypes" in told._repr_html_()) == (pooling == "logsumexp")


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_decision_is_between_classes_and_adds_up(pooling):
    model = quick(pooling=pooling).fit(X, NAMES[Y])
    for row, out in zip(X[::7], model.decision_function(X[::7])):
        told = decision(model, row)
        first, second = np.argsort(-out, kind="stable")[:2]
        assert (told.chosen, told.other) == (first, second)
        assert told.difference == pytest.approx(out[first] - out[second])
        assert told.shares.sum().item() + told.bias + told.others == pytest.approx(told.difference)
        assert told.for_chosen.prototype_name.startswith(NAMES[first] + " (")
    told = decision(model, X[0], "virginica", "versicolor")
    assert (told.chosen, told.other) == (2, 1)
    with pytest.raises(ValueError, match="one prototype has no runner-up"):
        decision(nn.Sequential(TverskyProjection(4, 3, 8), ClassPooling(3)), torch.ones(4))


def test_a_network_that_ends_in_a_pooling_is_explained_by_classes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), TverskyProjection(5, 6, 16, bias=True), ClassPooling(2)).double()
    x = torch.randn(4, dtype=torch.float64)
    told = explain(model, x, prototype_names=list("abc"))
    out = model(x)
    assert told.similarity == pytest.approx(out.max().item())
    assert told.prototype_name[0] == "abc"[int(out.argmax())]
    with pytest.raises(ValueError, match="prototype_names must have 3 names; got 6"):
        explain(model, x, prototype_names=list("abcdef"))
    with pytest.raises(ValueError, match="prototype must be from 0 to 2; got 3"):
        explain(model, x, 3)


def test_a_layer_by_itself_is_explained_by_its_prototypes():
    model = quick().fit(X, Y)
    told = explain(model.layer_, model.objects(X[:1])[0], prototype=7)
    assert (told.prototype, told.prototype_name, told.others) == (7, None, 0)


@pytest.mark.parametrize("start", STARTS)
def test_clones_pickles_and_pieces_keep_the_pooling(start):
    model = quick(pooling="logsumexp", start=start)
    assert clone(model).get_params() == model.get_params()
    models = [clone(model).partial_fit(X, Y, classes=[0, 1, 2]) for _ in range(2)]
    models[1] = pickle.loads(pickle.dumps(models[1]))
    found = [one.partial_fit(X, Y).predict_proba(X) for one in models]
    np.testing.assert_array_equal(*found)
    assert models[1].pooling_.pooling == "logsumexp"
    assert models[1].start_ == start


def test_a_class_with_few_rows_has_prototypes_that_differ():
    rows, classes = np.array([[0.0, 1.0], [1.0, 0.0], [3.0, 3.0], [3.5, 3.0]]), [0, 1, 1, 1]
    found = quick(max_iter=1, learning_rate=1e-12).fit(rows, classes).prototypes_
    assert len(np.unique(found.round(6), axis=0)) == 6
    late = quick().partial_fit(X[Y < 2], Y[Y < 2], classes=[0, 1, 2])
    for _ in range(100):
        late.partial_fit(X, Y)
    assert late.score(X, Y) > 0.9


def test_a_start_from_k_means_has_thresholds_that_its_presence_exceeds():
    model = quick(prototypes_per_class=1, start="k-means", presence=0.2, max_iter=1, learning_rate=1e-12).fit(X, Y)
    share = (model.thresholds_ < X @ model.features_.T).mean(0)
    np.testing.assert_allclose(share, 0.2, atol=0.02)
    assert (model.start_, model.presence_) == ("k-means", 0.2)
    length = np.linalg.norm(model.features_ * model.scaler_.scale_, axis=1)
    np.testing.assert_allclose(length, 1, atol=1e-6)
    assert model.objects(X).shape == (150, 4)
    out = model.decision_function(X)
    assert ((out - out.mean(1, keepdims=True) - out.mean(0) + out.mean()) ** 2).mean() ** 0.5 == pytest.approx(
        1, rel=0.1
    )
    random = quick(start="random").fit(X, Y)
    assert (random.start_, random.presence_) == ("random", None)


@pytest.mark.parametrize("features", [16, 7])
def test_a_mixed_start_is_half_k_means_and_half_directions_that_every_row_has_one_of(features):
    options = {"num_features": features, "presence": 0.2, "max_iter": 1, "learning_rate": 1e-12}
    model = quick(prototypes_per_class=1, start="mixed", **options).fit(X, Y)
    assert (model.start_, model.presence_) == ("mixed", 0.2)
    has = model.thresholds_ < X @ model.features_.T
    own = features // 2
    np.testing.assert_allclose(has[:, :own].mean(0), 0.2, atol=0.02)
    turns = (features - own) // 2
    directions = model.features_[own:] * model.scaler_.scale_
    np.testing.assert_allclose(directions[-turns:], -directions[:turns], atol=1e-6)
    np.testing.assert_allclose(model.thresholds_[own:], model.features_[own:] @ X.mean(0), atol=1e-6)
    assert (has[:, own : own + turns] ^ has[:, -turns:]).all()
    # Those of k-means alone leave rows without any.
    assert not has[:, :own].any(1).all()


def test_rows_that_are_all_equal_start_at_random(capsys):
    model = quick(start="k-means", verbose=True).fit(np.ones((6, 2)), [0, 0, 0, 1, 1, 1])
    assert model.start_ == "random"
    assert capsys.readouterr().out.startswith("starts from random directions\n")
    quick(start="k-means", verbose=True).fit(X, Y)
    assert capsys.readouterr().out.startswith("starts from k-means directions, and a presence of 0.1\n")
    quick(start="mixed", verbose=True).fit(X, Y)
    told = "starts from k-means directions, half of them, and random ones, half, and a presence of 0.1\n"
    assert capsys.readouterr().out.startswith(told)


def test_the_bank_learns_at_its_own_rate():
    start, slow, full = (
        quick(start="k-means", bank_rate=rate, max_iter=2, weight_decay=0.0).fit(X, Y) for rate in (0.0, 0.1, 1.0)
    )
    moved = [np.abs(model.features_ - start.features_).max() for model in (slow, full)]
    assert 0 < moved[0] < 0.3 * moved[1]
    still = [np.abs(model.prototypes_ - start.prototypes_).max() for model in (slow, full)]
    assert max(still) < moved[1]
    model = pickle.loads(pickle.dumps(quick(start="k-means", bank_rate=0.1).partial_fit(X, Y, classes=[0, 1, 2])))
    model.partial_fit(X, Y)
    assert {int(m["step"]) for m in model._moments.values()} == {4}
