"""Starting values: sizes of outputs for any D, K, P, opposite features, life of every parameter, gains and loading."""

import itertools
import math

import pytest
import torch
from torch import nn

import similitude.functional as F
from similitude import (
    FeatureBank,
    TverskyProjection,
    TverskySimilarity,
    init_from_data,
    init_from_linear,
    parameter_groups,
)
from similitude.initialize import SPREAD

GRID = list(itertools.product((2, 36, 768, 2048), (1, 20, 224, 1024, 8192), (2, 10, 555, 50257)))
FAST = [(D, K, P) for D, K, P in GRID if D < 2048 and K < 1024 and P < 1000 and D * K * P < 2e6]


# Of unit mean square, behind a ReLU, where they lie on one side of most planes, and behind one of unit mean square.
KINDS = {"normal": lambda x: x, "relu": torch.relu, "√2 relu": lambda x: x.relu() * math.sqrt(2)}


def check_start(D, K, P, layers):
    """Sizes are means over layers, since one of two prototypes or few features is what it is; each is to be alive."""
    losses, spreads = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    for seed in range(layers):
        torch.manual_seed(seed)
        layer = TverskyProjection(D, P, K)
        for kind, turned in KINDS.items():
            x = turned(torch.randn(512 if P < 1000 else 64, D))
            S = layer(x)
            nn.functional.cross_entropy(S, torch.randint(P, (len(x),))).backward()
            S = S.detach()
            losses[kind] += (S.logsumexp(-1).mean() - S.mean()).item() / math.log(P) / layers
            spreads[kind] += S.std().item() / layers
            for name, parameter in layer.named_parameters():
                assert parameter.grad.abs().max() > 0, name
            # Over one feature half of the prototypes lack what there is to have.
            if K >= 20:
                assert layer.prototypes.grad.abs().amax(-1).min() > 0
            layer.zero_grad(set_to_none=True)
    for kind in KINDS:
        assert 1 <= losses[kind] < 1.1, kind
        # Half the mean square, and no room above: see the test below.
        low = 0.4 if (kind, K, P) == ("relu", 1, 2) else 0.5
        assert low < spreads[kind] < 2, kind


@pytest.mark.parametrize(("D", "K", "P"), FAST)
def test_outputs_start_as_a_linear_layers_do(D, K, P):
    check_start(D, K, P, layers=12 if P < 100 else 3)


@pytest.mark.slow
@pytest.mark.parametrize(("D", "K", "P"), [size for size in GRID if size not in FAST])
def test_outputs_start_as_a_linear_layers_do_at_any_size(D, K, P):
    # Behind a ReLU two prototypes over 20 features vary by 7 %: the mean of 100 layers is 1.084, of the first 12 1.12.
    few = 48 if (K, P) == (20, 2) else 12 if P < 100 and (D == 2 or K <= 20) else 3
    check_start(D, K, P, layers=few if P < 1000 else 1)


def test_one_feature_and_two_prototypes_leave_no_room():
    """Their outputs have never the same sign, so that a spread of 0.53 costs 10 % of cross entropy: see the docs."""
    torch.manual_seed(0)
    layer, x = TverskyProjection(36, 2, 1), torch.randn(4096, 36)
    with torch.no_grad():
        for spread, low, high in ((0.51, 1.08, 1.1), (0.55, 1.1, 1.12)):
            layer.reset_constants(x, spread)
            S = layer(x)
            assert (S[:, 0] * S[:, 1] <= 0).all()
            assert low < (S.logsumexp(-1).mean() - S.mean()).item() / math.log(2) < high


def test_twelve_projections_with_residuals_keep_their_size_and_gradients():
    torch.manual_seed(0)
    layers = nn.ModuleList(TverskyProjection(768, 768, 1024) for _ in range(12))
    norm, x = nn.LayerNorm(768), torch.randn(64, 768)
    spreads = []
    for layer in layers:
        out = layer(norm(x))
        spreads.append(out.std().item())
        x = x + out
    x.square().mean().backward()
    norms = [layer.prototypes.grad.norm().item() for layer in layers]
    assert max(spreads) < 4 * min(spreads)
    assert max(norms) < 4 * min(norms)


@pytest.mark.parametrize("intersection", ["product", "min", "max", "mean", "gmean", "softmin"])
@pytest.mark.parametrize("difference", ["ignorematch", "subtractmatch"])
@pytest.mark.parametrize("level", ["feature", "set"])
def test_every_reduction_is_balanced(intersection, difference, level):
    torch.manual_seed(0)
    layer = TverskyProjection(36, 10, 64, intersection=intersection, difference=difference, level=level)
    with torch.no_grad():
        S = layer(torch.randn(2048, 36))
    assert S.std().item() == pytest.approx(SPREAD, rel=0.1)
    # A soft minimum of small measures is negative, and nothing can be taken away from it.
    if (intersection, level) != ("softmin", "feature"):
        assert S.mean().item() == pytest.approx(0, abs=0.1)
    assert layer.alpha.item() != pytest.approx(layer.beta.item())


@pytest.mark.parametrize(("K", "D"), [(20, 36), (7, 3), (64, 8), (1, 5)])
def test_an_object_has_half_of_a_calibrated_bank(K, D):
    bank = FeatureBank(K, D).weight.detach()
    torch.testing.assert_close(bank.norm(dim=-1), torch.ones(K))
    half = -(-K // 2)
    torch.testing.assert_close(bank[half:], -bank[: K - half])
    if K % (2 * D) == 0:
        torch.testing.assert_close(bank.T @ bank, torch.eye(D) * K / D, atol=1e-5, rtol=0)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_alpha_takes_the_share_that_it_is_given_and_outputs_stay_balanced(share):
    torch.manual_seed(0)
    layer = TverskyProjection(16, 40, 64, alpha_share=share)
    x = torch.randn(4096, 16)
    out, (a, b) = layer(x), (torch.relu(layer.features(x)), torch.relu(layer.features(layer.prototypes)))
    taken = layer.alpha * (a @ (b == 0).float().mT).mean() / (layer.theta * (a @ b.mT).mean())
    assert taken.item() == pytest.approx(share * (1 - 0.99 / 64), abs=0.03)
    assert abs(out.mean().item()) < 0.05
    assert out.std().item() == pytest.approx(SPREAD, rel=0.05)
    layer.reset_parameters()
    assert layer.alpha_gain.item() == pytest.approx(share * (1 - 0.99 / 64))


@pytest.mark.parametrize("layer", [TverskyProjection(8, 5, 12), TverskySimilarity(8, 12)])
def test_constants_are_the_same_whatever_the_default_device(layer):
    before = [c.item() for c in (layer.alpha, layer.beta, layer.theta)]
    with torch.device("meta"):
        layer.reset_constants()
    assert [c.item() for c in (layer.alpha, layer.beta, layer.theta)] == before


@pytest.mark.parametrize("share", [0, 1.1, float("nan"), "half", True])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ValueError, match="alpha_share must be a number above 0, up to 1; got "):
        TverskyProjection(2, 2, 2, alpha_share=share)


def test_the_start_draws_no_more_random_numbers_than_vectors_need():
    torch.manual_seed(3)
    FeatureBank(8, 4)
    nn.init.orthogonal_(torch.empty(3, 4))
    after = torch.rand(2)
    torch.manual_seed(3)
    TverskyProjection(4, 3, 8)
    assert torch.equal(torch.rand(2), after)


def test_the_papers_start_is_the_papers():
    layer = TverskyProjection(5, 3, 7, init="uniform", parametrization="plain")
    assert [c.item() for c in layer.constants().values()] == [0.5, 0.5, 1.0]
    assert all(isinstance(c, nn.Parameter) for c in layer.constants().values())


def test_a_step_of_adam_changes_a_gain_by_a_share():
    for parametrization in ("gain", "log"):
        layer = TverskyProjection(6, 4, 8, alpha=1e-3, beta=1e-3, theta=100.0, parametrization=parametrization)
        optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
        before = torch.cat(list(layer.constants().values())).detach()
        layer(torch.randn(16, 6)).square().sum().backward()
        optimizer.step()
        after = torch.cat(list(layer.constants().values())).detach()
        torch.testing.assert_close((after / before - 1).abs(), torch.full((3,), 0.01), rtol=0.02, atol=0)


def test_constants_are_set_by_numbers_and_by_tensors():
    for parametrization in ("gain", "log", "plain"):
        layer = TverskyProjection(6, 4, 8, parametrization=parametrization)
        learned = dict(layer.named_parameters()).keys()
        layer.alpha = 0.3
        layer.theta = layer.theta * 2
        assert layer.alpha.item() == pytest.approx(0.3)
        assert dict(layer.named_parameters()).keys() == learned
    assert TverskyProjection(6, 4, 1, parametrization="log").alpha > 0
    layer = TverskyProjection(6, 4, 8, parametrization="log")
    for set_it in (
        lambda: TverskyProjection(6, 4, 8, alpha=0.0, parametrization="log"),
        lambda: setattr(layer, "alpha", -1),
    ):
        with pytest.raises(ValueError, match="alpha must be more than 0 where its logarithm is learned"):
            set_it()


@pytest.mark.parametrize("there", ["gain", "log", "plain"])
@pytest.mark.parametrize("here", ["gain", "log", "plain"])
def test_a_state_is_loaded_whatever_it_was_learned_as(there, here):
    one, other = (TverskyProjection(6, 4, 8, parametrization=p) for p in (there, here))
    one.alpha, x = 0.37, torch.randn(5, 6)
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other(x), one(x))


def test_data_decides_how_many_objects_have_a_feature():
    torch.manual_seed(0)
    layer, x = TverskyProjection(36, 10, 40), torch.randn(512, 36).relu() * 3 + 1
    for share in (0.5, 0.2):
        init_from_data(layer, x, share)
        assert (layer.features(x) > 0).float().mean(0).sub(share).abs().max() < 0.02
        assert layer(x).std().item() == pytest.approx(SPREAD, rel=0.01)
    for bad, words in ((dict(share=1.0), "share must be"), (dict(x=x[:1]), "2 inputs or more")):
        with pytest.raises(ValueError, match=words):
            init_from_data(layer, **{"x": x, **bad})


def test_a_linear_layer_is_started_from():
    torch.manual_seed(0)
    linear, layer = nn.Linear(64, 10), TverskyProjection(64, 10, 256, bias=True)
    x = torch.randn(512, 64) + 0.5
    init_from_linear(layer, linear, x)
    ours, theirs = layer(x) - layer.bias, linear(x) - linear.bias
    assert ours.std().item() == pytest.approx(theirs.std().item(), rel=0.01)
    assert torch.corrcoef(torch.stack([ours.flatten(), theirs.flatten()]))[0, 1] > 0.85
    assert torch.equal(layer.bias, linear.bias)
    with pytest.raises(ValueError, match="make it with bias=True"):
        init_from_linear(TverskyProjection(64, 10, 256), linear)
    with pytest.raises(ValueError, match="it maps 64 to 10"):
        init_from_linear(TverskyProjection(64, 9, 256), linear)


@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        (nn.Linear(2, 2), {"lr": -1}, "lr must be a number of 0 or more; got -1"),
        (nn.Linear(2, 2), {"lr": "0.01"}, "lr must be a number of 0 or more; got '0.01'"),
        (nn.Linear(2, 2), {"lr": 1, "weight_decay": math.nan}, "weight_decay must be a number of 0 or more; got nan"),
        (nn.Linear(2, 2), {"lr": 1, "bank_rate": -0.1}, "bank_rate must be a number of 0 or more; got -0.1"),
        ([nn.Parameter(torch.ones(2))], {"lr": 1}, "model must be a module, .*; got list"),
    ],
)
def test_wrong_rates_are_one_sentence(model, options, told):
    with pytest.raises((TypeError, ValueError), match=told):
        parameter_groups(model, **options)


def test_parameter_groups_hold_every_parameter_once():
    model = nn.Sequential(
        nn.Linear(6, 5), TverskyProjection(5, 4, 8), TverskyProjection(4, 3, 8, parametrization="plain")
    )
    model[2].theta = 50.0
    groups = parameter_groups(model, 1e-3, 0.1, difference_rate=10)
    held = [id(p) for group in groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    rate = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert rate[id(model[0].weight)] == rate[id(model[1].prototypes)] == (1e-3, 0.1)
    assert rate[id(model[1].features.weight)] == (1e-4, 0.1)
    assert rate[id(model[1].theta_gain)] == rate[id(model[0].bias)] == (1e-3, 0.0)
    assert rate[id(model[1].alpha_gain)] == rate[id(model[1].beta_gain)] == (1e-2, 0.0)
    assert rate[id(model[2].theta)] == (pytest.approx(0.05), 0.0)
    assert rate[id(model[2].beta)] == (pytest.approx(1e-2 * model[2].beta.item()), 0.0)
    torch.optim.AdamW(groups)
    plainly = {id(p): group["lr"] for group in parameter_groups(model, 1e-3) for p in group["params"]}
    assert plainly[id(model[1].alpha_gain)] == plainly[id(model[1].theta_gain)] == 1e-3


def test_similarity_is_calibrated_for_pairs_of_objects():
    torch.manual_seed(0)
    sim = TverskySimilarity(32, 128)
    a, b = torch.randn(500, 32), torch.randn(500, 32)
    assert sim(a, b).std().item() == pytest.approx(SPREAD, rel=0.15)
    assert F.salience(a, sim.features.weight).min() > 0
