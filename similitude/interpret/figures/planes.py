"""Decision boundaries of layers with two inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .base import CLASSES, Array, array, blank, parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

XOR = ([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0])


def decision_boundaries(
    layers: Mapping[str, Callable[[Tensor], Tensor]],
    points: Array = XOR[0],
    labels: Array = XOR[1],
    columns: int = 4,
    extent: float = 2.0,
) -> Figure:
    """Figure of the class that each layer returns over the plane, with one panel per layer, under its name.

    The plane is grey where both outputs are equal, to rounding. Training points have the colour of their own class, so
    a point on the other colour is misclassified. Features outside the frame are not shown; prototypes end at it.

    Args:
        layers: ``{name: layer}``, each from ``[N, 2]`` to ``[N, 2]``.
        points: training points, ``[N, 2]``; XOR's by default.
        labels: their classes, 0 or 1, ``[N]``.
        columns: most panels in a row.
        extent: half the width of the plane.
    """
    points, labels = array(points), array(labels).astype(int)
    if not isinstance(layers, Mapping):
        raise TypeError(f"layers must be a mapping, {{name: layer}}; got {type(layers).__name__}.")
    if not layers:
        raise ValueError("layers must have one layer or more; got none.")
    columns = min(columns, len(layers))
    rows = -(-len(layers) // columns)
    figure = blank(2.7 * columns, 2.95 * rows + 0.6, "constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr]
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    shown = {}
    for ax, (name, layer) in zip(axes, layers.items()):
        shown |= _panel(ax, name, layer, points, labels, extent)
    for ax in axes[len(layers) :]:
        ax.set_axis_off()
    names = sorted(shown, reverse=True, key=lambda name: name.startswith("points"))
    figure.legend([shown[n] for n in names], names, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _panel(
    ax, name: str, layer: Callable[[Tensor], Tensor], points: np.ndarray, labels: np.ndarray, extent: float
) -> dict[str, Any]:
    """Draws one layer; returns what the legend shows, by its text."""
    from matplotlib.colors import ListedColormap

    shown, plane = {}, _classes(name, layer, extent)
    frame = 2 * (-extent, extent)
    style: dict = dict(cmap=ListedColormap(CLASSES), vmin=0, vmax=1, alpha=0.8)
    ax.imshow(plane, interpolation="nearest", origin="lower", extent=frame, **style)
    inside = parameters(layer) if isinstance(layer, nn.Module) else {}
    if "features" in inside:
        at = array(inside["features"]).T
        shown["features, and prototypes as arrows"] = ax.scatter(*at, s=14, c="white", edgecolors="black", lw=0.7)
    vectors = inside.get("prototypes", inside.get("rows"))
    for c, vector in enumerate(() if vectors is None else array(vectors)):
        _arrow(ax, vector * min(1, 0.99 * extent / max(np.abs(vector).max(), 1e-9)), CLASSES[2 * c])
    for c, rim in ((0, "white"), (1, "black")):
        which, colour = points[labels == c], CLASSES[2 * c]
        dots = ax.scatter(*which.T, s=90, c=colour, edgecolors=rim, linewidths=1.6, zorder=5)
        shown[f"points of class {c}"] = dots
    ax.set_title("\n".join(fill(line, 28) for line in name.splitlines()), fontsize=10, parse_math=False)
    ax.set(xlim=(-extent, extent), ylim=(-extent, extent), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    ax.tick_params(labelsize=8)
    return shown


def _classes(name: str, layer: Callable[[Tensor], Tensor], extent: float) -> np.ndarray:
    """The layer's class over the plane, 0 or 1, and ½ where its outputs are equal, ``[201, 201]``."""
    line = torch.linspace(-extent, extent, 201)
    plane = torch.cartesian_prod(line, line)
    with torch.no_grad():
        out = layer(plane)
    if out.shape != (len(plane), 2):
        raise ValueError(f"layer {name!r} must return [N, 2] for [N, 2]; got shape {list(out.shape)}.")
    more = out[:, 1] - out[:, 0]
    undecided = more.abs() <= 1e-5 * max(1.0, out.abs().max().item())
    return torch.where(undecided, 0.5, (more > 0).float()).view(201, 201).T.numpy()


def _arrow(ax, vector: np.ndarray, colour: str) -> None:
    """An arrow from the origin; its white rim shows on every background."""
    from matplotlib.patheffects import withStroke

    rim = [withStroke(linewidth=4, foreground="white")]
    how: dict[str, Any] = dict(arrowstyle="-|>", color="black", linewidth=1.8, shrinkA=0, shrinkB=0, path_effects=rim)
    ax.annotate("", vector, (0, 0), arrowprops=how)
    ax.plot([0, 0.9 * vector[0]], [0, 0.9 * vector[1]], color=colour, linewidth=1, zorder=4)
