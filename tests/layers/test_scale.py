"""A learned scale of the ratio model's similarities, without which they do not train as logits."""

import copy
import math

import pytest
import torch
from torch import nn

from similitude import TverskyProjection, parameter_groups
from similitude.models.data_domain import DataDomain
from similitude.ops import reference

FORMS = [
    dict(),
    dict(backend="reference"),
    dict(intersection="min", difference="subtractmatch"),
    dict(level="set", intersection="gmean", normalize=True),
    dict(presence=0.3),
]


def scaled(**options) -> TverskyProjection:
    return TverskyProjection(6, 5, 9, model="ratio", scale=4, bias=True, **options).double()


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_outputs_are_scaled_similarities_and_a_bias(form):
    layer, x = scaled(**form), torch.randn(7, 6, dtype=torch.float64)
    nn.init.normal_(layer.bias)
    plain = TverskyProjection(6, 5, 9, model="ratio", **form).double()
    plain.load_state_dict({n: t for n, t in layer.state_dict().items() if n not in ("bias", "scale_log")})
    expected = 4 * plain(x) + layer.bias
    torch.testing.assert_close(layer(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), expected)
        layer.scale_log += math.log(2)
        torch.testing.assert_close(layer(x), 2 * expected - layer.bias)


@pytest.mark.parametrize("how", [dict(), dict(reduction="sum", label_smoothing=0.1), dict(z_loss=0.1)], ids=str)
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_loss_and_its_gradients_are_those_of_the_outputs(form, how):
    layer, target = scaled(**form), torch.randint(5, (20,))
    x = torch.randn(20, 6, dtype=torch.float64, requires_grad=True)
    logits = layer(x)
    z = {name: value for name, value in how.items() if name != "z_loss"}
    plain = (
        nn.functional.cross_entropy(logits, target, **z) + how.get("z_loss", 0) * logits.logsumexp(-1).square().mean()
    )
    inputs = [x, *(p for p in layer.parameters())]
    expected = torch.autograd.grad(plain, inputs)
    loss = layer.cross_entropy(x, target, **how)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs), expected)


def test_weighted_losses_of_rows_learn_the_scale():
    layer, x, target = scaled(), torch.randn(20, 6, dtype=torch.float64), torch.randint(5, (20,))
    weights = torch.rand(20, dtype=torch.float64)
    found, expected = (
        torch.autograd.grad((weights * losses).sum(), layer.scale_log)
        for losses in (
            layer.cross_entropy(x, target, reduction="none"),
            nn.functional.cross_entropy(layer(x), target, reduction="none"),
        )
    )
    torch.testing.assert_close(found, expected)


def test_the_scale_is_saved_copied_reset_shown_and_not_decayed():
    layer = scaled()
    with torch.no_grad():
        layer.scale_log.fill_(3)
    other = scaled()
    other.load_state_dict(copy.deepcopy(layer).state_dict())
    assert other.scale.item() == pytest.approx(math.exp(3))
    other.reset_parameters()
    assert other.scale.item() == pytest.approx(4)
    assert "scale=4" in repr(other)
    decays = {id(p): group["weight_decay"] for group in parameter_groups(layer, 0.1, 0.5) for p in group["params"]}
    assert decays[id(layer.scale_log)] == 0
    assert "scale_log" not in TverskyProjection(6, 5, 9, model="ratio").state_dict()


def test_half_precision_stays_half():
    layer = scaled().bfloat16()
    assert layer(torch.randn(3, 6).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(scale=4), r"scale=4 is for model='ratio'; the contrast model has theta"),
        (dict(scale=0, model="ratio"), r"scale must be a number above 0, such as 4; got 0\."),
        (dict(scale=True, model="ratio"), r"scale must be a number above 0, such as 4; got True\."),
    ],
)
def test_a_wrong_scale_is_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        TverskyProjection(4, 3, 5, **options)


def test_a_data_domain_network_refuses_a_scale():
    with pytest.raises(ValueError, match="takes no head with a scale"):
        DataDomain(nn.Flatten(), TverskyProjection(4, 3, 5, model="ratio", scale=4), (1, 2, 2))


def solved(scale: float | None, seeds: int = 20) -> int:
    """How many of the seeds learn XOR in 1,000 steps of Adam: layers of 4 features, stacked, with a bias."""
    layers = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        layers.append(TverskyProjection(2, 2, 4, model="ratio", difference="subtractmatch", bias=True, scale=scale))
    assert layers[0].contrast()[0].item() == 0.5
    names = ["prototypes", "features.weight", "bias", "alpha_gain", "beta_gain", *(["scale_log"] if scale else [])]
    of = {n: nn.Parameter(torch.stack([layer.get_parameter(n).detach() for layer in layers])) for n in names}
    optimizer = torch.optim.Adam(of.values(), 0.0125)
    x, target = torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]), torch.tensor([0, 1, 1, 0])

    def outputs() -> torch.Tensor:
        features = of["features.weight"].mT
        alpha, beta = (0.5 * of[name][:, :, None] for name in ("alpha_gain", "beta_gain"))
        how = ("product", "subtractmatch", "feature", "ratio")
        out = reference.pairwise(x @ features, of["prototypes"] @ features, alpha, beta, 1.0, *how)
        return out * (of["scale_log"].exp()[..., None] if scale else 1) + of["bias"][:, None]

    with torch.no_grad():
        torch.testing.assert_close(outputs()[3], layers[3](x))
    for _ in range(1000):
        optimizer.zero_grad()
        out = outputs()
        nn.functional.cross_entropy(out.flatten(0, 1), target.repeat(seeds), reduction="sum").backward()
        optimizer.step()
    return int((outputs().argmax(-1) == target).all(-1).sum())


def test_the_ratio_model_learns_xor_with_a_scale_and_not_without():
    assert solved(None) <= 2
    assert solved(4.0) >= 8
