"""Curves over training that several experiments draw: loss and score, and α, β, θ."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from ...interpret.figures.base import BLUE, DASHES, GREEN, ORANGE, SERIES, Array, array, blank, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def training(curves: Mapping[str, Array], score: str = "accuracy") -> Figure:
    """Figure of loss and score over training, with one line per network.

    Args:
        curves: for each network rows of epoch, loss and score.
        score: what the score is.
    """
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


def alpha_beta_theta(runs: Mapping[str, Mapping[str, Array]]) -> Figure:
    """Figure of α, β and θ over training, with one panel per run.

    Args:
        runs: for each run ``step``, ``alpha``, ``beta`` and ``theta``, as in its log.
    """
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
            label = f"{letter} → {values[-1]:.3f}".replace("-", "−")
            ax.plot(steps, values, dash, color=colour, marker=marker, label=label)
        ax.set_title(fill(name, 48), fontsize=10, parse_math=False)
        _epochs(ax, steps)
        plain(ax)
        # Below the panel it covers no line.
        ax.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    for ax in axes[len(runs) :]:
        ax.set_axis_off()
    return figure


def constants_at_the_end(runs: Mapping[str, Mapping[str, Array]]) -> Figure:
    """Figure of the last α, β and θ of many runs, a line each, with a thin line to where they were first noted.

    Args:
        runs: for each run ``step``, ``alpha``, ``beta`` and ``theta``, as in its log.
    """
    if not runs:
        raise ValueError("runs must have one run or more; got none.")
    figure = blank(9.5, 0.34 * len(runs) + 1.1, "constrained")
    ax = figure.subplots()
    letters = (("alpha", "α", BLUE, "o", 0.16), ("beta", "β", ORANGE, "s", 0), ("theta", "θ", GREEN, "D", -0.16))
    for key, letter, colour, marker, shift in letters:
        rows = np.arange(len(runs))[::-1] + shift
        traces = [array(run[key]) for run in runs.values()]
        ax.hlines(rows, [t[0] for t in traces], [t[-1] for t in traces], color=colour, linewidth=1)
        ax.plot([t[-1] for t in traces], rows, marker, color=colour, markersize=5, label=letter)
    ax.set_yticks(np.arange(len(runs))[::-1], list(runs))
    # Most values are from 0.1 to 20, and one is below 0.
    ax.set_xscale("asinh", linear_width=0.1)
    ax.margins(x=0.06)
    ticks = [value for value in (-1, 0, 0.1, 0.3, 1, 3, 10, 30) if ax.get_xlim()[0] <= value <= ax.get_xlim()[1]]
    ax.set_xticks(ticks, [f"{value:g}".replace("-", "−") for value in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("value at the end of training; the thin line begins where it was first noted")
    ax.tick_params(axis="y", length=0)
    plain(ax)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _epochs(ax, epochs: np.ndarray) -> None:
    """Whole epochs as ticks; a single epoch is the only tick."""
    ax.set_xlabel("epoch")
    if len(epochs) < 2:
        ax.set_xticks(epochs)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)
