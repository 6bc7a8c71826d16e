"""Figures of a fitted model: fitted against said, both directions, features × objects, salience.

Each takes a fitted TverskySimilarityModel and returns a matplotlib ``Figure``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..interpret.figures.base import BLUE, GREY, ORANGE, blank, plain
from .found import answered
from .judgements import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .model import TverskySimilarityModel

__all__ = ["directions", "features", "fit", "salience"]

UNITS = {"same": "share of “same”", "choice": "share of the choices", "rating": "rating"}
# Pairs whose two directions differ most, which are named in their figure.
NAMED = 6


def fit(model: TverskySimilarityModel) -> Figure:
    """What the model expects against what people said, a dot for each pair that was judged.

    Args:
        model: A fitted model.
    """
    value, guess = answered(model, model.judgements_)
    figure = blank(4.4, 4.2, layout="constrained")
    ax = figure.add_subplot()
    low, high = min(value.min(), guess.min()), max(value.max(), guess.max())
    ax.plot([low, high], [low, high], color=GREY, linewidth=1, zorder=1)
    ax.scatter(value, guess, s=10, color=BLUE, alpha=_alpha(len(value)), linewidths=0)
    unit = UNITS[model.judgements_.kind]
    ax.set(xlabel=f"said: {unit}", ylabel=f"fitted: {unit}")
    plain(ax)
    return figure


def directions(model: TverskySimilarityModel) -> Figure:
    """How much more was said of (a, b) than of (b, a), and how much more the model expects: a dot for each pair.

    Args:
        model: A fitted model.
    """
    said_more, fitted_more, pairs = differences(model)
    figure = blank(4.4, 4.2, layout="constrained")
    ax = figure.add_subplot()
    edge = float(max(np.abs(said_more).max(), np.abs(fitted_more).max())) * 1.15
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.axvline(0, color=GREY, linewidth=0.8)
    ax.plot([-edge, edge], [-edge, edge], color=GREY, linewidth=1, linestyle="--")
    ax.scatter(said_more, fitted_more, s=12, color=ORANGE, alpha=_alpha(len(said_more)), linewidths=0)
    for rank, i in enumerate(np.argsort(-np.abs(said_more))[:NAMED]):
        a, b = (model.names_[place] for place in pairs[i])
        left = said_more[i] > 0  # inside the frame; ranks alternate, since equal differences are next to each other
        place = {"xytext": (-4 if left else 4, 4 if rank % 2 else -9), "ha": "right" if left else "left"}
        ax.annotate(f"{a}, {b}", (said_more[i], fitted_more[i]), fontsize=7, textcoords="offset points", **place)
    ax.set(xlim=(-edge, edge), ylim=(-edge, edge))
    ax.set(xlabel="said: (a, b) − (b, a)", ylabel="fitted: (a, b) − (b, a)")
    plain(ax)
    return figure


def differences(model: TverskySimilarityModel) -> tuple[Array, Array, Array]:
    """Of each pair judged both ways: said of (a, b) − said of (b, a), the same of the model, and the two places."""
    said = model.judgements_
    if said.symmetric:
        raise ValueError("the order of the objects was not asked, so that there are no directions to draw.")
    value, guess = (said.table(cells) for cells in answered(model, said))
    pairs = np.stack(np.triu_indices(len(value), 1), 1)
    pairs = pairs[~np.isnan((value + value.T)[pairs[:, 0], pairs[:, 1]])]
    if not len(pairs):
        raise ValueError("no pair was judged in both directions.")
    a, b = pairs.T
    return (value - value.T)[a, b], (guess - guess.T)[a, b], pairs


def features(model: TverskySimilarityModel, top: int = 24, objects: int = 60) -> Figure:
    """Which objects have which features: measures above 0, the features with the largest sums first.

    Args:
        model: A fitted model.
        top: Features that are shown.
        objects: Objects that are shown, those of the largest salience.
    """
    measures = model.measures().clip(0)
    columns = np.argsort(-measures.sum(0))[:top]
    rows = np.argsort(-measures.sum(1))[:objects]
    columns = columns[measures[:, columns].sum(0) > 0]
    names = [model._feature_names(measures.shape[1])[k] for k in columns]
    figure = blank(2.2 + 0.24 * len(columns), 1.6 + 0.17 * len(rows), layout="constrained")
    ax = figure.add_subplot()
    shown = ax.imshow(measures[np.ix_(rows, columns)], cmap="Blues", aspect="auto", interpolation="nearest")
    ax.set_xticks(range(len(columns)), [_short(name) for name in names], rotation=90, fontsize=7)
    ax.set_yticks(range(len(rows)), [_short(model.names_[i]) for i in rows], fontsize=7)
    figure.colorbar(shown, ax=ax, label="measure", shrink=0.6)
    return figure


def salience(
    model: TverskySimilarityModel, against: Mapping[str, float] | None = None, what: str = "typicality", top: int = 40
) -> Figure:
    """Salience f(A) of each object as a bar, or against a number that is known of each, such as typicality.

    Args:
        model: A fitted model.
        against: A number for each object, by its name; objects without one are left out.
        what: What these numbers are.
        top: Bars that are drawn.
    """
    found = model.salience()
    if against is None:
        names = list(found)[:top]
        figure = blank(4.4, 0.8 + 0.17 * len(names), layout="constrained")
        ax = figure.add_subplot()
        ax.barh(range(len(names)), [found[name] for name in names], color=BLUE, height=0.7)
        ax.set_yticks(range(len(names)), [_short(name) for name in names], fontsize=7)
        ax.invert_yaxis()
        ax.set(xlabel="salience f(A)")
        plain(ax)
        return figure
    names = [name for name in found if name in against]
    if len(names) < 3:
        raise ValueError(f"{what} is known of {len(names)} of the {len(found)} objects; at least 3 are expected.")
    figure = blank(4.4, 4.2, layout="constrained")
    ax = figure.add_subplot()
    ax.scatter([against[name] for name in names], [found[name] for name in names], s=14, color=BLUE)
    for name in names[:top]:
        ax.annotate(_short(name), (against[name], found[name]), fontsize=7, xytext=(3, 3), textcoords="offset points")
    ax.set(xlabel=what, ylabel="salience f(A)")
    plain(ax)
    return figure


def _alpha(dots: int) -> float:
    return float(np.clip(400 / dots, 0.1, 0.8))


def _short(name: str) -> str:
    return name if len(name) <= 28 else f"{name[:27]}…"
