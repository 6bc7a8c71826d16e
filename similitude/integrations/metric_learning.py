"""TverskyDistance: the losses and miners of pytorch-metric-learning on a TverskySimilarity."""

from __future__ import annotations

from typing import Any

from pytorch_metric_learning.distances import BaseDistance
from torch import Tensor

from ..losses import checked
from ..nn import TverskySimilarity


class TverskyDistance(BaseDistance):
    """S(query, reference) as pytorch-metric-learning's losses and miners take it: large is near, lengths count.

    Give it as ``distance=``; ``loss.parameters()`` then has the bank and α, β, θ too. Margins and temperatures are in
    units of S, so the defaults, made for cosines, may not suit. docs/guides/metric-learning.md lists what goes with it.

    Args:
        similarity: The TverskySimilarity to train, of any form.
        reverse: Whether anchors are the second of each pair, S(reference, query).

    Example:
        >>> from pytorch_metric_learning.losses import TripletMarginLoss
        >>> loss = TripletMarginLoss(margin=0.5, distance=TverskyDistance(TverskySimilarity(8, 32)))
        >>> loss(torch.randn(20, 8), torch.arange(20) % 5).backward()
    """

    def __init__(self, similarity: TverskySimilarity, *, reverse: bool = False, **kwargs: Any):
        for name, only in (("is_inverted", True), ("normalize_embeddings", False)):
            if kwargs.pop(name, only) is not only:
                hint = "a similarity is large for what is near" if only else "make the similarity with normalize=True"
                raise ValueError(f"{name} must be {only} for a TverskyDistance: {hint}.")
        super().__init__(normalize_embeddings=False, is_inverted=True, **kwargs)
        self.similarity, self.reverse = checked(similarity), reverse

    def compute_mat(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Similarities of all pairs."""
        pairs = self.similarity.pairwise
        return pairs(ref_emb, query_emb).mT if self.reverse else pairs(query_emb, ref_emb)

    def pairwise_distance(self, query_emb: Tensor, ref_emb: Tensor) -> Tensor:
        """Similarities of rows with rows."""
        return self.similarity(ref_emb, query_emb) if self.reverse else self.similarity(query_emb, ref_emb)
