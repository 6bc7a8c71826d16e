"""DataDomain with thresholds: measures of encoded images minus t, as a projection on the encoded vectors has them."""

import copy
import pickle

import pytest
import torch
from torch import nn

from similitude import TverskyProjection, init_from_data
from similitude.interpret.edit import Edit, load_state
from similitude.interpret.sets import Universe
from similitude.models.data_domain import DataDomain
from similitude.models.mnist import VisualTverskyMNISTNet
from similitude.ops import reference
from similitude.ops.vectors import longer

SHAPE = (1, 6, 6)


def network(hold=False, dim=12, **options) -> DataDomain:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(36, dim), nn.BatchNorm1d(dim))
    head = TverskyProjection(dim, 3, 7, **{"presence": 0.2, "bias": True} | options, hold=hold)
    return DataDomain(backbone, head, SHAPE)


def images(n: int = 50, seed: int = 1) -> torch.Tensor:
    return torch.rand(n, *SHAPE, generator=torch.Generator().manual_seed(seed))


def spots(n: int = 600) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with one of seven bright spots each, and which."""
    g = torch.Generator().manual_seed(2)
    kind = torch.randint(7, (n,), generator=g)
    x = 0.05 * torch.rand(n, *SHAPE, generator=g)
    for k in range(7):
        x[kind == k, :, k % 3 * 2 : k % 3 * 2 + 2, k // 3 * 2 : k // 3 * 2 + 2] += 0.9
    return x, kind


@pytest.mark.parametrize("intersection", ["product", "min"])
@pytest.mark.parametrize("difference", ["ignorematch", "subtractmatch"])
@pytest.mark.parametrize("level", ["feature", "set"])
def test_outputs_and_gradients_are_the_laws_on_longer_vectors(intersection, difference, level):
    # Features have thresholds, inputs a constant 1, and prototypes a 0 in its place.
    net = network(intersection=intersection, difference=difference, level=level, dim=5).double().eval()
    x = images().double()

    def law():
        a, b, f = (net.backbone(t) for t in (x, net.prototypes, net.features))
        bank = torch.cat([f, -net.threshold[:, None]], 1)
        A, B = longer(a) @ bank.T, longer(b, 0.0) @ bank.T
        return reference.pairwise(A, B, *net.contrast(), intersection, difference, level, "contrast") + net.bias

    with torch.no_grad():
        torch.testing.assert_close(net(x), law(), atol=1e-9, rtol=0)
    found, expected = (torch.autograd.grad(answer.square().sum(), list(net.parameters())) for answer in (net(x), law()))
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-7)
    at = [name for name, _ in net.named_parameters()].index("threshold")
    assert found[at].abs().max() > 0


def test_the_plain_layer_and_its_explanation_have_the_thresholds():
    net, x = network().eval(), images()
    layer, vectors = net.materialize(), net.encode(x)
    assert torch.equal(layer.features.threshold, net.threshold)
    assert layer.features.presence == 0.2
    with torch.no_grad():
        torch.testing.assert_close(layer(vectors), net(x))
        torch.testing.assert_close(net(x), net(x))  # of what is kept
    found = net.explain(x[3], prototype=1)
    assert found.similarity == pytest.approx(net(x)[3, 1].item(), abs=1e-5)
    init_from_data(net, spots()[0])
    x = spots()[0][:20]
    assert 0 < len(Universe.of(net, inputs=x)[3]) < 6
    with torch.no_grad():
        net.threshold += 1e3
    assert not len(Universe.of(net, inputs=x)[3])


def test_what_is_kept_is_dropped_when_a_threshold_changes():
    net, x = network().eval(), images()
    with torch.no_grad():
        before = net(x)
        net.threshold += 0.5
        assert not torch.allclose(net(x), before)


@pytest.mark.parametrize("hold", [False, 100])
def test_thresholds_are_saved_loaded_copied_and_pickled(hold):
    net, x = network(hold), images()
    net(x).sum().backward()
    net.eval()
    with torch.no_grad():
        net.threshold.add_(0.3)
        expected = net(x)
        other = network(hold)
        other.load_state_dict(net.state_dict())
        for same in (other.eval(), copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
            torch.testing.assert_close(same(x), expected)
    assert ("passes" in net.state_dict()) == bool(hold)
    assert ("threshold" in dict(net.named_parameters())) == (not hold)


def test_without_thresholds_nothing_is_saved_and_old_pickles_load():
    net = network(presence=None)
    assert not {"threshold", "passes"} & set(net.state_dict())
    state = {k: v for k, v in net.__getstate__().items() if k not in ("presence", "hold")}
    state["_parameters"] = {k: v for k, v in state["_parameters"].items() if k != "threshold"}
    state["_buffers"] = {k: v for k, v in state["_buffers"].items() if k != "passes"}
    old = DataDomain.__new__(DataDomain)
    old.__setstate__(copy.deepcopy(state))
    x = images()
    assert torch.equal(old.eval()(x), net.eval()(x))


def test_a_held_presence_follows_encoded_images():
    net, (x, _) = network(hold=True), spots()
    for _ in range(60):
        net(x)
    # With the statistics of the batch, as in training.
    has = net.backbone(x) @ net.backbone(torch.cat([x, net._images()]))[-7:].T.detach() > net.threshold
    assert has.float().mean().item() == pytest.approx(0.2, abs=0.06)
    assert net.passes == 60
    before = net.threshold.clone()
    net.fix()
    net(x[:100])
    assert torch.equal(net.threshold, before)
    with torch.no_grad():
        net.eval()(x)
    assert torch.equal(net.threshold, before)


def test_a_held_threshold_has_the_gradient_of_the_batchs_mean():
    net, x = network(hold=True), images()
    net.backbone = nn.Sequential(nn.Flatten(), nn.Linear(36, 12))
    shift = net.backbone[1].bias
    vectors, features = net.backbone(x), net.backbone(net.features)
    measures = vectors @ features.T - net._threshold(vectors, features)
    # A shift of all encoded images changes the features too, by a factor of the inputs' distance from their mean.
    (gradient,) = torch.autograd.grad(measures.sum(), shift, retain_graph=True)
    assert gradient.abs().max() < 1e-3
    (unheld,) = torch.autograd.grad((vectors @ features.detach().T).sum(), shift)
    assert unheld.abs().max() > 1


def test_holding_warns_of_no_bias_and_if_nothing_ends_it():
    with pytest.warns(UserWarning, match="the layer has no bias"):
        network(hold=True, bias=False)(images())
    net = network(hold=True)
    net(images())
    with pytest.warns(UserWarning, match=r"call .fix\(\) for the last tenth"):
        net.eval()


def test_a_start_from_data_finds_mean_images_and_the_presence_asked_for():
    net, (x, kind) = network().eval(), spots()
    prototypes = net.prototypes.detach().clone()
    torch.manual_seed(3)
    init_from_data(net, x)
    means = torch.stack([x[kind == k].mean(0) for k in range(7)]).flatten(1)
    found = net.features.detach().flatten(1)
    nearest = torch.cdist(found, means).argmin(1)
    assert len(set(nearest.tolist())) >= 6
    assert (found - means[nearest]).abs().max() < 0.2 or len(set(nearest.tolist())) == 6
    has = net.encode(x) @ net.encode(net.features).T > net.threshold
    torch.testing.assert_close(has.double().mean(0), torch.full((7,), 0.2, dtype=torch.float64), atol=0.01, rtol=0)
    assert torch.equal(net.prototypes, prototypes)
    out = net(x)
    assert out.std(0).mean().item() == pytest.approx(0.7, abs=0.35)
    assert out.mean(0).std().item() < 1e-3  # by the bias
    kept = net.features.detach().clone()
    init_from_data(net, x, start="kept", spread=2.0)
    assert torch.equal(net.features, kept)
    assert net(x).std(0).mean() > 2 * out.std(0).mean()


def test_a_start_in_training_uses_a_batchs_statistics_and_keeps_none():
    net, (x, _) = network(), spots()
    x = 20 * x  # as no batch norm expects before its statistics have moved
    before = {k: v.clone() for k, v in net.state_dict().items() if "running" in k or "tracked" in k}
    init_from_data(net, x)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    vectors = net.backbone(torch.cat([net._images(), x]))
    has = vectors[10:] @ vectors[3:10].T > net.threshold
    assert has.double().mean().item() == pytest.approx(0.2, abs=0.02)


def test_a_start_from_data_without_thresholds_sets_constants_alone():
    net, (x, _) = network(presence=None).eval(), spots()
    features, before = net.features.detach().clone(), net.alpha.item()
    init_from_data(net, x)
    assert torch.equal(net.features, features)
    assert net.alpha.item() != before
    assert net.threshold is None


def test_a_network_with_thresholds_can_be_edited_and_loaded():
    net, x = network().eval(), images()
    with torch.no_grad():
        net.threshold.copy_(torch.arange(7.0))
    edit = Edit(net).remove_feature(1).add_feature(x[0]).add_feature(x[1])
    head = edit.head()
    assert head.features.threshold.tolist() == [0, 2, 3, 4, 5, 6, 3, 3]
    edit.apply()
    assert net.threshold.tolist() == [0, 2, 3, 4, 5, 6, 3, 3]
    with torch.no_grad():
        torch.testing.assert_close(head(net.encode(x)), net(x))
        again = load_state(network().eval(), net.state_dict())
        torch.testing.assert_close(again(x), net(x))
    edit.undo()
    assert net.threshold.tolist() == list(range(7))
    net.set_images(features=images(9))
    assert net.threshold.tolist() == [*range(7), 3, 3]
    net.set_images(features=images(2), threshold=torch.tensor([1.0, 2.0]))
    assert net.threshold.tolist() == [1, 2]
    assert isinstance(net.threshold, nn.Parameter)
    held = network(hold=True)
    held.set_images(features=images(9))
    assert held.threshold.shape == (9,)
    assert not isinstance(held.threshold, nn.Parameter)


def test_wrong_thresholds_and_starts_are_one_sentence():
    net, x = network().eval(), images()
    with pytest.raises(ValueError, match=r"threshold must be \[7\], one a feature; got shape \[3\]"):
        net.set_images(threshold=torch.zeros(3))
    with pytest.raises(ValueError, match="has no thresholds; make its head with presence="):
        network(presence=None).set_images(threshold=torch.zeros(7))
    with pytest.raises(ValueError, match="start must be one of k-means, kept; got 'turned'"):
        init_from_data(net, x, start="turned")
    with pytest.raises(ValueError, match=r"k-means needs 7 images that are not empty; got 5"):
        init_from_data(net, torch.cat([x[:5], torch.zeros(9, *SHAPE)]))
    with pytest.raises(ValueError, match="all start alike; got mixed="):
        init_from_data(net, x, mixed=0.5)
    with pytest.raises(ValueError, match="a linear head has no features to start from data"):
        init_from_data(DataDomain(nn.Flatten(), nn.Linear(36, 3), SHAPE), x)


def test_the_paper_network_for_digits_takes_thresholds():
    net = VisualTverskyMNISTNet(presence=0.3)
    x = torch.rand(64, 1, 28, 28)
    init_from_data(net, x)
    assert "presence=0.3" in repr(net)
    net(x).sum().backward()
    assert net.threshold.grad.abs().max() > 0


def test_thresholds_go_to_onnx(tmp_path):
    pytest.importorskip("onnxruntime")
    from similitude.export import to_onnx

    net = network().eval()
    init_from_data(net, images())
    assert to_onnx(net, images(3), tmp_path / "net.onnx").exists()  # it compares answers itself
