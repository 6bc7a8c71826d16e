"""Files of codes: products with queries' codes are the similarity, whatever the file."""

import json

import numpy as np
import pytest
import torch

from similitude import TverskySimilarity
from similitude.retrieval import TverskyIndex, query_codes

IDS = {"texts": [f"word «{i}»" for i in range(50)], "numbers": list(range(100, 150))}


def index_of(ids, **form) -> tuple[TverskyIndex, np.ndarray]:
    index = TverskyIndex(TverskySimilarity(6, 10, presence=0.3, alpha=0.9, beta=0.2, **form))
    index.add(torch.randn(50, 6), ids)
    return index, torch.randn(4, 6).numpy()


def read(path, sparse: bool, width: int) -> tuple[list, np.ndarray]:
    """Ids and codes, as somebody without similitude reads them."""
    if path.suffix == ".npy":
        return np.load(path.with_suffix(".ids.npy")).tolist(), np.load(path)
    if path.suffix == ".npz":
        from scipy.sparse import load_npz

        return np.load(path.with_suffix(".ids.npy")).tolist(), load_npz(path).toarray()
    if path.suffix == ".parquet":
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    codes = np.zeros((len(rows), width), dtype=np.float32)
    for code, row in zip(codes, rows):
        if sparse:
            code[row["indices"]] = row["values"]
        else:
            code[:] = row["code"]
    return [row["id"] for row in rows], codes


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("name", ["codes.npy", "codes.parquet", "codes.jsonl"])
def test_products_of_dense_codes_are_the_similarity(name, ids, tmp_path):
    index, queries = index_of(ids, intersection="gmean")
    done = []
    made = index.export(tmp_path / name, progress=lambda *now: done.append(now))
    assert (made.documents, made.width, done[-1]) == (50, 30, (50, 50))
    found, codes = read(tmp_path / name, False, made.width)
    q = query_codes(index.layer, queries)
    best = (q.codes @ codes.T + q.constant[:, None]).argsort(1)[:, ::-1]
    assert [[found[i] for i in row[:5]] for row in best] == index.search(queries, 5).ids


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("codes", ["full", "sparse"])
@pytest.mark.parametrize("name", ["codes.npz", "codes.parquet", "codes.jsonl"])
def test_products_of_sparse_codes_are_the_similarity(name, codes, positive, tmp_path):
    index = TverskyIndex(TverskySimilarity(6, 10, presence=0.3, alpha=0.9, beta=0.2), codes=codes)
    index.add(torch.randn(50, 6), IDS["texts"])
    queries = torch.randn(4, 6).numpy()
    made = index.export(tmp_path / name, sparse=True, positive=positive)
    found, rows = read(tmp_path / name, True, made.width)
    assert found == IDS["texts"]
    for reverse in (False, True):
        q = query_codes(index.layer, queries, reverse=reverse, sparse=True)
        asked, constant = q.codes.toarray(), q.constant
        if positive:
            beta = -asked[:, -1]
            asked, constant = abs(asked), constant - beta * made.most
            assert (rows >= 0).all()
        values = asked @ rows.T + constant[:, None]
        hits = index.search(queries, 50, reverse=reverse)
        np.testing.assert_allclose(-np.sort(-values, 1), hits.values.numpy(), rtol=1e-4, atol=1e-4)
        assert [[found[i] for i in row[:3]] for row in (-values).argsort(1)] == [ids[:3] for ids in hits.ids]


def test_what_does_not_fit_is_one_sentence_and_leaves_nothing(tmp_path):
    index, _ = index_of(IDS["texts"])
    with pytest.raises(ValueError, match=r"^dense codes are written to \.npy, \.parquet, \.jsonl; got 'codes\.npz'\.$"):
        index.export(tmp_path / "codes.npz")
    with pytest.raises(ValueError, match=r"^sparse codes are written to \.npz, \.parquet, \.jsonl; got 'codes\.csv"):
        index.export(tmp_path / "codes.csv", sparse=True)
    with pytest.raises(ValueError, match=r"^positive=True is for sparse codes"):
        index.export(tmp_path / "codes.npy", positive=True)
    with pytest.raises(ValueError, match=r"^the index is empty: add documents first\.$"):
        TverskyIndex(index.layer).export(tmp_path / "codes.npy")
    with pytest.raises(FileNotFoundError, match=r"No such folder"):
        index.export(tmp_path / "none" / "codes.npy")

    def stop(done, documents):
        raise KeyboardInterrupt

    for name in ("codes.npy", "codes.parquet", "codes.jsonl"):
        (tmp_path / name).write_text("before")
        with pytest.raises(KeyboardInterrupt):
            index.export(tmp_path / name, progress=stop)
        assert (tmp_path / name).read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["codes.jsonl", "codes.npy", "codes.parquet"]
