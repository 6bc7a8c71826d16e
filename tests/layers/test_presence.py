"""Banks with thresholds: starts, holding, names, saving; a bank without them is as before."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from similitude import FeatureBank, TverskyProjection, TverskySimilarity, init_from_data
from similitude.explain import decision, explain, pair, venn
from similitude.interpret.salience import rank
from similitude.interpret.sets import Universe
from similitude.optim import parameter_groups, unit_length_

D, P, K = 6, 4, 20


def made(**options) -> TverskyProjection:
    torch.manual_seed(0)
    return TverskyProjection(D, P, K, bias=True, **{"presence": 0.1, **options})


def inputs(n=400, seed=1) -> torch.Tensor:
    return torch.randn(n, D, generator=torch.Generator().manual_seed(seed)) * 3 + 1


def share(layer, x) -> torch.Tensor:
    """The presence of each feature."""
    return (layer.features(x) > 0).float().mean(0)


def test_a_bank_without_a_presence_has_none_of_it():
    bank = FeatureBank(K, D)
    assert list(bank.state_dict()) == ["weight"]
    assert bank.threshold is None
    assert bank.cut()[1] is None


def test_a_new_threshold_is_that_of_normal_objects():
    bank = FeatureBank(K, D, presence=0.1)
    x = torch.randn(20_000, D, generator=torch.Generator().manual_seed(0))
    assert list(bank.state_dict()) == ["weight", "threshold"]
    torch.testing.assert_close((bank(x) > 0).float().mean(0), torch.full((K,), 0.1), atol=0.01, rtol=0)


@pytest.mark.parametrize("normalize", [False, True])
def test_a_start_from_data_has_the_presence_asked_for(normalize):
    layer, x = made(normalize=normalize), inputs()
    init_from_data(layer, x)
    seen = nn.functional.normalize(x, dim=-1) if normalize else x
    torch.testing.assert_close(share(layer, seen), torch.full((K,), 0.1), atol=1e-6, rtol=0)
    torch.testing.assert_close(layer.features.weight.norm(dim=-1), torch.ones(K))
    out = layer(x)
    assert out.mean(0).std() < 1e-5  # the bias takes away what prototypes alone have
    assert out.std().item() == pytest.approx(0.705, rel=0.2)


def test_a_start_from_data_finds_clusters():
    g = torch.Generator().manual_seed(0)
    centres = nn.functional.normalize(torch.randn(K, 32, generator=g), dim=-1)
    x = centres[torch.randint(K, (2000,), generator=g)] + 0.05 * torch.randn(2000, 32, generator=g)
    layer = TverskyProjection(32, P, K, presence=0.05)
    init_from_data(layer, x)
    found = (layer.features.weight @ centres.mT).amax(0)
    assert (found > 0.95).float().mean() >= 0.6
    random = FeatureBank(K, 32)
    assert (random.weight @ centres.mT).amax() < 0.9


def test_a_similarity_starts_from_data_far_from_the_origin():
    sim, x = TverskySimilarity(D, K, presence=0.1), inputs() + 50
    init_from_data(sim, x)
    out = sim.pairwise(x[:100], x[100:200])
    assert out.isfinite().all()
    assert out.std().item() == pytest.approx(0.705, rel=0.5)


def test_a_mixed_start_has_a_frame_cut_at_zero_in_its_second_part():
    layer, x = made(), inputs()
    init_from_data(layer, x, mixed=0.5)
    bank = layer.features
    assert bank.notes.framed == set(range(10, 20))
    assert (bank.threshold[10:] == 0).all()
    assert (bank.threshold[:10] != 0).all()
    torch.testing.assert_close(bank.weight[15:], -bank.weight[10:15])
    why = explain(layer, x[0])
    shares = why.shares()
    assert f"{shares[:10].sum():+.4f}" in str(why)
    assert f"{shares[10:].sum():+.4f}" in str(why)
    assert "features from data" in str(decision(layer, x[0]))


@pytest.mark.parametrize("options", [dict(whiten=0.5), dict(start="classes"), dict(whiten=0.1, start="classes")])
def test_a_start_that_tells_inputs_apart_has_the_presence_asked_for(options):
    layer, x = made(), inputs()
    y = (x[:, 0] > x[:, 0].median()).long() * 7 + 3  # any whole numbers
    init_from_data(layer, x, **options, classes=y if "start" in options else None)
    torch.testing.assert_close(share(layer, x), torch.full((K,), 0.1), atol=1e-6, rtol=0)
    torch.testing.assert_close(layer.features.weight.norm(dim=-1), torch.ones(K))
    assert layer(x).mean(0).std() < 1e-5
    if "start" in options:
        inside = [((layer.features(x) > 0).float()[y == c]).mean(0)[:2] for c in (3, 10)]
        assert inside[0][0] > 0.15 > 0.05 > inside[1][0]
        assert inside[1][1] > 0.15 > 0.05 > inside[0][1]


def test_classes_start_a_part_of_a_mixed_bank():
    layer, x = made(), inputs()
    init_from_data(layer, x, start="classes", classes=torch.arange(len(x)) % 3, mixed=0.5)
    assert layer.features.notes.framed == set(range(10, 20))


def test_a_start_with_more_features_than_inputs():
    layer = made()
    init_from_data(layer, inputs(5))
    assert layer(inputs(5)).isfinite().all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (dict(start="kmeans"), "start must be one of.*got 'kmeans'"),
        (dict(start="turned"), "start='turned' is for features without thresholds"),
        (dict(mixed=1.0), "mixed must be a number from 0 to below 1; got 1.0"),
        (dict(mixed=0.5, start="kept"), "mixed=0.5 is a part of start='k-means'"),
        (dict(start="classes"), "start='classes' needs the class of each input: give classes=y"),
        (
            dict(start="classes", classes=[0, 1]),
            r"classes must be a whole number for each input, \[\d+\]; got int64 \[2\]",
        ),
        (dict(start="classes", classes=[0.5]), r"classes must be a whole number .* got float32 \[1\]"),
        (dict(start="classes", classes=torch.zeros(400, dtype=torch.int64)), "classes must be two or more"),
        (dict(classes=torch.arange(400)), "with start='k-means' classes say how to whiten: give whiten=0.5"),
        (dict(whiten=0.5, start="kept"), "whiten and classes are for start='k-means' and 'classes'; got start='kept'"),
        (dict(whiten=0), "whiten must be a number above 0, up to 1; got 0"),
    ],
)
def test_wrong_starts_are_refused(options, told):
    layer = made()
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=told):
        init_from_data(layer, inputs(), **options)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def test_k_means_needs_thresholds():
    with pytest.raises(ValueError, match=r"start='k-means' needs thresholds.*presence=0\.1"):
        init_from_data(TverskyProjection(D, P, K), inputs(), start="k-means")


@pytest.mark.parametrize("presence", [0, 1, 1.5, "a", True])
def test_a_presence_is_between_0_and_1(presence):
    with pytest.raises(ValueError, match="presence must be a number between 0 and 1"):
        FeatureBank(K, D, presence=presence)


def test_holding_needs_a_presence():
    with pytest.raises(ValueError, match="hold=True needs the presence to hold"):
        FeatureBank(K, D, hold=True)


# Holding


def trained(layer, x, steps=60, lr=0.05, compiled=False, between=lambda step: None, kind=torch.optim.AdamW):
    optimiser = kind(parameter_groups(layer, lr))
    target = (x[:, :P]).argmax(-1)
    call = torch.compile(layer, backend="eager", fullgraph=True) if compiled else layer
    for step in range(steps):
        between(step)
        optimiser.zero_grad()
        nn.functional.cross_entropy(call(x), target).backward()
        optimiser.step()
    return layer


def test_a_held_presence_is_kept_and_a_learned_one_is_not():
    x = inputs()
    spread = {}
    for hold in (False, True):
        layer = made(hold=hold)
        init_from_data(layer, x)
        trained(layer, x)
        spread[hold] = (share(layer, x) - 0.1).abs().mean()
    assert spread[True] < 0.04
    assert spread[False] > 2 * spread[True]


def test_held_thresholds_stay_in_eval_mode_and_in_the_last_tenth():
    x, layer = inputs(), made(hold=20)
    init_from_data(layer, x)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trained(layer, x, steps=19, between=lambda step: seen.append(layer.features.threshold.clone()))
        layer.eval()
    assert not torch.equal(seen[1], seen[2])
    assert torch.equal(seen[-1], layer.features.threshold)  # passes 18 and 19 are of the last tenth
    before = layer.features.threshold.clone()
    layer(x)
    assert torch.equal(before, layer.features.threshold)


def test_fixing_ends_the_holding():
    x, layer = inputs(), made(hold=True)
    trained(layer, x, steps=3)
    layer.features.fix()
    before = layer.features.threshold.clone()
    trained(layer, x, steps=3)
    assert torch.equal(before, layer.features.threshold)


def test_a_held_threshold_has_the_gradient_of_the_batchs_mean():
    """A shift of all inputs then changes no measure, and gets no gradient."""
    layer = made(hold=True, model="contrast").double()
    layer.features.passes.fill_(5)
    x = inputs(64).double().requires_grad_()
    weight, threshold = layer.features.cut(x)
    (gradient,) = torch.autograd.grad((x @ weight.mT - threshold).square().sum(), x)
    torch.testing.assert_close(gradient.sum(0), torch.zeros(D, dtype=torch.float64), atol=1e-9, rtol=0)
    (unheld,) = torch.autograd.grad((x @ weight.mT - threshold.detach()).square().sum(), x)
    assert unheld.sum(0).abs().max() > 1e-3


def test_a_held_run_resumes_bit_equal():
    x, whole = inputs(), made(hold=True)
    init_from_data(whole, x)
    first = copy.deepcopy(whole)
    trained(whole, x, steps=4, lr=0.0)
    trained(first, x, steps=2, lr=0.0)
    stored = io.BytesIO()
    torch.save(first.state_dict(), stored)
    stored.seek(0)
    second = made(hold=True)
    second.load_state_dict(torch.load(stored))
    trained(second, x, steps=2, lr=0.0)
    assert all(torch.equal(whole.state_dict()[k], v) for k, v in second.state_dict().items())
    assert whole.features.passes.item() == 5  # the start from data is the first


def test_checkpointing_counts_a_batch_once():
    x = inputs()
    plain, recomputed = made(hold=True), made(hold=True)
    plain(x).sum().backward()
    checkpoint(recomputed, x, use_reentrant=False).sum().backward()
    assert plain.features.passes.item() == recomputed.features.passes.item() == 1
    assert torch.equal(plain.features.threshold, recomputed.features.threshold)
    torch.testing.assert_close(plain.features.weight.grad, recomputed.features.weight.grad)


def test_holding_under_autocast_follows_in_32_bits():
    x, plain, cast = inputs(), made(hold=True), made(hold=True)
    plain(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast(x)
    assert torch.equal(plain.features.threshold, cast.features.threshold)


@pytest.mark.parametrize("options", [dict(), dict(hold=True)], ids=str)
def test_compiled_training_is_eager_training(options):
    torch._dynamo.reset()
    x, eager, compiled = inputs(64), made(**options), made(**options)
    trained(eager, x, steps=3, kind=torch.optim.SGD)
    trained(compiled, x, steps=3, kind=torch.optim.SGD, compiled=True)
    for key, value in eager.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_holding_warns_of_objects_without_features():
    layer, x = TverskyProjection(2, P, 4, presence=0.1, hold=5, bias=True), torch.randn(500, 2)
    layer(x)
    with pytest.warns(UserWarning, match=r"\d+% of the objects have no feature: a presence of 0.1 is held"):
        layer.eval()


def test_holding_warns_if_nothing_ends_it():
    layer = made(hold=True)
    layer(inputs())
    with pytest.warns(UserWarning, match=r"call \.fix\(\) for the last tenth"):
        layer.eval()


def test_holding_warns_of_a_missing_bias_behind_an_encoder():
    layer, encoder = TverskyProjection(D, P, K, presence=0.1, hold=True), nn.Linear(D, D)
    with pytest.warns(UserWarning, match="the layer has no bias.*bias=True"):
        layer(encoder(inputs()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(encoder(inputs()))  # once
        made(hold=True)(encoder(inputs()))


# Names


def ahead(n, offset=0.0, seed=0) -> torch.Tensor:
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed))
    x[:, 0] = x[:, 0].abs() * (1 if offset > 0 else -1) + offset
    return x


def named(**options) -> TverskyProjection:
    layer = made(**options)
    layer.features.name("ahead", ahead(20, 0.5), ahead(200, -0.5, seed=1))
    return layer


def test_a_named_feature_is_that_of_its_examples():
    layer = made()
    told = layer.features.name("ahead", ahead(20, 0.5), ahead(200, -0.5, seed=1))
    assert layer.features.names == {told.feature: "ahead"}
    assert told.score > 0.8
    assert f"MCC {told.score:.2f}" in str(told)
    new = torch.cat([ahead(500, 0.5, seed=2), ahead(500, -0.5, seed=3)])
    has = layer.features(new)[:, told.feature] > 0
    assert (has[:500].float().mean() - has[500:].float().mean()) > 0.8
    torch.testing.assert_close(layer.features.weight[told.feature].norm(), torch.tensor(1.0))


def sparse(n, seed) -> tuple[torch.Tensor, torch.Tensor]:
    """Objects with noise, a twentieth of which have one direction more."""
    generator = torch.Generator().manual_seed(seed)
    has = torch.rand(n, generator=generator) < 0.05
    x = torch.randn(n, 40, generator=generator)
    x[:, 1:20] *= 3
    x[:, 0] += 5 * has
    return x, has


def test_objects_of_unknown_kind_make_a_named_feature_better():
    x, has = sparse(4000, 0)
    new, truth = sparse(4000, 1)
    errors = []
    for background in (None, x):
        bank = FeatureBank(K, 40, presence=0.1)
        told = bank.name("more", x[has][:10], x[~has][:100], presence=0.05, background=background)
        found = bank(new)[:, told.feature] > 0
        errors.append((found != truth).float().mean().item())
    assert errors[1] < errors[0] / 2
    # What is said of it comes from examples that were held out, and background objects have no kind to tell.
    assert told.score > 0.5
    torch.testing.assert_close(bank.weight[told.feature].norm(), torch.tensor(1.0))
    torch.testing.assert_close((bank(x)[:, told.feature] > 0).float().mean(), torch.tensor(0.05), atol=1e-3, rtol=0)


def test_a_name_without_content_scores_nothing_among_other_objects():
    x, _ = sparse(1000, 0)
    told = FeatureBank(K, 40, presence=0.1).name("nothing", x[:40], x[40:440], background=x)
    assert abs(told.score) < 0.3


def test_a_name_without_content_scores_nothing():
    told = made().features.name("nothing", ahead(40, 0.5), ahead(400, 0.5, seed=1))
    assert abs(told.score) < 0.3


def test_a_named_feature_does_not_train_and_others_do():
    layer, x = named(), inputs()
    (k,) = layer.features.names
    before = copy.deepcopy(layer.features.state_dict())
    optimiser = torch.optim.AdamW(parameter_groups(layer, 0.05, weight_decay=1.0))
    for _ in range(3):
        optimiser.zero_grad()
        layer(x).square().sum().backward()
        optimiser.step()
    after = layer.features.state_dict()
    for key in ("weight", "threshold"):
        changed = (before[key] != after[key]).reshape(K, -1).any(-1)
        assert not changed[k]
        assert changed.sum() == K - 1
    layer.features.unname(k)
    layer(x).square().sum().backward()
    assert layer.features.weight.grad[k].any()


def test_a_name_for_a_learned_feature_leaves_it_learning():
    layer = made()
    assert "as it was learned" in str(layer.features.name("odd", feature=3))
    layer(inputs()).sum().backward()
    assert layer.features.weight.grad[3].any()


def test_a_named_threshold_is_not_held():
    layer, x = named(hold=True), inputs()
    (k,) = layer.features.names
    before = layer.features.threshold.clone()
    layer(x)
    moved = before != layer.features.threshold
    assert not moved[k]
    assert moved.sum() == K - 1


def test_names_are_shown_everywhere():
    layer, x = named(), ahead(50, 2.0)
    (k,) = layer.features.names
    a, b = x[0], ahead(1, -2.0)[0]
    assert "ahead" in str(pair(layer, a, b, top=K))
    assert layer.explain(a, top=K).feature_names == {k: "ahead"}
    assert "ahead" in str(decision(layer, a, top=K))
    assert "ahead" in layer.explain(a, top=K)._repr_html_()
    u = Universe.of(layer, inputs=x)
    assert u.feature_names == {k: "ahead"}
    assert k in u[0]
    assert venn(layer, a, b, x).a_only.features.count(k) == 1


def test_names_survive_saving(tmp_path):
    layer = named()
    init = made()
    init.load_state_dict(layer.state_dict())
    assert init.features.names == layer.features.names
    assert init.features.notes == layer.features.notes
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.features.notes == layer.features.notes
    save_model(layer, str(tmp_path / "model.safetensors"))
    loaded = made()
    load_model(loaded, str(tmp_path / "model.safetensors"))
    assert loaded.features.names == layer.features.names
    # Weights without names are those of other features.
    loaded.load_state_dict(made().state_dict())
    assert loaded.features.names == {}
    assert loaded.features.fixed is None


@pytest.mark.parametrize("average", [get_ema_multi_avg_fn(0.9), None], ids=["exponential", "equal"])
def test_names_survive_a_running_average_of_buffers(average):
    layer = made()
    layer.features.name("hole", feature=3)
    averaged = AveragedModel(layer, multi_avg_fn=average, use_buffers=True)
    for _ in range(3):
        averaged.update_parameters(layer)
    again = made()
    again.load_state_dict(averaged.module.state_dict())
    assert averaged.module.features.names == again.features.names == {3: "hole"}
    assert not torch.equal(averaged.module.features.about, layer.features.about) or average is None


def test_damaged_names_are_told():
    state = named().state_dict()
    state["features.about"] = state["features.about"][:-3]
    with pytest.raises(RuntimeError, match="the features' names cannot be read"):
        made().load_state_dict(state)


def test_a_bank_pickled_before_it_had_thresholds_loads():
    bank = FeatureBank(K, D)
    state = bank.__getstate__() if hasattr(bank, "__getstate__") else bank.__dict__.copy()
    state = {k: v for k, v in dict(state).items() if k not in ("presence", "hold", "notes")}
    state["_parameters"] = {"weight": bank.weight}
    state["_buffers"] = {}
    old = FeatureBank.__new__(FeatureBank)
    old.__setstate__(state)
    x = torch.randn(3, D)
    assert torch.equal(old(x), bank(x))


def test_pruning_and_growing_keep_names():
    layer, x = named(), inputs()
    (k,) = layer.features.names
    with torch.no_grad():
        layer.features.weight[: k or 1] = 0
        layer.features.threshold[: k or 1] = 1
    before = layer(x)
    pruned = layer.prune(x, fold=True)
    assert pruned.removed
    assert layer.features.names == {pruned.kept.index(k): "ahead"}
    torch.testing.assert_close(layer(x), before)
    layer.features.grow(3)
    assert layer.features.fixed.shape == (layer.features.num_features,)
    assert layer(x).isfinite().all()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda b: b.name("a"), "give positives and negatives"),
        (lambda b: b.name("", feature=1), "must be a text that is not empty; got ''"),
        (lambda b: b.name("a", feature=99), "feature must be an index from 0 to 19; got 99"),
        (lambda b: b.name("a", ahead(9), ahead(50)), "needs 10 positives or more.*got 9"),
        (lambda b: b.name("a", torch.zeros(20, 3), ahead(50)), r"positives must be objects \[n, 6\]; got shape"),
        (lambda b: b.name("a", ahead(20) / 0, ahead(50)), "positives must be finite"),
        (lambda b: b.name("a", ahead(20), ahead(50), background=torch.zeros(50, 3)), r"background must be objects"),
        (lambda b: b.name("a", ahead(20), ahead(50), background=torch.zeros(50, D)), "no direction in float32"),
        (lambda b: b.unname(2), "feature 2 has no name"),
        (lambda b: (b.name("a", feature=1), b.name("a", feature=2)), "feature 1 is 'a' already"),
    ],
)
def test_wrong_names_are_refused(call, told):
    bank = FeatureBank(K, D, presence=0.1)
    before = copy.deepcopy(bank.state_dict())
    with pytest.raises(ValueError, match=told):
        call(bank)
    assert torch.equal(before["weight"], bank.weight)


# What measures takes thresholds into account.


def test_views_measure_as_the_layer_does():
    layer, x = made(), inputs()
    init_from_data(layer, x)
    why = explain(layer, x[0])
    assert why.similarity == pytest.approx((why.shares().sum() + why.bias).item(), abs=1e-5)
    torch.testing.assert_close(why.input_measures, layer.features(x[0]))
    torch.testing.assert_close(why.prototype_measures, layer.features.weight @ layer.prototypes[why.prototype])
    has = layer.features(x) > 0
    u = Universe.of(layer, inputs=x)
    assert all(torch.equal(u[i].mask, has[i]) for i in range(10))
    assert torch.equal(u[x[3]].mask, has[3])
    prototypes = Universe.of(layer)
    assert torch.equal(prototypes[0].mask, layer.features.weight @ layer.prototypes[0] > 0)
    assert torch.equal(prototypes[x[3]].mask, has[3])
    torch.testing.assert_close(rank(layer, x).salience, layer.features(x).relu().sum(-1))
    assert prototypes[0].salience == pytest.approx((layer.prototypes[0] @ layer.features.weight.mT).relu().sum().item())
    everything = layer.features(x).sum(-1)
    torch.testing.assert_close(u.everything.scores(), everything)


@pytest.mark.parametrize("change", ["threshold", "weight"])
def test_the_kept_side_sees_new_thresholds(change):
    layer, x = made().eval(), inputs()
    with torch.no_grad():
        before = layer(x)
        getattr(layer.features, change).mul_(0.5)
        after = layer(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, layer.train()(x))


def test_banks_with_thresholds_learn_at_the_full_rate():
    rates = {p: g["lr"] for g in parameter_groups(made(), 0.1) for p in g["params"]}
    layer = made()
    rates = {p: g["lr"] for g in parameter_groups(layer, 0.1) for p in g["params"]}
    assert rates[layer.features.weight] == rates[layer.features.threshold] == 0.1
    layer = TverskyProjection(D, P, K)
    rates = {p: g["lr"] for g in parameter_groups(layer, 0.1) for p in g["params"]}
    assert rates[layer.features.weight] == pytest.approx(0.01)


def test_a_model_starts_its_layer_from_inputs_of_its_own():
    x, encoder = inputs(), nn.Sequential(nn.Linear(D, D), nn.Dropout(0.5))
    model = nn.Sequential(encoder, made())
    init_from_data(model, x)
    assert model.training
    has = share(model[1], encoder.eval()(x))
    torch.testing.assert_close(has, torch.full((K,), 0.1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_reconstruction_is_the_share_of_variance_left(dtype):
    layer, x = made().to(dtype), inputs().to(dtype)
    init_from_data(layer, x)
    with torch.no_grad():
        A = (x.double() @ layer.features.weight.double().mT - layer.features.threshold.double()).relu()
        rebuilt = A @ nn.functional.normalize(layer.features.weight.double(), dim=-1)
    design = torch.stack([(rebuilt - rebuilt.mean(0)).flatten()], 1)
    goal = (x.double() - x.double().mean(0)).flatten()
    fitted = design @ torch.linalg.lstsq(design, goal[:, None]).solution
    left = (goal - fitted[:, 0]).square().sum() / goal.square().sum()
    loss = layer.reconstruction(x)
    assert loss.item() == pytest.approx(left.item(), abs=1e-2 if dtype == torch.bfloat16 else 1e-5)
    loss.backward()
    assert layer.features.weight.grad.isfinite().all()
    assert layer.features.threshold.grad.any()


def test_reconstruction_explains_inputs_made_of_features():
    directions = torch.eye(D)
    x = torch.rand(200, D) * (torch.rand(200, D) < 0.3)
    layer = TverskyProjection(D, P, D, presence=0.3)
    with torch.no_grad():
        layer.features.weight.copy_(directions)
        layer.features.threshold.zero_()
    assert layer.reconstruction(x).item() == pytest.approx(0, abs=1e-5)
    assert layer.reconstruction(-x).item() == pytest.approx(1)
    assert layer.reconstruction(torch.zeros(5, D)).item() == 1
    with torch.no_grad():
        layer.features.weight.copy_(torch.roll(directions, 1, 0) - 0.5 * directions)
    assert 0.1 < layer.reconstruction(x).item() < 1


def test_training_on_reconstruction_explains_more():
    layer, x = made(), inputs()
    init_from_data(layer, x, start="kept")
    before = layer.reconstruction(x).item()
    optimiser = torch.optim.Adam(layer.parameters(), 0.02)
    for _ in range(60):
        optimiser.zero_grad()
        layer.reconstruction(x).backward()
        optimiser.step()
    assert layer.reconstruction(x).item() < 0.8 * before


# What other programs do.


def test_a_shared_bank_keeps_its_names_in_safetensors(tmp_path):
    def two():
        bank = FeatureBank(K, D, presence=0.1)
        return nn.ModuleList([TverskyProjection(D, P, features=bank) for _ in range(2)])

    model, other = two(), two()
    model[0].features.name("ahead", ahead(20, 0.5), ahead(200, -0.5, seed=1))
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert other[0].features.names == model[0].features.names != {}
    assert torch.equal(other[0].features.fixed, model[0].features.fixed)
    # A part of a state says nothing of the bank.
    other.load_state_dict({"0.prototypes": model[0].prototypes}, strict=False)
    assert other[0].features.names == model[0].features.names


@pytest.mark.parametrize(
    "look", [explain, decision, lambda layer, x: layer.explain(x)], ids=["explain", "decision", "own"]
)
def test_a_look_at_a_layer_moves_no_held_threshold(look):
    layer, x = made(hold=True), inputs()
    init_from_data(layer, x)
    before = layer.features.threshold.clone(), layer.features.passes.clone()
    look(layer, x[0])
    assert torch.equal(before[0], layer.features.threshold)
    assert torch.equal(before[1], layer.features.passes)
    assert layer.training


def test_the_prototypes_side_is_kept_with_fixed_features_too():
    layer, x = named().eval(), inputs()
    with torch.no_grad():
        layer(x)
        kept = layer._kept
        layer(x)
        assert layer._kept is kept is not None


def test_thresholds_are_set_by_tokens_of_all_places():
    x = torch.randn(1024, 4, D, generator=torch.Generator().manual_seed(0))
    x[:, 0] += 3  # the first token of each text is unlike the others
    held, started = made(hold=True), made()
    for _ in range(20):
        held(x)
    init_from_data(started, x.repeat(16, 1, 1), start="kept")
    for layer in (held, started):
        torch.testing.assert_close(share(layer, x.flatten(0, 1)), torch.full((K,), 0.1), atol=0.02, rtol=0)


def test_a_batch_that_is_not_finite_is_not_remembered():
    layer, x = made(hold=True), inputs()
    layer(x)
    before = layer.features.threshold.clone()
    layer(x * torch.nan)
    assert torch.equal(before, layer.features.threshold)


def test_a_wrong_batch_moves_no_threshold():
    layer, x = made(hold=True), inputs()
    before = layer.features.threshold.clone()
    for wrong in (x[:, :3], x.double()):
        with pytest.raises((TypeError, ValueError)):
            layer(wrong)
    assert torch.equal(before, layer.features.threshold)
    out = layer(x[:0])
    assert out.shape == (0, P)
    out.sum().backward()
    assert not layer.features.weight.grad.any()


def test_thresholds_that_are_fixed_stay_so_when_loaded():
    layer, x = made(hold=True), inputs()
    layer(x)
    layer.features.fix()
    other = made(hold=True)
    other.load_state_dict(layer.state_dict())
    other(2 * x)
    assert torch.equal(other.features.threshold, layer.features.threshold)


@pytest.mark.parametrize("distinct", [2, 3, 5])
def test_a_start_from_few_distinct_inputs_leaves_features_to_have(distinct):
    layer, x = made(), inputs(distinct).repeat(80, 1)
    init_from_data(layer, x)
    assert ((layer.features(x) > 0).any(0)).float().mean() > 0.5
    assert max(abs(v.item()) for v in layer.contrast()) < 1e3


@pytest.mark.parametrize(
    ("x", "options", "told"),
    [
        (torch.full((200, D), 0.1), {}, "the inputs are all equal"),
        (torch.full((200, D), torch.nan), {}, "x must be finite"),
        (inputs(), dict(spread=0), "spread must be a number above 0; got 0"),
        (inputs(), dict(spread="a"), "spread must be a number above 0; got 'a'"),
        (inputs(), dict(mixed="a"), "mixed must be a number from 0 to below 1; got 'a'"),
    ],
)
def test_inputs_that_nothing_can_start_from_are_refused(x, options, told):
    layer = made()
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=told):
        init_from_data(layer, x, **options)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())


def test_starts_go_with_names():
    layer, x = named(), inputs()
    (k,) = layer.features.names
    before = layer.features.threshold[k].clone()
    init_from_data(layer, x, start="kept")
    assert layer.features.names == {k: "ahead"}
    assert torch.equal(layer.features.threshold[k], before)
    with pytest.raises(ValueError, match="start first, and then name"):
        init_from_data(layer, x)
    layer.reset_parameters()
    assert layer.features.names == {}


@pytest.mark.parametrize("size", [1e-15, 1e10])
def test_a_reconstruction_does_not_depend_on_size(size):
    layer, x = made(), inputs()
    init_from_data(layer, x)
    expected = layer.reconstruction(x).item()
    with torch.no_grad():
        layer.features.threshold *= size
    assert layer.reconstruction(x * size).item() == pytest.approx(expected, rel=1e-3)
    with pytest.raises(ValueError, match="x must be two inputs or more"):
        layer.reconstruction(x[0])


def test_unit_length_changes_no_set():
    layer, x = named(hold=True), inputs()
    (k,) = layer.features.names
    free = torch.arange(K) != k
    with torch.no_grad():
        factor = torch.linspace(1.5, 3, K)
        layer.features.weight.mul_(factor[:, None])
        layer.features.threshold.mul_(factor)
        layer.features.weight[0 if k else 1] = 0
    before, kept = layer.features(x) > 0, copy.deepcopy(layer.features.state_dict())
    unit_length_(nn.Sequential(layer, nn.Linear(P, 1)))
    assert torch.equal(layer.features(x) > 0, before)
    length = layer.features.weight.norm(dim=-1)
    assert (length[free] - 1).abs().sort().values[:-1].max() < 1e-6  # all but one, which is 0
    assert length[0 if k else 1] == 0
    for key in ("weight", "threshold"):
        assert torch.equal(layer.features.state_dict()[key][k], kept[key][k])


def test_unit_length_takes_banks_without_thresholds_and_of_half_precision():
    bank = FeatureBank(K, D, init="normal", dtype=torch.bfloat16)
    unit_length_(bank)
    assert bank.weight.dtype == torch.bfloat16
    torch.testing.assert_close(bank.weight.float().norm(dim=-1), torch.ones(K), atol=1e-2, rtol=0)


def test_names_that_no_direction_can_have_are_refused():
    bank = FeatureBank(K, D, presence=0.1)
    before = bank.weight.detach().clone()
    with pytest.raises(ValueError, match="no direction in float32 tells these positives"):
        bank.name("nothing", torch.zeros(20, D), torch.zeros(50, D), feature=2)
    with pytest.raises(ValueError, match="feature must be an index"):
        bank.name("true", ahead(20), ahead(50), feature=True)
    assert torch.equal(before, bank.weight)
    bank.name("odd", feature=3)
    bank.unname("odd")
    assert bank.names == {}


def test_a_start_from_fewer_inputs_than_features_warns():
    layer = TverskyProjection(8, 3, 16, presence=0.1, bias=True)
    with pytest.warns(UserWarning, match="15 inputs are too few for 16 features, some of which repeat"):
        init_from_data(layer, torch.randn(15, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        init_from_data(layer, torch.randn(16, 8))


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_start_from_data_needs_finite_inputs_without_thresholds_too(wrong):
    layer, x = TverskyProjection(6, 3, 4), torch.randn(50, 6)
    before = layer.features.weight.clone()
    x[7, 2] = wrong
    with pytest.raises(ValueError, match="x must be finite"):
        init_from_data(layer, x)
    assert torch.equal(layer.features.weight, before)
