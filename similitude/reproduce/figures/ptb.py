"""Penn Treebank's figures: training curves, perplexity against K beside the paper's, and α, β, θ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...interpret.figures.base import DASHES, SERIES, Array, array, blank, plain
from ..record import paper
from .curves import alpha_beta_theta, training
from .runs import Drawn, Made, Missing, Progress, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = dict[str, dict[int, list[float]]]


def of_ptb(runs: list[Run], progress: Progress) -> Made:
    """Curves, perplexity against K beside the paper's, and α, β, θ of runs that have their log."""
    runs = best(runs)
    named = {_name(run): run for run in runs}
    curves = {name: run.whole["result"]["curve"] for name, run in named.items()}
    alt = "Training loss and validation perplexity over the epochs."
    yield Drawn("ptb-training", "PTB: training", alt, training(curves, "validation perplexity"))
    for init, tied in sorted({(run.config["init"], run.config["tied"]) for run in runs}):
        own = [run for run in runs if (run.config["init"], run.config["tied"]) == (init, tied)]
        series, levels = perplexities(own, init, tied)
        ties = "tied" if tied else "untied"
        title = f"PTB: validation perplexity against K, {init}, {ties} prototypes"
        alt = "Lines of perplexity against the number of features: the paper's, and ours beside them."
        yield Drawn(f"ptb-perplexity-{init}-{ties}", title, alt, perplexity(series, levels), compares=True)
    traces = {name: trace for name, run in named.items() if (trace := run.trace())}
    if traces:
        alt = "α, β and θ of the head over the epochs of training."
        yield Drawn("ptb-constants", "PTB: α, β and θ over training", alt, alpha_beta_theta(traces))
    else:
        yield Missing("PTB: α, β and θ over training", "they are in the log.jsonl of a Tversky run's own folder")


def perplexity(
    series: Mapping[str, tuple[Array, Array]], baselines: Mapping[str, float] | None = None, title: str = ""
) -> Figure:
    """Figure of perplexity against the number of features, with one line per series.

    Args:
        series: for each line its K and its perplexities.
        baselines: the perplexity of each model without features, a horizontal line.
        title: the heading.
    """
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
        ax.set_xticks([])  # models without features have no K
    ax.set(xlabel="features K" if every else "", ylabel="perplexity")
    ax.set_title(title, fontsize=11, loc="left", parse_math=False)
    plain(ax)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def best(runs: list[Run]) -> list[Run]:
    """Of runs that differ in their rates only, those with the lowest validation perplexity, for all their seeds."""
    kinds: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        alike = run._replace(whole=run.whole | {"config": run.config | {"seed": 0, "checkpoint_every": 0}})
        kinds.setdefault(_name(alike), {}).setdefault(json.dumps(alike.config, sort_keys=True), []).append(run)
    valid = lambda own: np.mean([run.whole["result"]["valid"] for run in own])  # noqa: E731
    return [run for tried in kinds.values() for run in min(tried.values(), key=valid)]


def perplexities(runs: list[Run], init: str, tied: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lines of (K, perplexity), the paper's and our means over seeds, and the perplexities of linear models."""
    rows = [r for r in paper("ptb_validation_perplexity") if (r["init"], r["tied_prototypes"] == "Y") == (init, tied)]
    wanted = {(run.config["network"], run.config["intersection"], run.config["difference"]) for run in runs}
    points = _papers_points([r for r in rows if (r["model"], r["intersection"], r["difference"]) in wanted])
    linear = [float(r["perplexity"]) for r in rows if r["model"] == "baseline"]
    levels: dict[str, list[float]] = {"paper, linear": linear} if linear else {}
    for run in runs:
        c, value = run.config, run.whole["result"]["valid"]
        if c["network"] == "baseline":
            levels.setdefault(f"ours, linear, {c['epochs']} epochs", []).append(value)
        else:
            kind = f"{c['network']}, {c['intersection']} + {c['difference']}, {c['level']}, {c['epochs']} epochs"
            points.setdefault(f"ours, {kind}", {}).setdefault(c["num_features"], []).append(value)
    series = {name: (list(line), [float(np.mean(v)) for v in line.values()]) for name, line in points.items()}
    return series, {name: float(np.mean(values)) for name, values in levels.items()}


def _papers_points(rows: list[dict[str, str]]) -> Points:
    points: Points = {}
    for r in rows:
        # The paper leaves some cells empty.
        if r["num_features"] and r["perplexity"]:
            name = f"paper, {r['model']}, {r['intersection']} + {r['difference']}"
            points.setdefault(name, {}).setdefault(int(r["num_features"]), []).append(float(r["perplexity"]))
    return points


def _name(run: Run) -> str:
    c = run.config
    how = f"{c['init']}, {'tied' if c['tied'] else 'untied'}, {c['epochs']} epochs, seed {c['seed']}"
    if c["network"] == "baseline":
        return f"{c['network']}, {how}"
    what = f"K {c['num_features']}, {c['intersection']} + {c['difference']}, {c['level']} level"
    return f"{c['network']}, {what}, {how}"
