"""Spherical k-means: directions of length 1 around which rows cluster."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import normalize

from similitude import clusters
from similitude.clusters import spherical_means


def groups(count=8, each=30, D=16, noise=0.05, seed=3):
    """Rows about ``count`` directions at very different lengths, and these directions."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.linalg.qr(torch.randn(D, D, generator=g)).Q[:count]
    rows = centres.repeat(each, 1) + noise * torch.randn(count * each, D, generator=g)
    return rows * torch.rand(len(rows), 1, generator=g).mul(6).exp(), centres


def test_groups_of_directions_are_found():
    x, centres = groups()
    means = spherical_means(x, 8)
    cosine = means @ centres.mT
    assert cosine.amax(0).min() > 0.99
    assert sorted(cosine.argmax(-1).tolist()) == list(range(8))


def test_directions_have_length_1():
    x, _ = groups()
    assert spherical_means(x, 20).norm(dim=-1).allclose(torch.ones(20))


def test_a_direction_is_that_of_the_mean_of_its_rows_at_length_1():
    x, _ = groups(noise=0.3)
    means = spherical_means(x.double(), 5, steps=100)
    rows = normalize(x.double(), dim=-1)
    of = (rows @ means.mT).argmax(-1)
    again = normalize(torch.stack([rows[of == k].sum(0) for k in range(5)]), dim=-1)
    assert (again * means).sum(-1).min() > 1 - 1e-3


def test_the_lengths_of_rows_do_not_matter():
    x, _ = groups(noise=0.3)
    assert torch.equal(spherical_means(x, 12), spherical_means(x * 4, 12))
    assert spherical_means(x.double() * 1e-200, 12).allclose(spherical_means(x.double(), 12))


def test_one_seed_gives_one_result_and_another_seed_another():
    x, _ = groups(noise=0.5)
    assert torch.equal(spherical_means(x, 12, seed=4), spherical_means(x, 12, seed=4))
    assert torch.equal(spherical_means(x, 12, seed=torch.Generator().manual_seed(4)), spherical_means(x, 12, seed=4))
    assert not torch.equal(spherical_means(x, 12, seed=4), spherical_means(x, 12, seed=5))


def test_a_seed_leaves_the_global_generator_alone():
    x, _ = groups()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    spherical_means(x, 12)
    assert torch.equal(torch.rand(3), expected)


def test_rows_in_parts_give_the_result_of_rows_at_once(monkeypatch):
    x, _ = groups(noise=0.5)
    whole = spherical_means(x.double(), 12)
    monkeypatch.setattr(clusters, "AT_ONCE", 12 * 7)
    assert spherical_means(x.double(), 12).allclose(whole)


def test_a_direction_without_rows_goes_to_rows_that_are_served_worst():
    # At most six of the rows drawn at the start differ; directions that equal an earlier one have no rows.
    x = torch.cat([torch.ones(1000, 6), torch.eye(6)[:5] - 0.5])
    means = spherical_means(x, 6)
    assert (normalize(x, dim=-1) @ means.mT).amax(-1).min() > 0.999


def test_opposite_rows_still_give_a_direction():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    assert spherical_means(x, 1).norm().item() == pytest.approx(1)


def test_as_many_directions_as_rows_are_the_rows():
    x = torch.randn(10, 4)
    means = spherical_means(x, 10)
    assert (normalize(x, dim=-1) @ means.mT).amax(-1).min() > 1 - 1e-6


@pytest.mark.parametrize("steps", [1, 2, 12])
def test_the_last_round_sees_all_rows(monkeypatch, steps):
    x, _ = groups(count=3, each=400, noise=0.3)
    monkeypatch.setattr(clusters, "FEW", 1)  # directions of one row each
    means, rows = spherical_means(x, 3, steps=steps), normalize(x, dim=-1)
    assert (rows @ means.mT).amax(-1).mean() > (rows @ rows[:3].mT).amax(-1).mean() + 0.1
    assert (rows[:, None] - means).square().sum(-1).amin(0).min() > 0.01  # none is a row


def test_progress_is_reported_and_the_cosine_rises():
    x, _ = groups(noise=0.5, each=8)
    told = []
    spherical_means(
        x, 12, steps=20, progress=lambda done, steps, what, cosine: told.append((done, steps, what, cosine))
    )
    assert told[-1][:3] == (20, 20, "k-means")
    cosines = [cosine for *_, cosine in told]
    assert cosines[-1] > cosines[0]
    assert all(b > a - 1e-6 for a, b in pairwise(cosines))


def test_axes_before_the_last_are_all_rows_and_the_dtype_stays():
    x, _ = groups()
    assert torch.equal(spherical_means(x.view(8, 30, 16), 8), spherical_means(x, 8))
    assert spherical_means(x.bfloat16(), 8).dtype == torch.bfloat16
    assert spherical_means(x.double(), 8).dtype == torch.float64


def test_what_has_no_direction_is_refused():
    x = torch.randn(6, 4)
    zero, unknown = x.clone(), x.clone()
    zero[2] = 0
    unknown[1, 1] = torch.nan
    with pytest.raises(ValueError, match="1 of 6 rows are zeros, such as row 2: leave them out"):
        spherical_means(zero, 2)
    with pytest.raises(ValueError, match="x must be finite; some rows have NaN"):
        spherical_means(unknown, 2)
    with pytest.raises(ValueError, match="7 directions need as many rows; got 6: give more rows, or ask for 6 at most"):
        spherical_means(x, 7)
    with pytest.raises(ValueError, match="count must be a whole number of 1 or more; got 0"):
        spherical_means(x, 0)
    with pytest.raises(TypeError, match="x must have a floating dtype; got int64"):
        spherical_means(torch.ones(3, 2, dtype=torch.int64), 2)


def told_apart_by_little(N=1200, D=12, seed=5):
    """Rows of three classes, a family of two and a single one, beside noise that varies far more; and the classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(N) % 3
    x = 0.1 * torch.randn(N, D, generator=g)
    x[:, :4] += 3 * torch.randn(N, 4, generator=g)  # varies most, says nothing
    x[:, 5] += torch.tensor([1.0, 1.0, -1.0])[y]
    x[:, 6] += torch.tensor([0.5, -0.5, 0.0])[y]
    return x, y


def best(x, w, has):
    """The largest correlation of a direction's measures with an attribute."""
    return max(abs(torch.corrcoef(torch.stack([m, has.float()]))[0, 1].item()) for m in (x @ w.mT).T)


def test_whitened_means_find_what_the_largest_variance_hides():
    x, y = told_apart_by_little()
    assert best(x, spherical_means(x, 6), y == 2) < 0.5
    assert best(x, clusters.whitened_means(x, 6, 0.01), y == 2) > 0.9
    assert best(x, clusters.whitened_means(x, 6, 0.01, y), y == 2) > 0.9
    assert clusters.whitened_means(x, 6, 0.01).norm(dim=-1).allclose(torch.ones(6))


def test_whitened_means_shrunk_away_are_those_of_centred_rows():
    x, _ = told_apart_by_little()
    whole, centred = clusters.whitened_means(x, 6, 1.0), spherical_means(x - x.mean(0), 6)
    torch.testing.assert_close(whole, centred, atol=1e-3, rtol=0)


def test_a_whitening_gives_all_directions_the_same_variance():
    rows = torch.randn(500, 6, dtype=torch.float64) * torch.arange(1, 7)
    rows -= rows.mean(0)
    found = rows @ clusters.whitening(rows, 1e-12)
    torch.testing.assert_close(found.mT @ found / 500, torch.eye(6, dtype=torch.float64), atol=1e-6, rtol=0)
    assert clusters.whitening(torch.zeros(5, 3), 0.5).equal(torch.eye(3))


def test_class_directions_tell_each_class_and_each_group_of_classes_apart():
    g = torch.Generator().manual_seed(0)
    family = torch.randn(4, 10, generator=g).repeat_interleave(2, 0) + 0.3 * torch.randn(8, 10, generator=g)
    y = torch.arange(1600) % 8
    x = family[y] + 0.1 * torch.randn(1600, 10, generator=g)
    x[:, 0] += 5 * torch.randn(1600, generator=g)
    w = clusters.class_directions(x, y, 40, 0.01)
    assert 8 < len(w) <= 40
    for c in range(8):
        assert torch.corrcoef(torch.stack([x @ w[c], (y == c).float()]))[0, 1] > 0.55
    for f in range(4):
        assert best(x, w[8:], y // 2 == f) > 0.65
    assert len(clusters.class_directions(x, y, 5, 0.01)) == 5


def test_two_classes_have_two_directions():
    x, y = told_apart_by_little()
    w = clusters.class_directions(x[y != 1], (y[y != 1] == 2).long(), 20, 0.01)
    assert w.shape == (2, 12)
    torch.testing.assert_close(w[0], -w[1])
