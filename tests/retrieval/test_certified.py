"""A certified answer is the answer of comparing all documents, ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from searches import random_search, wrong

from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex, best, flat, index
from similitude.retrieval.index import CODES


@pytest.fixture(autouse=True)
def small_steps(monkeypatch):
    """A few documents take the roads of many: several blocks and tiles, and bounds before all are compared."""
    monkeypatch.setattr(best, "FIRST", 4)
    monkeypatch.setattr(best, "MANY", 1 / 4)
    monkeypatch.setattr(flat, "TILE", 16)
    monkeypatch.setattr(index, "BLOCK", 512)


@settings(max_examples=150)
@given(st.integers(0, 2**32 - 1))
def test_certified_answers_are_right(seed):
    assert wrong(random_search(seed)) is None


@pytest.mark.slow
def test_certified_answers_are_right_in_ten_thousand_searches():
    for seed in range(10_000):
        assert wrong(random_search(seed)) is None, seed


@pytest.mark.parametrize("level", ["feature", "set"])
@pytest.mark.parametrize("intersection", ["product", "gmean", "softmin"])
@torch.no_grad()
def test_copies_of_a_document_are_in_order_wherever_they_stand(intersection, level):
    """Their values are equal to the last bit, although nothing of them is a round number."""
    layer = TverskySimilarity(5, 19, intersection=intersection, level=level, alpha=0.6, beta=0.3, theta=1.7)
    x = torch.randn(5, 5)[torch.randint(0, 5, (150,))]
    found = TverskyIndex(layer)
    for n in range(150):
        found.add(x[n : n + 1], [n])
    for n in range(3):
        ids = torch.tensor(found.search(x[n], 150).ids)
        for copy in x.unique(dim=0):
            own = ids[(x[ids] == copy).all(-1)]
            assert torch.equal(own, own.sort().values)


@pytest.mark.parametrize("codes", CODES)
@torch.no_grad()
def test_equal_values_are_in_the_order_of_the_documents(codes):
    layer = TverskySimilarity(3, 8, alpha=0.5, beta=0.25, theta=1.0, dtype=torch.float64)
    x = torch.tensor([[1.0, 2, 3], [0, 1, 0], [1, 2, 3], [1, 2, 3], [0, 1, 0]]).double()
    found = TverskyIndex(layer, codes)
    found.add(x[:2], [7, 1])
    found.add(x[2:], [5, 3, 2])
    ids = found.search(x[0], 5).ids
    assert [i for i in ids if i in (7, 5, 3)] == [7, 5, 3]
    assert [i for i in ids if i in (1, 2)] == [1, 2]


@torch.no_grad()
def test_a_limit_of_candidates_is_quick_and_owns_up():
    """Without a certificate answers are sometimes wrong, and with one never; both happen."""
    layer = TverskySimilarity(8, 64, intersection="min", alpha=0.6, beta=0.3, theta=1.7)
    x = torch.randn(2000, 8)
    found = TverskyIndex(layer)
    found.add(x, range(2000))
    true = found.search(x[:40], 10)
    assert true.certified.all()
    near = found.search(x[:40], 10, candidates=40)
    same = torch.tensor([one == other for one, other in zip(near.ids, true.ids, strict=True)])
    assert near.certified.any()
    assert not near.certified.all()
    assert same[near.certified].all()
    some = found.search(x[:40], 10, candidates=15)
    assert not all(one == other for one, other in zip(some.ids, true.ids, strict=True))


@pytest.mark.parametrize("codes", ["full", "float16", "int8"])
def test_products_may_be_as_wrong_as_they_say(codes, monkeypatch):
    """Whatever the rounding is within its bound, the answers are right; beyond it they would not be."""
    real, noise = flat.Flat.products, np.random.default_rng(0)

    def worst(*given, claimed=1.0):
        values, errors = real(*given)
        off = 0.8 * errors + (0 if claimed else 1e-4)
        return values + off * noise.choice([-1, 1], values.shape), errors * claimed

    monkeypatch.setattr(flat.Flat, "products", worst)
    for seed in range(60):
        assert wrong(random_search(seed, codes)) is None
    monkeypatch.setattr(flat.Flat, "products", lambda *given: worst(*given, claimed=0.0))
    assert any(wrong(random_search(seed, codes)) for seed in range(60))
