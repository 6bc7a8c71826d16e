"""Reading banks: what any network's vectors hold."""

import pytest
import torch
from torch import nn

from similitude import TverskyProjection
from similitude.interpret.reading import NOTE, reading_bank
from similitude.interpret.sets import Universe


def clustered(n=400, kinds=8, dim=16):
    g = torch.Generator().manual_seed(0)
    centres = 3 * nn.functional.normalize(torch.randn(kinds, dim, generator=g), dim=-1)
    kind = torch.arange(n) % kinds
    return centres[kind] + 0.2 * torch.randn(n, dim, generator=g) + 5, kind


@pytest.mark.parametrize("bank", ["k-means", "random"])
def test_each_feature_has_the_presence_asked_for(bank):
    x, _ = clustered()
    made = reading_bank(x, bank, presence=0.125, num_features=20)
    torch.testing.assert_close((made(x) > 0).float().mean(0), torch.full((20,), 0.125), atol=1e-6, rtol=0)
    assert not made.weight.requires_grad


def test_k_means_finds_what_random_directions_do_not():
    x, kind = clustered()
    pure = {}
    for bank in ("k-means", "random"):
        has = (reading_bank(x, bank, presence=0.125, num_features=20)(x) > 0).float()
        of_kind = torch.stack([has[kind == k].mean(0) for k in range(8)])
        pure[bank] = (of_kind.amax(0) / of_kind.sum(0)).mean()
    assert pure["k-means"] > 0.95
    assert pure["random"] < 0.85


def test_any_network_is_read():
    x, _ = clustered()
    linear = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))
    tversky = nn.Sequential(nn.Linear(16, 16), TverskyProjection(16, 5, 12))
    for model, layer in ((linear, "2"), (tversky, None), (nn.Linear(16, 5), None)):
        u = Universe.of(model, inputs=x, layer=layer, bank="k-means", presence=0.1, num_features=30)
        assert len(u.features) == 30
        assert len(u) == 400
        assert NOTE in repr(u)
        assert u[0] != u[1]
    own = Universe.of(tversky, inputs=x)
    assert len(own.features) == 12


def test_prototypes_are_read_at_the_length_of_what_reaches_them():
    x, _ = clustered()
    layer = nn.Linear(16, 8, bias=False)
    with torch.no_grad():
        layer.weight.copy_(x[:8] / 100)
    u = Universe.of(layer, list("abcdefgh"), inputs=x, bank="k-means", objects="prototypes", num_features=40)
    there = Universe.of(layer, inputs=x, bank="k-means", num_features=40)
    agree = [(u[i].mask == there[i].mask).float().mean().item() for i in range(8)]
    assert min(agree) > 0.8
    assert all(len(u[i]) for i in range(8))


@pytest.mark.parametrize("bank", ["k-means", "random"])
def test_vectors_that_cannot_be_read_are_refused(bank):
    x, _ = clustered()
    for wrong in (x * torch.nan, x[:1], x[:0]):
        with pytest.raises(ValueError, match="vectors must be two or more"):
            reading_bank(wrong, bank)
    with pytest.raises(ValueError, match="num_features must be a whole number of 1 or more; got -1"):
        reading_bank(x, bank, num_features=-1)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda m, x: Universe.of(m, bank="k-means"), "give inputs="),
        (
            lambda m, x: Universe.of(m, inputs=x, bank="means", layer="0"),
            "bank must be one of k-means, random; got 'means'",
        ),
        (lambda m, x: Universe.of(m, inputs=x, bank="k-means", objects="rows"), "objects must be one of"),
        (lambda m, x: Universe.of(m, objects="prototypes"), "objects='prototypes' is for bank="),
        (lambda m, x: Universe.of(nn.ReLU(), inputs=x, bank="k-means"), "name an nn.Linear with layer=: it has none"),
        (lambda m, x: Universe.of(m, inputs=x, bank="k-means", layer="9"), "no layer is named '9'.*0, 1"),
        (lambda m, x: Universe.of(m, inputs=x, bank="k-means", layer="0", num_features=999), "999 directions need"),
    ],
)
def test_wrong_readings_are_refused(call, told):
    x, _ = clustered()
    with pytest.raises(ValueError, match=told):
        call(nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 3)), x)
