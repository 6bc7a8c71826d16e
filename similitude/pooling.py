"""ClassPooling: similarity to a class that has several prototypes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .checks import check_sizes
from .form import check_choice

POOLINGS = ("max", "logsumexp")


class ClassPooling(nn.Module):
    """Similarity to each class from those to its prototypes, ``[..., C · m]`` -> ``[..., C]``, behind a projection.

    The prototypes of a class stand side by side: class c has those from c · m to c · m + m − 1.

    Args:
        prototypes_per_class: m.
        pooling: "max": a class is as similar as its most similar prototype, so that the shares of that one prototype
            explain the answer. "logsumexp": all prototypes of a class count, those that are more similar more.

    Example:
        >>> layer = nn.Sequential(TverskyProjection(8, 5 * 3, 32), ClassPooling(3))
        >>> layer(torch.randn(7, 8)).shape
        torch.Size([7, 5])
    """

    def __init__(self, prototypes_per_class: int = 1, pooling: str = "max"):
        super().__init__()
        check_sizes(prototypes_per_class=prototypes_per_class)
        self.prototypes_per_class = prototypes_per_class
        self.pooling = check_choice("pooling", pooling, POOLINGS)

    def forward(self, similarities: Tensor) -> Tensor:
        if self.prototypes_per_class == 1:
            return similarities
        parts = self._by_class(similarities)
        return parts.amax(-1) if self.pooling == "max" else parts.logsumexp(-1)

    def winners(self, similarities: Tensor) -> Tensor:
        """Index of each class's most similar prototype, ``[..., C · m]`` -> int64 ``[..., C]``."""
        within = self._by_class(similarities).argmax(-1)
        return within + self.prototypes_per_class * torch.arange(within.shape[-1], device=within.device)

    def name(self, prototype: int, class_name: str) -> str:
        """What to call a prototype of a class: ``"seven"``, or ``"seven (2 of 3)"`` where a class has several."""
        m = self.prototypes_per_class
        return class_name if m == 1 else f"{class_name} ({prototype % m + 1} of {m})"

    def extra_repr(self) -> str:
        return f"prototypes_per_class={self.prototypes_per_class}, pooling={self.pooling!r}"

    def _by_class(self, similarities: Tensor) -> Tensor:
        m = self.prototypes_per_class
        if not similarities.dim() or similarities.shape[-1] % m:
            raise ValueError(
                f"similarities must be [..., a multiple of {m}], {m} prototypes for each class; "
                f"got shape {list(similarities.shape)}."
            )
        return similarities.unflatten(-1, (-1, m))
