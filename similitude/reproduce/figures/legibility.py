"""Legibility's figures: the first features of each layer as pictures, none picked."""

from __future__ import annotations

from ...interpret import figures
from .runs import Drawn, Made, Missing, Progress, Run

# The layers that are shown, in this order, and what they are called.
SHOWN = {
    "default": "default",
    "k-means": "k-means, untrained",
    "let-go": "let-go",
    "slow": "slow",
    "rebuilt": "rebuilt",
    "mlp": "hidden units of an MLP",
}


def of_legibility(runs: list[Run], progress: Progress) -> Made:
    """The first 20 features of each layer as pictures of weights, one figure for each kind of data."""
    for data, called in (("digits", "digits"), ("fashion", "clothing")):
        own = {run.config["layer"]: run for run in runs if run.config["data"] == data}
        groups, title = {}, f"Legible features: {called}"
        for layer, name in SHOWN.items():
            images = own[layer].arrays("images") if layer in own else {}
            if images:
                near = own[layer].whole["result"]["neighbours"][0]
                groups[f"{name}: pixel neighbours {near:.2f}"] = images["features"]
        if groups:
            alt = f"The first 20 features of layers on {called}, as pictures of weights. {'; '.join(groups)}."
            shape = next(iter(groups.values())).shape[1:]
            yield Drawn(f"legibility-{data}", title, alt, figures.prototypes(groups, shape=shape))
        elif own:
            yield Missing(title, "no run of these layers has an images.npz")
