"""What a run that has ended and a figure of it are, and the figures of ResNet, PTB and editing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...interpret import figures
from ..record import RunError, paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Run(NamedTuple):
    """A run that has ended: what to call it, its result, and where its files begin."""

    label: str
    whole: dict
    files: str

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """What is in the run's NAME.npz; nothing if it has none."""
        path = Path(f"{self.files}{name}.npz")
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None

    def tensors(self) -> dict[str, Tensor]:
        """What the run trained, by name; nothing if its folder has no model.safetensors, as results have none."""
        path = Path(f"{self.files}model.safetensors")
        if not path.exists():
            return {}
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None


class Picture(NamedTuple):
    """A figure, the name of its file, a heading, and what one sees in it, for those who cannot see it."""

    name: str
    title: str
    alt: str
    figure: Figure


class Missing(NamedTuple):
    """A figure that could not be made, and why."""

    title: str
    why: str


Report = Callable[..., None]
Made = Iterator[Picture | Missing]


def of_resnet(runs: list[Run], report: Report) -> Made:
    """Curves of linear and Tversky heads under each condition, and α, β, θ of the Tversky ones."""
    groups: dict[str, dict] = {}
    traces = {}
    for run in runs:
        c, rows = run.whole["config"], np.array(run.whole["result"]["curve"], dtype=float)
        where = f"{'made-up pictures' if c['made_up'] else c['data'].upper()}, {c['condition']}"
        share = c.get("head_rate", 1)
        seed = f"seed {c['seed']}{f', head at {share:g} of the rate' if share != 1 else ''}"
        own = f"{'linear' if c['network'] == 'baseline' else 'Tversky'}, {seed}"
        groups.setdefault(where, {})[own] = rows[:, :3]
        if rows.shape[1] >= 6:
            traces[f"{where}, {seed}"] = dict(zip(("step", "alpha", "beta", "theta"), rows[:, [0, 3, 4, 5]].T))
    longest = max(len(rows) for curves in groups.values() for rows in curves.values())
    for where, curves in groups.items():
        # A dot alone is no curve; it is drawn only where there is nothing else.
        if max(map(len, curves.values())) == 1 < longest:
            yield Missing(f"ResNet: training on {where}", "these runs noted one epoch only")
            continue
        name = "resnet-training-" + "".join(ch if ch.isalnum() else "-" for ch in where.lower())
        alt = f"Training loss and test accuracy over the epochs, {', '.join(curves)}."
        yield Picture(name, f"ResNet: training on {where}", alt, figures.training(curves, "test accuracy"))
    traces = {name: trace for name, trace in traces.items() if len(trace["step"]) > 1 or longest == 1}
    if traces:
        alt = "α, β and θ of the head over the epochs of training."
        yield Picture("resnet-constants", "ResNet: α, β and θ over training", alt, figures.constants(traces))
    else:
        yield Missing("ResNet: α, β and θ over training", "there is no run of a Tversky head with more than one epoch")


def of_ptb(runs: list[Run], report: Report) -> Made:
    """Curves, perplexity against K beside the paper's, and α, β, θ where there are logs."""
    runs = best(runs)
    named = {_ptb_name(run.whole["config"]): run for run in runs}
    curves = {name: run.whole["result"]["curve"] for name, run in named.items()}
    alt = "Training loss and validation perplexity over the epochs."
    yield Picture("ptb-training", "PTB: training", alt, figures.training(curves, "validation perplexity"))
    for init, tied in sorted({(r.whole["config"]["init"], r.whole["config"]["tied"]) for r in runs}):
        own = [r for r in runs if (r.whole["config"]["init"], r.whole["config"]["tied"]) == (init, tied)]
        series, levels = perplexities(own, init, tied)
        ties = "tied" if tied else "untied"
        made_up = ", ours on made-up tokens" if any(r.whole["config"]["made_up"] for r in own) else ""
        title = f"PTB: validation perplexity against K, {init}, {ties} prototypes{made_up}"
        alt = "Lines of perplexity against the number of features: the paper's, and ours beside them."
        figure = figures.perplexity(series, levels)
        yield Picture(f"ptb-perplexity-{init}-{ties}", title, alt, figure)
    traces = {name: trace for name, run in named.items() if (trace := _trace(run))}
    if traces:
        alt = "α, β and θ of the head over the epochs of training."
        yield Picture("ptb-constants", "PTB: α, β and θ over training", alt, figures.constants(traces))
    else:
        yield Missing("PTB: α, β and θ over training", "they are in the log.jsonl of a Tversky run's own folder")


def _ptb_name(c: dict) -> str:
    what = "" if c["network"] == "baseline" else f", K {c['num_features']}, {c['intersection']} + {c['difference']}"
    how = f"{c['init']}, {'tied' if c['tied'] else 'untied'}, {c['epochs']} epochs, seed {c['seed']}"
    return f"{c['network']}{what}, {c['level']} level, {how}" if what else f"{c['network']}, {how}"


def best(runs: list[Run]) -> list[Run]:
    """Of runs that differ by their rates alone those with the best validation perplexity, in all their seeds."""
    kinds: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        c = run.whole["config"] | {"seed": 0, "checkpoint_every": 0}
        kinds.setdefault(_ptb_name(c), {}).setdefault(json.dumps(c, sort_keys=True), []).append(run)
    valid = lambda own: np.mean([run.whole["result"]["valid"] for run in own])  # noqa: E731
    return [run for tried in kinds.values() for run in min(tried.values(), key=valid)]


def perplexities(runs: list[Run], init: str, tied: bool) -> tuple[dict, dict]:
    """Lines of (K, perplexity) of the paper and of ours, means over seeds, and the perplexities of linear models."""
    rows = [r for r in paper("ptb_validation_perplexity") if (r["init"], r["tied_prototypes"] == "Y") == (init, tied)]
    points: dict[str, dict[int, list[float]]] = {}
    levels: dict[str, list[float]] = {
        "paper, linear": [float(r["perplexity"]) for r in rows if r["model"] == "baseline"]
    }
    wanted = [tuple(r.whole["config"][k] for k in ("network", "intersection", "difference")) for r in runs]
    for r in rows:
        # The paper leaves out some cells.
        if (r["model"], r["intersection"], r["difference"]) in wanted and r["num_features"] and r["perplexity"]:
            name = f"paper, {r['model']}, {r['intersection']} + {r['difference']}"
            points.setdefault(name, {}).setdefault(int(r["num_features"]), []).append(float(r["perplexity"]))
    for run in runs:
        c, value = run.whole["config"], run.whole["result"]["valid"]
        if c["network"] == "baseline":
            levels.setdefault(f"ours, linear, {c['epochs']} epochs", []).append(value)
        else:
            name = f"ours, {c['network']}, {c['intersection']} + {c['difference']}, {c['level']}, {c['epochs']} epochs"
            points.setdefault(name, {}).setdefault(c["num_features"], []).append(value)
    series = {name: (list(line), [float(np.mean(v)) for v in line.values()]) for name, line in points.items()}
    return series, {name: float(np.mean(values)) for name, values in levels.items() if values}


def _trace(run: Run) -> dict[str, list[float]]:
    """step, alpha, beta and theta from the run's log, if it has them."""
    path = Path(f"{run.files}log.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    keys = ("step", "alpha", "beta", "theta")
    lines = [line for line in lines if all(key in line for key in keys)]
    return {key: [line[key] for line in lines] for key in keys} if lines else {}


def of_editing(runs: list[Run], report: Report) -> Made:
    """Images of prototypes and features before and after the edit."""
    for run in runs:
        images = run.arrays("images")
        names = [f"{kind}.{when}" for kind in ("prototypes", "features") for when in ("before", "after")]
        groups = {name.replace(".", " "): images[name] for name in names if name in images}
        c = run.whole["config"]
        title = f"Sevens: images that start as {c['start']}, before and after the edit, seed {c['seed']}"
        if not groups:
            yield Missing(title, "the run has no images.npz")
            continue
        # The pages link to this name, which version 0.1.0 gave the experiment.
        end = f"-{run.label.replace('editing', 'sevens', 1)}" if len(runs) > 1 else ""
        alt = "Images of the network's prototypes and features, before and after a mid stroke was drawn into them."
        yield Picture(f"sevens-images{end}", title, alt, figures.prototypes(groups))
