"""The paper's figures that are not made of images: boundaries, constants, convergence, perplexity, training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from .base import BLUE, CLASSES, DASHES, GREEN, ORANGE, SERIES, Array, array, blank, parameters, plain

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
    """Which of two classes each layer of 2 inputs gives in the plane: a panel a layer, under its name.

    Training points ``[N, 2]`` are drawn in the colour that is right for them, so that one on the other colour is wrong.
    Where both answers are the same, to rounding, the plane is grey. Features beyond the frame are not seen, and
    prototypes end at it.
    """
    from matplotlib.colors import ListedColormap

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
        plane = _classes(name, layer, extent)
        ax.imshow(
            plane,
            cmap=ListedColormap(CLASSES),
            interpolation="nearest",
            vmin=0,
            vmax=1,
            origin="lower",
            extent=2 * (-extent, extent),
            alpha=0.8,
        )
        inside = parameters(layer) if isinstance(layer, nn.Module) else {}
        if "features" in inside:
            shown["features, and prototypes as arrows"] = ax.scatter(
                *array(inside["features"]).T, s=14, c="white", edgecolors="black", lw=0.7
            )
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
    for ax in axes[len(layers) :]:
        ax.set_axis_off()
    names = sorted(shown, reverse=True, key=lambda name: name.startswith("points"))
    figure.legend([shown[n] for n in names], names, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _classes(name: str, layer: Callable[[Tensor], Tensor], extent: float) -> np.ndarray:
    """0 or 1, the class that the layer gives, or ½ where it gives none, over the plane."""
    line = torch.linspace(-extent, extent, 201)
    plane = torch.cartesian_prod(line, line)
    with torch.no_grad():
        out = layer(plane)
    if out.shape != (len(plane), 2):
        raise ValueError(f"layer {name!r} must give [N, 2] for [N, 2]; got shape {list(out.shape)}.")
    more = out[:, 1] - out[:, 0]
    undecided = more.abs() <= 1e-5 * max(1.0, out.abs().max().item())
    return torch.where(undecided, 0.5, (more > 0).float()).view(201, 201).T.numpy()


def _arrow(ax, vector: np.ndarray, colour: str) -> None:
    """From the origin; the white rim is seen on every background."""
    from matplotlib.patheffects import withStroke

    rim = [withStroke(linewidth=4, foreground="white")]
    how: dict[str, Any] = dict(arrowstyle="-|>", color="black", linewidth=1.8, shrinkA=0, shrinkB=0, path_effects=rim)
    ax.annotate("", vector, (0, 0), arrowprops=how)
    ax.plot([0, 0.9 * vector[0]], [0, 0.9 * vector[1]], color=colour, linewidth=1, zorder=4)


def constants(runs: Mapping[str, Mapping[str, Array]]) -> Figure:
    """α, β and θ over training: a panel a run. Each run has ``step``, ``alpha``, ``beta`` and ``theta``, as its log."""
    if not runs:
        raise ValueError("runs must have one run or more; got none.")
    columns = 2 if len(runs) == 4 else min(3, len(runs))
    rows = -(-len(runs) // columns)
    figure = blank(4.6 * columns, 3.5 * rows, "constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, (name, run) in zip(axes, runs.items()):
        steps = array(run["step"])
        for (key, letter), colour, dash in zip(
            (("alpha", "α"), ("beta", "β"), ("theta", "θ")), (BLUE, ORANGE, GREEN), DASHES
        ):
            values = array(run[key])
            marker = "o" if len(steps) < 2 else None
            ax.plot(
                steps, values, dash, color=colour, marker=marker, label=f"{letter} → {values[-1]:.3f}".replace("-", "−")
            )
        ax.set_title(fill(name, 48), fontsize=10, parse_math=False)
        _epochs(ax, steps)
        plain(ax)
        # Below the panel it covers no line.
        ax.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    for ax in axes[len(runs) :]:
        ax.set_axis_off()
    return figure


def convergence_bars(factors: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]) -> Figure:
    """p(conv) by factor: a panel a factor, a group of bars a value of it, a bar a series such as the paper's and ours.

    factors: ``{factor: {series: {value: (p, standard error)}}}``.
    """
    if not factors or not all(any(s.values()) for s in factors.values()):
        raise ValueError("factors must have one series with a value or more for each factor.")
    panels = list(factors.items())
    labels = {name: list(dict.fromkeys(v for one in series.values() for v in one)) for name, series in panels}
    columns = min(2, len(panels))
    split = [panels[i::columns] for i in range(columns)]
    tall = max(sum(len(labels[name]) + 1.6 for name, _ in part) for part in split)
    figure = blank(5.6 * columns, 0.42 * tall + 0.8, "constrained")
    every = list(dict.fromkeys(s for _, series in panels for s in series))
    for part, group in zip(split, np.atleast_1d(np.asarray(figure.subfigures(1, columns)))):
        axes = group.subplots(len(part), 1, squeeze=False, height_ratios=[len(labels[n]) + 0.6 for n, _ in part])[:, 0]
        for ax, (name, series) in zip(axes, part, strict=True):
            at, thick = np.arange(len(labels[name])), 0.8 / len(every)
            for i, one in enumerate(every):
                found = [series.get(one, {}).get(v, (np.nan, np.nan)) for v in labels[name]]
                p, error = np.array(found, dtype=float).T
                ax.barh(at + (i + 0.5) * thick - 0.4, p, thick, xerr=error, color=SERIES[i % len(SERIES)], label=one)
            ax.set_yticks(at, labels[name], fontsize=8, parse_math=False)
            ax.invert_yaxis()
            ax.set_xlim(0, 1)
            ax.set_title(fill(f"p(conv) by {name}", 46), fontsize=10, loc="left", parse_math=False)
            plain(ax)
    handles, names = figure.subfigs[0].axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    return figure


def perplexity(
    series: Mapping[str, tuple[Array, Array]], baselines: Mapping[str, float] | None = None, title: str = ""
) -> Figure:
    """Perplexity against the number of features: a line a series of (K, perplexity), a level line a model without K."""
    if not series and not baselines:
        raise ValueError("series must have one line or more; got none.")
    figure = blank(7.2, 4.6, "constrained")
    ax = figure.subplots()
    every = []
    for i, (name, (K, values)) in enumerate(series.items()):
        order = np.argsort(array(K))
        K, values = array(K)[order], array(values)[order]
        every += K.tolist()
        colour, marker = SERIES[i % len(SERIES)], "osD^vP*X"[i % 8]
        ax.plot(K, values, DASHES[i % 4], marker=marker, color=colour, label=name)
    for i, (name, value) in enumerate((baselines or {}).items(), start=len(series)):
        ax.axhline(value, color=SERIES[i % len(SERIES)], linestyle=DASHES[i % 4], linewidth=1, label=name)
    if every:
        ax.set_xscale("log", base=2)
        ticks = sorted(set(every))
        ax.set_xticks(ticks, [f"{K:,.0f}" for K in ticks], fontsize=8, rotation=90)
        ax.minorticks_off()
    else:
        ax.set_xticks([])  # level lines alone are at no K
    ax.set(xlabel="features K" if every else "", ylabel="perplexity")
    ax.set_title(title, fontsize=11, loc="left", parse_math=False)
    plain(ax)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _epochs(ax, epochs: np.ndarray) -> None:
    """Whole numbers below the axis; one that stands alone has no others around it."""
    ax.set_xlabel("epoch")
    if len(epochs) < 2:
        ax.set_xticks(epochs)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)


def training(curves: Mapping[str, Array], score: str = "accuracy") -> Figure:
    """Loss and score over training: a line a network. curves: rows of epoch, loss, score."""
    if not curves:
        raise ValueError("curves must have one network or more; got none.")
    figure = blank(9.5, 3.9, "constrained")
    for column, (ax, what) in enumerate(zip(figure.subplots(1, 2), ("training loss", score)), start=1):
        for i, (name, curve) in enumerate(curves.items()):
            rows = array(curve)
            style = dict(color=SERIES[(i + 1) % len(SERIES)], linestyle=DASHES[i % 4], marker="o", markersize=3)
            ax.plot(rows[:, 0], rows[:, column], label=name if column == 1 else None, **style)
        ax.set_title(what, fontsize=10, loc="left", parse_math=False)
        _epochs(ax, np.unique(np.concatenate([array(curve)[:, 0] for curve in curves.values()])))
        plain(ax)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure
