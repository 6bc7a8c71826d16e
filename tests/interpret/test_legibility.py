"""How legible features are: the measure finds what is there, and no more than that."""

import numpy as np
import pytest
import torch
from torch import nn

from similitude import FeatureBank, TverskyProjection, TverskySimilarity
from similitude.explain import decision
from similitude.interpret import legibility, matching
from similitude.interpret.legibility import FEWEST, halves
from similitude.shares import measures as measures_of
from similitude.shares import shares_of

N, D = 2000, 64


def bank_of(weight: torch.Tensor, threshold: torch.Tensor | float = 0.0) -> FeatureBank:
    """A bank with these features and thresholds."""
    bank = FeatureBank(*weight.shape, presence=0.1)
    with torch.no_grad():
        bank.weight.copy_(weight)
        bank.threshold.copy_(torch.as_tensor(threshold).expand(len(weight)))
    return bank


def planted(J: int = 8, share: float = 0.1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Objects with J sparse independent attributes, each a direction of its own, and the directions."""
    g = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(D, D, generator=g)).Q[:J]
    has = torch.rand(N, J, generator=g) < share
    return has.float() @ (3 * directions) + 0.3 * torch.randn(N, D, generator=g), has, directions


def normal(seed: int = 0, n: int = N) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed))


def test_planted_attributes_are_recovered_by_their_features():
    x, has, directions = planted()
    others = normal(1, 20)
    found = legibility(bank_of(torch.cat([others, directions]), 1.5), x, (has, list("abcdefgh")))
    assert found.layer.recovered == 1
    assert found.layer.mcc.min() > 0.98
    assert found.layer.probe.min() > 0.9
    assert found.layer.auc.min() > 0.99
    assert found.layer.feature.tolist() == list(range(20, 28))
    assert found.ceiling.mcc.min() > 0.98
    assert found.names == list("abcdefgh")


def test_shuffled_attributes_are_not_recovered_and_random_directions_hardly():
    x, has, directions = planted(J=32)
    found = legibility(bank_of(torch.cat([directions, -directions]), 1.5), x, has)
    assert found.layer.recovered == 1
    assert found.shuffled.recovered == 0
    assert found.shuffled.mcc.abs().max() < 0.15
    assert (found.shuffled.auc - 0.5).abs().max() < 0.15
    assert found.random.mcc.mean() < 0.5 * found.layer.mcc.mean()
    assert found.random.recovered == 0


def test_impurity_is_what_lacks_the_attribute_that_a_feature_is_named_after():
    x, has, directions = planted()
    bank = bank_of(torch.cat([directions, normal(1, 4)]), 1.5)
    bank.name("a", feature=0)
    bank.name("b", feature=9)  # a random direction
    bank.name("nothing of the kind", feature=1)
    found = legibility(bank, x, (has, list("abcdefgh")))
    assert sorted(found.impurity) == ["a", "b"]
    assert found.impurity["a"] < 0.02
    assert found.impurity["b"] == pytest.approx(found.lacking["b"], abs=0.1)
    assert found.lacking["b"] == pytest.approx(0.9, abs=0.03)
    members = x @ bank.weight[9].detach() > 1.5
    assert found.impurity["b"] == pytest.approx((members & ~has[:, 1]).sum().item() / members.sum().item())
    assert found.summary()["impurity"] == pytest.approx(sum(found.impurity.values()) / 2)
    assert "named features: 46% of the objects that have one lack the attribute, and 89% of all objects do" in str(
        found
    )
    unnamed = legibility(bank_of(directions, 1.5), x, (has, list("abcdefgh")))
    assert unnamed.impurity == {}
    assert "impurity" not in unnamed.summary()


def test_a_named_feature_that_no_object_has_counts_for_nothing():
    x, has, directions = planted()
    bank = bank_of(directions, torch.tensor([1.5] * 7 + [99.0]))
    bank.name("a", feature=0)
    bank.name("h", feature=7)
    found = legibility(bank, x, (has, list("abcdefgh")))
    assert np.isnan(found.impurity["h"])
    assert found.summary()["impurity"] == found.impurity["a"]


def test_pixel_neighbours_are_alike_in_pictures_and_not_in_noise():
    noise = torch.randn(50, 196, generator=torch.Generator().manual_seed(0))
    assert abs(matching.pixel_neighbours(noise, (14, 14))) < 0.02
    row = torch.arange(14.0)
    assert matching.pixel_neighbours((row[:, None] + row).reshape(1, 196), (14, 14)) > 0.7
    checks = ((torch.arange(14)[:, None] + torch.arange(14)) % 2).float().reshape(1, 196)
    assert matching.pixel_neighbours(checks, (14, 14)) < -0.9
    # By hand: of a 1 × 3 picture −1, 0, 1 the products are 0 and 0; of 1, 1, −2 they are 1 and −2, of a mean square 2.
    assert matching.pixel_neighbours(torch.tensor([[1.0, 1.0, -2.0], [1.0, 1.0, -2.0]]).reshape(1, 6), (2, 3)) == (
        pytest.approx((-0.5 + 2) / 2 / 2)
    )


def test_features_of_half_of_the_objects_cannot_match_rare_attributes():
    # The set of a half has an MCC of at most √(p / (1 − p)) with an attribute of share p.
    x, has, directions = planted(share=0.05)
    found = legibility(bank_of(*matching.at_presence(directions, torch.full((8,), 0.5), x)), x, has)
    share = has[halves(N)[1]].double().mean(0)
    assert (found.layer.mcc <= (share / (1 - share)).sqrt() + 0.03).all()
    assert found.layer.auc.min() > 0.99
    assert found.layer.probe.min() > 0.8


def test_random_directions_match_better_the_more_there_are():
    x = normal()[:, :12]
    has = x @ normal(9, 6)[:, :12].mT > 4.5  # a tenth
    found = [legibility(bank_of(normal(5, K)[:, :12], 4.5), x, has).layer.mcc.mean() for K in (8, 64, 512)]
    assert found[0] + 0.05 < found[1]
    assert found[1] + 0.05 < found[2]


@pytest.mark.parametrize("seed", [0, 7])
def test_a_feature_that_fits_one_half_only_does_not_score(seed):
    has = torch.rand(400, 1, generator=torch.Generator().manual_seed(0)) < 0.3
    first, other = halves(400, seed)
    lying, honest = has.float() - 0.5, has.float() - 0.5
    lying[other] *= -1
    honest[first[:40]] *= -1  # a little worse where features are chosen
    x = torch.cat([lying, honest], 1)
    only_lying = legibility(bank_of(torch.tensor([[1.0, 0.0]])), x, has, seed=seed).layer
    assert only_lying.mcc.item() == pytest.approx(-1, abs=1e-3)
    assert only_lying.probe.item() < 0
    assert only_lying.auc.item() == pytest.approx(0, abs=1e-6)
    # The better feature is there, and may not be chosen by how it scores.
    assert legibility(bank_of(torch.eye(2)), x, has, seed=seed).layer.feature.item() == 0
    # With other halves the honest one is better.
    assert legibility(bank_of(torch.eye(2)), x, has, seed=seed + 1).layer.feature.item() == 1


def test_the_best_of_many_features_of_noise_does_not_score():
    x = normal(n=60)
    has = torch.rand(60, 10, generator=torch.Generator().manual_seed(3)) < 0.3
    bank = bank_of(normal(5, 3000))
    first = halves(60)[0]
    assert matching.mcc(bank(x)[first] > 0, has[first].float()).amax(0).mean() > 0.5  # where it was chosen
    found = legibility(bank, x, has)
    assert found.layer.mcc.mean().abs() < 0.2
    assert found.layer.probe.mean().abs() < 0.2
    assert (found.layer.auc.mean() - 0.5).abs() < 0.15


def test_halves_are_all_objects_once_and_a_seed_gives_the_same():
    first, other = halves(101, 4)
    assert sorted([*first.tolist(), *other.tolist()]) == list(range(101))
    assert torch.equal(first, halves(101, 4)[0])
    assert not torch.equal(first, halves(101, 5)[0])
    x, has, directions = planted()
    values = [legibility(bank_of(directions, 1.0), x, has, seed=seed).summary() for seed in (2, 2, 3)]
    assert values[0] == values[1] != values[2]


def test_mcc_and_auc_are_those_of_scikit_learn():
    from sklearn.metrics import matthews_corrcoef, roc_auc_score

    measures = normal(n=200)[:, :5].mul(2).round()  # many ties
    has = normal(2, 200)[:, :3] + measures[:, :3] > 0.5
    by_mcc = matching.mcc(measures > 0, has.float())
    by_auc = matching.auc(measures, measures.sort(dim=0, descending=True).values, has.float())
    for k in range(5):
        for j in range(3):
            assert by_mcc[k, j].item() == pytest.approx(matthews_corrcoef(has[:, j], measures[:, k] > 0), abs=1e-5)
            assert by_auc[k, j].item() == pytest.approx(roc_auc_score(has[:, j], measures[:, k]), abs=1e-5)


def test_the_ceiling_is_close_to_scikit_learns_logistic_regression():
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    x, has, _ = planted(J=3)
    x = x + 2 * normal(8)
    first, other = halves(N)
    mean, deviation = x[first].mean(0), x[first].std(0)
    z = ((x - mean) / deviation).numpy()
    expected = [
        roc_auc_score(has[other, j], LogisticRegression().fit(z[first], has[first, j]).decision_function(z[other]))
        for j in range(3)
    ]
    assert legibility(bank_of(torch.eye(D)), x, has).ceiling.auc.tolist() == pytest.approx(expected, abs=2e-3)


def test_a_matching_is_the_best_of_all():
    from scipy.optimize import linear_sum_assignment

    random = np.random.default_rng(0)
    for n, m in ((1, 1), (2, 5), (4, 4), (30, 30), (30, 45)):
        for costs in (random.normal(size=(n, m)), random.integers(0, 9, (n, m)).astype(float)):
            found = matching.matched(costs)
            assert len(set(found)) == n
            assert costs[np.arange(n), found].sum() == pytest.approx(costs[linear_sum_assignment(costs)].sum())
    assert matching.one_to_one(np.array([[1.0, 0.9], [0.9, 0.0], [0.1, 0.2]])) == pytest.approx(0.9)


def test_features_in_another_order_and_length_are_stable_and_copies_of_one_are_not():
    x, has, directions = planted()
    mixed = 2 * directions[torch.tensor([3, 1, 0, 2, 7, 6, 5, 4])]
    again = legibility(bank_of(directions, 1.0), x, has, bank_of(mixed, 2.0))
    assert again.layer.stable == pytest.approx(1, abs=1e-4)
    copies = legibility(bank_of(directions, 1.0), x, has, bank_of(directions[:1].repeat(8, 1), 1.0))
    assert copies.layer.stable < 0.3
    assert again.kmeans.stable > again.random.stable
    assert legibility(bank_of(directions, 1.0), x, has).layer.stable is None


def test_purity_is_the_share_of_the_commonest_class_at_the_top():
    x = torch.cat([torch.eye(D)[:4].repeat(50, 1), torch.rand(200, D) * 0.1])
    has = x[:, :4] > 0.5
    classes = np.array(["a", "b", "a", "b"] * 50 + ["c"] * 200)
    pairs = torch.eye(D)[0] + torch.eye(D)[1]
    pure, mixed = (legibility(bank_of(w[None], 0.5), x, has, classes=classes).layer.purity for w in (x[0], pairs))
    assert pure == 1
    assert mixed < 0.8
    dead = bank_of(torch.stack([x[0], -pairs]), 0.5)
    assert legibility(dead, x, has, classes=classes).layer.purity == 1


def test_presence_dead_ever_present_and_featureless():
    x, has, directions = planted(J=2)
    bank = bank_of(torch.cat([directions, directions[:2]]), torch.tensor([1.5, 1.5, 100.0, -100.0]))
    found = legibility(bank, x, has)
    assert found.presence[:2].tolist() == pytest.approx(has.double().mean(0).tolist(), abs=0.01)
    assert (found.dead, found.ever_present, found.featureless) == ([2], [3], 0.0)
    without = legibility(bank_of(directions, 1.5), x, has)
    assert without.featureless == pytest.approx((~has.any(1)).double().mean().item(), abs=0.01)


def test_baselines_have_the_presence_of_the_layers_features():
    x, _, _ = planted()
    shares = torch.tensor([0.0, 0.03, 0.1, 0.5, 1.0])
    bank = matching.at_presence(normal(5, 5), shares, x)
    assert matching.presence(bank, x)[0].tolist() == pytest.approx(shares.tolist(), abs=1e-3)


def test_kmeans_is_fitted_to_the_training_data_and_is_left_out_where_that_is_too_little():
    x, has, directions = planted()
    other, _, _ = planted(seed=5)
    bank = bank_of(directions, 1.5)
    assert legibility(bank, x, has).kmeans.mcc.mean() > legibility(bank, x, has, train=normal()).kmeans.mcc.mean() + 0.2
    few = legibility(bank, x, has, train=other[:7])
    assert few.kmeans is None
    assert "k-means" not in str(few)
    assert all("untrained k-means" not in row for row in few.rows())


def test_measures_in_parts_are_measures_at_once(monkeypatch):
    x, has, directions = planted()
    bank, second, classes = bank_of(directions, 1.0), bank_of(directions + 0.1, 1.0), torch.arange(N) % 3
    whole = legibility(bank, x, has, second, classes=classes).summary()
    monkeypatch.setattr(matching, "AT_ONCE", 3 * N)
    parts = legibility(bank, x, has, second, classes=classes).summary()
    for name in ("layer", "random"):
        assert parts[name] == pytest.approx(whole[name], abs=1e-5)
    assert parts["presence"] == pytest.approx(whole["presence"])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"presence": 0.1},
        {"normalize": True},
        {"difference": "subtractmatch", "bias": True},
        {"intersection": "min"},
    ],
)
def test_deciding_features_are_those_of_decisions(options):
    torch.manual_seed(0)
    layer = TverskyProjection(D, 5, 30, **options)
    x = normal()
    found = legibility(layer, x, x[:, :3] > 1).deciding
    first = halves(N)[0][:500]
    with torch.no_grad():
        mine, theirs = measures_of(layer, x), measures_of(layer, layer.prototypes, of_prototypes=True)
        shares = torch.stack([torch.stack(shares_of(layer, mine, p)).sum(0) for p in theirs], 1)  # [N, P, K]
        similarities = layer(x)
        bias = 0.0 if layer.bias is None else layer.bias
        torch.testing.assert_close(shares.sum(-1) + bias, similarities, rtol=1e-4, atol=1e-4)
        numbers = []
        for i in first.tolist():
            one, two = similarities[i].topk(2).indices.tolist()
            each = (shares[i, one] - shares[i, two]).abs().sort(descending=True).values.tolist()
            number, so_far = 0, 0.0
            while so_far < 0.8 * sum(each):
                so_far += each[number]
                number += 1
            numbers.append(number)
    assert found == pytest.approx(np.median(numbers), abs=0.5)
    by_hand = decision(layer, x[first[0]]).shares
    one, two = similarities[first[0]].topk(2).indices.tolist()
    torch.testing.assert_close(shares[first[0], one] - shares[first[0], two], by_hand, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_no_sum_have_no_deciding_features():
    layer, x = TverskyProjection(D, 5, 30, model="ratio"), normal()
    assert legibility(layer, x, x[:, :3] > 1).deciding is None
    assert legibility(bank_of(torch.eye(D)), x, x[:, :3] > 1).deciding is None
    assert legibility(TverskySimilarity(D, 30), x, x[:, :3] > 1).deciding is None


def test_models_and_classifiers_are_read_at_their_layer():
    from similitude.estimator import TverskyClassifier

    x = normal(n=300)
    has = x[:, :3] > 1
    layer = TverskyProjection(D, 4, 30)
    inside = nn.Sequential(nn.Linear(D, D, bias=False), layer)
    nn.init.eye_(inside.get_parameter("0.weight"))
    for name in ("layer", "k-means"):
        assert legibility(inside, x, has).summary()[name] == pytest.approx(legibility(layer, x, has).summary()[name])
    model = TverskyClassifier(num_features=16, max_iter=5, random_state=0).fit(x.numpy(), x[:, 0].numpy() > 0)
    found = legibility(model, x.numpy(), has)
    assert len(found.presence) == 16
    assert found.presence.tolist() == pytest.approx(model.usage(x.numpy()).presence.tolist())


def test_units_of_a_linear_layer_are_features():
    x, has, directions = planted()
    linear = nn.Linear(D, 8)
    with torch.no_grad():
        linear.weight.copy_(directions)
        linear.bias.fill_(-1.5)
    assert (
        legibility(linear, x, has).layer.mcc.tolist() == legibility(bank_of(directions, 1.5), x, has).layer.mcc.tolist()
    )


def test_reading_changes_nothing():
    layer = TverskyProjection(D, 4, 30, presence=0.1, hold=True, bias=True).train()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x = normal()
    legibility(layer, x, x[:, :3] > 1)
    assert layer.training
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_attributes_of_too_few_objects_are_left_out():
    x, has, directions = planted(J=2)
    rare = torch.zeros(N, 2, dtype=torch.bool)
    rare[:3, 0], rare[:, 1] = True, True
    found = legibility(bank_of(directions, 1.5), x, (torch.cat([rare, has], 1), ["rare", "common", "a", "b"]))
    assert (found.names, found.left_out) == (["a", "b"], ["rare", "common"])
    assert "left out, too rare or too common: rare, common" in str(found)
    with pytest.raises(ValueError, match=f"no attribute can be scored: at least {FEWEST} objects of either half"):
        legibility(bank_of(directions), x, rare)


def test_it_prints_in_less_than_30_lines_and_shows_in_a_notebook():
    x = normal()
    names = [f"<attribute {j}>" for j in range(D)]
    layer, second = TverskyProjection(D, 5, 30), TverskyProjection(D, 5, 30)
    found = legibility(layer, x, (x > 1, names), second, classes=torch.arange(N) % 4)
    text, html = str(found), found._repr_html_()
    assert len(text.splitlines()) < 30
    assert max(map(len, text.splitlines())) <= 120
    for expected in (
        "untrained k-means",
        "random directions",
        "shuffled attributes",
        "probe of all columns",
        "52 more",
    ):
        assert expected in text
    assert html.count("&lt;attribute") == D
    assert "<attribute" not in html
    best = found.rows()[0]
    assert best["this layer"] == found.layer.mcc.max().item()
    assert len(found.rows()) == D


def test_features_are_shown_by_their_names():
    x, has, directions = planted(J=2)
    bank = bank_of(directions, 1.5)
    bank.name("hole", x[has[:, 1]][:40], x[~has[:, 1]][:40])
    named = next(iter(bank.names))
    found = legibility(TverskyProjection(D, 3, features=bank), x, (has, ["a", "b"]))
    assert found.feature_names == {named: "hole"}
    assert any(line.startswith("b ") and line.endswith(f"{named} hole") for line in str(found).splitlines())


def test_wrong_arguments_are_one_sentence():
    x, has, directions = planted()
    bank = bank_of(directions)
    with pytest.raises(
        ValueError, match=r"attributes must be bool \[N, J\], with a row for each of 2000 objects; got fl"
    ):
        legibility(bank, x, has.float())
    with pytest.raises(ValueError, match=r"got bool \[1999, 8\]"):
        legibility(bank, x, has[1:])
    with pytest.raises(ValueError, match="there must be a name for each of 8 attributes; got 2 names"):
        legibility(bank, x, (has, ["a", "b"]))
    with pytest.raises(ValueError, match="classes must have a class for each of 2000 objects; got 3"):
        legibility(bank, x, has, classes=[1, 2, 3])
    with pytest.raises(ValueError, match="X must be finite"):
        legibility(bank, x * torch.nan, has)
    with pytest.raises(ValueError, match=r"^train must be one input or more; got none: leave train out, and baseli"):
        legibility(bank, x, has, train=x[:0])
    with pytest.raises(ValueError, match="X and features must have the same width D"):
        legibility(bank, x[:, 1:], has)
    with pytest.raises(TypeError, match="model must be a Tversky"):
        legibility("layer", x, has)
