"""DataDomain: images in the place of vectors, sent through the backbone, kept in eval, and read back."""

import copy
import pickle

import pytest
import torch
from torch import nn

import similitude.functional as F
from similitude import TverskyProjection
from similitude.models.data_domain import DataDomain
from similitude.models.mnist import VisualMNISTNet, VisualTverskyMNISTNet

SHAPE = (1, 6, 6)


class Backbone(nn.Module):
    """Images to 5 numbers by a convolution and a batch norm; counts its calls and what went through."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.batches = []

    def forward(self, x):
        self.batches.append(len(x))
        return self.norm(self.convolution(x)).mean((2, 3))


def tversky(backbone=None, **options) -> DataDomain:
    options = {"alpha": 0.3, "beta": 0.4, "theta": 0.9, **options}
    return DataDomain(backbone or Backbone(), TverskyProjection(5, 3, 7, **options), SHAPE)


def linear(backbone=None, bias: bool = True) -> DataDomain:
    return DataDomain(backbone or Backbone(), nn.Linear(5, 3, bias=bias), SHAPE)


def images(n: int = 4) -> torch.Tensor:
    return torch.rand(n, *SHAPE)


def kept(net: DataDomain, x: torch.Tensor) -> bool:
    """Whether a call sends no images through the backbone; only for a batch of its own length."""
    net.backbone.batches.clear()
    with torch.no_grad():
        net(x)
    return net.backbone.batches == [len(x)]


HEADS = pytest.mark.parametrize("make", [tversky, linear])


def test_a_tversky_head_compares_with_encoded_images():
    net, x = tversky(intersection="min", difference="subtractmatch").eval(), images()
    encode = net.backbone
    expected = F.tversky_projection(
        encode(x),
        encode(net.prototypes),
        encode(net.features),
        0.3,
        0.4,
        0.9,
        intersection="min",
        difference="subtractmatch",
    )
    torch.testing.assert_close(net(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected.detach())


def test_a_linear_heads_rows_are_encoded_images_and_its_bias_stays():
    head = nn.Linear(5, 3)
    net, x = DataDomain(Backbone(), head, SHAPE).eval(), images()
    expected = net.backbone(x) @ net.backbone(net.prototypes).T + head.bias
    torch.testing.assert_close(net(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected.detach())
    assert net.bias is head.bias
    assert linear(bias=False)(x).shape == (4, 3)


def test_a_tversky_bias_is_added():
    net, x = tversky(bias=True).eval(), images()
    before = net(x)
    with torch.no_grad():
        net.bias += torch.tensor([1.0, 2.0, 3.0])
        torch.testing.assert_close(net(x), before.detach() + net.bias)
    torch.testing.assert_close(net(x), before + net.bias)


@HEADS
def test_state_and_count_are_images_constants_and_the_backbone_once(make):
    net, backbone = make(), Backbone()
    constants = [f"{name}_{part}" for name in ("alpha", "beta", "theta") for part in ("gain", "unit")]
    own = ["prototypes", "features", *constants] if make is tversky else ["prototypes", "bias"]
    assert sorted(net.state_dict()) == sorted([*own, *(f"backbone.{name}" for name in backbone.state_dict())])
    here = sum(p.numel() for p in net.parameters())
    vectors = 10 * 36 + 3 if make is tversky else 3 * 36 + 3
    assert here == vectors + sum(p.numel() for p in backbone.parameters())


class Whole(nn.Module):
    """A network that owns its backbone and lends it as a method."""

    def __init__(self):
        super().__init__()
        self.stack = Backbone()
        self.head = DataDomain(self.encode, TverskyProjection(5, 3, 7), SHAPE)

    def encode(self, x):
        return self.stack(x).tanh()

    def forward(self, x):
        return self.head(x)


def test_a_method_as_backbone_is_called_and_neither_counted_nor_saved():
    whole, x = Whole(), images()
    assert not [name for name in whole.state_dict() if name.startswith("head.") and "stack" in name]
    assert sum(p.numel() for p in whole.parameters()) == 10 * 36 + 3 + sum(p.numel() for p in Backbone().parameters())
    whole(x).sum().backward()
    assert whole.stack.convolution.weight.grad.abs().max() > 0
    whole.eval()
    with torch.no_grad():
        before = whole(x)
        whole.stack.batches.clear()
        assert torch.equal(whole(x), before)
        assert whole.stack.batches == [4]
        whole.stack.convolution.weight.mul_(2.0)
        whole.stack.norm.running_mean.add_(1.0)
        assert not torch.allclose(whole(x), before)


def test_a_copy_of_a_network_that_lends_a_method_uses_its_own_backbone():
    whole, x = Whole().eval(), images()
    for other in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):
        with torch.no_grad():
            before = other(x)
            whole.stack.norm.running_mean.add_(1.0)
            assert torch.equal(other(x), before)
            other.stack.norm.running_mean.add_(1.0)
            assert not torch.allclose(other(x), before)


def test_behind_a_plain_function_nothing_is_kept():
    weight = torch.randn(36, 5)
    net, x = tversky(lambda x: x.flatten(1) @ weight).eval(), images()
    with torch.no_grad():
        before = net(x)
        weight.mul_(2.0)
        assert not torch.allclose(net(x), before)
    assert net.materialize()(x.flatten(1) @ weight).shape == (4, 3)


@HEADS
def test_gradients_reach_images_constants_and_backbone(make):
    net = make()
    net(images(16)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        # A batch norm takes away what a bias before it adds.
        if name != "backbone.convolution.bias":
            assert parameter.grad.abs().max() > 1e-6, name


def test_gradients_flow_through_the_backbone_by_way_of_the_images():
    net, x = tversky().double().eval(), images(2).double()
    net.backbone.batches = []

    def answer(prototypes, features, weight):
        values = {"prototypes": prototypes, "features": features, "backbone.convolution.weight": weight}
        return torch.func.functional_call(net, values, (x,))

    inputs = (net.prototypes, net.features, net.backbone.convolution.weight)
    assert torch.autograd.gradcheck(answer, [i.detach().clone().requires_grad_() for i in inputs])


@HEADS
def test_in_training_inputs_and_images_are_one_batch_and_statistics_move_once(make):
    net, x = make(), images()
    total = 14 if make is tversky else 7
    net(x)
    assert net.backbone.batches == [total]
    assert net.backbone.norm.num_batches_tracked == 1
    everything = torch.cat([x, net.prototypes, *([] if net.features is None else [net.features])])
    maps = net.backbone.convolution(everything).detach()
    torch.testing.assert_close(net.backbone.norm.running_mean, 0.1 * maps.mean((0, 2, 3)))


@HEADS
def test_encoded_images_are_kept_in_eval_without_gradients_only(make):
    net, x = make(), images(2)
    net.eval()
    assert not kept(net, x)
    assert kept(net, x)
    assert kept(net, images(3))
    net(x)
    assert net.backbone.batches[-1] > 2
    net.train()
    assert not kept(net, x)
    net.eval()
    assert not kept(net, x)
    assert kept(net, x)
    with torch.inference_mode():
        torch.testing.assert_close(net(x), net(x))


def change_by_step(net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with torch.enable_grad():
        net(images(16)).square().sum().backward()
    optimizer.step()


def change_by_loading(net):
    other = copy.deepcopy(net)
    change_by_step(other)
    net.load_state_dict(other.state_dict())


def change_by_assigning(net):
    other = copy.deepcopy(net)
    change_by_step(other)
    net.load_state_dict(other.state_dict(), assign=True)


CHANGES = {
    "optimiser step": change_by_step,
    "load_state_dict": change_by_loading,
    "load_state_dict, assigned": change_by_assigning,
    "an image in place": lambda net: net.prototypes[0].mul_(3.0),
    "an image through .data": lambda net: net.prototypes.data[0, 0, 2, 3].add_(3.0),
    "set_images": lambda net: net.set_images(prototypes=images(3) * 3),
    "a new parameter": lambda net: setattr(net, "prototypes", nn.Parameter(images(3) * 3)),
    "the backbone's weights": lambda net: net.backbone.convolution.weight.mul_(3.0),
    "a batch norm's statistics": lambda net: net.backbone.norm.running_mean.add_(1.0),
    "a conversion as .to does it": lambda net: net._apply(lambda t: t.data.mul_(3.0) if t.shape == (5, 1, 3, 3) else t),
    "another convolution": lambda net: setattr(net.backbone, "convolution", nn.Conv2d(1, 5, 3)),
}


@HEADS
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_kept_is_dropped_when_anything_changes(make, change):
    net, x = make().eval(), images()
    with torch.no_grad():
        before = net(x)
        CHANGES[change](net)
        after = net(x)
        assert not torch.allclose(after, before)
        net.eval()
        torch.testing.assert_close(after, net(x))


@pytest.mark.parametrize("constant", ["alpha", "beta", "theta"])
def test_what_is_kept_is_dropped_when_a_constant_changes(constant):
    net, x = tversky(learnable=False).eval(), images(20)
    with torch.no_grad():
        net.prototypes.mul_(4).sub_(2)
        net.features.mul_(4).sub_(2)
        before = net(x)
        setattr(net, constant, 1.5)
        assert not torch.allclose(net(x), before)


def test_what_is_kept_is_dropped_when_an_option_changes():
    net, x = tversky().eval(), images()
    with torch.no_grad():
        before = net(x)
        net.intersection = "min"
        assert not torch.allclose(net(x), before)


def test_a_backbone_in_training_is_never_kept():
    net, x = tversky().eval(), images()
    with torch.no_grad():
        net(x)
        net.backbone.train()
        assert not kept(net, x)
        assert not kept(net, x)
        assert net.backbone.norm.num_batches_tracked == 2


def test_a_change_of_dtype_and_back_is_seen():
    net, x = tversky().eval(), images()
    with torch.no_grad():
        before = net(x)
        rounded = net.bfloat16().float()(x)
        assert not torch.equal(rounded, before)
        torch.testing.assert_close(rounded, before, rtol=0.05, atol=0.05)
        assert net.double()(x.double()).dtype == torch.float64


def test_autocast_and_plain_calls_do_not_share_what_is_kept():
    net, x = tversky().eval(), images(64)
    with torch.no_grad():
        plain = net(x)
        with torch.autocast("cpu", torch.bfloat16):
            after_plain = net(x)
            net.eval()
            cast = net(x)
        assert cast.dtype == torch.bfloat16
        assert torch.equal(after_plain, cast)
        assert torch.equal(net(x), plain)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(net(x).detach(), cast)
        assert {p.dtype for p in net.materialize().parameters()} == {torch.float32}


def test_another_parameter_in_the_same_memory_is_seen():
    net, x = tversky().eval(), images()
    weight = net.backbone.convolution.weight.data
    with torch.no_grad():
        net.backbone.convolution.weight = nn.Parameter(weight)
        before = net(x)
        net.backbone.convolution.weight = nn.Parameter(weight.transpose(2, 3))
        after = net(x)
        assert not torch.allclose(after, before)
        torch.testing.assert_close(after, net.eval()(x))


def test_eval_called_again_drops_what_is_kept():
    net, x = tversky().eval(), images()
    with torch.no_grad():
        before = net(x)
        net.backbone.convolution.weight.data.mul_(3.0)
        after = net.eval()(x)
        assert not torch.allclose(after, before)
        torch.testing.assert_close(after, copy.deepcopy(net)(x))


@HEADS
def test_the_plain_layer_answers_as_the_network_does(make):
    net, x = make(), images()
    net(images(16))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    layer = net.materialize()
    assert isinstance(layer, TverskyProjection if make is tversky else nn.Linear)
    assert net.training
    assert net.backbone.norm.training
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name]), name
    net.eval()
    torch.testing.assert_close(nn.Sequential(net.backbone, layer.eval())(x), net(x))
    with torch.no_grad():
        next(iter(layer.parameters())).zero_()
    assert net.prototypes.abs().max() > 0


@HEADS
def test_evaluating_draws_no_random_numbers(make):
    net, x = make().eval(), images()
    before = torch.get_rng_state()
    with torch.no_grad():
        net(x)
    net.materialize()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_plain_layer_keeps_options_constants_and_what_trains():
    layer = tversky(level="set", normalize=True, bias=True, learnable=("theta",)).materialize()
    assert (layer.level, layer.normalize, layer.bias is not None) == ("set", True, True)
    assert {name for name, _ in layer.named_parameters()} == {"prototypes", "features.weight", "theta_gain", "bias"}
    assert [getattr(layer, n).item() for n in ("alpha", "beta", "theta")] == pytest.approx([0.3, 0.4, 0.9])


def test_an_explanation_adds_up_to_the_networks_answer():
    net, x = tversky(), images()
    net(images(16))
    explanation = net.explain(x[1], prototype=2)
    assert net.training
    with torch.no_grad():
        assert explanation.similarity == pytest.approx(net.eval()(x)[1, 2].item(), abs=1e-5)
    parts = sum(part.sum().item() for _, part in explanation.parts())
    assert parts == pytest.approx(explanation.similarity, abs=1e-5)
    with pytest.raises(TypeError, match="a linear head has no features"):
        linear().explain(x[0])
    with pytest.raises(ValueError, match=r"x must be one input of shape \[1, 6, 6\]; got shape \[4, 1, 6, 6\]"):
        net.explain(x)


def test_images_can_be_set_and_their_number_changed():
    net, x = tversky(), images()
    prototypes, features = net.prototypes, net.features
    new = images(3)
    assert net.set_images(prototypes=new) is net
    assert net.prototypes is prototypes
    assert torch.equal(net.prototypes.detach(), new)
    net.set_images(features=torch.cat([net.features.detach(), images(2)]))
    assert net.features.shape == (9, *SHAPE)
    assert torch.equal(net.features[:7].detach(), features.detach())
    assert net(x).shape == (4, 3)
    net.set_images(prototypes=images(5))
    assert net(x).shape == (4, 5)
    assert net.materialize().features.num_features == 9


def test_images_that_do_not_fit_are_refused_and_nothing_changes():
    net = tversky(bias=True)
    before = net.prototypes.detach().clone()
    with pytest.raises(ValueError, match=r"features must be \[N, 1, 6, 6\]; got shape \[7, 1, 5, 5\]"):
        net.set_images(prototypes=images(3), features=torch.rand(7, 1, 5, 5))
    with pytest.raises(ValueError, match="bias for 3 prototypes; got 4 images"):
        net.set_images(prototypes=images(4))
    with pytest.raises(ValueError, match="prototypes must be one image or more"):
        net.set_images(prototypes=images(0))
    with pytest.raises(ValueError, match="a linear head has no features"):
        linear().set_images(features=images(3))
    assert torch.equal(net.prototypes.detach(), before)


def test_wrong_inputs_are_one_sentence():
    net = tversky()
    with pytest.raises(
        ValueError, match=r"x must be \[N, 1, 6, 6\]; got shape \[1, 6, 6\]: for one input use x\[None\]"
    ):
        net(images()[0])
    with pytest.raises(TypeError, match=r"convert it with x.float\(\)"):
        net(torch.zeros(2, *SHAPE, dtype=torch.uint8))
    with pytest.raises(ValueError, match="float32 on cpu; got float64 on cpu"):
        net(images().double())
    with pytest.raises(ValueError, match=r"the backbone must return \[14, 5\].*; got shape \[14, 36\]"):
        tversky(nn.Flatten())(images())
    with pytest.raises(TypeError, match="the backbone must return a tensor"):
        tversky(lambda x: (x,))(images())


@pytest.mark.parametrize(
    ("backbone", "head", "shape", "message"),
    [
        (None, nn.Linear(5, 3), SHAPE, "backbone must be a module or another callable; got NoneType"),
        (Backbone(), nn.Conv2d(1, 1, 1), SHAPE, "head must be a TverskyProjection or an nn.Linear; got Conv2d"),
        (Backbone(), nn.Linear(5, 3), (), "shape must be that of one input"),
        (Backbone(), nn.Linear(5, 3), 28, "shape must be that of one input.*got 28"),
        (Backbone(), nn.Linear(5, 3), (1, 0), "shape must be that of one input"),
    ],
)
def test_wrong_parts_are_refused_at_once(backbone, head, shape, message):
    with pytest.raises((TypeError, ValueError), match=message):
        DataDomain(backbone, head, shape)


def test_other_shapes_than_images_work_too():
    net = DataDomain(nn.Linear(4, 5), TverskyProjection(5, 3, 7), (4,))
    assert net(torch.rand(2, 4)).shape == (2, 3)
    assert net.prototypes.shape == (3, 4)
    assert net.encode(torch.rand(2, 4)).shape == (2, 5)


@HEADS
def test_copied_and_pickled_it_answers_the_same(make):
    net, x = make().eval(), images()
    with torch.no_grad():
        answer = net(x)
        assert copy.deepcopy(net)._kept is None
        assert torch.equal(copy.deepcopy(net)(x), answer)
        assert torch.equal(pickle.loads(pickle.dumps(net))(x), answer)


def test_exported_it_answers_the_same_for_any_batch():
    net = tversky(nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())).eval()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(net, (images(4),), dynamic_shapes=({0: batch},))
    for n in (2, 9):
        x = images(n)
        torch.testing.assert_close(program.module()(x), net(x))


@pytest.mark.parametrize("kind", [VisualMNISTNet, VisualTverskyMNISTNet])
def test_a_net_pickled_by_version_0_1_0_answers_the_same(kind):
    """It has its options as attributes, and with a linear head none."""
    net, x = kind().eval(), torch.rand(2, 1, 28, 28)
    state = net.__getstate__()
    form = state.pop("form")
    old = kind.__new__(kind)
    old.__setstate__(state | (form._asdict() if form else {}))
    assert old.form == form
    assert torch.equal(old(x), net(x))
