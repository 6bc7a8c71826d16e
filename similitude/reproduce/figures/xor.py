"""XOR's figures: bars of p(conv) beside the paper's, and boundaries of models that are trained again to be drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from ...checks import DIFFERENCES, INTERSECTIONS
from ...interpret import figures
from ...nn import TverskyProjection
from .. import xor
from ..record import paper
from .curves import Made, Missing, Picture, Report, Run

SIZES = (2, 4, 8, 16, 32, 64, 128, 256)  # features in the paper's figure of boundaries
BY = {
    "by_reductions": "intersection and difference",
    "by_init": "starting values of features and prototypes",
    "by_normalize": "normalisation",
    "by_num_features": "number of features",
}
TRIES = 12  # starts, at the most, for one figure or panel


def of_xor(runs: list[Run], report: Report) -> Made:
    """Bars of p(conv) by factor for all runs of the paper's grid, and for each its boundaries."""
    for run in runs:
        if "tables" not in run.whole["result"]:
            yield Missing(f"XOR: {run.label}", "it is not the paper's grid; similitude table xor has its numbers")
    runs = [run for run in runs if "tables" in run.whole["result"]]
    if not runs:
        return
    yield Picture(
        "xor-convergence",
        "XOR: share of models that converge, by factor",
        "Bars of p(conv) by reductions, initialisation, normalisation and number of features: the paper's and ours.",
        figures.convergence_bars(bars(runs)),
    )
    for run in runs:
        settings: dict = run.whole["config"]
        config = xor.Config(**{**settings, "num_features": tuple(settings["num_features"])})
        right = run.arrays("outcomes").get("right")
        tell = lambda n, c=config: report(n, 8 + len(SIZES), f"boundaries, {c.level} level")  # noqa: E731
        tell(0)
        # The level alone where one run has it.
        alike = sum(other.whole["config"]["level"] == config.level for other in runs) > 1
        level = f"{config.level} level" + (f", {run.label}" if alike else "")
        file = f"{config.level}-{run.label}" if alike else config.level
        for n, (name, converged) in enumerate((("converged", True), ("not-converged", False))):
            title = f"XOR: models with 4 features that {'' if converged else 'did not '}converge, {level}"
            found = {}
            for at in itertools.islice(candidates(config, 4, right, converged), TRIES):
                layer, count = xor.alone(config, 4, at)
                if (count == 4) is converged and len(found) < 4:
                    start = f"{xor.INITS[at['prototypes_init']]}, {xor.INITS[at['features_init']]}, seed {at['seed']}"
                    found[f"{start}\n{count} of 4 points right"] = layer
                    tell(4 * n + len(found))
                if len(found) == 4:
                    break
            if not found:
                yield Missing(title, f"none of {TRIES} starts did")
                continue
            alt = "Planes coloured by the class that a layer gives, one for each start of prototypes and features."
            yield Picture(f"xor-{name}-{file}", title, alt, figures.decision_boundaries(found))
        found = {}
        for n, K in enumerate(SIZES):
            layer, count = successful(config, K, right)
            found[f"{K} features" + ("" if count == 4 else f"\n{count} of 4 points right")] = layer
            tell(9 + n)
        found["nn.Linear: undecided"] = linear(config)
        alt = (
            "Planes coloured by the class that a layer gives, for growing feature banks: bent boundaries for Tversky "
            "layers; the linear layer cannot separate XOR and gives all points the same answer."
        )
        title = f"XOR: boundaries with {SIZES[0]} to {SIZES[-1]} features, {level}, and of nn.Linear"
        yield Picture(f"xor-sizes-{file}", title, alt, figures.decision_boundaries(found, columns=3))


def bars(runs: list[Run]) -> dict:
    """p(conv) and its standard error by factor, series and value; gmean counts as in ``xor.compare``."""
    out = {}
    for name, factors in xor.FACTORS.items():
        which = "tables" if name == "by_reductions" else "without_gmean"
        series = {"paper": paper(f"xor_{name}")}
        series |= {f"ours, {xor.heading(r.whole)}": r.whole["result"][which][name] for r in runs}
        if name == "by_num_features":
            series = {s: sorted(rows, key=lambda row: float(row["num_features"])) for s, rows in series.items()}
        out[BY[name]] = {s: dict(_bar(row, factors) for row in rows) for s, rows in series.items()}
    return out


def _bar(row: dict, factors: tuple[str, ...]) -> tuple[str, tuple[float, float]]:
    value = ", ".join(xor._key(row, factors))
    return {"False": "without", "True": "with"}.get(value, value), (float(row["p_conv"]), float(row["p_conv_se"]))


def successful(config: xor.Config, K: int, right: np.ndarray | None) -> tuple[TverskyProjection, int]:
    """The first of some models with K features that learns XOR, or the last of them, and its right answers."""
    hopeful = list(itertools.islice(candidates(config, K, right, True), TRIES))
    # If the grid knows that all fail, one is enough to show.
    hopeful = hopeful or list(itertools.islice(candidates(config, K, right, False), 1))
    for at in hopeful[:-1]:
        layer, count = xor.alone(config, K, at)
        if count == 4:
            return layer, count
    return xor.alone(config, K, hopeful[-1])


def candidates(config: xor.Config, K: int, right: np.ndarray | None, converged: bool) -> Iterator[dict[str, int]]:
    """Models of the grid with the paper's best reductions that ended so, or all where the grid does not know."""
    at = {"intersection": INTERSECTIONS.index("product"), "difference": DIFFERENCES.index("subtractmatch")}
    at["normalize"] = 0
    for seed, a, b in itertools.product(range(config.seeds), range(3), range(3)):
        at |= {"prototypes_init": a, "features_init": b, "seed": seed}
        if right is not None and K in config.num_features:
            place = tuple({**at, "num_features": config.num_features.index(K)}[axis] for axis in xor.AXES)
            if bool(right[place] == 4) != converged:
                continue
        yield dict(at)


def linear(config: xor.Config) -> nn.Linear:
    """What nn.Linear learns of XOR by the same recipe."""
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
