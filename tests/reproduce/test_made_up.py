"""Made-up data is the same each time and can be learned."""

import numpy as np
import pytest
import torch

from similitude.reproduce.data.made_up import synthetic_digits, synthetic_images, synthetic_text


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (synthetic_digits, ["train_x", "train_y", "test_x", "test_y"]),
        (synthetic_images, ["train_x", "train_y", "test_x", "test_y"]),
        (synthetic_text, ["train", "valid", "test"]),
    ],
)
def test_made_up_data_is_the_same_each_time_and_leaves_the_generator_alone(make, fields):
    state = torch.get_rng_state()
    first = make(40)
    torch.randn(3)
    second = make(40)
    torch.set_rng_state(state)
    make(40)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(getattr(first, f), getattr(second, f)) for f in fields)
    assert first.hashes == second.hashes != make(40, seed=1).hashes
    assert [len(getattr(first, f)) for f in fields] == ([40, 10, 10] if make is synthetic_text else [40, 40, 10, 10])
    assert len(getattr(make(1), fields[-1])) == 1
    with pytest.raises(ValueError, match="n must be 1 or more; got 0"):
        make(0)


@pytest.mark.parametrize(
    ("found", "shape"),
    [(lambda: synthetic_digits(200), (28, 28)), (lambda: synthetic_images(200, classes=7, size=24), (3, 24, 24))],
)
def test_made_up_images_can_be_learned(found, shape):
    found = found()
    assert found.train_x.shape == (200, *shape)
    assert found.train_x.dtype == torch.uint8
    assert set(found.train_y.tolist()) == set(range(len(found.classes)))
    train, test = found.train_x.flatten(1).float(), found.test_x.flatten(1).float()
    means = torch.stack([train[found.train_y == c].mean(0) for c in range(len(found.classes))])
    nearest = torch.cdist(test, means).argmin(-1)
    assert (nearest == found.test_y).double().mean() > 0.6
    # No image is in both splits.
    assert torch.cdist(test, train).min() > 0


def test_made_up_text_can_be_learned():
    found = synthetic_text(4000, vocabulary=16)
    pairs = torch.zeros(16, 16).index_put((found.train[:-1], found.train[1:]), torch.ones(3999), accumulate=True)
    chances = (pairs + 0.1) / (pairs + 0.1).sum(-1, keepdim=True)
    perplexity = (-chances[found.test[:-1], found.test[1:]].log().mean()).exp()
    # The perplexity of the source itself: 0.8125 for the favourite, 0.0125 for each other token.
    best = np.exp(-(0.8125 * np.log(0.8125) + 15 * 0.0125 * np.log(0.0125)))
    assert best < 3
    assert perplexity == pytest.approx(best, rel=0.1)
    assert found.vocabulary == 16
    assert found.train.max() == 15
