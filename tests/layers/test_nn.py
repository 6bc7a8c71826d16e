"""The modules: nn contract, sharing and tying, state, messages."""

import copy
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

import similitude.functional as F
from similitude import FeatureBank, TverskyProjection, TverskySimilarity
from similitude.contrast import CONSTANTS


class Tied(nn.Module):
    """An embedding, a hidden projection and a head on one bank, the head's prototypes tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.bank = FeatureBank(num_features=9, dim=6)
        self.hidden = TverskyProjection(6, 6, features=self.bank)
        self.head = TverskyProjection(6, 11, features=self.bank, prototypes=self.embedding.weight)

    def forward(self, tokens):
        return self.head(self.hidden(self.embedding(tokens)))


def test_projection_is_the_functional_projection():
    layer = TverskyProjection(dim=5, num_prototypes=3, num_features=7, intersection="min", difference="subtractmatch")
    x = torch.randn(2, 4, 5)
    options = dict(intersection="min", difference="subtractmatch")
    expected = F.tversky_projection(x, layer.prototypes, layer.features.weight, **layer.constants(), **options)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).shape == (2, 4, 3)
    assert (layer.in_features, layer.out_features, layer.features.num_features) == (5, 3, 7)


def test_similarity_is_paired_and_pairwise():
    sim = TverskySimilarity(dim=5, num_features=7)
    a, b = torch.randn(4, 5), torch.randn(3, 5)
    table = sim.pairwise(a, b)
    assert table.shape == (4, 3)
    torch.testing.assert_close(sim(a[:3], b), table[:3].diagonal())
    torch.testing.assert_close(sim(a[:, None], b), table)
    assert sim.pairwise(a.expand(2, 4, 5), b.expand(2, 3, 5)).shape == (2, 4, 3)


def test_similarity_is_not_symmetric_when_alpha_is_not_beta():
    sim = TverskySimilarity(5, 16, alpha=0.9, beta=0.1)
    a, b = torch.randn(5), torch.randn(5)
    assert not torch.allclose(sim(a, b), sim(b, a))


def test_bank_gives_measures():
    bank, x = FeatureBank(7, 5), torch.randn(2, 5)
    torch.testing.assert_close(bank(x), x @ bank.weight.T)


def test_state_has_the_documented_names():
    plain = TverskyProjection(5, 3, 7, parametrization="plain")
    assert list(plain.state_dict()) == ["prototypes", "alpha", "beta", "theta", "features.weight"]
    layer = TverskyProjection(5, 3, 7)
    constants = [f"{name}_{part}" for part in ("gain", "unit") for name in ("alpha", "beta", "theta")]
    assert sorted(layer.state_dict()) == sorted(["prototypes", "features.weight", *constants])
    assert "bias" in TverskyProjection(5, 3, 7, bias=True).state_dict()
    assert sum(p.numel() for p in layer.parameters()) == 3 * 5 + 7 * 5 + 3


def test_constants_are_learned_or_fixed_and_kept_either_way():
    options = dict(alpha=0.2, beta=0.3, theta=1.5, learnable=("alpha", "theta"))
    layer = TverskyProjection(5, 3, 7, **options, parametrization="plain")
    assert {name for name, _ in layer.named_parameters()} == {"prototypes", "features.weight", "alpha", "theta"}
    assert [layer.state_dict()[n].item() for n in ("alpha", "beta", "theta")] == pytest.approx([0.2, 0.3, 1.5])
    for parametrization in ("gain", "log"):
        layer = TverskyProjection(5, 3, 7, **options, parametrization=parametrization)
        learned = {f"alpha_{parametrization}", f"theta_{parametrization}"}
        assert {name for name, _ in layer.named_parameters()} == {"prototypes", "features.weight", *learned}
        assert [c.item() for c in layer.constants().values()] == pytest.approx([0.2, 0.3, 1.5])
    fixed = TverskyProjection(5, 3, 7, learnable=False)
    assert {name for name, _ in fixed.named_parameters()} == {"prototypes", "features.weight"}
    fixed(torch.randn(2, 5)).sum().backward()


@pytest.mark.parametrize("model", ["contrast", "ratio"])
def test_every_parameter_gets_a_gradient(model):
    layer = TverskyProjection(8, 5, 16, bias=True, model=model)
    layer(torch.randn(32, 8)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_bias_is_added():
    layer = TverskyProjection(5, 3, 7, bias=True)
    x = torch.randn(2, 5)
    before = layer(x)
    with torch.no_grad():
        layer.bias += torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(layer(x), before + torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("init", ["unit", "uniform", "normal", "orthogonal"])
def test_starting_values(init):
    bank = FeatureBank(2000, 16, init=init)
    w = bank.weight.detach()
    if init == "orthogonal":
        torch.testing.assert_close(w.T @ w, torch.eye(16), atol=1e-5, rtol=1e-5)
        return
    mean, std = {"unit": (0, 1 / 4), "uniform": (0.5, 12**-0.5), "normal": (0, 1)}[init]
    assert w.mean().item() == pytest.approx(mean, abs=0.02)
    assert w.std().item() == pytest.approx(std, rel=0.02)
    assert FeatureBank(3, 16, init=init, dtype=torch.bfloat16).weight.dtype == torch.bfloat16


def test_reset_parameters_renews_what_is_its_own_and_nothing_else():
    model = Tied()
    shared, tied = model.bank.weight.detach().clone(), model.embedding.weight.detach().clone()
    own = model.hidden.prototypes.detach().clone()
    before = model.hidden.alpha.item()
    model.hidden.alpha = 7.0
    assert model.hidden.alpha.item() == pytest.approx(7.0)
    model.hidden.reset_parameters()
    model.head.reset_parameters()
    torch.testing.assert_close(model.bank.weight.detach(), shared)
    torch.testing.assert_close(model.embedding.weight.detach(), tied)
    assert not torch.equal(model.hidden.prototypes, own)
    assert model.hidden.alpha.item() == pytest.approx(before, rel=0.2)


def test_the_same_seed_gives_the_same_layer():
    layers = []
    for _ in range(2):
        torch.manual_seed(7)
        layers.append(TverskyProjection(5, 3, 7).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(layers[0].values(), layers[1].values()))


def test_shared_and_tied_parameters_are_one_tensor():
    model = Tied()
    assert model.head.features is model.hidden.features
    assert model.head.prototypes is model.embedding.weight
    assert sum(p.numel() for p in model.parameters()) == 11 * 6 + 9 * 6 + (6 * 6 + 3) + 3
    model(torch.tensor([1, 2])).sum().backward()
    assert model.bank.weight.grad is not None


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_keep_ties(way):
    model = Tied()
    other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    assert other.head.prototypes is other.embedding.weight
    assert other.head.features is other.hidden.features is other.bank
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(other(tokens), model(tokens))
    with torch.no_grad():
        other.bank.weight.zero_()
    assert model.bank.weight.abs().max() > 0


def test_moving_and_casting_keep_ties():
    model = Tied().double()
    assert model.head.prototypes is model.embedding.weight
    assert model(torch.tensor([1])).dtype == torch.float64


def test_safetensors_stores_shared_tensors_once(tmp_path):
    model, other = Tied(), Tied()
    path = str(tmp_path / "model.safetensors")
    save_model(model, path)
    load_model(other, path)
    tokens = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(other(tokens), model(tokens))
    assert other.head.prototypes is other.embedding.weight
    distinct = sum(p.numel() for p in model.parameters())
    assert (tmp_path / "model.safetensors").stat().st_size < 4 * distinct + 2000


def test_meta_device_then_empty():
    with torch.device("meta"):
        layer = TverskyProjection(768, 50257, 8192)
    assert layer.prototypes.is_meta
    assert sum(p.numel() for p in layer.parameters()) == 50257 * 768 + 8192 * 768 + 3
    assert layer(torch.empty(2, 768, device="meta")).shape == (2, 50257)
    small = TverskyProjection(4, 3, 5, device="meta").to_empty(device="cpu")
    small.reset_parameters()
    assert small(torch.randn(2, 4)).isfinite().all()


def test_a_new_layer_takes_dtype_from_what_it_is_given():
    embedding = nn.Embedding(11, 6, dtype=torch.bfloat16)
    head = TverskyProjection(6, 11, 9, prototypes=embedding.weight)
    assert head.features.weight.dtype == head.alpha.dtype == torch.bfloat16
    assert head(torch.randn(2, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_module_compiles_whole():
    layer = TverskyProjection(6, 5, 7, bias=True)
    x = torch.randn(3, 6)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


def test_autocast_trains():
    layer = TverskyProjection(6, 5, 7, bias=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(torch.randn(3, 6))
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())


CHANGES = {
    "prototypes": lambda layer: layer.prototypes.mul_(2),
    "features": lambda layer: layer.features.weight.mul_(2),
    "alpha": lambda layer: layer.alpha_gain.add_(1),
    "beta": lambda layer: layer.beta_gain.add_(1),
    "theta": lambda layer: layer.theta_gain.add_(1),
    "an option": lambda layer: setattr(layer, "normalize", True),
    "its intersection": lambda layer: setattr(layer, "intersection", "min"),
    "other prototypes": lambda layer: setattr(layer, "prototypes", nn.Parameter(torch.randn(5, 6))),
    "data behind the back": lambda layer: layer.prototypes.data.mul_(2),
    "a row of data": lambda layer: layer.features.weight.data[3].neg_(),
    "its state": lambda layer: layer.load_state_dict(TverskyProjection(6, 5, 7).state_dict()),
}


@pytest.mark.parametrize(
    "options", [dict(), dict(intersection="min", difference="subtractmatch"), dict(level="set")], ids=str
)
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_for_inference_is_dropped_when_the_layer_changes(change, options):
    layer = TverskyProjection(6, 5, 7, **options).eval()
    x = torch.randn(3, 2, 6)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))
        kept = layer._kept
        assert kept is not None
        torch.testing.assert_close(layer(x[0, 0]), copy.deepcopy(layer).train()(x[0, 0]))
        assert layer._kept is kept
        CHANGES[change](layer)
        torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))
    assert torch.equal(layer(x), copy.deepcopy(layer).train()(x)), "with gradients nothing is kept"
    assert layer._kept is None


def test_a_change_of_data_is_seen_in_any_eighth_of_the_columns():
    layer, x = TverskyProjection(64, 5, 7).eval(), torch.randn(3, 64)
    with torch.no_grad():
        for vectors in (layer.prototypes, layer.features.weight):
            for start in range(0, 64, 8):
                before = layer(x)
                vectors.data[:, start : start + 8].neg_()
                assert not torch.equal(layer(x), before)
                torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))


def test_other_parameters_are_never_taken_for_those_that_were_kept():
    """Freed tensors leave their address to the next ones."""
    layer = TverskyProjection(6, 5, 7).eval()
    x = torch.randn(3, 6)
    with torch.no_grad():
        for seed in range(5):
            g = torch.Generator().manual_seed(seed)
            others = {name: torch.randn(p.shape, generator=g) for name, p in layer.named_parameters()}
            out = torch.func.functional_call(layer, others, (x,))
            constants = (others[f"{name}_gain"] * getattr(layer, f"{name}_unit") for name in CONSTANTS)
            expected = F.tversky_projection(x, others["prototypes"], others["features.weight"], *constants)
            torch.testing.assert_close(out, expected)
            del others


def test_transforms_and_tracing_work_in_eval_without_gradients():
    layer = TverskyProjection(6, 5, 7).eval()
    x = torch.randn(3, 6)
    with torch.no_grad():
        expected = layer(x)
        torch.testing.assert_close(torch.vmap(layer)(x), expected)
        stacked = {name: p.detach().expand(2, *p.shape) for name, p in layer.named_parameters()}
        both = torch.vmap(lambda p: torch.func.functional_call(layer, p, (x,)))(stacked)
        torch.testing.assert_close(both, expected.expand(2, -1, -1))
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), expected)


def test_inference_follows_autocast_and_dtype():
    layer = TverskyProjection(6, 5, 7).eval()
    x = torch.randn(3, 6)
    with torch.no_grad():
        plain = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), plain)
        torch.testing.assert_close(layer.double()(x.double()).float(), plain)
        with pytest.raises(ValueError, match="must have one dtype"):
            layer(x)
        with pytest.raises(TypeError, match="must have a floating dtype"):
            layer(x.long())
    with torch.inference_mode():
        torch.testing.assert_close(layer(x.double()).float(), plain)


def test_repr_says_what_it_is():
    layer = TverskyProjection(6, 5, 7, level="set", bias=True, alpha=0.25, beta=0.5, theta=1)
    assert repr(layer) == (
        "TverskyProjection(\n"
        "  dim=6, num_prototypes=5, bias=True, intersection='product', difference='ignorematch', level='set', "
        "alpha=0.25, beta=0.5, theta=1\n"
        "  (features): FeatureBank(num_features=7, dim=6)\n"
        ")"
    )
    assert "prototypes=tied" in repr(Tied().head)
    assert repr(TverskySimilarity(6, 7)).startswith("TverskySimilarity(\n  dim=6, intersection='product'")


MESSAGES = {
    "wrong option": (
        lambda: TverskyProjection(4, 3, 5, intersection="produkt"),
        ValueError,
        "intersection must be one of product, min, max, mean, gmean, softmin; got 'produkt'. Did you mean 'product'?",
    ),
    "wrong option of a similarity": (
        lambda: TverskySimilarity(4, 5, difference="substract"),
        ValueError,
        "difference must be one of ignorematch, subtractmatch; got 'substract'. Did you mean 'subtractmatch'?",
    ),
    "wrong init": (
        lambda: FeatureBank(4, 5, init="xavier"),
        ValueError,
        "init must be one of calibrated, unit, uniform, normal, orthogonal; got 'xavier'.",
    ),
    "no features": (
        lambda: TverskyProjection(4, 3),
        ValueError,
        "give num_features for a feature bank of its own, or features=FeatureBank(...) to share one.",
    ),
    "a count that is no count": (
        lambda: TverskyProjection(4, 0, 5),
        ValueError,
        "num_prototypes must be a whole number of 1 or more; got 0.",
    ),
    "mismatched bank": (
        lambda: TverskyProjection(4, 3, features=FeatureBank(5, 6)),
        ValueError,
        "the feature bank has dim 6 and the layer dim 4; they must be equal.",
    ),
    "a tensor for a bank": (
        lambda: TverskyProjection(4, 3, features=torch.randn(5, 4)),  # pyright: ignore
        TypeError,
        "features must be a FeatureBank; got Tensor: FeatureBank(num_features, dim).",
    ),
    "two counts of features": (
        lambda: TverskySimilarity(4, 6, features=FeatureBank(5, 4)),
        ValueError,
        "num_features=6 contradicts the given bank of 5 features; leave it out.",
    ),
    "tied prototypes of the wrong shape": (
        lambda: TverskyProjection(4, 3, 5, prototypes=nn.Embedding(7, 4).weight),
        ValueError,
        "tied prototypes must be [num_prototypes, dim] = [3, 4]; got shape [7, 4].",
    ),
    "an embedding for its weight": (
        lambda: TverskyProjection(4, 3, 5, prototypes=nn.Embedding(3, 4)),  # pyright: ignore
        TypeError,
        "prototypes must be an nn.Parameter to tie to; got Embedding: pass its .weight.",
    ),
    "alpha that is no number": (
        lambda: TverskyProjection(4, 3, 5, alpha=torch.rand(3)),  # pyright: ignore
        ValueError,
        "alpha must be one number, a float or a floating tensor of one element; "
        "got a tensor of shape [3] and dtype float32.",
    ),
    "a constant that is none": (
        lambda: TverskyProjection(4, 3, 5, learnable=["gamma"]),
        ValueError,
        "learnable must be one of alpha, beta, theta; got 'gamma'.",
    ),
    "a number for names": (
        lambda: TverskyProjection(4, 3, 5, learnable=3),  # pyright: ignore
        ValueError,
        "learnable must be True, False or names of alpha, beta, theta; got 3.",
    ),
    "a word for a flag": (
        lambda: TverskySimilarity(4, 5, normalize="no"),  # pyright: ignore
        ValueError,
        "normalize must be True or False; got 'no'.",
    ),
    "an integer bank": (
        lambda: FeatureBank(4, 5, dtype=torch.int32),
        TypeError,
        "dtype must be a floating dtype; got int32.",
    ),
    "the name of a dtype": (
        lambda: TverskyProjection(4, 3, 5, dtype="float32"),
        TypeError,
        "dtype must be a floating dtype; got 'float32'.",
    ),
    "a wrong width for a bank": (
        lambda: FeatureBank(4, 5)(torch.randn(2, 6)),
        ValueError,
        "x and features must have the same width D; got x [2, 6] and features [4, 5].",
    ),
    "a wrong width at call": (
        lambda: TverskyProjection(4, 3, 5)(torch.randn(2, 6)),
        ValueError,
        "x and features must have the same width D; got x [2, 6] and features [5, 4].",
    ),
}


def test_sizes_may_be_numpys():
    assert TverskyProjection(np.int64(4), np.int64(3), np.int32(5))(torch.randn(2, 4)).shape == (2, 3)
    assert type(TverskySimilarity(np.int64(4), 5).dim) is int


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_gets_one_clear_sentence(case):
    call, kind, message = MESSAGES[case]
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == message


def test_constants_that_a_parametrisation_cannot_hold_are_one_sentence():
    saved = TverskyProjection(5, 3, 7, alpha=-0.3, parametrization="plain").state_dict()
    layer = TverskyProjection(5, 3, 7, parametrization="log")
    with pytest.raises(RuntimeError, match=r"alpha is -0\.3, and parametrization='log' holds numbers above 0 only"):
        layer.load_state_dict(saved)
    assert all(value.isfinite().all() for value in layer.state_dict().values())


@pytest.mark.parametrize("parametrization", ["plain", "log"])
def test_a_missing_unit_is_a_missing_key(parametrization):
    saved = TverskyProjection(5, 3, 7).state_dict()
    del saved["beta_unit"]
    with pytest.raises(RuntimeError, match=r"Missing key.*beta_unit"):
        TverskyProjection(5, 3, 7, parametrization=parametrization).load_state_dict(saved)


@pytest.mark.parametrize("parametrization", ["gain", "log"])
def test_gains_of_halves_are_multiplied_in_float32(parametrization):
    layer = TverskyProjection(5, 3, 7, parametrization=parametrization)
    layer.alpha, layer.beta, layer.theta = 0.37, 1.93, 2.71
    half = copy.deepcopy(layer).half()
    widened = copy.deepcopy(half).float()
    torch.testing.assert_close(half.contrast(), widened.contrast(), rtol=0, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_what_has_no_logarithm_is_refused_and_a_gain_holds_it(value):
    saved = TverskyProjection(5, 3, 7, parametrization="plain").state_dict()
    saved["alpha"] = torch.tensor([value])
    with pytest.raises(
        RuntimeError, match=rf"alpha is {value:g}, and parametrization='log' holds numbers above 0 only"
    ):
        TverskyProjection(5, 3, 7, parametrization="log").load_state_dict(saved)
    layer = TverskyProjection(5, 3, 7)
    layer.load_state_dict(saved)
    torch.testing.assert_close(layer.alpha, saved["alpha"], equal_nan=True, check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("now", ["plain", "gain", "log"])
@pytest.mark.parametrize("then", ["plain", "gain", "log"])
def test_constants_of_halves_are_rounded_once_where_they_change_their_parametrisation(then, now, dtype):
    saved, layer = (TverskyProjection(5, 3, 7, parametrization=how, dtype=dtype) for how in (then, now))
    for value in (0.0123, 0.37, 1.93, 2.71, 7.77):
        saved.alpha = value
        with torch.no_grad():
            saved.learned()[0].mul_(1.1)
        layer.load_state_dict(saved.state_dict())
        found, true = layer.contrast()[0].item(), saved.contrast()[0].item()
        assert abs(found / true - 1) <= 0.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_whole_numbers_beyond_any_float_are_one_sentence(value):
    layer, x, features = TverskyProjection(5, 3, 7), torch.randn(2, 5), torch.randn(7, 5)
    for call in (
        lambda: TverskyProjection(5, 3, 7, alpha=value),
        lambda: setattr(layer, "alpha", value),
        lambda: F.tversky_projection(x, x, features, alpha=value),
        lambda: layer.cross_entropy(x, torch.zeros(2, dtype=torch.long), z_loss=value),
    ):
        with pytest.raises(ValueError, match=r"^(alpha|z_loss) must be a finite number; got -?10*\.$"):
            call()
