"""A sheet of a head's features: each by the test images that have it most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...interpret import figures
from ...nn import TverskyProjection
from .. import heads
from ..data.find import DataError
from ..data.made_up import synthetic_images
from ..record import RunError
from .runs import Drawn, Made, Missing, Progress, Run

# Features on a sheet, images of each, and their side in pixels.
FEATURES, EXAMPLES, SIDE = 12, 8, 112


def of_heads(runs: list[Run], progress: Progress) -> Made:
    """For each run a sheet of features, which the run's seed draws."""
    for run in runs:
        title = f"Features of heads: {run.label}"
        if not run.tensors():
            yield Missing(title, "the trained head is in the model.safetensors of the run's own folder")
            continue
        settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in run.config.items()}
        config = heads.Config(**settings)
        try:
            rows = _rows(config, run.tensors(), progress)
        except (DataError, RunError, ImportError) as error:
            yield Missing(title, str(error))
            continue
        alt = f"A row for each of {len(rows)} features drawn by seed {config.seed}: the test images that have it most."
        yield Drawn(f"heads-features-{run.label}", title, alt, figures.sheet(rows))


def _rows(config: heads.Config, tensors: dict[str, Tensor], progress: Progress) -> dict[str, Tensor]:
    """Images of each feature that was drawn, the one that has it most first."""
    if config.encoded:
        raise RunError("the vectors came from a file, which has no images")
    encoded = heads.load(config, "cpu", progress)
    layer = heads.make(config, config.layer or "tversky", encoded.train_x.shape[1], len(encoded.classes))
    if not isinstance(layer, TverskyProjection):
        raise RunError("a linear head has no features")
    layer.load_state_dict(tensors)
    train, test = (encoded.train_x, encoded.train_y), (encoded.test_x, encoded.test_y)
    with torch.no_grad():
        measures = layer.features(heads.scaled(config.scale, train, test)[1][0])
    presence = (measures > 0).double().mean(0)
    known = [k for k in range(len(presence)) if presence[k] > 0 and k not in layer.features.notes.framed]
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(config.seed))[:FEATURES]
    most = {known[i]: measures[:, known[i]].topk(min(EXAMPLES, len(measures))).indices for i in order.tolist()}
    return {f"feature {k}\n{presence[k]:.0%}": _images(config, rows) for k, rows in most.items()}


def _images(config: heads.Config, rows: Tensor) -> Tensor:
    """The test images of these rows, uint8 ``[n, 3, side, side]``."""
    if config.made_up:
        return synthetic_images(config.made_up, size=config.size).test_x[rows]
    listing = heads.photographs(config)
    tested = [photo for photo in listing.photos if not photo.train]
    return torch.stack([listing.pixels(tested[row], SIDE) for row in rows.tolist()])
