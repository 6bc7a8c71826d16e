"""MNIST's experiment beyond what all have: images that learn at a rate of their own, decay, and stay within bounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from similitude.experiments import mnist
from similitude.experiments.record import Record

TINY = replace(mnist.RECIPES["legible"], epochs=3, batch=50, snapshots=(0, 1), checkpoint_every=1, digits=200)


def quiet(*_, **__):
    pass


@pytest.mark.parametrize("name", TINY.networks)
def test_images_have_a_rate_and_a_decay_of_their_own_and_all_shares_follow_the_schedule(name):
    network, optimizer = mnist.make(TINY, name, "cpu")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(groups) == sum(len(group["params"]) for group in optimizer.param_groups)
    assert groups.keys() == {id(p) for p in network.parameters()}
    images = mnist.images_of(network)
    assert len(images) == (2 if "Tversky" in name else 1)
    for image in images:
        assert groups[id(image)]["weight_decay"] == 3
        assert groups[id(image)]["lr"] == pytest.approx(25 * TINY.lr)
    mnist.set_rate(TINY, [(network, optimizer)], 0.1)
    for image in images:
        assert groups[id(image)]["lr"] == pytest.approx(12.5 * TINY.lr)
    assert groups[id(next(network.backbone.parameters()))]["lr"] == pytest.approx(0.5 * TINY.lr)


def test_images_stay_within_bounds_lose_their_start_and_go_on_after_a_stop(tmp_path, monkeypatch):
    whole = mnist.run(TINY, Record(tmp_path / "whole", "mnist", TINY, "cpu"), quiet)
    images = dict(np.load(tmp_path / "whole" / "images.npz"))
    last = images["VisualTverskyMNISTNet.prototypes.3"]
    assert last.min() == 0
    assert last.max() <= 1
    assert last.mean() < 0.5 * images["VisualTverskyMNISTNet.prototypes.0"].mean()
    save = Record.save

    def stopped(self, step, *rest):
        save(self, step, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(Record, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        mnist.run(TINY, Record(tmp_path / "again", "mnist", TINY, "cpu"), quiet)
    monkeypatch.setattr(Record, "save", save)
    assert mnist.run(TINY, Record(tmp_path / "again", "mnist", TINY, "cpu"), quiet) == whole
    again = np.load(tmp_path / "again" / "images.npz")
    assert all(np.array_equal(again[key], value) for key, value in images.items())


def test_without_bounds_and_decay_images_are_as_free_as_before():
    network, optimizer = mnist.make(mnist.RECIPES["paper"], "VisualTverskyMNISTNet", "cpu")
    assert len(optimizer.param_groups) == 1
    with torch.no_grad():
        network.prototypes.fill_(2.0)
    x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    config = replace(mnist.RECIPES["paper"], epochs=1, batch=20)
    list(mnist.epochs(config, [(network, optimizer)], x, y, 0))
    assert network.prototypes.min() > 1.9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"image_rate": 2.0}, "need decoupled=true"),
        ({"image_decay": -1.0, "decoupled": True}, "must be 0 or more; got 1.0 and -1.0"),
    ],
)
def test_wrong_settings_of_images_are_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        mnist.Config(**settings)
