"""Two objects by their common and distinctive features, and decisions that add up to the difference of two outputs."""

import pytest
import torch

import similitude.functional as F
from similitude import TverskyProjection
from similitude.explain import decision, pair, venn


def layer_of(eye: int = 3, **options) -> TverskyProjection:
    """A layer whose features are the axes."""
    layer = TverskyProjection(eye, 2, eye, alpha=0.5, beta=0.25, theta=2.0, **options)
    with torch.no_grad():
        layer.features.weight.copy_(torch.eye(eye))
    return layer


def test_examples_are_ranked_by_the_brute_force_score():
    layer, x = TverskyProjection(6, 3, 12), torch.randn(80, 6)
    a, b = torch.randn(2, 6)
    found = venn(layer, a, b, x, top=5)
    bank = layer.features.weight.detach()
    has = lambda v: {k for k in range(12) if v @ bank[k] > 0}  # noqa: E731
    sets = has(a) - has(b), has(a) & has(b), has(b) - has(a)
    assert all(sets)
    for field, members in zip(found.regions(), sets, strict=True):
        assert set(field.features) == members
        scores = torch.stack([torch.stack([v @ bank[k] for k in members]).sum() for v in x])
        assert field.examples == scores.argsort(descending=True)[:5].tolist()
        assert field.scores == pytest.approx(scores.sort(descending=True).values[:5].tolist(), rel=1e-4)


def test_swapping_the_objects_swaps_the_differences():
    layer, x = TverskyProjection(6, 3, 12, normalize=True), torch.randn(30, 6)
    a, b = torch.randn(2, 6)
    forth, back = venn(layer, a, b, x), venn(layer, b, a, x)
    assert forth.a_only.features == back.b_only.features
    assert forth.a_only.examples == back.b_only.examples
    assert forth.common.examples == back.common.examples


def test_an_empty_set_is_shown_by_nothing():
    x = torch.eye(3)
    found = venn(layer_of(), x[0], x[0] + x[1], x)
    assert found.a_only.features == found.a_only.examples == []
    assert found.b_only.features == [1]
    assert found.b_only.examples[0] == 1
    assert str(found).splitlines()[0] == "A−B: 0 features; best shown by none"


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("difference", F.DIFFERENCES)
@pytest.mark.parametrize("intersection", F.INTERSECTIONS)
def test_a_pair_adds_up_to_its_similarity_both_ways(intersection, difference, normalize):
    options = dict(intersection=intersection, difference=difference, normalize=normalize)
    layer = TverskyProjection(6, 3, 20, alpha=0.7, beta=0.2, dtype=torch.float64, **options)
    a, b = torch.randn(2, 6, dtype=torch.float64)
    found = pair(layer, a, b)
    bank, constants = layer.features.weight, (layer.alpha, layer.beta, layer.theta)
    assert found.similarity == pytest.approx(F.tversky_similarity(a, b, bank, *constants, **options).item())
    assert found.reverse == pytest.approx(F.tversky_similarity(b, a, bank, *constants, **options).item())
    assert (found.common + found.a_only + found.b_only).sum().item() == pytest.approx(found.similarity)


def test_a_pair_prints_each_feature_where_it_belongs():
    layer = layer_of()
    found = pair(layer, torch.tensor([3.0, -1, 5]), torch.tensor([2.0, 4, -1]), names=("seven", "one"))
    assert str(found).splitlines() == [
        "S(seven, one)                              +8.5000",
        "S(one, seven)                              +8.7500",
        "seven ∩ one, 1 feature    seven      one  +12.0000",
        "  feature 0              3.0000   2.0000  +12.0000",
        "seven − one, 1 feature    seven      one   -2.5000",
        "  feature 2              5.0000  -1.0000   -2.5000",
        "one − seven, 1 feature    seven      one   -1.0000",
        "  feature 1             -1.0000   4.0000   -1.0000",
    ]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("difference", F.DIFFERENCES)
@pytest.mark.parametrize("intersection", F.INTERSECTIONS)
def test_a_decision_adds_up_to_the_difference_of_the_outputs(intersection, difference, normalize):
    options = dict(intersection=intersection, difference=difference, normalize=normalize)
    layer = TverskyProjection(6, 5, 20, bias=True, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.bias.normal_()
    x = torch.randn(6, dtype=torch.float64)
    output = layer(x).detach()
    first, second = output.topk(2).indices.tolist()
    found = decision(layer, x)
    assert (found.chosen, found.other) == (first, second)
    assert found.difference == pytest.approx((output[first] - output[second]).item(), abs=1e-12)
    assert found.shares.sum().item() + found.bias == pytest.approx(found.difference, abs=1e-12)
    against = decision(layer, x, chosen=second, other=first)
    torch.testing.assert_close(against.shares, -found.shares)


def test_a_decision_against_a_named_class_takes_the_best_of_the_rest():
    layer, x = TverskyProjection(6, 5, 20), torch.randn(6)
    order = layer(x).argsort(descending=True).tolist()
    assert decision(layer, x, other=order[0]).chosen == order[1]
    assert decision(layer, x, other=order[4]).chosen == order[0]
    assert decision(layer, x, chosen=order[3]).other == order[0]
    names = [f"class {p}" for p in range(5)]
    assert decision(layer, x, other=names[order[0]], prototype_names=names).chosen == order[1]
    with pytest.raises(TypeError, match=r"a whole number or one of class 0, .*; got 'class 9'"):
        decision(layer, x, chosen="class 9", prototype_names=names)


def test_a_decision_prints_all_of_the_difference():
    layer = TverskyProjection(6, 3, 20, bias=True)
    with torch.no_grad():
        layer.bias.normal_()
    names = [f"stroke {k}" for k in range(20)]
    found = decision(layer, torch.randn(6), top=3, feature_names=names, prototype_names=["one", "two", "six"])
    lines = str(found).splitlines()
    word = ["one", "two", "six"]
    assert lines[0].startswith(f"{word[found.chosen]} over {word[found.other]}, by feature")
    assert [line.split("  ")[1] for line in lines[1:4]] == [names[k] for k in found.strongest()]
    shown = [float(line.split()[-1]) for line in lines]
    assert sum(shown[1:]) == pytest.approx(shown[0], abs=3e-4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, x: venn(f, x, x[:2], x[None]), r"b must be one object, a tensor of shape \[3\]; got shape"),
        (lambda f, x: venn(f, x, x, x), r"vectors must be \[N, D\]"),
        (lambda f, x: venn(f, x, x, x[None], top=0), "top must be a whole number"),
        (lambda f, x: pair(f, x, x, feature_names=["one"]), "feature_names must have 3 names; got 1"),
        (lambda f, x: pair(f, x, 3), "b must be one object, .* got int"),
        (lambda f, x: decision(f, x, 1, 1), "must be two classes; got 1 twice"),
        (lambda f, x: decision(f, x, 9), "prototype must be from 0 to 1; got 9"),
        (lambda f, x: decision(f, x[None]), "x must be one object"),
        (lambda _, x: decision(TverskyProjection(3, 1, 3), x), "no runner-up"),
        (lambda _, x: decision(layer_of(level="set"), x), "only level='feature'"),
        (lambda _, x: pair(layer_of(model="ratio"), x, x), "only level='feature'"),
    ],
)
def test_wrong_input_gets_one_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call(layer_of(), torch.rand(3))
