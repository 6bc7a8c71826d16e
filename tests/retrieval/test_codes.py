"""Codes of documents and queries: their inner products are Tversky similarities."""

import numpy as np
import pytest
import torch

from similitude import TverskyProjection, TverskySimilarity
from similitude.retrieval import document_codes, query_codes

REDUCED = [
    dict(intersection="product"),
    dict(intersection="product", level="set"),
    dict(intersection="mean"),
    dict(intersection="mean", level="set"),
    dict(intersection="gmean"),
    dict(intersection="product", normalize=True),
    dict(intersection="max", difference="subtractmatch", alpha=0.5, beta=0.25, theta=0.75),
    dict(intersection="max", difference="subtractmatch", alpha=0.5, beta=0.25, theta=0.75, level="set"),
]


def made(presence=None, K=20, **options) -> TverskySimilarity:
    given = dict(alpha=0.6, beta=0.3, theta=1.7) | options
    return TverskySimilarity(dim=5, num_features=K, presence=presence, dtype=torch.float64, **given)


@pytest.mark.parametrize("presence", [None, 0.2])
@pytest.mark.parametrize("options", REDUCED, ids=str)
@torch.no_grad()
def test_products_of_codes_are_similarities_in_both_directions(options, presence):
    layer, q, x = made(presence, **options), torch.randn(7, 5).double(), torch.randn(30, 5).double()
    x[0] = 0
    for reverse, expected in ((False, layer.pairwise(q, x)), (True, layer.pairwise(x, q).T)):
        found = query_codes(layer, q, reverse=reverse)
        S = found.codes @ document_codes(layer, x).T + found.constant[:, None]
        torch.testing.assert_close(S, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", REDUCED, ids=str)
@torch.no_grad()
def test_sparse_codes_have_the_same_products(options):
    layer, q, x = made(0.1, **options), torch.randn(7, 5).double(), torch.randn(30, 5).double()
    documents = document_codes(layer, x, sparse=True)
    queries = query_codes(layer, q, sparse=True)
    assert documents.layout == queries.codes.layout == torch.sparse_csr
    assert (documents.values() > 0).all()
    S = queries.codes.to_dense() @ documents.to_dense().T + queries.constant[:, None]
    torch.testing.assert_close(S, layer.pairwise(q, x), rtol=0, atol=1e-12)
    # Of a query, what it lacks is left out.
    has = (document_codes(layer, q)[:, :20] > 0).sum()
    assert queries.codes.values().numel() <= (2 + (layer.intersection == "gmean")) * has + len(q)


@torch.no_grad()
def test_one_code_of_a_document_serves_all_constants():
    layer, q, x = made(), torch.randn(3, 5).double(), torch.randn(9, 5).double()
    before = document_codes(layer, x)
    layer.alpha, layer.beta, layer.theta = 0.1, 1.9, 0.4
    assert torch.equal(document_codes(layer, x), before)
    own = query_codes(layer, q)
    given = query_codes(made(K=20), q, alpha=0.1, beta=1.9, theta=0.4)
    assert own.codes.shape == given.codes.shape
    found = query_codes(layer, q, alpha=0.6, beta=0.3, theta=1.7)
    layer.alpha, layer.beta, layer.theta = 0.6, 0.3, 1.7
    torch.testing.assert_close(found.codes @ before.T + found.constant[:, None], layer.pairwise(q, x))


@torch.no_grad()
def test_arrays_give_arrays():
    layer, x = made(0.1), np.random.default_rng(0).standard_normal((6, 5))
    dense, queries = document_codes(layer, x), query_codes(layer, x)
    assert isinstance(dense, np.ndarray)
    assert isinstance(queries.codes, np.ndarray)
    scipy = pytest.importorskip("scipy.sparse")
    documents, queries = document_codes(layer, x, sparse=True), query_codes(layer, x, sparse=True)
    assert scipy.issparse(documents)
    S = (queries.codes @ documents.T).toarray() + queries.constant[:, None]
    np.testing.assert_allclose(S, layer.pairwise(*[torch.from_numpy(x)] * 2).numpy(), rtol=0, atol=1e-12)


def test_a_projection_compares_by_its_bank_and_not_by_its_prototypes():
    layer = TverskyProjection(dim=5, num_prototypes=3, num_features=20)
    assert document_codes(layer, torch.randn(4, 5)).shape == (4, 40)


@pytest.mark.parametrize(
    "options",
    [
        dict(intersection="min"),
        dict(difference="subtractmatch"),
        dict(model="ratio"),
        dict(intersection="gmean", level="set"),
    ],
    ids=str,
)
def test_what_is_no_inner_product_is_one_sentence(options):
    layer = made(**options)
    document_codes(layer, torch.randn(2, 5).double())
    with pytest.raises(ValueError, match=r"is no inner product of codes; .* TverskyIndex searches by every form"):
        query_codes(layer, torch.randn(2, 5).double())


def test_wrong_vectors_are_one_sentence():
    with pytest.raises(ValueError, match=r"x must be \[N, D\], a row for each vector; got shape \[5\]"):
        document_codes(made(), torch.randn(5).double())
    with pytest.raises(TypeError, match="x must be a tensor or an array; got list"):
        document_codes(made(), [[1.0]])
    with pytest.raises(ValueError, match="alpha must be a finite number; got nan"):
        query_codes(made(), torch.randn(2, 5).double(), alpha=float("nan"))
