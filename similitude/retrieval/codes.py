"""Codes whose inner products are Tversky similarities, so that any engine of vectors can search by what is shared.

A document's code, [B⁺, J], has its measures and which features it has; it holds no constants. A query's code has α, β
and θ, so that one index serves them all, in both directions. Then S = q · d + constant, exactly.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import check_scalar
from ..form import Form
from ..ops.modes import wide
from ..reach import comparison
from ..shares import measures

Vectors = Tensor | np.ndarray


class QueryCodes(NamedTuple):
    """Codes of queries, and what is to be added to an inner product so that it is S.

    Attributes:
        codes: ``[N, 2K]``, or wider, as documents' codes are.
        constant: ``[N]``.
    """

    codes: Any
    constant: Any


class Weights(NamedTuple):
    """What a query's code has for a document's measures, for its features and for the roots of its measures.

    ``lacked`` is what each weight of measures has in it for all features: −β, what a document's own feature costs.
    """

    measured: Tensor  # [N, K]
    had: Tensor  # [N, K]
    roots: Tensor | None
    lacked: float
    constant: Tensor  # [N]


def document_codes(layer: Any, x: Vectors, sparse: bool = False) -> Any:
    """Codes of documents, ``[N, D]`` -> ``[N, 2K]``: measures of the features they have, then 1 for each they have.

    With gmean at feature level the roots of the measures follow, ``[N, 3K]``. The codes depend on the bank, its
    thresholds and ``normalize`` only, and not on α, β, θ or the direction.

    Args:
        layer: a TverskySimilarity, a TverskyProjection, or a model with one; its bank measures the documents.
        x: tensor or array of documents.
        sparse: a sparse CSR tensor, or for an array a scipy.sparse CSR array. A last column then has the sum of the
            measures, since a query's code is sparse only without its −β.
    """
    layer, vectors = _given(layer, x)
    b = measures(layer, vectors).relu()
    blocks = [b, (b > 0).to(b.dtype), *([b.sqrt()] if has_roots(layer.form) else [])]
    return _taken(torch.cat([*blocks, b.sum(-1, keepdim=True)] if sparse else blocks, -1), x, sparse)


def query_codes(
    layer: Any,
    x: Vectors,
    reverse: bool = False,
    alpha: float | None = None,
    beta: float | None = None,
    theta: float | None = None,
    sparse: bool = False,
) -> QueryCodes:
    """Codes of queries, ``[N, D]`` -> ``[N, 2K]`` and ``[N]``: S(query, document) = codes · document's code + constant.

    The constant does not change the order of documents.

    Args:
        layer: as for the documents; its intersection, difference and constants are compared by.
        x: tensor or array of queries.
        reverse: whether the products are S(document, query) instead.
        alpha, beta, theta: other constants than the layer's.
        sparse: for sparse codes of documents: zero but for the features that the query has, and a last column of −β.
    """
    layer, vectors = _given(layer, x)
    a = measures(layer, vectors).relu()
    w = weights(layer.form, a, *constants(layer, alpha, beta, theta), reverse=reverse)
    if w is None:
        raise ValueError(
            f"{layer.form.described()} is no inner product of codes; product, mean and feature-level gmean with "
            "ignorematch are, in the contrast model. TverskyIndex searches by every form."
        )
    measured = w.measured - w.lacked if sparse else w.measured
    blocks = [measured, w.had, *([] if w.roots is None else [w.roots])]
    if sparse:
        blocks.append(a.new_full((*a.shape[:-1], 1), w.lacked))
    return QueryCodes(_taken(torch.cat(blocks, -1), x, sparse), _taken(w.constant, x, False))


def weights(form: Form, a: Tensor, alpha: float, beta: float, theta: float, reverse: bool = False) -> Weights | None:
    """The query's side of S as an inner product, for its measures ``[N, K]``, 0 where it lacks a feature.

    None if S is no inner product in this form.
    """
    if reverse:
        alpha, beta = beta, alpha
    i, difference, _, model = form[:4]
    has = (a > 0).to(a.dtype)
    constant = -alpha * a.sum(-1)
    if model != "contrast":
        return None
    if (i, difference) == ("max", "subtractmatch") and alpha + beta == theta:
        # What is left of min(a, b) has the weight α + β − θ.
        return Weights(theta * has - beta, theta * a, None, -beta, constant)
    if difference != "ignorematch":
        return None
    lacking = beta * (has - 1)
    if i == "product":
        return Weights(theta * a + lacking, alpha * a, None, -beta, constant)
    if i == "mean":
        return Weights(theta / 2 * has + lacking, (theta / 2 + alpha) * a, None, -beta, constant)
    if has_roots(form):
        return Weights(lacking, alpha * a, theta * a.sqrt(), -beta, constant)
    return None


def has_roots(form: Form) -> bool:
    """Whether a document's code has the roots of its measures too."""
    return (form.intersection, form.level) == ("gmean", "feature")


def constants(layer: Any, *given: float | None) -> tuple[float, float, float]:
    """α, β, θ: the layer's, but for those that are given."""
    for name, value in zip(("alpha", "beta", "theta"), given, strict=True):
        if value is not None:
            check_scalar(name, value)
    alpha, beta, theta = (
        float(own.detach()) if value is None else float(value)
        for own, value in zip(layer.contrast(), given, strict=True)
    )
    return alpha, beta, theta


def vectors_of(x: Any, name: str = "x") -> Tensor:
    """A tensor of the vectors; a float array is shared, and not copied."""
    if isinstance(x, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.from_numpy(x if x.dtype in (np.float16, np.float32, np.float64) else x.astype(np.float64))
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor or an array; got {type(x).__name__}.")
    return x.detach()


def _given(layer: Any, x: Vectors) -> tuple[Any, Tensor]:
    layer, vectors = comparison(layer), vectors_of(x)
    if vectors.dim() != 2:
        raise ValueError(f"x must be [N, D], a row for each vector; got shape {list(vectors.shape)}.")
    return layer, vectors.to(layer.features.weight.device, wide(vectors.dtype))


def _taken(found: Tensor, x: Vectors, sparse: bool) -> Any:
    """The codes as the kind of what came in: a tensor of a tensor, an array of an array."""
    if isinstance(x, Tensor):
        return _csr(found) if sparse else found
    if not sparse:
        return found.numpy()
    try:
        from scipy.sparse import csr_array
    except ImportError:
        raise ImportError("sparse codes of an array need scipy: pip install scipy, or give a tensor.") from None
    return csr_array(found.numpy())


def _csr(found: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return found.to_sparse_csr()
