"""Losses on a similarity: their formulas, which way round pairs are, and that they train."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from similitude import TverskySimilarity, init_from_data, parameter_groups
from similitude.losses import TverskyRankingLoss, TverskyTripletLoss

FORMS = [
    dict(),
    dict(presence=0.3),
    dict(intersection="max", difference="subtractmatch", level="set"),
    dict(model="ratio"),
]


def objects(*shape) -> list[torch.Tensor]:
    return [torch.randn(*shape, dtype=torch.float64) for _ in range(3)]


def similarity(**options) -> TverskySimilarity:
    return TverskySimilarity(6, 10, alpha=0.9, beta=0.2, dtype=torch.float64, **options)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_a_triplet_loses_what_its_positive_lacks_of_the_margin(form):
    sim, (a, p, n) = similarity(**form), objects(7, 6)
    S = sim.pairwise(a, torch.cat([p, n])).detach()
    expected = [max(0.0, 0.3 - float(S[i, i]) + float(S[i, 7 + i])) for i in range(7)]
    got = TverskyTripletLoss(sim, 0.3, reduction="none")(a, p, n)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(TverskyTripletLoss(sim, 0.3)(a, p, n), got.mean())
    back = sim.pairwise(torch.cat([p, n]), a).detach()
    expected = [max(0.0, 0.3 - float(back[i, i]) + float(back[7 + i, i])) for i in range(7)]
    got = TverskyTripletLoss(sim, 0.3, reverse=True, reduction="sum")(a, p, n)
    torch.testing.assert_close(got, torch.tensor(sum(expected), dtype=torch.float64))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_ranking_is_the_cross_entropy_of_ones_own_document(form):
    sim, (q, d, n) = similarity(**form), objects(7, 6)
    own = torch.arange(7)
    there, back = sim.pairwise(q, d), sim.pairwise(d, q).mT
    torch.testing.assert_close(TverskyRankingLoss(sim, 3)(q, d), cross_entropy(3 * there, own))
    torch.testing.assert_close(TverskyRankingLoss(sim, reverse=True)(q, d), cross_entropy(back, own))
    both = (cross_entropy(there, own) + cross_entropy(there.mT, own)) / 2
    torch.testing.assert_close(TverskyRankingLoss(sim, both_ways=True)(q, d), both)
    wider = cross_entropy(sim.pairwise(q, torch.cat([d, n])), own)
    torch.testing.assert_close(TverskyRankingLoss(sim)(q, d, n), wider)


def test_documents_of_one_group_are_no_negatives_of_each_other():
    sim, (q, d, n) = similarity(), objects(3, 6)
    S = sim.pairwise(q, torch.cat([d, n]))
    rows = [S[0, [0, 2, 3, 4, 5]], S[1, [1, 2, 3, 4, 5]], S[2]]
    expected = (cross_entropy(rows[0], torch.tensor(0)) + cross_entropy(rows[1], torch.tensor(0))) / 3
    expected = expected + cross_entropy(rows[2], torch.tensor(2)) / 3
    loss = TverskyRankingLoss(sim)(q, d, n, groups=torch.tensor([4, 4, 1]))
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in sim.parameters())


@pytest.mark.parametrize("loss", [TverskyTripletLoss, TverskyRankingLoss])
def test_parts_find_their_wholes_after_training(loss):
    """A whole has the features of its part and more. The negative is the part itself, to which it is equal."""
    rows = torch.eye(12)
    parts = rows[:6] + 0.5 * rows[:6].roll(1, 0)
    wholes = parts + rows[6:]
    sim = TverskySimilarity(12, 24, presence=0.2, alpha=0.5, beta=0.5)
    init_from_data(sim, torch.cat([parts, wholes]))
    loss = loss(sim)
    torch.testing.assert_close([*loss.parameters()], [*sim.parameters()])
    before = [p.detach().clone() for p in sim.parameters()]
    optimizer, values = torch.optim.AdamW(parameter_groups(loss, 0.02)), []
    for _ in range(50):
        optimizer.zero_grad()
        if isinstance(loss, TverskyTripletLoss):
            values.append(loss(parts, wholes, parts))
        else:
            values.append(loss(parts, wholes, negatives=parts))
        values[-1].backward()
        optimizer.step()
    assert values[-1] < 0.5 * values[0]
    assert all((p - old).abs().max() > 0.01 for p, old in zip(sim.parameters(), before))
    S = sim.pairwise(parts, torch.cat([wholes, parts]))
    assert (S.argmax(-1) == torch.arange(6)).all()


def test_bad_input_is_one_sentence():
    sim, x = TverskySimilarity(6, 10), torch.randn(4, 6)
    with pytest.raises(TypeError, match=r"^similarity must be a TverskySimilarity\(dim, num_features\); got Linear\.$"):
        TverskyTripletLoss(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^margin must be a number above 0; got 0\.$"):
        TverskyTripletLoss(sim, 0)
    with pytest.raises(ValueError, match=r"^reduction must be one of mean, sum, none; got 'avg'\."):
        TverskyTripletLoss(sim, reduction="avg")
    with pytest.raises(ValueError, match=r"a document for each query; got \[4, 6\] and \[3, 6\]\.$"):
        TverskyRankingLoss(sim)(x, x[:3])
    with pytest.raises(ValueError, match=r"^groups must be a tensor of 4 numbers, one for each query; got \[3\]\.$"):
        TverskyRankingLoss(sim)(x, x, groups=torch.arange(3))
    with pytest.raises(ValueError, match=r"^negatives must be \[M, D\]; got shape \[6\]\.$"):
        TverskyRankingLoss(sim)(x, x, x[0])
