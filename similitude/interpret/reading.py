"""Reading banks: features fitted to vectors that a finished network has made, and not those that it computes with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .. import checks
from ..clusters import spherical_means
from ..form import check_choice
from ..nn import FeatureBank
from ..ops.modes import wide

BANKS = ("k-means", "random")
# Vectors that a bank is fitted to, and what makes the usual number of its features: so many times their width, and so
# many vectors to each.
SAMPLE, WIDTHS, EACH = 32_768, 4, 8
NOTE = "the bank was fitted to these vectors: it says what they hold, and not what the layer computes with"


@torch.no_grad()
def reading_bank(
    vectors: Tensor,
    bank: str = "k-means",
    presence: float = 0.1,
    num_features: int | None = None,
    seed: int = 0,
    progress: Callable[..., object] | None = None,
) -> FeatureBank:
    """A bank of which each feature belongs to the same fraction of the vectors ``[N, D]``.

    Args:
        vectors: What is to be read, such as a language model's last hidden states, ``[..., D]``.
        bank: "k-means", directions that the vectors cluster around when their mean is taken away, or "random" ones,
            which tell how much of what is found is the fitting's.
        presence: That fraction.
        num_features: K; by default four times D, or an eighth of the vectors if that is less.
        seed: Draws the start of k-means and the random directions.
        progress: Called after each round of k-means, as in ``clusters.spherical_means``.
    """
    check_choice("bank", bank, BANKS)
    checks.check_vectors("vectors", vectors)
    checks.check_presence(presence)
    rows = vectors.detach().reshape(-1, vectors.shape[-1])
    rows = rows.to(wide(rows.dtype))
    if len(rows) < 2 or not rows.isfinite().all():
        raise ValueError(
            "vectors must be two or more, [..., D], and finite; some have NaN or infinite elements or none."
        )
    generator = torch.Generator().manual_seed(seed)
    if len(rows) > SAMPLE:
        rows = rows[torch.randperm(len(rows), generator=generator)[:SAMPLE].to(rows.device)]
    K = max(1, min(WIDTHS * rows.shape[1], len(rows) // EACH)) if num_features is None else num_features
    checks.check_sizes(num_features=K)
    if bank == "k-means":
        apart = rows - rows.mean(0)
        weight = spherical_means(apart[apart.any(-1)], K, seed=generator, progress=progress)
    else:
        weight = nn.functional.normalize(torch.randn(K, rows.shape[1], generator=generator), dim=-1).to(rows)
    made = FeatureBank(K, rows.shape[1], presence=presence, device=rows.device, dtype=rows.dtype)
    made.weight.copy_(weight)
    made.start_thresholds(rows)
    return made.requires_grad_(False)


def of_length(objects: Tensor, like: Tensor) -> Tensor:
    """Objects ``[N, D]``, all scaled by one number, so that their mean length is that of others."""
    objects = objects.detach().to(like)
    return objects * (like.norm(dim=-1).mean() / objects.norm(dim=-1).mean())
