"""Salience over a data set: the ranking, its correlation with form, and the vectors that a model's layer sees."""

import math

import pytest
import torch
from torch import nn

import similitude.functional as F
from similitude import TverskyProjection, convert
from similitude.interpret import salience
from similitude.models.mnist import TverskyMNISTNet, VisualMNISTNet, VisualTverskyMNISTNet
from similitude.shares import measures


def bars(*sizes: tuple[int, int], side: int = 28) -> torch.Tensor:
    """Images of one bar each, of so many rows and columns."""
    images = torch.zeros(len(sizes), side, side)
    for image, (height, width) in zip(images, sizes, strict=True):
        image[2 : 2 + height, 3 : 3 + width] = 1
    return images


def test_a_ranking_is_the_order_of_eq_2():
    layer, x = TverskyProjection(6, 3, 10), torch.randn(50, 6)
    found = salience.rank(layer, x)
    by_hand = torch.stack([sum((v @ f).relu() for f in layer.features.weight) for v in x])
    torch.testing.assert_close(found.salience, by_hand.detach())
    assert found.order.tolist() == by_hand.argsort().tolist()
    assert found.lowest(3).tolist() == found.order[:3].tolist()
    assert found.highest(3).tolist() == found.order.flip(0)[:3].tolist()


def test_a_layer_that_normalizes_ranks_what_it_sees():
    layer, x = TverskyProjection(6, 3, 10, normalize=True), torch.randn(20, 6)
    scaled = x * torch.rand(20, 1).add(0.1)
    torch.testing.assert_close(salience.rank(layer, x).salience, salience.rank(layer, scaled).salience)
    torch.testing.assert_close(
        measures(layer, x).relu().sum(-1), F.salience(nn.functional.normalize(x), layer.features.weight)
    )


def test_a_large_data_set_is_ranked_in_parts(monkeypatch):
    layer, x = TverskyProjection(6, 3, 10), torch.randn(50, 6)
    whole = salience.rank(layer, x).salience
    monkeypatch.setattr(salience, "ELEMENTS", 70)
    torch.testing.assert_close(salience.rank(layer, x).salience, whole)


def test_classes_are_ranked_by_themselves():
    layer, x, labels = TverskyProjection(6, 3, 10), torch.randn(40, 6), torch.arange(40) % 4
    found = salience.rank(layer, x, labels)
    for c in range(4):
        own = found.of(c)
        assert sorted(own.tolist()) == list(range(c, 40, 4))
        assert found.salience[own].diff().ge(0).all()
        assert found.highest(1, c).item() == own[-1]
    assert str(found).count("\n") == 5
    with pytest.raises(ValueError, match=r"no example has label 7; there are \[0, 1, 2, 3\]"):
        found.of(7)
    with pytest.raises(ValueError, match="has no labels"):
        salience.rank(layer, x).of(0)


def test_a_strip_goes_from_the_lowest_to_the_highest_in_even_steps():
    found = salience.rank(TverskyProjection(6, 3, 10), torch.randn(101, 6))
    assert found.strip(11).tolist() == found.order[::10].tolist()
    assert found.strip(500).tolist() == found.order.tolist()
    assert found.strip(1).tolist() == [found.order[0]]


def test_ink_is_the_mean_and_width_that_of_a_bar():
    images = bars((20, 1), (20, 3), (4, 20))
    assert salience.ink(images).tolist() == pytest.approx([20 / 784, 60 / 784, 80 / 784])
    # 2Lw / (2L + 2w), less the corner that forward differences count once.
    by_hand = [2 * h * w / (2 * h + 2 * w - 2 + math.sqrt(2)) for h, w in ((20, 1), (20, 3), (4, 20))]
    assert salience.stroke_width(images).tolist() == pytest.approx(by_hand)
    assert salience.stroke_width(images[:, None] * 0.5).tolist() == pytest.approx(by_hand)
    assert salience.stroke_width(torch.zeros(1, 28, 28)).tolist() == [0]


def test_what_looks_like_its_class_is_typical():
    images = torch.cat([bars((20, 3)).repeat(9, 1, 1), bars((3, 20))])
    found = salience.typicality(images, torch.zeros(10))
    assert found[:9].min() > 0.9
    assert found[9] < 0.5


def test_spearman_is_the_correlation_of_mean_ranks():
    from scipy.stats import spearmanr

    a, b = torch.randint(0, 6, (200,)), torch.randn(200)
    b = b + a
    assert salience.spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert salience.spearman(b, b.exp()) == pytest.approx(1)
    assert salience.spearman(b, -b) == pytest.approx(-1)
    assert math.isnan(salience.spearman(torch.ones(5), torch.rand(5)))


def test_form_tells_classes_apart_from_what_is_within_them():
    """Class 1 has more of both salience and ink, and within each class they go against each other."""
    bank = TverskyProjection(1, 1, 1)
    with torch.no_grad():
        bank.features.weight.fill_(1)
    labels = torch.arange(40) // 20
    steps = torch.arange(40) % 20
    images = bars(*((int(1 + c * 20), int(1 + s)) for c, s in zip(labels, steps, strict=True)))
    ranking = salience.rank(bank, (100.0 * labels - steps + 50)[:, None], labels)
    found = salience.form(ranking, images[:, None], step=steps.float())
    assert found.overall["ink"] > 0.4
    assert found.by_class[0]["ink"] == pytest.approx(-1)
    assert found.within("ink") == pytest.approx(-1)
    assert found.by_class[1]["step"] == pytest.approx(-1)
    assert set(found.overall) == {"ink", "stroke width", "typicality", "step"}
    assert [line.split("  ")[0] for line in str(found).splitlines()[1:]] == list(found.overall)
    constant = salience.form(ranking, images, constant=torch.ones(40))
    assert str(constant).splitlines()[-1].split() == ["constant", "–", "–", "–", "–"]


def test_a_data_domain_network_is_seen_through_its_encoder():
    net, x = VisualTverskyMNISTNet(5), torch.rand(7, 1, 28, 28)
    layer, vectors = salience.seen(net, x)
    assert net.training
    assert layer.features.num_features == 5
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(vectors), net(x))
    with pytest.raises(TypeError, match="linear head has no features"):
        salience.seen(VisualMNISTNet(), x)


def test_a_model_is_seen_at_its_layer_in_eval_mode():
    net, x = TverskyMNISTNet(5, dropout=0.9), torch.rand(7, 1, 28, 28)
    layer, vectors = salience.seen(net, x)
    assert net.training
    assert layer is net.head
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, torch.zeros(7)), 3)
    torch.testing.assert_close(salience.seen(net, batches)[1], vectors)
    net.eval()
    with torch.no_grad():
        torch.testing.assert_close(layer(vectors), net(x))
    assert not net.head._forward_pre_hooks


def test_a_converted_frozen_backbone_is_seen_at_its_new_head():
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
    convert(model, "3", num_features=6, start="weights", freeze=True)
    x = torch.randn(9, 12)
    layer, vectors = salience.seen(model, x)
    torch.testing.assert_close(vectors, model[0](x).relu())
    assert len(salience.rank(layer, vectors).order) == 9


def test_inputs_may_have_names_on_the_way():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = TverskyProjection(4, 2, 3)

        def forward(self, values, scale=1.0):
            return self.head(x=values * scale)

    x = torch.randn(5, 4)
    assert torch.equal(salience.seen(Model(), {"values": x, "scale": 2.0})[1], 2 * x)


@pytest.mark.parametrize(("start", "width"), [("mixed", 4), ("random", 5)])
def test_a_classifier_is_seen_at_its_layer(start, width):
    pytest.importorskip("sklearn")
    from similitude.estimator import TverskyClassifier

    X, y = torch.randn(60, 4).numpy(), (torch.arange(60) % 3).numpy()
    model = TverskyClassifier(8, max_iter=5, random_state=0, start=start).fit(X, y)
    layer, vectors = salience.seen(model, X)
    assert vectors.shape == (60, width)
    assert (layer(vectors).argmax(-1).numpy() == model.predict(X)).all()


def test_one_of_several_layers_is_named():
    model = nn.Sequential(TverskyProjection(6, 5, 4), TverskyProjection(5, 3, 4))
    x = torch.randn(2, 7, 6)
    layer, vectors = salience.seen(model, x, "1")
    assert layer is model[1]
    torch.testing.assert_close(vectors, model[0](x).reshape(14, 5))
    for wrong, words in ((None, "this model has several Tversky layers"), ("2", "no Tversky layer is named '2'")):
        with pytest.raises(ValueError, match=f"{words}; name one of them with layer=: 0, 1"):
            salience.seen(model, x, wrong)


def test_a_model_of_ours_is_seen_at_its_head_unless_a_layer_is_named():
    pytest.importorskip("transformers")
    from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    sizes = dict(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=8, num_features=5)
    model, x = TverskyGPT2LMHeadModel(TverskyGPT2Config(**sizes, variant="all-1layer")), torch.arange(6).view(2, 3)
    layer, vectors = salience.seen(model, x)
    assert layer is model.lm_head
    with torch.no_grad():
        torch.testing.assert_close(vectors, model.eval().transformer(x).last_hidden_state.view(6, 8))
    named = "transformer.h.1.mlp.projection"
    assert salience.seen(model, x, named)[0] is model.get_submodule(named)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda layer: salience.rank(layer, torch.rand(3, 5)), "same width D"),
        (lambda layer: salience.rank(layer, torch.rand(6)), r"vectors must be \[N, D\]"),
        (lambda layer: salience.rank(layer, torch.rand(0, 6)), "one row or more"),
        (lambda layer: salience.rank(layer, torch.rand(3, 6), torch.zeros(4)), r"labels must be \[3\]"),
        (lambda layer: salience.form(salience.rank(layer, torch.rand(3, 6)), torch.rand(2, 8, 8)), "as many as were"),
        (lambda _: salience.ink(torch.rand(28, 28)), r"images must be a tensor \[N, ..., H, W\]; got shape \[28, 28\]"),
        (lambda _: salience.seen(nn.Linear(3, 3), torch.rand(2, 3)), "no TverskyProjection in this Linear"),
        (lambda _: salience.seen("net", torch.rand(2, 3)), "model must be .* got str"),
        (lambda layer: salience.seen(layer, []), "there are no inputs"),
        (lambda layer: salience.seen(layer, 3), "inputs must be a tensor"),
        (lambda layer: salience.seen(layer, torch.rand(2, 6).numpy()), "got ndarray: give torch.as_tensor"),
        (lambda layer: salience.seen(layer, torch.rand(2, 3)), "same width D"),
        (lambda _: salience.spearman(torch.rand(3), torch.rand(4)), "of one length"),
    ],
)
def test_wrong_input_gets_one_sentence(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call(TverskyProjection(6, 3, 10))
