"""Everything that explains takes what a caller has: layers, similarities, converted models, classifiers, Pipelines."""

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from similitude import TverskyProjection, TverskySimilarity, convert
from similitude.estimator import TverskyClassifier
from similitude.explain import decision, explain, pair, venn
from similitude.interpret.sets import Universe
from similitude.reach import one, seen


@pytest.fixture(scope="module")
def table():
    generator = np.random.default_rng(0)
    y = generator.integers(3, size=90)
    return generator.normal(size=(90, 5)) + 3 * np.eye(5)[y], np.array(["ant", "bee", "cat"])[y]


@pytest.fixture(scope="module")
def classifier(table):
    return TverskyClassifier(16, random_state=0, max_iter=20).fit(*table)


@pytest.fixture(scope="module")
def pipeline(table):
    return make_pipeline(StandardScaler(), TverskyClassifier(16, random_state=0, max_iter=20)).fit(*table)


@pytest.fixture
def converted():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    convert(model, "2", num_features=12)
    return model.train()


def test_a_converted_model_is_explained_for_its_own_input(converted):
    x = torch.randn(9, 6)
    layer, vectors = converted[2], converted[:2](x).detach()
    assert str(explain(converted, x[0])) == str(layer.explain(vectors[0]))
    assert str(decision(converted, x[0])) == str(decision(layer, vectors[0]))
    assert str(pair(converted, x[0], x[1])) == str(pair(layer, vectors[0], vectors[1]))
    assert str(venn(converted, x[0], x[1], x)) == str(venn(layer, vectors[0], vectors[1], vectors))
    assert converted.training


def test_a_layer_is_named_where_a_model_has_several():
    model = nn.Sequential(TverskyProjection(6, 5, 9), TverskyProjection(5, 4, 9))
    x = torch.randn(6)
    with pytest.raises(ValueError, match="name one of them with layer=: 0, 1"):
        decision(model, x)
    assert str(decision(model, x, layer="1")) == str(decision(model[1], model[0](x).detach()))


def test_a_classifier_is_explained_for_a_row_and_names_its_classes(classifier, table):
    X, _ = table
    layer, objects = classifier.layer_, classifier.objects(X[:2])
    found = decision(classifier, X[0])
    assert found.difference == decision(layer, objects[0]).difference
    assert {found.for_chosen.prototype_name, found.for_other.prototype_name} < {"ant", "bee", "cat"}
    assert decision(classifier, X[0], "ant", "cat").chosen == 0
    assert str(pair(classifier, X[0], X[1])) == str(pair(layer, *objects))
    assert str(venn(classifier, X[0], X[1], X)) == str(venn(layer, *objects, classifier.objects(X)))
    assert explain(classifier, X[0]).similarity == classifier.explain(X[0]).similarity


def test_features_of_a_classifier_have_the_names_of_its_columns_in_every_explanation(table):
    pd = pytest.importorskip("pandas")
    X, y = table
    frame = pd.DataFrame(X, columns=[f"column {j}" for j in range(X.shape[1])])
    classifier = TverskyClassifier(num_features=8, max_iter=5, random_state=0).fit(frame, y)
    names = classifier.feature_names()
    assert all("column" in name for name in names)
    row, other = frame.iloc[[0]], frame.iloc[[1]]
    for found in (explain(classifier, row), decision(classifier, row).for_chosen, pair(classifier, row, other)):
        assert found.feature_names == names
    assert explain(classifier, row, feature_names=list("abcdefgh")).feature_names == list("abcdefgh")
    classifier.layer_.features.name("odd", feature=2)
    assert classifier.feature_names() is None
    assert decision(classifier, row).for_chosen.feature_names == {2: "odd"}


def test_a_pipeline_is_explained_for_rows_as_they_come(pipeline, table):
    X, _ = table
    last, rows = pipeline[-1], pipeline[:-1].transform(X)
    assert str(decision(pipeline, X[0])) == str(decision(last, rows[0]))
    assert str(pair(pipeline, X[0], X[1])) == str(pair(last, rows[0], rows[1]))
    assert explain(pipeline, X[0]).similarity == last.explain(rows[0]).similarity
    assert Universe.of(pipeline).names == ["ant", "bee", "cat"]
    assert torch.equal(Universe.of(pipeline, inputs=X).vectors, Universe.of(last, inputs=rows).vectors)


def test_a_classifier_that_was_fitted_in_a_pipeline_asks_for_transformed_rows(table):
    pandas = pytest.importorskip("pandas")
    X, y = table
    frame = pandas.DataFrame(X, columns=list("abcde"))
    pipe = make_pipeline(StandardScaler(), TverskyClassifier(8, random_state=0, max_iter=2)).fit(frame, y)
    for raw in (frame, frame.iloc[0]):
        with pytest.raises(ValueError, match=r"in a Pipeline give the rows .* pipe\[:-1\].transform\(X\)"):
            pipe[-1].explain(raw)
    expected = pipe[-1].explain(pipe[:-1].transform(frame))[0].similarity
    assert explain(pipe, frame.iloc[0]).similarity == explain(pipe, frame.iloc[[0]]).similarity == expected


def test_a_similarity_explains_a_pair_and_adds_up():
    similarity = TverskySimilarity(6, 14)
    a, b = torch.randn(6), torch.randn(6)
    found = similarity.explain(a, b, names=("cat", "dog"))
    assert found.similarity == pytest.approx(similarity(a, b).item(), abs=1e-6)
    assert found.reverse == pytest.approx(similarity(b, a).item(), abs=1e-6)
    assert str(found) == str(pair(similarity, a, b, names=("cat", "dog")))
    assert str(found).startswith("S(cat, dog)")
    data = torch.randn(8, 6)
    layer = TverskyProjection(6, 2, features=similarity.features)
    assert str(venn(similarity, a, b, data)) == str(venn(layer, a, b, data))


def test_a_universe_of_a_similarity_needs_objects():
    similarity, data = TverskySimilarity(6, 14, normalize=True), torch.randn(8, 6)
    found = Universe.of(similarity, list("abcdefgh"), data)
    torch.testing.assert_close(found.vectors, nn.functional.normalize(data, dim=-1))
    assert set(found["a"]) == set((similarity.features(data[0]) > 0).nonzero()[:, 0].tolist())
    with pytest.raises(ValueError, match="a TverskySimilarity has no prototypes"):
        Universe.of(similarity)


def test_an_input_of_several_vectors_is_refused_with_what_to_do():
    model = nn.Sequential(nn.Unflatten(-1, (2, 3)), TverskyProjection(3, 4, 9))
    with pytest.raises(ValueError, match=r"x must be one input .* got 2 vectors"):
        decision(model, torch.randn(6))
    assert seen(model, torch.randn(5, 6))[1].shape == (10, 3)
    with pytest.raises(TypeError, match=r"must be a TverskyProjection or .* got int"):
        one(3, torch.randn(6))


def test_a_decision_is_refused_where_the_layer_is_not_the_head():
    torch.manual_seed(0)
    hidden = nn.Sequential(TverskyProjection(6, 8, 4), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(6)
    with pytest.raises(ValueError, match="tells 8 classes apart and the model answers with 3 numbers"):
        decision(hidden, x)
    assert explain(hidden, x).prototype_measures.shape == (4,)
    turned = nn.Sequential(TverskyProjection(6, 3, 4), nn.Linear(3, 3, bias=False))
    turned[1].weight.data = -torch.eye(3)
    with pytest.raises(ValueError, match="so what follows the layer decides"):
        decision(turned, x)
    softened = nn.Sequential(turned[0], nn.Softmax(-1))
    assert str(decision(softened, x)) == str(decision(turned[0], x))


def test_an_object_that_is_not_finite_is_not_explained():
    layer = TverskyProjection(6, 3, 4)
    for ask in (explain, decision):
        with pytest.raises(ValueError, match="x must be finite to be explained"):
            ask(layer, torch.tensor([1.0, 2, 3, 4, 5, float("nan")]))


def test_a_decision_leaves_held_thresholds_of_a_model_in_training_alone():
    model = nn.Sequential(nn.Linear(6, 6), TverskyProjection(6, 3, 4, presence=0.3, hold=True, bias=True)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    decision(model, torch.randn(6))
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_decision_takes_a_hidden_layer_that_is_named():
    hidden = nn.Sequential(TverskyProjection(6, 8, 4), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(6)
    assert str(decision(hidden, x, layer="0")) == str(decision(hidden[0], x))
