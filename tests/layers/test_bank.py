"""Usage counts what objects have, prune changes no output on its data, grow adds features that learn."""

import copy

import pytest
import torch
from cases import COMBINATIONS, name
from torch import nn

from similitude import FeatureBank, TverskyProjection, TverskySimilarity, bank, parameter_groups

WIDTH = 6


def make_layer(bias=False, **options) -> TverskyProjection:
    """12 features: 0–7 random, 8 and 9 of nobody on data from make_objects, 10 and 11 of some prototypes only.

    Objects are positive in their last two coordinates, prototypes 1 and 2 negative in the last one.
    """
    layer = TverskyProjection(WIDTH, 4, 12, bias=bias, beta=0.7, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.prototypes[:, -2] = layer.prototypes[:, -2].abs() + 0.1
        layer.prototypes[:, -1] = torch.tensor([0.5, -0.4, -0.8, 0.3])
        layer.features.weight[8:].zero_()
        layer.features.weight[8:10, -2] = torch.tensor([-1.0, -2.0])
        layer.features.weight[10:, -1] = torch.tensor([-1.0, -0.5])
        if bias:
            layer.bias.normal_()
    return layer


def make_objects(n=40) -> torch.Tensor:
    x = torch.randn(n, WIDTH, dtype=torch.float64)
    x[:, -2:] = x[:, -2:].abs() + 0.1
    return x


class Shared(nn.Module):
    """Two projections, one of them by its fused loss, and a similarity, all on one bank and on different vectors.

    Of 12 features nobody has 8 and 9, only the inputs of the second projection have 10, and only prototypes have 11.
    """

    def __init__(self):
        super().__init__()
        self.bank = FeatureBank(12, WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(0.5)
        self.hidden = TverskyProjection(WIDTH, WIDTH, features=self.bank, dtype=torch.float64)
        self.head = TverskyProjection(WIDTH, 3, features=self.bank, level="set", dtype=torch.float64)
        self.sim = TverskySimilarity(WIDTH, features=self.bank, dtype=torch.float64)
        with torch.no_grad():
            self.bank.weight[8:].zero_()
            self.bank.weight[8:10, -2] = -1
            self.bank.weight[10, -1], self.bank.weight[11, -3] = -1, -1
            for layer in (self.hidden, self.head):
                layer.prototypes[:, -3:].abs_()
                layer.prototypes[0, -3] = -1

    def forward(self, x, flip=-1.0):
        x = torch.cat([x[:, :-3], x[:, -3:].abs()], -1)
        y = self.hidden(self.dropout(x))
        y = torch.cat([y[:, :-3], x[:, -3:-1], flip * x[:, -1:]], -1)
        return self.head.cross_entropy(y, torch.zeros(len(y), dtype=torch.int64)), self.sim.pairwise(y, x[:2])


def test_usage_counts_who_has_a_feature_and_how_much():
    bank = FeatureBank(4, 2)
    with torch.no_grad():
        bank.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0], [2.0, 0.02]]))
    found = bank.usage(torch.tensor([[1.0, 2.0], [3.0, -1.0], [5.0, 0.0], [7.0, 4.0]]))
    assert found.objects == 4
    assert found.presence.tolist() == [1.0, 0.5, 0.0, 1.0]
    torch.testing.assert_close(found.measure, torch.tensor([4.0, 3.0, 0.0, 8.025], dtype=torch.float64))
    assert found.dead == [2]
    assert found.ever_present == [0, 3]
    assert [(j, i) for j, i, _ in found.duplicates] == [(3, 0)]
    assert found.duplicates[0][2] == pytest.approx(1 / (1 + 1e-4) ** 0.5)
    assert str(found).splitlines() == [
        "4 features, 4 objects",
        "dead: 1 (2)",
        "ever-present: 2 (0, 3)",
        "duplicates (cosine > 0.99): 1 (3 of 0)",
        "present in (least, quartiles, most): 0.0% 37.5% 75.0% 100.0% 100.0%",
    ]


@pytest.mark.parametrize("kind", ["batches", "pairs with targets", "any shape", "through", "small pieces"])
def test_usage_is_the_same_however_the_objects_come(kind, monkeypatch):
    bank, x = FeatureBank(9, WIDTH), torch.randn(24, WIDTH)
    expected = bank.usage(x)
    match kind:
        case "batches":
            found = bank.usage(iter(x.split(7)))
        case "pairs with targets":
            found = bank.usage([(part, torch.zeros(len(part))) for part in x.split(7)])
        case "any shape":
            found = bank.usage(x.view(2, 3, 4, WIDTH))
        case "through":
            backbone = nn.Sequential(nn.Dropout(0.9), nn.Linear(WIDTH, WIDTH, bias=False))
            nn.init.eye_(backbone[1].weight)
            backbone[1].eval()
            found = bank.usage([{"x": part} for part in x.split(7)], through=lambda batch: backbone.eval()(batch["x"]))
            backbone.train()
            backbone[1].eval()
            found = bank.usage(x.split(7), through=backbone)
            assert [m.training for m in backbone.modules()] == [True, True, False]
        case "small pieces":
            monkeypatch.setattr("similitude.usage.AT_ONCE", 20)
            found = bank.usage(x)
    torch.testing.assert_close(found.presence, expected.presence)
    torch.testing.assert_close(found.measure, expected.measure, rtol=1e-6, atol=0)
    assert found.duplicates == expected.duplicates


def test_each_duplicate_is_named_once_with_the_earliest_of_its_kind(monkeypatch):
    bank = FeatureBank(7, WIDTH, init="orthogonal")
    with torch.no_grad():
        bank.weight[6] = 0
        bank.weight[3], bank.weight[5] = 2 * bank.weight[1], 3 * bank.weight[1]
        bank.weight[4] = -bank.weight[0]
    for at_once in (2**24, 7, 15):
        monkeypatch.setattr("similitude.usage.AT_ONCE", at_once)
        assert [(j, i) for j, i, _ in bank.usage(torch.randn(3, WIDTH), threshold=0.9).duplicates] == [(3, 1), (5, 1)]


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_pruning_what_nobody_has_changes_no_output(options):
    layer, x = make_layer(**options), make_objects()
    before = layer(x).detach()
    found = layer.prune(x)
    assert layer.features.num_features == len(found.kept) <= 10
    assert {8, 9} <= set(found.removed)
    assert {10, 11} <= set(found.kept)
    assert found.folded == []
    assert layer.bias is None
    # Relative too: softmin may be negative, and a ratio whose denominator is near 0 is in the hundreds.
    torch.testing.assert_close(layer(x), before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("options", [o for o in COMBINATIONS if o["model"] == "contrast"], ids=name)
def test_folding_moves_what_only_prototypes_have_into_the_bias(options, bias):
    layer, x = make_layer(bias, **options), make_objects()
    before = layer(x).detach()
    found = layer.prune(x, fold=True)
    assert {8, 9, 10, 11} <= set(found.removed)
    assert {10, 11} <= set(found.folded)
    assert not {8, 9} & set(found.folded)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-12)
    layer(x).sum().backward()
    assert layer.bias.grad is not None


def test_folding_leaves_the_ratio_model_alone():
    layer, x = make_layer(model="ratio"), make_objects()
    before = layer(x).detach()
    assert {10, 11} <= set(layer.prune(x, fold=True).kept)
    assert layer.bias is None
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fold", [False, True])
def test_a_shared_bank_loses_only_what_no_user_needs(fold):
    model = Shared()
    data = [(make_objects(8), torch.zeros(8)) for _ in range(3)]
    model.eval()
    expected = [model(x) for x, _ in data]
    model.train()
    model.sim.eval()
    (found,) = bank.prune(model, data, fold=fold)
    assert found.bank == "bank"
    assert {8, 9} <= set(found.removed)
    assert 10 in found.kept
    assert (11 in found.removed) == (11 in found.folded) == fold
    assert (model.head.bias is not None) == fold
    assert model.hidden.features.num_features == model.head.features.num_features == len(found.kept)
    # The mode is that of before, and so are the methods.
    assert (model.training, model.head.training, model.sim.training) == (True, True, False)
    assert "forward" not in vars(model.head)
    assert "pairwise" not in vars(model.sim)
    model.eval()
    for (x, _), (loss, table) in zip(data, expected):
        torch.testing.assert_close(model(x)[0], loss, rtol=0, atol=1e-12)
        torch.testing.assert_close(model(x)[1], table, rtol=0, atol=1e-12)


def test_a_layer_alone_would_let_more_go():
    model, x = Shared(), make_objects().abs()
    assert {8, 9, 10} <= set(bank.prune(model.hidden, x, alone=True)[0].removed)


def test_a_batch_of_keywords_is_given_as_such():
    model = Shared()
    x = make_objects(8)
    (found,) = bank.prune(copy.deepcopy(model), [{"x": x, "flip": 1.0}])
    assert 10 in found.removed
    assert 10 in bank.prune(model, x)[0].kept


def test_a_similarity_is_pruned_on_pairs_or_on_objects():
    a, b = make_objects(), make_objects()
    for data, through in (([(a, b)], None), ([a, b], None), ([(a - 1, b - 1)], lambda x: x + 1)):
        sim = TverskySimilarity(WIDTH, 40, dtype=torch.float64, model="ratio", intersection="min", level="set")
        with torch.no_grad():
            sim.features.weight[::2].zero_()
            sim.features.weight[::2, -2] = -1
        before = sim(a, b)
        (found,) = bank.prune(sim, data, through)
        assert found.removed == list(range(0, 40, 2))
        torch.testing.assert_close(sim(a, b), before, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fold", [False, True])
def test_one_feature_is_kept_where_nobody_has_any(fold):
    layer = TverskyProjection(WIDTH, 3, 5, dtype=torch.float64)
    x = make_objects()
    with torch.no_grad():
        layer.features.weight.zero_()
        layer.features.weight[:, -1] = -1
        layer.prototypes[:, -1] = -1.0 if fold else 1.0
    before = layer(x).detach()
    found = layer.prune(x, fold=fold)
    assert (len(found.kept), len(found.removed), len(found.folded)) == (1, 4, 4 if fold else 0)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-12)
    assert str(found) == "features: 5 -> 1, 4 removed" + ", 4 of them folded into the bias" * fold


def test_the_kept_side_of_a_layer_in_use_is_made_anew():
    layer, x = make_layer().eval(), make_objects()
    with torch.no_grad():
        before = layer(x)
        layer.prune(x)
        torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-12)
        layer.features.grow(3)
        assert not torch.allclose(layer(x), before)


def test_the_weight_is_a_new_parameter_so_that_moments_of_another_size_cannot_be_used_on_it():
    layer, x = make_layer(), make_objects()
    for change in (lambda: layer.prune(x), lambda: layer.features.grow(20)):
        weight = layer.features.weight
        # A fused optimiser does not look at sizes: with the same parameter it would write past its end.
        optimizer = torch.optim.Adam(layer.parameters(), fused=True)
        layer(x).sum().backward()
        optimizer.step()
        change()
        assert layer.features.weight is not weight
        now = layer.features.weight.detach().clone()
        layer(x).sum().backward()
        optimizer.step()
        torch.testing.assert_close(layer.features.weight.detach(), now, rtol=0, atol=0)


@pytest.mark.parametrize("trains", [False, True])
def test_a_frozen_bank_stays_frozen_and_one_that_trains_trains(trains):
    layer, x = make_layer(), make_objects()
    layer.features.requires_grad_(trains)
    layer.prune(x)
    assert layer.features.weight.requires_grad == trains
    layer.features.grow(2)
    assert layer.features.weight.requires_grad == trains
    assert [name for name, _ in layer.named_parameters()].count("features.weight") == 1


def test_growing_adds_features_that_learn_for_all_who_share_the_bank():
    model, x = Shared().eval(), make_objects(8)
    old = model.bank.weight.detach().clone()
    model.bank.grow(5)
    assert model.head.features.num_features == 17
    torch.testing.assert_close(model.bank.weight[:12], old)
    assert 0.5 < model.bank.weight[12:].norm(dim=-1).mean() < 1.5
    model(x)[0].backward()
    assert model.bank.weight.grad.shape == (17, WIDTH)
    assert model.bank.weight.grad[12:].any(-1).all()


def test_growing_by_vectors_takes_them_and_by_little_changes_little():
    layer, x = make_layer(), make_objects()
    before, vectors = layer(x).detach(), torch.randn(3, WIDTH)
    layer.features.grow(vectors, scale=1e-9)
    torch.testing.assert_close(layer.features.weight[12:], vectors.double() * 1e-9)
    torch.testing.assert_close(layer(x), before, rtol=0, atol=1e-6)
    assert layer.features.weight.dtype == torch.float64
    layer(x).square().sum().backward()
    assert layer.features.weight.grad[12:].abs().max() > 1e-3


def test_a_pruned_state_does_not_load_into_a_layer_of_another_size():
    layer = make_layer()
    layer.prune(make_objects())
    with pytest.raises(RuntimeError, match=r"size mismatch for features\.weight"):
        make_layer().load_state_dict(layer.state_dict())


def given(bank) -> TverskyProjection:
    return TverskyProjection(WIDTH, 3, features=bank)


class Half(nn.Module):
    """Has two layers and uses one."""

    def __init__(self):
        super().__init__()
        self.used, self.other = TverskyProjection(WIDTH, 3, 5), TverskyProjection(WIDTH, 3, 5)

    def forward(self, x):
        return self.used(x)


MESSAGES = {
    "a shared bank": (
        lambda x: given(FeatureBank(5, WIDTH)).prune(x),
        "this layer's bank was given to it, and other layers may need its features: prune the model that holds "
        "all of them, bank.prune(model, data), or say alone=True.",
    ),
    "a layer that is not used": (
        lambda x: bank.prune(Half(), x),
        "other was not used on the data, so nothing is known of its features.",
    ),
    "no layer": (lambda x: bank.prune(nn.Linear(6, 3), x), "there is no Tversky layer in this Linear."),
    "no objects": (
        lambda x: FeatureBank(5, WIDTH).usage([]),
        "there are no objects to count: the data has no rows, or its loader was used up before.",
    ),
    "nothing to prune on": (
        lambda x: TverskyProjection(WIDTH, 3, 5).prune([]),
        "the layer was not used on the data, so nothing is known of its features.",
    ),
    "NaN": (
        lambda x: FeatureBank(5, WIDTH).usage(x * float("nan")),
        "objects must be finite; some have NaN or infinite elements.",
    ),
    "wrong width": (
        lambda x: FeatureBank(5, WIDTH).usage(x[:, :3]),
        "objects and features must have the same width D; got objects [4, 3] and features [5, 6].",
    ),
    "grow by none": (
        lambda x: FeatureBank(5, WIDTH).grow(0),
        "new must be a whole number of 1 or more, or vectors [n, 6]; got 0.",
    ),
    "grow by other vectors": (
        lambda x: FeatureBank(5, WIDTH).grow(x[:, :3]),
        "new must be vectors [n, 6], of the bank's dim; got shape [4, 3].",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_gets_one_clear_sentence(case):
    call, message = MESSAGES[case]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call(torch.randn(4, WIDTH))
    assert str(error.value) == message


def test_an_error_changes_nothing():
    model = Half()
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="not used"):
        bank.prune(model, torch.randn(4, WIDTH))
    assert model.training
    assert "forward" not in vars(model.used)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


def test_features_that_are_computed_cannot_be_pruned():
    layer = TverskyProjection(WIDTH, 3, 5)
    nn.utils.parametrizations.weight_norm(layer.features)
    with pytest.raises(TypeError, match="computed from something else"):
        layer.prune(torch.randn(4, WIDTH))
    with pytest.raises(TypeError, match="computed from something else"):
        layer.features.grow(2)


def test_the_parameters_of_features_that_are_computed_learn_at_the_banks_rate():
    layer = TverskyProjection(WIDTH, 3, 5)
    nn.utils.parametrizations.weight_norm(layer.features)
    groups = parameter_groups(layer, 1e-2, bank_rate=0.5)
    rate = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rate.keys() == {id(p) for p in layer.parameters()}
    assert {rate[id(p)] for p in layer.features.parameters()} == {5e-3}
    torch.optim.AdamW(groups)
