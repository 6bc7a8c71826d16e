"""What a recipe does to training: a rate of 0 reports the start, every setting matters, schedules, clipping and modes.

Everything is seen through ``Config``, ``SMOKE`` and ``run(config, record, report)`` of each experiment, and through the
hook that torch calls before each step of an optimizer.
"""

import itertools
import math
from collections import namedtuple
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from similitude import TverskyProjection
from similitude.form import DIFFERENCES, INTERSECTIONS
from similitude.reproduce import find
from similitude.reproduce.data.made_up import synthetic_digits, synthetic_images, synthetic_text
from similitude.reproduce.record import RunError

pytest.importorskip("transformers")

Experiment = namedtuple("Experiment", "module smoke run")


def experiment(name: str) -> Experiment:
    found = find(name)
    return Experiment(import_module(f"similitude.reproduce.{name}"), found.smoke, found.run)


class Enough(Exception):
    """Ends a run whose training is all that is asked for."""


class Kept:
    """A record that keeps what a run writes, in memory."""

    def __init__(self, enough: int | None = None):
        self.device, self.hashes, self.enough = "cpu", {}, enough
        self.tensors, self.arrays, self.state = {}, {}, {}

    def load(self, names=None):
        return None

    def save(self, step, tensors, state=None, best=None):
        self.tensors = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.state = state or {}
        if step == self.enough:
            raise Enough

    def save_arrays(self, name, arrays):
        self.arrays[name] = dict(arrays)

    def log(self, step, **values):
        pass


def quiet(*_, **__):
    pass


def config_of(name: str, **settings):
    return replace(experiment(name).smoke, **settings)


def run(name: str, **settings) -> tuple[dict, Kept]:
    record = Kept()
    return experiment(name).run(config_of(name, **settings), record, quiet), record


def trained(**settings) -> Kept:
    """The training of editing alone, without the search for a drawing that follows it."""
    record = Kept(enough=config_of("editing", **settings).epochs)
    with pytest.raises(Enough):
        experiment("editing").run(config_of("editing", **settings), record, quiet)
    return record


@contextmanager
def steps_seen(see):
    """Calls ``see(optimizer)`` before each step of any optimizer."""
    handle = register_optimizer_step_pre_hook(lambda optimizer, *_: see(optimizer))
    try:
        yield
    finally:
        handle.remove()


def cross_entropy(logits, y) -> float:
    return nn.functional.cross_entropy(logits, y).item()


def accuracy(logits, y) -> float:
    return (logits.argmax(-1) == y).double().mean().item()


def test_xor_at_a_rate_of_0_reports_its_start():
    xor = experiment("xor").module
    result, record = run("xor", lr=0.0, num_features=(3,), steps=2)
    loss, right = (record.arrays["outcomes"][key].astype(float) for key in ("loss", "right"))
    config = config_of("xor", lr=0.0, num_features=(3,), steps=2)
    x, y = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1, 1, 0])
    for i, j, normal, a, b in itertools.product(range(6), range(2), range(2), range(3), range(3)):
        options: dict = {"intersection": INTERSECTIONS[i], "difference": DIFFERENCES[j], "level": config.level}
        layer = TverskyProjection(2, 2, 3, init="uniform", parametrization="plain", normalize=bool(normal), **options)
        with torch.no_grad():
            for parameter, start in zip((layer.prototypes, layer.features.weight), xor.draw(config, 3, a, b, 0)):
                parameter.copy_(start)
            S = layer(x)
        at = (i, j, normal, 0, a, b, 0)
        assert loss[at] == pytest.approx(cross_entropy(S, y), rel=2e-3), at
        if (S[:, 0] - S[:, 1]).abs().min() > 1e-5:
            assert right[at] == 4 * accuracy(S, y), at
    assert result["p_conv"] == (right == 4).mean()


def test_calibrated_xor_at_a_rate_of_0_reports_its_start():
    settings = {"start": "calibrated", "level": "feature", "num_features": (8,), "seeds": 3, "seed": 2, "steps": 2}
    result, _ = run("xor", lr=0.0, **settings)
    x, y, found = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 1, 1, 0]), []
    for seed in range(2000, 2003):
        torch.manual_seed(seed)
        S = TverskyProjection(2, 2, 8, difference="subtractmatch")(x).detach()
        found.append((cross_entropy(S, y), accuracy(S, y)))
    loss, acc = np.mean(found, axis=0)
    (row,) = result["rows"]
    assert (row["loss"], row["acc"]) == pytest.approx((loss, acc), abs=1e-4)
    assert row["dead"]["at the start"] == row["dead"]["after training"]


def test_mnist_at_a_rate_of_0_reports_its_start():
    mnist = experiment("mnist").module
    settings = {"epochs": 1, "batch": 60, "made_up": 60, "lr": 0.0, "dropout": 0.0}
    result, record = run("mnist", **settings)
    digits = synthetic_digits(60)
    assert list(result["networks"]) == list(mnist.NETWORKS)
    for name, found in result["networks"].items():
        network, _ = mnist.make(config_of("mnist", **settings), name, "cpu")
        for key, value in network.named_parameters():
            assert torch.equal(record.tensors[f"{name}/{key}"], value), key
        logits = network.train()(digits.train_x[:, None] / 255).detach()
        ((_, loss, reported),) = found["curve"]
        assert loss == pytest.approx(cross_entropy(logits, digits.train_y), rel=1e-4)
        # The forward above, as the run's, has moved the means and variances of batch norms once.
        right = accuracy(network.eval()(digits.test_x[:, None] / 255), digits.test_y)
        assert reported == found["accuracy"] == pytest.approx(right)


# ImageNet's colours, as torch's backbones expect them.
MEAN, SPREAD = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


@pytest.mark.parametrize("network", ["baseline", "tversky"])
@pytest.mark.parametrize("condition", ["frozen", "scratch"])
def test_resnet_at_a_rate_of_0_reports_its_start(network, condition):
    resnet = experiment("resnet").module
    # Batches of a part of the pictures change no mean where no batch norm trains.
    batch = 10 if condition == "frozen" else 40
    settings = {"network": network, "condition": condition, "made_up": 40, "batch": batch, "size": 16, "epochs": 1}
    settings |= {"num_features": 4, "lr": 0.0, "dropout": 0.0}
    result, _ = run("resnet", **settings)
    pictures = synthetic_images(40, size=16)
    train, test = ((x / 255 - MEAN) / SPREAD for x in (pictures.train_x, pictures.test_x))
    model = resnet.make(config_of("resnet", **settings), 10)
    model.train(condition == "scratch")
    logits = model(train).logits.detach()
    ((_, loss, reported, *_),) = result["curve"]
    assert loss == pytest.approx(cross_entropy(logits, pictures.train_y), rel=1e-4)
    assert reported == result["accuracy"] == pytest.approx(accuracy(model.eval()(test).logits, pictures.test_y))


PTB = {"made_up": 150, "length": 8, "batch": 8, "epochs": 1, "layers": 1, "width": 8, "heads": 2, "num_features": 4}


@pytest.mark.parametrize("network", ["baseline", "tversky-head", "tversky-all-1layer"])
def test_ptb_at_a_rate_of_0_reports_its_start(network):
    ptb = experiment("ptb").module
    # From any offset of 0 to 7 on, 152 tokens are 18 pieces of 8, in three batches of 6.
    settings = PTB | {"made_up": 152, "batch": 6, "network": network, "lr": 0.0, "dropout": 0.0}
    result, _ = run("ptb", **settings)
    text = synthetic_text(152)
    model = ptb.make(config_of("ptb", **settings), text.vocabulary).eval()

    @torch.no_grad()
    def loss_of(tokens) -> float:
        logits = model(input_ids=tokens).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    ((_, loss, valid),) = result["curve"]
    # The offset is random.
    possible = [loss_of(text.train[offset : offset + 18 * 8].view(18, 8)) for offset in range(8)]
    assert min(abs(one - loss) for one in possible) < 1e-5 < max(possible) - min(possible)
    for tokens, reported in ((text.valid, valid), (text.test, result["test"])):
        whole = len(tokens) // 8 * 8
        parts = [(loss_of(tokens[:whole].view(-1, 8)), whole // 8 * 7)]
        parts += [(loss_of(tokens[None, whole:]), len(tokens) - whole - 1)] if len(tokens) > whole + 1 else []
        mean = sum(part * count for part, count in parts) / sum(count for _, count in parts)
        assert reported == pytest.approx(math.exp(mean), rel=1e-4)
    assert result["valid"] == valid


EDITING = {"made_up": 150, "validation": 50, "epochs": 2, "batch": 20, "num_features": 2}


def test_editing_at_a_rate_of_0_reports_its_start():
    editing = experiment("editing").module
    settings = EDITING | {"epochs": 1, "batch": 150, "start": "noise", "lr": 0.0, "dropout": 0.0}
    record = trained(**settings)
    parts, _ = editing.load(config_of("editing", **settings))
    torch.manual_seed(0)
    network = import_module("similitude.models.mnist").VisualTverskyMNISTNet(2, dropout=0.0)
    x, y, _ = parts["train"]
    ((_, loss, other, stroke),) = record.state["curve"]
    assert loss == pytest.approx(cross_entropy(network.train()(x), y), rel=1e-4)
    x, y, group = parts["validation"]
    right = (network.eval()(x).argmax(-1) == y).double()
    assert (stroke, other) == pytest.approx((right[group == 0].mean().item(), right[group == 2].mean().item()))


HEADS = {"made_up": 40, "size": 16, "num_features": 4, "epochs": 2, "batch": 6, "seeds": 1, "validation": 0.25}
HEADS |= {"lrs": (1e-2,), "decays": (1e-2,)}


def test_heads_at_a_rate_of_almost_0_report_their_start():
    heads = experiment("heads").module
    settings = HEADS | {"lrs": (1e-30,), "decays": (0.0,), "batch": 40, "seeds": 2}
    result, _ = run("heads", **settings)
    config = config_of("heads", **settings)
    found = heads.load(config, "cpu", quiet)
    x, y = found.train_x, found.train_y
    kept, held = heads.parted(y, 0.25, 0)
    for name, _, _, reported, other, loss in result["tuning"]:
        size = x[kept].square().mean().sqrt()
        torch.manual_seed(0)
        head = heads.make(config, name, x.shape[1], 10)
        assert loss == pytest.approx(cross_entropy(head(x[kept] / size), y[kept]), rel=1e-4)
        assert other == pytest.approx(cross_entropy(head(x[held] / size), y[held]), rel=1e-4)
        assert reported == pytest.approx(accuracy(head(x[held] / size), y[held]))
    for name, accuracies in result["accuracy"].items():
        for seed, reported in enumerate(accuracies):
            torch.manual_seed(seed)
            logits = heads.make(config, name, x.shape[1], 10)(found.test_x / x.square().mean().sqrt())
            assert reported == pytest.approx(accuracy(logits, found.test_y))


# The settings that each experiment starts from, and for each setting another value, with what it needs beside it.
BASES = {
    "xor": {"num_features": (1,), "steps": 3},
    "mnist": {"networks": ("VisualTverskyMNISTNet",), "epochs": 2, "made_up": 60, "batch": 30, "snapshots": (0,)},
    "resnet": {"epochs": 1, "made_up": 20, "batch": 10, "size": 16, "num_features": 4},
    "ptb": PTB,
    "editing": EDITING,
    "heads": HEADS,
}
CALIBRATED = {"start": "calibrated", "level": "feature", "num_features": (4,), "steps": 20}
CHANGES: dict[str, dict] = {
    "xor": {
        "level": "feature",
        "num_features": (2,),
        "seeds": 2,
        "seed": 1,
        "steps": 4,
        "lr": 0.1,
        "start": "calibrated",
        "leak": (0.5, CALIBRATED),
        "difference_rate": (10.0, CALIBRATED),
    },
    "mnist": {
        "networks": ("VisualMNISTNet",),
        "epochs": 3,
        "batch": 20,
        "lr": 0.01,
        "weight_decay": 0.1,
        "decoupled": True,
        "schedule": "cosine",
        "start": ("calibrated", {"networks": ("TverskyMNISTNet",)}),
        "images": "digits",
        "dropout": 0.5,
        "image_rate": (2.0, {"decoupled": True}),
        "image_decay": (1.0, {"decoupled": True}),
        "image_blur": (1.0, {"decoupled": True}),
        "bounded": True,
        "snapshots": (0, 1),
        "checkpoint_every": 2,
        "seed": 1,
        "made_up": 70,
        "presence": (0.2, {"images": "clusters"}),
    },
    "resnet": {
        "network": "baseline",
        "condition": "frozen",
        "num_features": 5,
        "epochs": 2,
        "batch": 5,
        "size": 12,
        "lr": 0.1,
        "head_rate": 0.5,
        "momentum": 0.5,
        "weight_decay": 0.1,
        "dropout": 0.5,
        "clip": 1e-3,
        "flip": True,
        "checkpoint_every": (2, {"epochs": 2}),
        "seed": 1,
        "made_up": 30,
    },
    "ptb": {
        "network": "baseline",
        "init": "finetuned",
        "source": ("nowhere", {"init": "finetuned"}),
        "tied": False,
        "num_features": 5,
        "presence": (0.75, {"network": "tversky-head"}),
        "intersection": "min",
        "difference": "subtractmatch",
        "level": ("feature", {"intersection": "min"}),
        "epochs": 2,
        "batch": 4,
        "length": 10,
        "lr": 0.01,
        "bank_rate": 0.5,
        "difference_rate": 10.0,
        "leak": (0.5, {"level": "feature"}),
        "weight_decay": 0.1,
        "warmup": 5,
        "schedule": ("cosine", {"epochs": 2}),
        "dropout": 0.5,
        "clip": 1e-9,
        "layers": 2,
        "width": 16,
        "heads": 1,
        "seed": 1,
        "made_up": 200,
    },
    "editing": {
        "start": "noise",
        "epochs": 3,
        "batch": 25,
        "lr": 0.01,
        "weight_decay": 0.1,
        "dropout": 0.5,
        "num_features": 3,
        "validation": 60,
        "seed": 1,
        "made_up": 160,
    },
    "heads": {
        "encoded": "nowhere.npz",
        "size": 12,
        "scale": "none",
        "num_features": 5,
        "intersection": "min",
        "difference": "subtractmatch",
        "level": ("set", {"intersection": "min"}),
        "normalize": True,
        "bias": True,
        "init": "uniform",
        "length": 0.5,
        "bank_rate": 1.0,
        "epochs": 3,
        "batch": 5,
        "dropout": 0.5,
        "lrs": (2e-2,),
        "decays": (1.0,),
        "validation": 0.5,
        "seeds": 2,
        "seed": 1,
        "made_up": 50,
        "layer": "let-go",
        "presence": (0.3, {"layer": "let-go"}),
    },
}
# Settings that change nothing in a smoke run, each with another value and the reason.
SAME: dict[str, dict] = {
    "resnet": {
        "data": ("cub", "made-up images take the place of every data set"),
        "source": ("elsewhere", "made-up images come with a made-up backbone"),
    },
    "ptb": {"checkpoint_every": (2, "the curve has every epoch, however rarely it is saved")},
    "heads": {
        "data": ("nabirds", "made-up images take the place of every data set"),
        "source": ("elsewhere", "made-up images come with a made-up backbone"),
    },
}
# Settings of editing that matter only to the choice of drawings, which is slow and has one test for both.
DRAWING = {"cost", "steps"}


def outcome(name: str, settings: dict) -> dict:
    """Everything that a run leaves but its speed, or its error; for editing, what its training leaves."""
    try:
        result, record = ({}, trained(**settings)) if name == "editing" else run(name, **settings)
    except RunError as error:
        return {"error": str(error)}
    tensors = {key: value.numpy() for key, value in record.tensors.items()}
    arrays = {f"{file}.{key}": value for file, found in record.arrays.items() for key, value in found.items()}
    numbers = {key: value for key, value in result.items() if key != "tokens_per_second"}
    return {"result": repr(numbers), "curve": repr(record.state.get("curve")), **tensors, **arrays}


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(a[key], b[key], equal_nan=isinstance(a[key], np.ndarray) and a[key].dtype.kind == "f")
        for key in a
    )


@pytest.fixture(scope="module")
def outcomes():
    """Outcomes by experiment and settings, each computed once."""
    known: dict = {}

    def of(name: str, **settings) -> dict:
        key = name, repr(sorted(settings.items()))
        if key not in known:
            known[key] = outcome(name, settings)
        return known[key]

    return of


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_is_changed_below_or_said_to_change_nothing(name):
    named = CHANGES[name].keys() | SAME.get(name, {}).keys() | (DRAWING if name == "editing" else set())
    assert named == {field.name for field in fields(experiment(name).smoke)}


@pytest.mark.parametrize(("name", "setting"), [(name, key) for name, changes in CHANGES.items() for key in changes])
def test_a_setting_changed_alone_changes_what_comes_out(name, setting, outcomes):
    value, needs = CHANGES[name][setting], {}
    if isinstance(value, tuple) and isinstance(value[-1], dict):
        value, needs = value
    settings = BASES[name] | needs
    assert not equal(outcomes(name, **settings), outcomes(name, **settings | {setting: value}))


@pytest.mark.parametrize(("name", "setting"), [(name, key) for name, same in SAME.items() for key in same])
def test_a_setting_that_is_said_to_change_nothing_changes_nothing(name, setting, outcomes):
    value, _ = SAME[name][setting]
    settings = BASES[name] | {"epochs": 2}
    assert equal(outcomes(name, **settings), outcomes(name, **settings | {setting: value}))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_warm_up_rises_from_a_share_of_the_rate_and_then_the_rate_falls_to_0(schedule):
    rates = []
    with steps_seen(lambda optimizer: rates.append(optimizer.param_groups[0]["lr"])):
        run("ptb", **PTB | {"made_up": 150, "epochs": 5, "warmup": 4, "lr": 1.0e-3, "schedule": schedule})
    assert len(rates) == 10
    assert rates[:4] == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3])
    falling = [i / 6 for i in range(6)]
    shares = [1 - f if schedule == "linear" else (1 + math.cos(math.pi * f)) / 2 for f in falling]
    assert rates[4:] == pytest.approx([1e-3 * share for share in shares])


@pytest.mark.parametrize("name", ["ptb", "resnet"])
def test_gradients_are_clipped_to_the_norm_that_is_asked_for(name):
    def norms(clip: float) -> list[float]:
        found = []

        def see(optimizer):
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            found.append(torch.stack([g.norm() for g in gradients]).norm().item())

        with steps_seen(see):
            run(name, **BASES[name] | {"clip": clip, "epochs": 2})
        return found

    free = norms(1e9)
    clip = 0.5 * min(free)
    assert norms(clip) == pytest.approx([clip] * len(free), rel=1e-3)


@pytest.mark.parametrize("network", ["MNISTNet", "VisualMNISTNet", "TverskyMNISTNet", "VisualTverskyMNISTNet"])
def test_mnists_accuracy_is_that_of_the_network_without_dropout_and_with_the_batch_norms_own_moments(network):
    settings = {"networks": (network,), "epochs": 1, "made_up": 200, "batch": 20, "lr": 0.01, "dropout": 0.8}
    result, record = run("mnist", **settings)
    state = {key.removeprefix(f"{network}/"): value for key, value in record.tensors.items() if key.startswith(network)}
    left = getattr(import_module("similitude.models.mnist"), network)(dropout=0.8).eval()
    left.load_state_dict(state)
    digits = synthetic_digits(200)
    assert result["networks"][network]["accuracy"] == accuracy(left(digits.test_x[:, None] / 255), digits.test_y)
    # Had the network been measured as it trains, this would have counted one more batch.
    assert [int(v) for key, v in state.items() if "num_batches" in key] == [10] * 3


@pytest.mark.parametrize(
    ("condition", "network"), [("scratch", "baseline"), ("scratch", "tversky"), ("frozen", "baseline")]
)
def test_resnets_accuracy_is_that_of_the_network_that_is_left_on_test_images(condition, network):
    resnet = experiment("resnet").module
    settings = {"network": network, "condition": condition, "made_up": 80, "batch": 20, "size": 16, "epochs": 4}
    settings |= {"num_features": 8, "dropout": 0.5}
    result, record = run("resnet", **settings)
    model, images = resnet.make(config_of("resnet", **settings), 10), synthetic_images(80, size=16)
    # On a frozen backbone only the classifier is trained and left.
    left = model if condition == "scratch" else nn.Sequential(nn.Dropout(0.5), resnet.head_of(model))
    left.load_state_dict(record.tensors)
    model.eval()
    right = [
        accuracy(model((x / 255 - MEAN) / SPREAD).logits, y)
        for x, y in ((images.test_x, images.test_y), (images.train_x, images.train_y))
    ]
    assert result["accuracy"] == right[0] != right[1]
    batches = {int(v) for key, v in record.tensors.items() if "num_batches" in key}
    assert batches == ({16} if condition == "scratch" else set())


def test_an_edit_costs_no_more_than_allowed_and_adds_no_more_features_than_allowed():
    settings = {"made_up": 200, "validation": 80, "epochs": 4, "batch": 20, "num_features": 2}

    def edits(**changes) -> tuple[dict[str, float], list[int]]:
        result, _ = run("editing", **settings | changes)
        before = result["before"]["validation"]["other"]
        lost = {name: 100 * (before - edit["after"]["validation"]["other"]) for name, edit in result["edits"].items()}
        return lost, [len(edit["drawn"]["features"]) for edit in result["edits"].values()]

    free, few = edits(cost=100.0, steps=1)
    tight, more = edits(cost=2.0, steps=2)
    assert max(free.values()) > 4, "no edit would have cost more than allowed"
    assert max(tight.values()) <= 2 + 1e-9
    assert (max(few), max(more)) == (1, 2)


def test_the_tables_without_gmean_count_it_as_never_converging():
    result, record = run("xor", num_features=(4,), steps=60, lr=0.05)
    right = record.arrays["outcomes"]["right"] == 4
    gmean = INTERSECTIONS.index("gmean")
    assert right[gmean].any(), "gmean converges nowhere, so leaving it out would change nothing"

    def rows(which: str, name: str, factor: str) -> dict:
        return {row[factor]: row["p_conv"] for row in result[which][name]}

    for normal in (False, True):
        seen = right[:, :, int(normal)]
        assert rows("tables", "by_normalize", "normalize")[normal] == round(float(seen.mean()), 4)
        without = seen.sum() - seen[gmean].sum()
        assert rows("without_gmean", "by_normalize", "normalize")[normal] == round(float(without / seen.size), 4)
    assert {row["p_conv"] for row in result["without_gmean"]["by_reductions"] if row["intersection"] == "gmean"} == {0}
    kept = [row["p_conv"] for row in result["tables"]["by_reductions"] if row["intersection"] == "gmean"]
    assert sorted(kept) == sorted(round(float(right[gmean, j].mean()), 4) for j in range(2))
    others = [
        {(r["intersection"], r["difference"]): r["p_conv"] for r in result[which]["by_reductions"]}
        for which in ("tables", "without_gmean")
    ]
    assert all(others[0][key] == others[1][key] for key in others[0] if key[0] != "gmean")
