"""Edits of a network's images: previewed without a trace, applied, undone, saved, loaded and trained on."""

import copy

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from similitude import TverskyProjection
from similitude.interpret.edit import Edit, load_state
from similitude.models.data_domain import DataDomain
from similitude.models.mnist import TverskyMNISTNet, VisualMNISTNet, VisualTverskyMNISTNet

SHAPE = (2, 3)


def network(K: int = 4, **options) -> DataDomain:
    return DataDomain(nn.Sequential(nn.Flatten(), nn.Linear(6, 5)), TverskyProjection(5, 3, K, **options), SHAPE)


def examples(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, *SHAPE), torch.arange(n) % 3


def answers(net: DataDomain, x: torch.Tensor) -> torch.Tensor:
    net.eval()
    with torch.no_grad():
        return net(x)


def every_step(net: DataDomain) -> Edit:
    edit = Edit(net).add_feature(torch.randn(SHAPE)).set_prototype(1, torch.randn(SHAPE))
    return edit.swap_feature(3, torch.randn(SHAPE)).remove_feature(0).add_feature(torch.randn(SHAPE))


def test_images_after_an_edit_are_those_that_were_drawn():
    net = network()
    features, prototypes = net.features.detach().clone(), net.prototypes.detach().clone()
    first, second, third = torch.randn(3, *SHAPE)
    edit = Edit(net).remove_feature(1).add_feature(first).swap_feature(2, second).set_prototype(2, third)
    drawn = torch.stack([features[0], second, features[3], first])
    assert torch.equal(edit.images()[1], drawn)
    assert torch.equal(edit.images()[0], torch.stack([prototypes[0], prototypes[1], third]))
    assert torch.equal(net.features, features)
    edit.apply()
    assert torch.equal(net.features, drawn)
    assert torch.equal(net.prototypes[2], third)


def test_a_preview_is_what_comes_and_leaves_no_trace():
    net, (x, y) = network(), examples()
    state, mode = copy.deepcopy(net.state_dict()), net.training
    parameters = dict(net.named_parameters())
    edit = every_step(net)
    found = edit.preview(DataLoader(TensorDataset(x, y), 7))
    assert net.training is mode
    assert all(net.get_parameter(n) is p for n, p in parameters.items())
    assert all(torch.equal(v, state[n]) for n, v in net.state_dict().items())
    assert torch.equal(found.before, answers(net, x).argmax(-1))
    edit.apply()
    assert torch.equal(found.after, answers(net, x).argmax(-1))
    assert torch.equal(found.labels, y)


def test_a_preview_counts_what_it_repairs_and_breaks():
    net, (x, y) = network(), examples()
    found = every_step(net).preview(x, y)
    b, a = found.before == y, found.after == y
    assert found.repaired.tolist() == (~b & a).nonzero()[:, 0].tolist()
    assert found.broken.tolist() == (b & ~a).nonzero()[:, 0].tolist()
    assert found.flips.tolist() == (found.before != found.after).nonzero()[:, 0].tolist() != []
    assert found.accuracy() == pytest.approx((b.float().mean().item(), a.float().mean().item()))
    one = y == 1
    assert found.accuracy(1) == pytest.approx((b[one].float().mean().item(), a[one].float().mean().item()))
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["all", "0", "1", "2"]
    assert lines[1].split()[-2:] == [str(len(found.repaired)), str(len(found.broken))]
    assert lines[5].startswith(f"{len(found.flips)} answers flip: {found.flips[0]} (")


def test_an_edit_of_nothing_flips_nothing():
    net, (x, y) = network(), examples()
    found = Edit(net).preview(x, y)
    assert torch.equal(found.before, found.after)
    assert str(found).endswith("no answer flips")


@pytest.mark.parametrize("options", [{}, {"bias": True}, {"intersection": "min", "normalize": True}])
def test_undo_gives_back_the_network_bit_for_bit(options):
    net, (x, _) = network(**options), examples()
    state, before = copy.deepcopy(net.state_dict()), answers(net, x)
    edit = every_step(net)
    edit.apply()
    after = answers(net, x)
    assert not torch.equal(after, before)
    edit.undo()
    assert torch.equal(answers(net, x), before)
    assert all(torch.equal(v, state[n]) for n, v in net.state_dict().items())
    edit.apply()
    assert torch.equal(answers(net, x), after)


def test_whoever_drew_an_image_may_go_on_drawing():
    net, image = network(), torch.randn(SHAPE)
    edit = Edit(net).set_prototype(0, image)
    kept = image.clone()
    image.zero_()
    edit.apply()
    assert torch.equal(net.prototypes[0], kept)


def test_a_linear_heads_rows_can_be_edited_and_it_has_no_features():
    net = VisualMNISTNet()
    x, y = torch.rand(6, 1, 28, 28), torch.arange(6)
    edit = Edit(net).set_prototype(7, torch.rand(1, 28, 28))
    found = edit.preview(x, y)
    edit.apply()
    assert torch.equal(found.after, answers(net, x).argmax(-1))
    edit.undo()
    assert torch.equal(found.before, answers(net, x).argmax(-1))
    with pytest.raises(ValueError, match="linear head has no features"):
        edit.add_feature(torch.rand(1, 28, 28))


def test_an_edited_network_saves_and_loads(tmp_path):
    net = VisualTverskyMNISTNet(4)
    Edit(net).add_feature(torch.rand(1, 28, 28)).add_feature(torch.rand(1, 28, 28)).remove_feature(2).apply()
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    state, x = load_file(tmp_path / "net.safetensors"), torch.rand(3, 1, 28, 28)
    fresh = VisualTverskyMNISTNet(4)
    assert load_state(fresh, state) is fresh
    assert torch.equal(answers(fresh, x), answers(net, x))
    made = VisualTverskyMNISTNet(5)
    made.load_state_dict(state)
    assert torch.equal(answers(made, x), answers(net, x))


def test_a_state_of_another_network_changes_nothing():
    net = network()
    before = copy.deepcopy(net.state_dict())
    other = network(K=6).state_dict()
    short = {n: v for n, v in other.items() if n != "alpha_gain"}
    wide = {**other, "features": torch.zeros(6, 3, 3)}
    for state, words in (
        (short, "'alpha_gain' is nothing there"),
        (wide, r"'features' is \[6, 3, 3\] there and \[4, 2, 3\]"),
    ):
        with pytest.raises(ValueError, match=words):
            load_state(net, state)
        assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())


def test_an_edited_network_trains_on():
    net, (x, y) = network(), examples()
    every_step(net).apply()
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert net.features.shape[0] == 5
    assert net.features.grad.abs().sum((1, 2)).gt(0).any()
    assert losses[-1] < losses[0]


def test_an_edit_is_applied_once_and_undone_once():
    net = network()
    edit = every_step(net)
    with pytest.raises(RuntimeError, match="nothing to undo: the edit is not applied"):
        edit.undo()
    assert "not applied" in repr(edit)
    edit.apply()
    assert repr(edit).endswith("; applied)")
    for again in (edit.apply, lambda: edit.add_feature(torch.randn(SHAPE)), lambda: edit.preview(*examples())):
        with pytest.raises(RuntimeError, match="the edit is applied; undo"):
            again()
    edit.undo()
    with pytest.raises(RuntimeError, match="nothing to undo"):
        edit.undo()


def test_a_network_that_grew_meanwhile_needs_another_edit():
    net = network()
    stale = Edit(net).swap_feature(3, torch.randn(SHAPE))
    Edit(net).remove_feature(0).apply()
    with pytest.raises(RuntimeError, match="has 3 prototypes and 3 features now and had 3 prototypes and 4 features"):
        stale.apply()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda e: e.add_feature(torch.rand(3, 3)), r"shape of an input, \[2, 3\]; got shape \[3, 3\]\.$"),
        (lambda e: e.add_feature(torch.rand(1, 2, 3)), r"for one image use image.reshape\(2, 3\)"),
        (lambda e: e.add_feature([1.0]), "image must be a tensor of shape .* got list"),
        (lambda e: e.set_prototype(0, torch.full(SHAPE, torch.nan)), "finite numbers"),
        (lambda e: e.set_prototype(0, torch.ones(SHAPE, dtype=torch.int64)), "floating dtype"),
        (lambda e: e.set_prototype(3, torch.rand(SHAPE)), "no prototype 3; they are numbered from 0 to 2"),
        (lambda e: e.swap_feature(-1, torch.rand(SHAPE)), "no feature -1; they are numbered from 0 to 3"),
        (lambda e: e.remove_feature("0"), "no feature '0'"),
        (lambda e: e.remove_feature(0).remove_feature(0), "feature 0 was removed by this edit"),
        (lambda e: [e.remove_feature(k) for k in range(4)], "keeps one feature at least"),
        (lambda e: e.preview(torch.rand(4, *SHAPE)), "4 inputs need as many labels; got none"),
        (lambda e: e.preview([torch.rand(4, *SHAPE)]), r"a batch must be inputs and labels, \(x, y\)"),
        (lambda e: e.preview([]), "there are no inputs"),
        (lambda _: Edit(TverskyMNISTNet(3)), "only a DataDomain network .* got TverskyMNISTNet"),
    ],
)
def test_wrong_input_gets_one_sentence_and_changes_nothing(call, words):
    net = network()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises((ValueError, TypeError), match=words):
        call(Edit(net))
    assert all(torch.equal(v, before[n]) for n, v in net.state_dict().items())
