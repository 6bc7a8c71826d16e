"""The four MNIST networks: the paper's counts, shapes, gradients, state, and that they learn."""

import copy

import pytest
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from similitude.models.data_domain import DataDomain
from similitude.models.mnist import ConvolutionStack, MNISTNet, TverskyMNISTNet, VisualMNISTNet, VisualTverskyMNISTNet

# The paper's table of MNIST networks.
COUNTS = {MNISTNet: 21_394, TverskyMNISTNet: 7_023, VisualMNISTNet: 28_394, VisualTverskyMNISTNet: 29_463}
NETWORKS = pytest.mark.parametrize("network", COUNTS, ids=lambda network: network.__name__)


def digits(n: int = 6) -> torch.Tensor:
    return torch.rand(n, 1, 28, 28)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


@NETWORKS
def test_counts_are_the_papers(network):
    net = network()
    assert count(net) == COUNTS[network]
    buffers = sum(b.numel() for b in net.buffers())
    assert sum(v.numel() for v in net.state_dict().values()) == COUNTS[network] + buffers


def test_the_stack_is_5940_parameters_and_36_numbers():
    stack = ConvolutionStack()
    assert count(stack) == 5_940
    assert stack(digits()).shape == (6, 36)


def test_the_stack_averages_its_three_maps():
    stack, x = ConvolutionStack().eval(), digits()
    maps = []
    for convolution in stack.convolutions:
        convolution.register_forward_hook(lambda module, inputs, output: maps.append(output))
    vectors = stack(x)
    assert [m.shape[1:] for m in maps] == [(12, 20, 20), (12, 6, 6), (12, 1, 1)]
    torch.testing.assert_close(vectors, torch.cat([m.flatten(2).mean(-1) for m in maps], 1))


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_dropout_falls_on_the_stacks_output_and_nowhere_else(rate):
    for network in COUNTS:
        drops = [m for m in network(dropout=rate).modules() if isinstance(m, nn.Dropout)]
        assert [d.p for d in drops] == [rate]
    stack = ConvolutionStack(rate)
    assert (stack(digits(400)) == 0).float().mean().item() == pytest.approx(rate, abs=0.02)
    assert (stack.eval()(digits(40)) != 0).all()
    assert ConvolutionStack().dropout.p == 0.05


@NETWORKS
def test_digits_become_ten_logits_and_every_parameter_gets_a_gradient(network):
    net = network(dropout=0.0)
    out = net(digits(32))
    assert out.shape == (32, 10)
    nn.functional.cross_entropy(out, torch.arange(32) % 10).backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # At the start all vectors of the visual one may share all of their features, and α and β then have no say.
        if name not in ("alpha_gain", "beta_gain"):
            assert parameter.grad.abs().max() > 0, name


@NETWORKS
def test_saved_and_loaded_it_is_the_same_network(network, tmp_path):
    net, x = network(), digits()
    net(digits(50))
    save_model(net, str(tmp_path / "net.safetensors"))
    other = network()
    load_model(other, str(tmp_path / "net.safetensors"))
    with torch.no_grad():
        answer = net.eval()(x)
        assert torch.equal(other.eval()(x), answer)
        assert torch.equal(copy.deepcopy(net)(x), answer)
        other.load_state_dict(network().state_dict())
        assert not torch.allclose(other(x), answer)


@NETWORKS
def test_works_on_the_meta_device_and_in_float64(network):
    with torch.device("meta"):
        assert count(network()) == COUNTS[network]
    net = network().double()
    assert net(digits().double()).dtype == torch.float64


@pytest.mark.parametrize("network", [TverskyMNISTNet, VisualTverskyMNISTNet], ids=lambda network: network.__name__)
def test_options_reach_the_projection(network):
    net = network(num_features=7, intersection="min", difference="substractmatch", level="set", theta=2.0)
    layer = net.materialize() if isinstance(net, DataDomain) else net.head
    assert (layer.intersection, layer.difference, layer.level) == ("min", "subtractmatch", "set")
    assert layer.features.num_features == 7
    assert layer.theta.item() == 2
    with pytest.raises(ValueError, match="Did you mean 'product'"):
        network(intersection="produkt")


def blobs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a bright patch whose place is the label."""
    labels = torch.arange(n) % 10
    x = 0.3 * torch.rand(n, 1, 28, 28)
    for i, label in enumerate(labels.tolist()):
        row, column = divmod(label, 5)
        x[i, 0, 3 + 12 * row : 11 + 12 * row, 5 * column : 5 * column + 6] += 0.7
    return x, labels


@NETWORKS
def test_a_few_steps_of_adam_learn(network):
    net = network()
    x, labels = blobs(60)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.002, weight_decay=1e-5)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # Guessing costs ln 10 = 2.3. Images that are compared by images start slowly.
    assert losses[0] < 7
    assert max(losses[-5:]) < (1.9 if network is VisualTverskyMNISTNet else 0.5)


@pytest.mark.parametrize("network", [VisualMNISTNet, VisualTverskyMNISTNet], ids=lambda network: network.__name__)
def test_visual_networks_show_their_prototypes_as_digits(network):
    net = network()
    assert net.prototypes.shape == (10, 1, 28, 28)
    assert (net.features is None) == (network is VisualMNISTNet)
    if net.features is not None:
        assert net.features.shape == (20, 1, 28, 28)
