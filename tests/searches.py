"""Indexes of random documents, and what comparing all of them finds."""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from similitude import TverskySimilarity
from similitude import functional as F
from similitude.ops import reference
from similitude.retrieval import TverskyIndex
from similitude.retrieval.index import CODES

FORMS = [
    dict(intersection=i, difference=d, level=level, model=m, normalize=n)
    for i, d, level, m, n in itertools.product(F.INTERSECTIONS, F.DIFFERENCES, F.LEVELS, F.MODELS, (False, True))
]


class Search(NamedTuple):
    """A search: its index, what it was asked, and all similarities of its documents by the law, ``[Q, N]``."""

    index: TverskyIndex
    asked: dict
    S: Tensor


def random_search(seed: int, codes: str | None = None, form: dict | None = None, most: int = 200) -> Search:
    """Some documents, some of them alike or without features, and a search among them; everything is drawn."""
    r = np.random.default_rng(seed)
    form = FORMS[r.integers(len(FORMS))] if form is None else form
    codes = CODES[r.integers(len(CODES))] if codes is None else codes
    D, K, N, Q = (int(r.integers(1, n)) for n in (9, 33, most, 4))
    signs = r.random() < 0.15
    constants = [float(c) for c in r.uniform(-1 if signs else 0, 2, 3)]
    if r.random() < 0.2:
        constants = [float(c) for c in r.integers(0, 3, 3)]  # α + β = θ, and zeros
    options = dict(zip(("alpha", "beta", "theta"), constants), presence=[None, 0.1, 0.4][r.integers(3)])
    dtype = [torch.float32, torch.float64][r.integers(2)]
    torch.manual_seed(seed)
    layer = TverskySimilarity(D, K, **form, **options, init="normal", dtype=dtype)
    x = torch.from_numpy(r.standard_normal((N, D)) * 10.0 ** r.integers(-3, 4))
    kind = r.integers(4)
    if kind == 0:  # ties: eighths, so that sums have no rounding
        x = (x.clamp(-2, 2) * 8).round() / 8
        with torch.no_grad():
            layer.features.weight.copy_((layer.features.weight * 4).round() / 4)
            if layer.features.threshold is not None:
                layer.features.threshold.copy_((layer.features.threshold * 4).round() / 4)
    elif kind == 1:  # copies
        x = x[torch.from_numpy(r.integers(0, max(1, N // 4), N))]
    elif kind == 2:  # nothing, for some
        x[torch.from_numpy(r.random(N) < 0.3)] = 0
    x = x.to(dtype)
    q = x[torch.from_numpy(r.integers(0, N, Q))] + (r.random() < 0.5) * torch.randn(Q, D, dtype=dtype)
    index, split = TverskyIndex(layer, codes), int(r.integers(0, N + 1))
    for part, ids in ((x[:split], range(split)), (x[split:], range(split, N))):
        index.add(part, ids)
    reverse = bool(r.random() < 0.5)
    given = {} if r.random() < 0.7 else {"alpha": float(r.uniform(0, 2)), "theta": float(r.uniform(0, 2))}
    asked = dict(queries=q, k=int(r.integers(1, min(N, 12) + 1)), reverse=reverse, **given)
    if r.random() < 0.3:
        asked["candidates"] = int(r.integers(1, 20))
    # The documents as they were measured: products of other shapes round in another way.
    a, b = index._measured(q, "q").double(), torch.stack([index.measures_of(i) for i in range(N)])
    scalars = tuple(c.item() for c in layer.contrast())
    alpha, beta, theta = (given.get(name, c) for name, c in zip(("alpha", "beta", "theta"), scalars))
    options = (alpha, beta, theta, *layer.form[:4])
    S = reference.pairwise(b, a, *options).T if reverse else reference.pairwise(a, b, *options)
    return Search(index, asked, S)


def wrong(search: Search) -> str | None:
    """What is wrong with what the search finds, if it is certified; None if nothing is."""
    hits, k = search.index.search(**search.asked), search.asked["k"]
    for q, S in enumerate(search.S):
        order = np.lexsort((np.arange(len(S)), -S.numpy()))[:k]
        # A ratio near a pole, which softmin and constants below 0 have, has the rounding of its parts many times over.
        layer = search.index.layer
        poles = layer.model == "ratio" and (layer.intersection == "softmin" or min(layer.contrast()) < 0)
        scale = (1e-8 if poles else 1e-12) * max(1.0, S.abs().max().item())
        own = S[hits.ids[q]]
        if len(set(hits.ids[q])) < k:
            return f"ids {hits.ids[q]} of query {q} are not different"
        if (own - hits.values[q]).abs().max() > scale:
            return f"values {hits.values[q]} of query {q} are {own}"
        if not hits.certified[q]:
            if "candidates" not in search.asked:
                return f"query {q} is not certified"
            continue
        if (S[order] - hits.values[q]).abs().max() > scale:
            return f"values {hits.values[q]} of query {q} should be {S[order]}"
        # Sums in another order, and softmin's logarithms, are rounded in another way.
        same = search.index.codes != "sparse" and layer.intersection != "softmin"
        if same and hits.ids[q] != order.tolist():
            return f"ids {hits.ids[q]} of query {q} should be {order.tolist()}"
    return None
