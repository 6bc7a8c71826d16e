"""The figure of editing: a network's images before and after a stroke is drawn into them."""

from __future__ import annotations

from ...interpret import figures
from .runs import Drawn, Made, Missing, Progress, Run


def of_editing(runs: list[Run], progress: Progress) -> Made:
    """Images of prototypes and features before and after the edit, one figure per run."""
    for run in runs:
        images = run.arrays("images")
        names = [f"{kind}.{when}" for kind in ("prototypes", "features") for when in ("before", "after")]
        groups = {name.replace(".", " "): images[name] for name in names if name in images}
        start, seed = run.config["start"], run.config["seed"]
        title = f"Sevens: images that start as {start}, before and after the edit, seed {seed}"
        if not groups:
            yield Missing(title, "the run has no images.npz")
            continue
        labels = {title: [str(c) for c in range(10)] for title in groups if title.startswith("prototypes")}
        end = f"-{run.label}" if len(runs) > 1 else ""
        alt = "Images of the network's prototypes and features, before and after a mid stroke was drawn into them."
        yield Drawn(f"sevens-images{end}", title, alt, figures.prototypes(groups, labels=labels))
