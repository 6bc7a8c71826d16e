"""Fits: every likelihood by its formula, every family by the library's equations, held-out cells never seen."""

import math

import numpy as np
import pytest
import torch

from similitude.functional import tversky_similarity
from similitude.human import (
    TverskySimilarityModel,
    confusions,
    directed,
    families,
    fitting,
    folds,
    given,
    rankings,
    ratings,
    rivals,
    triplets,
)
from similitude.human.families import Pairs, Start
from similitude.reproduce.data import people

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SUBTRACT = {"intersection": "min", "difference": "subtractmatch"}


def start(fits: int = 2, objects: int = 5) -> Start:
    return Start(fits, objects, torch.Generator().manual_seed(0), torch.full((fits,), 0.3))


def listed(objects: int = 5) -> torch.Tensor:
    return torch.rand(objects, 6, generator=torch.Generator().manual_seed(1))


FAMILIES = {
    "tversky": families.tversky(6, 3, **SUBTRACT),
    "ratio": families.tversky(6, 3, model="ratio", **SUBTRACT),
    "direct": families.direct(6, leak=0.1, **SUBTRACT),
    "given": given.listed(listed(), "common+distinctive", **SUBTRACT),
    "vectors": given.vectors(listed(), 6, **SUBTRACT),
    "weighted dot": given.alike(listed(), "dot"),
    "weighted cosine": given.alike(listed(), "cosine"),
    "city block": given.alike(listed(), "city block"),
    "Euclid": given.alike(listed(), "Euclid"),
    "sides": given.linear(listed()),
    "cosine of vectors": given.linear(listed(), cosine=True, sides=False),
    "bilinear on vectors": given.turned(listed(), 3),
    "distance of vectors": given.turned(listed(), 3, way="metric"),
    "network": given.network(listed(), 4),
    "biased": families.with_bias(families.tversky(6, 3), "row+column"),
    "mds": families.metric(3),
    "slide": families.metric(3, decay=False, shift="slide"),
    "unfold": families.metric(3, shift="unfold"),
    "cosine": families.cosine(3),
    "dot": families.dot(3),
    "nmf": families.dot(3, floor=0.0),
    "bilinear": families.bilinear(3),
    "common only": families.common_only(6, 3),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_list_of_pairs_has_the_similarities_of_the_table(name):
    family = FAMILIES[name]
    p = {key: t + 0.1 for key, t in family.start(start()).items()}
    first, second = torch.tensor([0, 3, 2]), torch.tensor([1, 3, 4])
    table = family.score(p, Pairs())
    torch.testing.assert_close(family.score(p, Pairs(first, second)), table[:, first, second])


def test_the_tversky_family_is_the_library_similarity():
    family = families.tversky(6, 3, **SUBTRACT)
    p = family.start(start())
    S = family.score(p, Pairs())
    for fit in range(2):
        x, bank = p["X"][fit], p["F"][fit]
        alpha, beta = (0.6, 0.4) if fit == 0 else (0.4, 0.6)  # every second fit starts the other way round
        expected = tversky_similarity(x[:, None], x[None], bank, alpha, beta, 1.0, **SUBTRACT) + 0.3
        torch.testing.assert_close(S[fit], expected)


def test_given_features_weigh_common_and_distinctive_ones_apart():
    X = (listed() > 0.5).float()
    family = given.listed(X, "common+distinctive", **SUBTRACT)
    p = family.start(start(1))
    p["v"] = torch.randn(1, 6)
    p["v2"] = torch.randn(1, 6)
    w, w2 = given.weights_of(p, "v", "scale")[0], given.weights_of(p, "v2", "scale2")[0]
    a, b = X[0], X[1]
    expected = 0.3 + (w * a * b).sum() - 0.6 * (w2 * a * (1 - b)).sum() - 0.4 * (w2 * b * (1 - a)).sum()
    torch.testing.assert_close(family.score(p, Pairs())[0, 0, 1], expected)


def test_likelihoods_are_their_formulas():
    said = confusions(np.array([[0.9, 0.2, 0.1], [0.3, 0.8, 0.2], [0.1, 0.4, 0.7]]), n=10)
    told = fitting.Told.of(said)
    p, cells = {"floor": torch.tensor([-1.0])}, torch.arange(9)
    S = torch.linspace(-2, 2, 9)[None]
    lo = 1 / (1 + math.e)
    q = lo + (1 - lo) / (1 + (-S).exp())
    value = torch.tensor(said.value).float()
    expected = -(value * q.log() + (1 - value) * (1 - q).log())
    torch.testing.assert_close(fitting.losses(p, S, told, cells), expected)

    said = directed(list("aab"), list("bcc"), [3, 1, 2])
    told, S = fitting.Told.of(said), torch.tensor([[0.1, 0.5, -0.3, 0.9]])
    log = torch.cat([S[:, :2].log_softmax(1), S[:, 2:].log_softmax(1)], 1)
    torch.testing.assert_close(fitting.log_choice(S, told.question, told.questions), log)
    weights = torch.tensor([3 / 4 * 4, 1 / 4 * 4, 0 * 2, 2 / 2 * 2]) / 3  # shares times answers, over their mean
    torch.testing.assert_close(fitting.losses({}, S, told, torch.arange(4)), -log * weights)


def test_ordinal_ratings_are_differences_of_logistic_steps():
    said = ratings([0, 0, 1, 2], [1, 2, 2, 0], [1, 2, 3, 2])
    told = fitting.Told.of(said, ordinal=True)
    p = fitting.link_start(told, start(1))
    S = torch.tensor([[0.0, 0.4, -0.2, 1.0]])
    steps = fitting._levels(p)[0]
    below = torch.sigmoid(steps - S[0, :, None])
    shares = torch.stack([below[:, 0], below[:, 1] - below[:, 0], 1 - below[:, 1]], 1)
    torch.testing.assert_close(fitting.losses(p, S, told, torch.arange(4))[0], -shares[range(4), [0, 1, 2, 1]].log())
    mean = (shares * torch.tensor([1.0, 2.0, 3.0])).sum(1)
    torch.testing.assert_close(fitting.expected(p, S, told)[0].float(), mean)


def test_what_is_held_out_changes_nothing():
    """A fit whose test cells hold nonsense predicts the same."""
    said, _ = people.simulated(0)
    test, train, stop = folds.split(said, "pairs", 5)
    family = families.tversky(6, 3, **SUBTRACT)
    value = said.value.copy()
    value[test[0]] = 1 - value[test[0]]
    other = confusions(np.where(test[0].reshape(36, 36), 1 - said.table(), said.table()), n=150)
    assert (other.value == value).all()
    first, second = (
        fitting.fit(family, data, train[:1], stop[:1], restarts=1, steps=20, l2=(1e-3,)) for data in (said, other)
    )
    for name, t in first.params.items():
        assert torch.equal(t, second.params[name]), name


@pytest.mark.parametrize("by", ["cells", "pairs", "directions", "objects"])
def test_folds_part_the_cells(by):
    said, _ = people.simulated(1)
    test, train, stop = folds.split(said, by, 4, 2, seed=3, restarts=2)
    self_pair = said.first == said.second
    for kept in (train, stop):
        assert not (test[:, None] & kept).any()
    assert not (stop & train).any()
    # What one restart stops by, the other learns from.
    assert (stop[:, 0] & train[:, 1]).any(1).all()
    assert not test[:, self_pair].any()
    count = test[: len(test) // 2].sum(0)[~self_pair]
    assert (count == 1).all() if by != "objects" else (count >= 1).all()
    N = len(said.objects)
    key = said.first * N + said.second
    back = np.argsort(key)[np.searchsorted(np.sort(key), said.second * N + said.first)]
    if by == "pairs":
        assert (test == test[:, back]).all()
    if by == "directions":
        assert not (test & test[:, back]).any()
    if by == "objects":
        for mask, seen in zip(test, (train | stop).any(1), strict=True):
            unseen = set(range(N)) - set(said.first[seen]) - set(said.second[seen])
            assert all(a in unseen or b in unseen for a, b in zip(said.first[mask], said.second[mask], strict=True))


def test_restarts_and_folds_of_one_program_are_those_of_many():
    """Fits do not touch each other: two folds together are each of them alone."""
    said, _ = people.simulated(2)
    _, train, stop = folds.split(said, "pairs", 5)
    family = given.listed(torch.rand(36, 4, generator=torch.Generator().manual_seed(0)), **SUBTRACT)
    both = fitting.fit(family, said, train[:2], stop[:2], restarts=2, steps=30, l2=(1e-3,))
    for fold in range(2):
        one = fitting.fit(family, said, train[[fold]], stop[[fold]], restarts=2, steps=30, l2=(1e-3,))
        for name, t in one.params.items():
            torch.testing.assert_close(both.params[name][fold], t[0], msg=name)


def test_a_table_of_rivals_tells_models_apart():
    said, _ = people.simulated(0)
    tversky = families.tversky(24, 8, l2=(3e-4,), difference="subtractmatch")
    models = [("Tversky", [tversky]), *rivals.candidates(["mds", "bias only"], (4,))]
    table = rivals.compare(models, said, "pairs", 5, 1, restarts=1, steps=150)
    R2 = {row.name: row.measures["R2"] for row in table.rows}
    assert R2["Tversky"] > R2["mds"] + 0.1 > R2["bias only"]
    assert "noise ceiling" in str(table)
    assert 0.9 < table.ceiling["R2"] < 1
    assert table.rows[1].measures["asymmetry r"] == 0
    mean, error = table.paired("Tversky", "mds")
    assert mean > 0.1
    assert error > 0
    with pytest.raises(ValueError, match="no rival 'mdss'; there are mds,"):
        list(rivals.candidates(["mdss"]))


def test_triplets_are_learned():
    """Two clusters: whoever is of the other cluster is odd."""
    random = np.random.default_rng(0)
    a, b = random.permuted(np.tile(np.arange(5), (200, 1)), axis=1)[:, :2].T
    odd = random.integers(5, 10, 200)
    flip = random.random(200) < 0.5
    a, b, odd = np.where(flip, a + 5, a), np.where(flip, b + 5, b), np.where(flip, odd - 5, odd)
    model = TverskySimilarityModel(8, 3, restarts=2, steps=150, random_state=0).fit(triplets(a, b, odd))
    S = model.predict()
    same = np.kron(np.eye(2), np.ones((5, 5))).astype(bool) & ~np.eye(10, dtype=bool)
    cross = ~np.kron(np.eye(2), np.ones((5, 5))).astype(bool)
    assert S[same].min() > S[cross].max()


def test_raters_may_use_the_scale_in_their_own_way():
    a, b = np.triu_indices(12, 1)
    truth = -np.abs(a - b).astype(float)
    said = [
        ratings(a, b, scale * truth + shift, np.full(len(a), who), objects=range(12))
        for who, (scale, shift) in enumerate([(1, 0), (0.3, 9)])
    ]
    one, other = said
    both = ratings(
        np.r_[one.first, other.first],
        np.r_[one.second, other.second],
        np.r_[one.value, other.value],
        np.r_[np.zeros(len(a)), np.ones(len(a))],
    )
    without = ratings(both.first, both.second, both.value)
    masks = np.ones((1, len(both)), dtype=bool)
    held = [
        fitting.fit(families.metric(2, decay=False), data, masks, masks, restarts=2, steps=200).held[0]
        for data in (both, without)
    ]
    assert held[0] < 0.3 * held[1]


def test_ratings_between_two_ends_are_shares_of_their_scale():
    """The same numbers on two scales are fitted alike, and no prediction leaves its scale."""
    a, b = np.triu_indices(9, 1)
    value = np.random.default_rng(0).random(len(a)).round(3)
    one, seven = ratings(a, b, value, scale=(0, 1)), ratings(a, b, 1 + 6 * value, scale=(1, 7))
    settings = {"restarts": 2, "steps": 30, "random_state": 0}
    first, second = (TverskySimilarityModel(6, 3, **settings).fit(said).predict() for said in (one, seven))
    np.testing.assert_allclose(second, 1 + 6 * first, atol=1e-3)
    assert second.min() > 1
    assert second.max() < 7
    with pytest.raises(ValueError, match="a rating of 0 is outside the scale from 1 to 7"):
        ratings([0, 1, 2], [1, 2, 0], [0, 3, 4], scale=(1, 7))
    with pytest.raises(ValueError, match="is not the lowest and the highest possible rating"):
        ratings([0, 1, 2], [1, 2, 0], [0, 3, 4], scale=(7, 1))


def test_those_who_chose_can_be_held_out():
    who = np.repeat(["x", "y", "z"], 40)
    random = np.random.default_rng(0)
    a, b, odd = random.permuted(np.tile(np.arange(6), (120, 1)), axis=1)[:, :3].T
    said = triplets(a, b, odd, rater=who)
    test, _, _ = folds.split(said, "raters", 3)
    assert (test.sum(1) == 120).all()
    assert all(len(set(said.rater[mask])) == 1 for mask in test)
    ranked = rankings([0, 1, 0], [[1, 2, 3], [0, 2], [3, 2, 1]], rater=["x", "y", "z"])
    assert ranked.rater.tolist() == [0] * 5 + [1] * 2 + [2] * 5
    with pytest.raises(ValueError, match="rater has 2 entries for 3 judgements"):
        rankings([0, 1, 0], [[1, 2], [0, 2], [3, 2]], rater=["x", "y"])


def test_a_step_may_take_a_part_of_the_cells():
    """Steps of 150 cells come as far as steps of all 1,296: within a tenth of the way from where they start."""
    said, _ = people.simulated(0)
    _, train, stop = folds.split(said, "pairs", 5)
    masks = train[:1], stop[:1]
    whole, parts, first = (
        fitting.fit(families.metric(3), said, *masks, restarts=1, steps=steps, batch=batch).held[0]
        for steps, batch in ((200, None), (400, 150), (1, None))
    )
    assert parts < whole + 0.1 * (first - whole)


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 20])
def test_a_fit_may_have_few_steps(steps):
    said, _ = people.simulated(0)
    everything = np.ones((1, len(said)), dtype=bool)
    fitted = fitting.fit(families.metric(2), said, everything, everything, restarts=1, steps=steps)
    assert np.isfinite(fitted.held).all()
