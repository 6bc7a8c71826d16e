"""TverskyIndex: what it finds is what comparing everything finds."""

import pytest
import torch
from cases import COMBINATIONS, name

from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex
from similitude.retrieval.index import CODES


def made(**options) -> TverskySimilarity:
    given = dict(alpha=0.6, beta=0.3, theta=1.7) | options
    return TverskySimilarity(dim=5, num_features=20, dtype=torch.float64, **given)


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
@torch.no_grad()
def test_hits_are_the_most_similar_documents_in_both_directions(options):
    for codes, presence in zip(CODES, (None, 0.3, None, 0.3)):
        layer, q, x = made(presence=presence, **options), torch.randn(4, 5).double(), torch.randn(60, 5).double()
        index = TverskyIndex(layer, codes)
        index.add(x[:40], range(40))
        index.add(x[40:], range(40, 60))
        for reverse, S in ((False, layer.pairwise(q, x)), (True, layer.pairwise(x, q).T)):
            hits = index.search(q, 7, reverse=reverse)
            torch.testing.assert_close(hits.values, S.topk(7).values, rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(hits.values, S.gather(1, torch.tensor(hits.ids)), rtol=1e-12, atol=1e-12)
            assert hits.certified.all()


@torch.no_grad()
def test_an_explanation_adds_up_to_the_value_of_the_hit():
    layer, q, x = made(presence=0.3), torch.randn(5).double(), torch.randn(60, 5).double()
    index = TverskyIndex(layer)
    index.add(x, [f"document {n}" for n in range(60)])
    hits, back = index.search(q, 3), index.search(q, 3, reverse=True)
    for value, found in zip(hits.values, hits.ids, strict=True):
        shown = index.explain(q, found)
        assert shown.similarity == pytest.approx(value.item(), abs=1e-12)
        parts = (shown.common + shown.a_only + shown.b_only).sum().item()
        assert parts == pytest.approx(value.item(), abs=1e-12)
        assert str(found) in str(shown)
    assert index.explain(q, back.ids[0]).reverse == pytest.approx(back.values[0].item(), abs=1e-12)
    other = index.search(q, 1, alpha=2.0, theta=0.5)
    assert index.explain(q, other.ids[0], alpha=2.0, theta=0.5).similarity == pytest.approx(other.values[0].item())


def test_wrong_arguments_are_one_sentence():
    index = TverskyIndex(made())
    index.add(torch.randn(3, 5).double(), ["a", "b", "c"])
    with pytest.raises(
        ValueError, match=r"vectors must be \[N, 5\], as wide as the layer's features; got shape \[2, 4\]"
    ):
        index.add(torch.randn(2, 4).double(), ["d", "e"])
    with pytest.raises(ValueError, match="ids must be 2, one for each vector; got 1"):
        index.add(torch.randn(2, 5).double(), ["d"])
    with pytest.raises(ValueError, match="ids must be unique; 'a' is there twice"):
        index.add(torch.randn(2, 5).double(), ["d", "a"])
    with pytest.raises(ValueError, match="k must be up to 3, the number of documents; got 4"):
        index.search(torch.randn(5).double(), 4)
    with pytest.raises(KeyError, match="no document has the id 'z'"):
        index.explain(torch.randn(5).double(), "z")
    with pytest.raises(ValueError, match="vectors must be finite"):
        index.add(torch.full((1, 5), float("nan")), ["d"])
    assert len(index) == 3


def test_documents_without_ids_are_refused():
    index = TverskyIndex(made())
    with pytest.raises(TypeError, match="ids must be 3 numbers or texts, one for each vector; got NoneType"):
        index.add(torch.randn(3, 5).double(), None)
    assert len(index) == 0
