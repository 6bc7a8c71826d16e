"""A feature bank for vectors that come without one, such as GloVe's: what is asked of it, and how it is found.

Asked for: each feature belongs to the same share of the objects, a tenth, and two objects share the more features
the smaller the angle between them. A direction drawn at random and the threshold that a tenth of the objects lie above
give both, exactly and at once; the more directions, the finer the sets. Nothing is trained, and the seed fixes all.

Objects are centred first, since a component that all of them have would give them all the same features; brought
to length 1, since long vectors would lead every ranking; and given a constant 1 beside their columns, as
TverskyClassifier does, so that a feature with its threshold is still one vector, and has x · f > 0.

docs/reading.md has what trained objectives (sparse coding, neighbours by Tversky similarity) gave instead: less.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..checks import check_vectors
from ..nn import FeatureBank

# Objects whose measures set the thresholds, and measures that are in memory at once.
SAMPLE, AT_ONCE = 4096, 2**23


def prepared(vectors: Tensor) -> Tensor:
    """Vectors as objects for a fitted bank, ``[N, D]`` -> ``[N, D + 1]``: centred, of length 1, and a 1 beside them."""
    check_vectors("vectors", vectors)
    if vectors.dim() != 2 or not len(vectors):
        raise ValueError(f"vectors must be [N, D], a row for each object; got shape {list(vectors.shape)}.")
    wide = vectors.detach().to(torch.promote_types(vectors.dtype, torch.float32))
    if not wide.isfinite().all():
        raise ValueError("vectors must be finite; some have NaN or infinite numbers.")
    unit = nn.functional.normalize(wide - wide.mean(0), dim=-1)
    return nn.functional.pad(unit, (0, 1), value=1.0)


@torch.no_grad()
def fit_bank(
    objects: Tensor,
    num_features: int = 32_768,
    share: float = 0.1,
    seed: int = 0,
    report: Callable[[int, int], None] | None = None,
) -> FeatureBank:
    """A bank of which every feature belongs to the same ``share`` of the objects ``[N, D + 1]``, those of ``prepared``.

    report: called with (features so far, features). The share is exact for up to 4,096 objects; of more, it is that of
    4,096 that stand evenly among them.
    """
    check_vectors("objects", objects)
    if objects.dim() != 2 or objects.shape[1] < 2 or not bool((objects[:, -1] == 1).all()):
        raise ValueError("objects must be [N, D + 1] with a last column of ones: make them with prepared(vectors).")
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1; got {share!r}.")
    sample = objects[:: -(-len(objects) // SAMPLE), :-1]
    # As many are above the threshold as the share asks for, and one at least is not.
    above = min(len(sample) - 1, max(1, round(share * len(sample)))) if len(sample) > 1 else 0
    generator = torch.Generator().manual_seed(seed)
    bank = FeatureBank(num_features, objects.shape[1], device="meta", dtype=objects.dtype).to_empty(
        device=objects.device
    )
    step = max(1, AT_ONCE // len(sample))
    # Drawn all at once: in parts torch draws other numbers.
    drawn = torch.randn(num_features, sample.shape[1], generator=generator, dtype=torch.float64)
    drawn = nn.functional.normalize(drawn, dim=-1).to(objects)
    for start in range(0, num_features, step):
        rows, directions = bank.weight[start : start + step], drawn[start : start + step]
        strongest = (directions @ sample.T).topk(above + 1).values  # [step, above + 1]
        threshold = strongest[:, -2:].mean(-1)
        rows.copy_(torch.cat([directions, -threshold[:, None]], dim=-1))
        if report is not None:
            report(min(start + step, num_features), num_features)
    return bank
