"""XOR's figures: p(conv) beside the paper's, and boundaries of models that are trained again to be drawn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ...interpret.figures import decision_boundaries
from ...interpret.figures.base import SERIES, blank, plain
from ...nn import TverskyProjection
from .. import xor
from ..record import paper
from .runs import Drawn, Made, Missing, Progress, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (2, 4, 8, 16, 32, 64, 128, 256)  # features in the paper's figure of boundaries
SHOWN = 4  # panels in a figure of models that converge, or do not
BY = {
    "by_reductions": "intersection and difference",
    "by_init": "starting values of features and prototypes",
    "by_normalize": "normalisation",
    "by_num_features": "number of features",
}
TRIES = 12  # most starts that are trained for one figure or panel

Bars = Mapping[str, Mapping[str, tuple[float, float]]]


def of_xor(runs: list[Run], progress: Progress) -> Made:
    """Bars of p(conv) by factor for all runs of the paper's grid, and boundaries for each of them."""
    for run in runs:
        if "tables" not in run.whole["result"]:
            yield Missing(f"XOR: {run.label}", "it is not the paper's grid; similitude table xor has its numbers")
    grids = [run for run in runs if "tables" in run.whole["result"]]
    if not grids:
        return
    yield Drawn(
        "xor-convergence",
        "XOR: share of models that converge, by factor",
        "Bars of p(conv) by reductions, initialisation, normalisation and number of features: the paper's and ours.",
        convergence_bars(bars(grids)),
        compares=True,
    )
    for run in grids:
        level = run.config["level"]
        several = sum(other.config["level"] == level for other in grids) > 1
        yield from _boundaries(run, f"-{run.label}" if several else "", f", {run.label}" if several else "", progress)


def _boundaries(run: Run, end: str, which: str, progress: Progress) -> Made:
    """Models that converge, models that do not, and models of all sizes; end and which tell the run from others."""
    settings: dict = run.config
    config = xor.Config(**{**settings, "num_features": tuple(settings["num_features"])})
    right = run.arrays("outcomes").get("right")
    level, file = f"{config.level} level{which}", f"{config.level}{end}"
    tell = lambda n, what: progress(n, 2 * SHOWN + len(SIZES), f"boundaries, {config.level} level: {what}")  # noqa: E731
    for n, (name, converged) in enumerate((("converged", True), ("not-converged", False))):
        title = f"XOR: models with 4 features that {'' if converged else 'did not '}converge, {level}"
        told = lambda count, first=SHOWN * n, what=name: tell(first + count, what)  # noqa: E731
        told(0)
        found = _ended(config, right, converged, told)
        if found:
            alt = "Planes coloured by the class that a layer gives, one for each start of prototypes and features."
            yield Drawn(f"xor-{name}-{file}", title, alt, decision_boundaries(found))
        else:
            yield Missing(title, f"none of {TRIES} starts did")
    found = {}
    for n, K in enumerate(SIZES):
        tell(2 * SHOWN + n, f"{K} features")
        layer, count = successful(config, K, right)
        found[f"{K} features" + ("" if count == 4 else f"\n{count} of 4 points right")] = layer
    found["nn.Linear: undecided"] = linear(config)
    alt = (
        "Planes coloured by the class that a layer gives, for growing feature banks: bent boundaries for Tversky "
        "layers; the linear layer cannot separate XOR and gives all points the same answer."
    )
    title = f"XOR: boundaries with {SIZES[0]} to {SIZES[-1]} features, {level}, and of nn.Linear"
    yield Drawn(f"xor-sizes-{file}", title, alt, decision_boundaries(found, columns=3))


def _ended(
    config: xor.Config, right: np.ndarray | None, converged: bool, tell: Callable[[int], None]
) -> dict[str, TverskyProjection]:
    """The first SHOWN models with 4 features that converged, or did not, under their starting values."""
    found: dict[str, TverskyProjection] = {}
    for at in itertools.islice(candidates(config, 4, right, converged), TRIES):
        layer, count = xor.alone(config, 4, at)
        if (count == 4) is converged:
            start = f"{xor.INITS[at['prototypes_init']]}, {xor.INITS[at['features_init']]}, seed {at['seed']}"
            found[f"{start}\n{count} of 4 points right"] = layer
            tell(len(found))
        if len(found) == SHOWN:
            break
    return found


def convergence_bars(factors: Mapping[str, Bars]) -> Figure:
    """Figure of p(conv), with one panel per factor, one group of bars per value and one bar per series.

    Args:
        factors: ``{factor: {series: {value: (p, standard error)}}}``.
    """
    if not factors or not all(any(series.values()) for series in factors.values()):
        raise ValueError("factors must have one series with a value or more for each factor.")
    labels = {name: list(dict.fromkeys(v for one in series.values() for v in one)) for name, series in factors.items()}
    columns = min(2, len(factors))
    split = [list(factors)[i::columns] for i in range(columns)]
    tall = max(sum(len(labels[name]) + 1.6 for name in part) for part in split)
    figure = blank(5.6 * columns, 0.42 * tall + 0.8, "constrained")
    every = list(dict.fromkeys(one for series in factors.values() for one in series))
    for part, group in zip(split, np.atleast_1d(np.asarray(figure.subfigures(1, columns)))):
        heights = [len(labels[name]) + 0.6 for name in part]
        axes = group.subplots(len(part), 1, squeeze=False, height_ratios=heights)[:, 0]
        for ax, name in zip(axes, part, strict=True):
            _bars(ax, name, labels[name], factors[name], every)
    handles, names = figure.subfigs[0].axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    return figure


def _bars(ax, name: str, labels: Sequence[str], series: Bars, every: Sequence[str]) -> None:
    at, thick = np.arange(len(labels)), 0.8 / len(every)
    for i, one in enumerate(every):
        found = [series.get(one, {}).get(value, (np.nan, np.nan)) for value in labels]
        p, error = np.array(found, dtype=float).T
        ax.barh(at + (i + 0.5) * thick - 0.4, p, thick, xerr=error, color=SERIES[i % len(SERIES)], label=one)
    ax.set_yticks(at, labels, fontsize=8, parse_math=False)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_title(fill(f"p(conv) by {name}", 46), fontsize=10, loc="left", parse_math=False)
    plain(ax)


def bars(runs: list[Run]) -> dict[str, dict[str, Any]]:
    """p(conv) and its standard error by factor, series and value; gmean counts as in ``xor.compare``."""
    out = {}
    for name, factors in xor.FACTORS.items():
        which = "tables" if name == "by_reductions" else "without_gmean"
        series = {"paper": paper(f"xor_{name}")}
        series |= {f"ours, {xor.heading(run.whole)}": run.whole["result"][which][name] for run in runs}
        if name == "by_num_features":
            series = {s: sorted(rows, key=lambda row: float(row["num_features"])) for s, rows in series.items()}
        out[BY[name]] = {s: dict(_bar(row, factors) for row in rows) for s, rows in series.items()}
    return out


def _bar(row: dict, factors: tuple[str, ...]) -> tuple[str, tuple[float, float]]:
    value = ", ".join(xor._key(row, factors))
    return {"False": "without", "True": "with"}.get(value, value), (float(row["p_conv"]), float(row["p_conv_se"]))


def successful(config: xor.Config, K: int, right: np.ndarray | None) -> tuple[TverskyProjection, int]:
    """The first model with K features that learns XOR, and its right answers; if none of TRIES does, the last one."""
    hopeful = list(itertools.islice(candidates(config, K, right, True), TRIES))
    # If all of them failed in the grid, any one will do.
    hopeful = hopeful or list(itertools.islice(candidates(config, K, right, False), 1))
    for at in hopeful[:-1]:
        layer, count = xor.alone(config, K, at)
        if count == 4:
            return layer, count
    return xor.alone(config, K, hopeful[-1])


def candidates(config: xor.Config, K: int, right: np.ndarray | None, converged: bool) -> Iterator[dict[str, int]]:
    """Models with the paper's best reductions that converged in the grid, or did not; all of them if K is not in it."""
    at = {"intersection": xor.INTERSECTIONS.index("product"), "difference": xor.DIFFERENCES.index("subtractmatch")}
    at["normalize"] = 0
    for seed, a, b in itertools.product(range(config.seeds), range(3), range(3)):
        at |= {"prototypes_init": a, "features_init": b, "seed": seed}
        if right is not None and K in config.num_features:
            place = tuple({**at, "num_features": config.num_features.index(K)}[axis] for axis in xor.AXES)
            if bool(right[place] == 4) != converged:
                continue
        yield dict(at)


def linear(config: xor.Config) -> nn.Linear:
    """An nn.Linear trained on XOR by the same recipe."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layer = nn.Linear(2, 2)
    x, y = torch.tensor(xor.POINTS), torch.tensor(xor.LABELS)
    optimizer = torch.optim.Adam(layer.parameters(), lr=config.lr)
    for _ in range(config.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(x), y).backward()
        optimizer.step()
    return layer
