"""What the page shows of an index, and what it finds in it: documents as sets of features, and hits with theirs.

N documents, K features, H of the documents on the page.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..retrieval.codes import constants
from ..retrieval.index import TverskyIndex
from ..usage import Usage
from .content import DUPLICATE, EXACT, OBJECTS, ROUNDED, Content, Progress, held, left_out, nearest, of_usage
from .edits import Refused, is_index

# Names of documents that are sent to the page at most, and hits.
NAMES, HITS = 100_000, 100


@torch.no_grad()
def content_of_index(
    index: TverskyIndex,
    title: str,
    exact: int = EXACT,
    rounded: int = ROUNDED,
    objects: int = OBJECTS,
    progress: Progress = lambda done, steps, what: None,
) -> Content:
    """What the page shows of an index: its documents as objects that are compared by its layer.

    Args:
        index: the index; it has at least one document.
        title, exact, rounded, objects, progress: as in ``content``.
    """
    if not len(index):
        raise Refused("the index is empty: add documents first.")
    layer, N, K = index.layer, len(index), index.num_features
    H, dtype = held(N, K, objects, exact, rounded)
    alpha, beta, theta = constants(layer, None, None, None)
    counts, sums, done = torch.zeros(K, dtype=torch.float64), torch.zeros(K, dtype=torch.float64), 0
    for block in index._blocks:
        found = _counted(block.stored)
        counts, sums, done = counts + found[0], sums + found[1], done + len(block)
        progress(done, N, "counting who has each feature")
    about: dict[str, Any] = {
        "title": str(title),
        "layer": {**layer.form._asdict(), "alpha": alpha, "beta": beta, "theta": theta, "scale": 1.0}
        | {"num_features": K, "num_prototypes": 0, "dim": layer.features.dim, "objects_only": False}
        | {"thresholds": layer.features.threshold is not None, "bias": False}
        | {"parameters": sum(p.numel() for p in layer.parameters())},
        "classes": [],
        "signed": True,
        "names": [str(index.ids[row]) for row in range(min(N, NAMES) if N <= NAMES else H)],
        "objects": N,
        "left_out": left_out(N, H, dtype),
    }
    like, cosines, duplicates = nearest(layer.features.weight, progress)
    used = Usage(N, counts / N, sums / counts.clamp(min=1), duplicates, DUPLICATE)
    measures = _first(index, H)
    arrays = {"measures": measures.numpy().astype(dtype), "salience": measures.sum(-1).numpy()}
    arrays["prototypes"] = np.zeros((0, K), np.float32)
    arrays |= {"bias": np.zeros(0, np.float32), **of_usage(layer.features, used, like, cosines, about)}
    return Content(about, arrays)


def search(index: TverskyIndex, question: Any) -> dict[str, Any]:
    """The documents that are most similar to one of them, with the features that they have."""
    row, k, reverse = question.get("index"), question.get("k"), question.get("reverse", False)
    check_row(index, row)
    if not is_index(k, HITS + 1) or not k or not isinstance(reverse, bool):
        raise Refused(f"k must be a number of hits, from 1 to {HITS}, and reverse true or false.")
    # The document itself is found too, as one of the most similar.
    hits = index.like(index.ids[row], min(k + 1, len(index)), reverse)
    found = []
    for value, name in zip(hits.values.tolist(), hits.ids, strict=True):
        place = index.ids.row_of(name)
        if place != row and len(found) < k:
            measures = index.measures_of(name)
            features = measures.nonzero()[:, 0]
            had = {"features": features.tolist(), "measures": measures[features].tolist()}
            found.append({"index": place, "name": str(name), "value": value, **had})
    return {"hits": found, "certified": bool(hits.certified)}


def find(index: TverskyIndex, name: object) -> int | None:
    """The row of a document by its id as text, or None."""
    row = index.ids.row_of(name)
    if row is None and isinstance(name, str) and name.removeprefix("-").isdecimal():
        row = index.ids.row_of(int(name))
    return row


def check_row(index: TverskyIndex, row: Any) -> None:
    if not is_index(row, len(index)):
        raise Refused(f"there is no document {row!r}; they are 0 to {len(index) - 1}.")


def _counted(stored: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """How many documents of a block have each feature, and the sums of its measures in them, ``[K]`` in float64."""
    measures = stored["measures"]
    if "starts" in stored:
        counts = stored["starts"].diff()
        features = torch.arange(len(counts)).repeat_interleave(counts)
        sums = torch.zeros(len(counts), dtype=torch.float64).index_add_(0, features, measures.double())
        return counts.double(), sums
    parts = [(part.count_nonzero(0), part.sum(0, dtype=torch.float64)) for part in measures.split(256)]
    return sum(p[0] for p in parts).double(), sum(p[1] for p in parts)  # pyright: ignore


def _first(index: TverskyIndex, count: int) -> Tensor:
    """Measures of the first documents, ``[count, K]``."""
    found, start = torch.zeros(count, index.num_features), 0
    for block in index._blocks:
        stored, n = block.stored, min(len(block), count - start)
        if "starts" in stored:
            features = torch.arange(index.num_features).repeat_interleave(stored["starts"].diff())
            own = stored["documents"] < n
            found[start + stored["documents"][own].long(), features[own]] = stored["measures"][own].float()
        else:
            found[start : start + n] = stored["measures"][:n].float()
        start += n
        if start == count:
            break
    return found
