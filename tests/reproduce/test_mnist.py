"""MNIST's experiment beyond what all have: images with a start, a rate, a decay and a blur of their own, and bounds."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from similitude.reproduce import mnist
from similitude.reproduce.record import Record

TINY = replace(mnist.RECIPES["legible"], epochs=3, batch=50, snapshots=(0, 1), checkpoint_every=1, made_up=200)


def quiet(*_, **__):
    pass


def roughness(images: np.ndarray) -> float:
    """How much neighbours differ."""
    return float(np.abs(np.diff(images.astype(float))).mean())


@pytest.mark.parametrize("name", TINY.networks)
def test_images_have_a_rate_and_a_decay_of_their_own_and_all_shares_follow_the_schedule(name):
    network, optimizer = mnist.make(TINY, name, "cpu")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(groups) == sum(len(group["params"]) for group in optimizer.param_groups)
    assert groups.keys() == {id(p) for p in network.parameters()}
    images = mnist.images_of(network)
    assert len(images) == (2 if "Tversky" in name else 1)
    for image in images:
        assert groups[id(image)]["weight_decay"] == 1
        assert groups[id(image)]["lr"] == pytest.approx(5 * TINY.lr)
    mnist.set_rate(TINY, [(network, optimizer)], 0.1)
    for image in images:
        assert groups[id(image)]["lr"] == pytest.approx(2.5 * TINY.lr)
    assert groups[id(next(network.backbone.parameters()))]["lr"] == pytest.approx(0.5 * TINY.lr)


def test_images_stay_within_bounds_lose_their_start_and_go_on_after_a_stop(tmp_path, monkeypatch):
    whole = mnist.run(TINY, Record(tmp_path / "whole", "mnist", TINY, "cpu"), quiet)
    images = dict(np.load(tmp_path / "whole" / "images.npz"))
    last = images["VisualTverskyMNISTNet.prototypes.3"]
    assert last.min() >= 0
    assert last.max() <= 1
    assert roughness(last) < 0.9 * roughness(images["VisualTverskyMNISTNet.prototypes.0"])
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


def test_a_step_of_blurring_brings_images_nearer_to_their_means_in_proportion_to_the_rate():
    image = torch.nn.Parameter(torch.zeros(1, 1, 5, 5))
    image.data[..., 2, 2] = 0.9
    mnist.smooth(TINY, 0.1, [image])
    torch.testing.assert_close(image[0, 0, 2, 2].item(), 0.9 - 0.3 * 0.8)
    torch.testing.assert_close(image[0, 0, 1, 3].item(), 0.3 * 0.1)
    assert image[0, 0, 0].abs().max() == 0
    flat = torch.nn.Parameter(torch.full((2, 1, 5, 5), 0.5))
    mnist.smooth(TINY, 0.1, [flat])
    torch.testing.assert_close(flat.data, torch.full((2, 1, 5, 5), 0.5))


def test_images_can_start_as_digits_of_their_classes_for_both_kinds_of_head(tmp_path):
    config = replace(mnist.RECIPES["examples"], epochs=1, batch=50, snapshots=(0,), made_up=200)
    mnist.run(config, Record(tmp_path, "mnist", config, "cpu"), quiet)
    images = dict(np.load(tmp_path / "images.npz"))
    found = mnist.made_up.synthetic_digits(200)
    x, y = mnist._pixels(found.train_x, "cpu"), found.train_y
    for name in ("VisualMNISTNet", "VisualTverskyMNISTNet"):
        for c, image in enumerate(torch.from_numpy(images[f"{name}.prototypes.0"]).float()):
            assert (x[y == c] - image).flatten(1).norm(dim=1).min() < 0.01
    features = torch.from_numpy(images["VisualTverskyMNISTNet.features.0"]).float()
    torch.testing.assert_close(features, x[:20], atol=1e-3, rtol=0)


def test_images_can_start_as_clusters_with_thresholds(tmp_path):
    config = replace(mnist.RECIPES["legible"], epochs=1, batch=50, made_up=200, images="clusters", presence=0.3)
    found = mnist.made_up.synthetic_digits(200)
    x, y = mnist._pixels(found.train_x, "cpu"), found.train_y
    tversky, linear = (mnist.make(config, name, "cpu")[0] for name in ("VisualTverskyMNISTNet", "VisualMNISTNet"))
    for network in (tversky, linear):
        before = network.prototypes.detach().clone()
        mnist.start_images(config, network, x, y)
        assert torch.equal(network.prototypes, before)
    assert (
        torch.nn.functional.cosine_similarity(tversky.features.flatten(1)[:, None], x.flatten(1), dim=-1).amax(1).min()
        > 0.7
    )
    vectors = tversky.backbone(torch.cat([x, tversky.features]))
    has = (vectors[:200] @ vectors[200:].T > tversky.threshold).float().mean()
    assert has.item() == pytest.approx(0.3, abs=0.08)  # by one batch's statistics, and dropout
    noise = mnist.make(replace(config, images="noise"), "VisualTverskyMNISTNet", "cpu")[0]
    mnist.start_images(replace(config, images="noise"), noise, x, y)
    assert 0.45 < noise.features.mean() < 0.55
    assert noise.threshold.std() > 0
    record = Record(tmp_path, "mnist", config, "cpu")
    assert mnist.run(config, record, quiet)["networks"]["VisualTverskyMNISTNet"]["parameters"] == 29_463 + 20


def test_without_bounds_and_decay_images_are_as_free_as_before():
    network, optimizer = mnist.make(mnist.RECIPES["paper"], "VisualTverskyMNISTNet", "cpu")
    assert len(optimizer.param_groups) == 1
    with torch.no_grad():
        network.prototypes.fill_(2.0)
    x, y = torch.rand(20, 1, 28, 28), torch.arange(20) % 10
    config = replace(mnist.RECIPES["paper"], epochs=1, batch=20)
    mnist.trainer(config, [(network, optimizer)], x, y)(1)
    assert network.prototypes.min() > 1.9


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"image_rate": 2.0}, "need decoupled=true"),
        ({"image_decay": -1.0, "decoupled": True}, r"image_decay must be 0 or more; got -1\.0"),
        ({"image_blur": 1.0}, "need decoupled=true"),
        ({"image_rate": 25.0, "image_blur": 21.0, "decoupled": True}, r"1 or less; lr 0\.002, got 25\.0, 0\.0, 21\.0"),
        ({"images": "digit"}, "images must be one of noise, digits, clusters; got 'digit'"),
    ],
)
def test_wrong_settings_of_images_are_one_sentence(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        mnist.Config(**settings)
