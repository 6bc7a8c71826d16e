"""What engines of vectors need of an index: its documents' codes in parts, and exact values of what they find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..ops import reference
from .codes import has_roots
from .lists import Lists

if TYPE_CHECKING:
    from .index import TverskyIndex

# Numbers of codes in memory at once.
AT_ONCE = 2**22


def code_blocks(index: TverskyIndex, sparse: bool = False) -> Iterator[tuple[list[Any], Tensor]]:
    """Ids and codes ``[n, 2K]`` of documents in the order in which they were added, in parts; see ``document_codes``.

    ``sparse``: with the last column of sparse codes; they are dense all the same.
    """
    first = 0
    for b in _measures(index, max(1, AT_ONCE // (3 * index.num_features))):
        ids = [index.ids[row] for row in range(first, first + len(b))]
        parts = [b, (b > 0).to(b.dtype), *([b.sqrt()] if has_roots(index.layer.form) else [])]
        yield ids, torch.cat([*parts, b.sum(-1, keepdim=True)] if sparse else parts, -1)
        first += len(b)


def compared(layer: Any, a: Tensor, b: Tensor, by: tuple[float, float, float], reverse: bool) -> Tensor:
    """S of a query and documents by the law, in float64: measures ``[K]`` and ``[n, K]`` -> ``[n]``.

    Measures are 0 for features that an object lacks; ``by`` are α, β, θ.
    """
    first, second = (b, a) if reverse else (a, b)
    return reference.similarity(first, second, *by, *layer.form[:4])


def _measures(index: TverskyIndex, rows: int) -> Iterator[Tensor]:
    for block in index._blocks:
        if isinstance(block, Lists):
            features = torch.arange(index.num_features).repeat_interleave(block.starts.diff())
            order = block.documents.argsort(stable=True)
            documents = block.documents[order].long()
            for start in range(0, len(block), rows):
                n = min(rows, len(block) - start)
                ends = torch.searchsorted(documents, torch.tensor([start, start + n]))
                own = order[int(ends[0]) : int(ends[1])]
                b = torch.zeros(n, index.num_features, dtype=index.dtype)
                b[block.documents[own].long() - start, features[own]] = block.measures[own].to(b)
                yield b
        else:
            yield from block.measures.split(rows)
