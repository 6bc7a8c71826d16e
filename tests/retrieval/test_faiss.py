"""Codes in faiss: it finds nearly all, values are exact, and what does not fit is refused."""

import pytest
import torch

from similitude import TverskySimilarity
from similitude.retrieval import NoIndex, TverskyIndex

pytest.importorskip("faiss", reason="faiss-cpu is not installed")
from similitude.retrieval.faiss import FaissIndex

KINDS = ("ivf", "hnsw")


def index_of(N=2000, **form) -> tuple[TverskyIndex, torch.Tensor]:
    layer = TverskySimilarity(8, 11, alpha=0.9, beta=0.2, **form)
    index = TverskyIndex(layer)
    index.add(torch.randn(N, 8), [f"word {i}" for i in range(N)])
    return index, torch.randn(20, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", [dict(presence=0.3), dict(intersection="gmean"), dict(intersection="mean")], ids=str)
def test_it_finds_nearly_all_and_values_are_those_of_the_index(form, kind):
    index, queries = index_of(**form)
    found = index.to_faiss(kind)
    found.effort = 40
    for options in (dict(), dict(reverse=True), dict(alpha=0.1, beta=0.7, theta=2.0)):
        hits, expected = found.search(queries, 5, **options), index.search(queries, 5, **options)
        same = [len(set(a) & set(b)) for a, b in zip(hits.ids, expected.ids)]
        assert sum(same) >= 0.9 * 100
        values = dict(zip(expected.ids[0], expected.values[0].tolist()))
        for id, value in zip(hits.ids[0], hits.values[0].tolist()):
            assert value == pytest.approx(values.get(id, value), abs=1e-12)
        assert (hits.values.diff() <= 0).all()
        assert not hits.certified.any()
    one = found.search(queries[0], 3)
    assert one.ids == found.search(queries, 3).ids[0]
    why = found.explain(queries[0], one.ids[0])
    assert why.similarity == pytest.approx(one.values[0].item(), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_with_all_effort_the_answer_is_that_of_the_index(kind):
    index, queries = index_of(1500)
    hits = index.to_faiss(kind).search(queries, 10, candidates=1500, effort=1500)
    expected = index.search(queries, 10)
    assert hits.ids == expected.ids
    torch.testing.assert_close(hits.values, expected.values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_saved_and_loaded_with_its_own_index_alone(kind, tmp_path):
    index, queries = index_of(1000)
    found = index.to_faiss(kind)
    found.save(tmp_path / "engine")
    again = FaissIndex.load(tmp_path / "engine", index)
    assert again.search(queries, 5).ids == found.search(queries, 5).ids
    with pytest.raises(
        NoIndex, match=r"^.*engine was made of another index, or of other documents: call to_faiss again\.$"
    ):
        FaissIndex.load(tmp_path / "engine", index_of(1000)[0])
    with pytest.raises(NoIndex, match=r"^no index of faiss in .*: codes\.faiss is not there"):
        FaissIndex.load(tmp_path, index)
    content = bytearray((tmp_path / "engine" / "codes.faiss").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "engine" / "codes.faiss").write_bytes(content)
    with pytest.raises(NoIndex, match=r"codes\.faiss is damaged: it is not what was saved; call to_faiss again\.$"):
        FaissIndex.load(tmp_path / "engine", index)


def test_what_does_not_fit_is_one_sentence():
    index, queries = index_of(1000)
    found = index.to_faiss()
    with pytest.raises(ValueError, match=r"^kind must be one of ivf, hnsw; got 'pq'\."):
        index.to_faiss("pq")
    with pytest.raises(ValueError, match=r"^k must be up to 1,000, the number of documents; got 1,001\.$"):
        found.search(queries, 1001)
    with pytest.raises(ValueError, match=r"^faiss finds \d+ documents with effort=1, of k=900: give more effort\.$"):
        found.search(queries, 900, effort=1)
    index.remove(["word 3"])
    with pytest.raises(ValueError, match=r"^the index has 999 documents and faiss 1,000: call to_faiss again after"):
        found.search(queries)
    with pytest.raises(ValueError, match=r"^faiss is for 1,000 documents or more; this index has 999"):
        index.to_faiss()
    with pytest.raises(ValueError, match=r"^intersection='min', difference='ignorematch' is no inner product of codes"):
        index_of(intersection="min")[0].to_faiss()
    sparse = TverskyIndex(TverskySimilarity(8, 11), codes="sparse")
    with pytest.raises(ValueError, match=r"^sparse codes have an index of their own"):
        sparse.to_faiss()
