"""Losses that train a similarity on examples: triplets, or pairs whose batch holds each other's negatives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from . import checks
from .form import check_choice
from .nn import TverskySimilarity

__all__ = ["TverskyRankingLoss", "TverskyTripletLoss"]

REDUCTIONS = ("mean", "sum", "none")


class TverskyTripletLoss(nn.Module):
    """How far S(anchor, positive) is from exceeding S(anchor, negative) by a margin.

    ``loss(anchor, positive, negative)``: three times ``[..., D]``, which broadcast, -> ``[]``.

    Args:
        similarity: The TverskySimilarity to train; its parameters are the loss's own.
        margin: In units of S.
        reverse: Whether the anchor is the second of each pair, S(positive, anchor).
        reduction: "mean", "sum" or "none".

    Equivalent to: ``(margin - sim(anchor, positive) + sim(anchor, negative)).relu().mean()``.

    Example:
        >>> loss = TverskyTripletLoss(TverskySimilarity(8, 32), margin=0.5)
        >>> loss(torch.randn(5, 8), torch.randn(5, 8), torch.randn(5, 8)).backward()
    """

    def __init__(
        self, similarity: TverskySimilarity, margin: float = 1.0, *, reverse: bool = False, reduction: str = "mean"
    ):
        super().__init__()
        self.similarity = checked(similarity)
        checks.check_positive("margin", margin)
        self.margin, self.reverse = float(margin), reverse
        self.reduction = check_choice("reduction", reduction, REDUCTIONS)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        near, far = (self._to(anchor, other) for other in (positive, negative))
        missing = (self.margin - near + far).relu()
        return missing if self.reduction == "none" else getattr(missing, self.reduction)()

    def _to(self, anchor: Tensor, other: Tensor) -> Tensor:
        return self.similarity(other, anchor) if self.reverse else self.similarity(anchor, other)

    def extra_repr(self) -> str:
        return f"margin={self.margin:g}{', reverse=True' if self.reverse else ''}"


class TverskyRankingLoss(nn.Module):
    """Cross entropy of each query's own document among all documents of the batch, by S(query, document).

    ``loss(queries, documents)``: twice ``[N, D]`` -> ``[]``. Row i of one belongs to row i of the other.

    Args:
        similarity: The TverskySimilarity to train; its parameters are the loss's own.
        scale: Factor of the similarities in the softmax, an inverse temperature; the ratio model's need about 20.
        both_ways: Whether each document also looks for its query among all queries; the loss is the mean of the two.
        reverse: Whether queries are the second of each pair, S(document, query).

    Equivalent to: ``F.cross_entropy(scale * sim.pairwise(queries, documents), torch.arange(N))``.

    Example:
        >>> loss = TverskyRankingLoss(TverskySimilarity(8, 32))
        >>> loss(torch.randn(5, 8), torch.randn(5, 8)).backward()
    """

    def __init__(
        self, similarity: TverskySimilarity, scale: float = 1.0, *, both_ways: bool = False, reverse: bool = False
    ):
        super().__init__()
        self.similarity = checked(similarity)
        checks.check_positive("scale", scale)
        self.scale, self.both_ways, self.reverse = float(scale), both_ways, reverse

    def forward(
        self, queries: Tensor, documents: Tensor, negatives: Tensor | None = None, groups: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch.

        Args:
            queries: ``[N, D]``.
            documents: ``[N, D]``, one for each query.
            negatives: ``[M, D]``: further documents that belong to no query of the batch.
            groups: ``[N]`` whole numbers: rows of one group are right answers to each other's queries, and are left out
                of the softmax of those.
        """
        N = self._check(queries, documents, negatives, groups)
        others = documents if negatives is None else torch.cat([documents, negatives])
        pairs = self.similarity.pairwise
        logits = self.scale * (pairs(others, queries).mT if self.reverse else pairs(queries, others))  # [N, N + M]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        own = torch.arange(N, device=logits.device)
        if groups is not None:
            same = (groups[:, None] == groups[None]) & (own[:, None] != own)
            logits = torch.cat([logits[:, :N].masked_fill(same, -math.inf), logits[:, N:]], 1)
        loss = nn.functional.cross_entropy(logits, own)
        if self.both_ways:
            loss = (loss + nn.functional.cross_entropy(logits[:, :N].mT, own)) / 2
        return loss

    def _check(self, queries: Any, documents: Any, negatives: Any, groups: Any) -> int:
        checks.check_vectors("queries", queries)
        checks.check_vectors("documents", documents)
        if queries.dim() != 2 or queries.shape != documents.shape or not len(queries):
            given = f"got {list(queries.shape)} and {list(documents.shape)}."
            raise ValueError(f"queries and documents must be [N, D], a document for each query; {given}")
        if negatives is not None:
            checks.check_vectors("negatives", negatives)
            if negatives.dim() != 2:
                raise ValueError(f"negatives must be [M, D]; got shape {list(negatives.shape)}.")
        if groups is not None and (not isinstance(groups, Tensor) or groups.shape != queries.shape[:1]):
            given = list(groups.shape) if isinstance(groups, Tensor) else type(groups).__name__
            raise ValueError(f"groups must be a tensor of {len(queries)} numbers, one for each query; got {given}.")
        return len(queries)

    def extra_repr(self) -> str:
        ways = "".join(f", {name}=True" for name in ("both_ways", "reverse") if getattr(self, name))
        return f"scale={self.scale:g}{ways}"


def checked(similarity: object) -> TverskySimilarity:
    """The similarity, or a ``TypeError`` that says what it must be."""
    if isinstance(similarity, TverskySimilarity):
        return similarity
    raise TypeError(f"similarity must be a TverskySimilarity(dim, num_features); got {type(similarity).__name__}.")
