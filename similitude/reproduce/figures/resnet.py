"""ResNet's figures: training curves of linear and Tversky heads, and α, β, θ."""

from __future__ import annotations

import numpy as np

from .curves import constants_at_the_end, training
from .runs import Drawn, Made, Missing, Progress, Run


def of_resnet(runs: list[Run], progress: Progress) -> Made:
    """Curves of linear and Tversky heads for each data set and condition, and α, β, θ of the Tversky heads."""
    groups: dict[str, dict[str, np.ndarray]] = {}
    traces: dict[str, dict[str, np.ndarray]] = {}
    for run in runs:
        where, seed = _where(run), _seed(run)
        rows = np.array(run.whole["result"]["curve"], dtype=float)
        head = "linear" if run.config["network"] == "baseline" else "Tversky"
        groups.setdefault(where, {})[f"{head}, {seed}"] = rows[:, :3]
        if rows.shape[1] >= 6:
            traces[f"{where}, {seed}"] = dict(zip(("step", "alpha", "beta", "theta"), rows[:, [0, 3, 4, 5]].T))
    longest = max(len(rows) for curves in groups.values() for rows in curves.values())
    for where, curves in groups.items():
        yield _training(where, curves, longest)
    traces = {name: trace for name, trace in traces.items() if len(trace["step"]) > 1 or longest == 1}
    if traces:
        alt = "The last α, β and θ of the head of each run, a line for each run."
        figure = constants_at_the_end(dict(sorted(traces.items())))
        yield Drawn("resnet-constants", "ResNet: α, β and θ at the end of training", alt, figure)
    else:
        why = "there is no run of a Tversky head with more than one epoch"
        yield Missing("ResNet: α, β and θ at the end of training", why)


def _where(run: Run) -> str:
    return f"{'made-up images' if run.config['made_up'] else run.config['data'].upper()}, {run.config['condition']}"


def _seed(run: Run) -> str:
    share = run.config.get("head_rate", 1)
    return f"seed {run.config['seed']}{f', head at {share:g} of the rate' if share != 1 else ''}"


def _training(where: str, curves: dict[str, np.ndarray], longest: int) -> Drawn | Missing:
    # A single dot is not a curve; it is drawn only if no run has more.
    if max(map(len, curves.values())) == 1 < longest:
        return Missing(f"ResNet: training on {where}", "these runs noted one epoch only")
    name = "resnet-training-" + "".join(ch if ch.isalnum() else "-" for ch in where.lower())
    alt = f"Training loss and test accuracy over the epochs, {', '.join(curves)}."
    return Drawn(name, f"ResNet: training on {where}", alt, training(curves, "test accuracy"))
