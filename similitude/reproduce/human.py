"""Does Tversky's model explain people's judgements? Each model and its rivals on the same held-out judgements.

Morse signals (confusions, asymmetric), the Leuven norms (similarities, with features that people listed), and simulated
judgements of a contrast model, which say whether the model would be seen if it were there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from ..human import families, morse, rivals
from ..human.families import Family, with_bias
from ..human.fitting import fit
from ..human.judgements import Array, Judgements
from . import Experiment
from .data import people
from .record import Record
from .results import Claim, Row, by_row
from .settings import Count, Seed, Size, check

SUBTRACT = {"difference": "subtractmatch"}
GIVEN = {"given-one": "one", "given-own": "common+distinctive", "given-common": "common"}
TVERSKY = ("tversky", "tversky-bias", "ignorematch", "symmetric")
RIVALS = {name.replace(" ", "-"): name for name in rivals.RIVALS}
MODELS = (*TVERSKY, "direct", *RIVALS)


@dataclass(frozen=True)
class Config:
    """Ours: the paper has no judgements of people.

    Args:
        data: "morse"; "recovery", simulated judgements of a contrast model; "leuven", similarities within 15
            categories, with features that people listed; or "latent", the same without them.
        model: "tversky" (subtractmatch), "tversky-bias" (with one bias an object), "ignorematch" (the library's default
            form), "symmetric" (α = β), "direct" (features without a bank), or a rival; of leuven "given-one" (a weight
            for each feature), "given-own" (one where it is common, one where it is distinctive) or "given-common".
        folds: What is held out: "pairs", "directions" or "objects".
        k: Folds of each repeat.
        repeats: How often folds are drawn anew, or the number of simulated tables.
        restarts: Fits to each fold, whose predictions are averaged.
        steps: Steps of Adam.
        made_up: Number of made-up objects, for a smoke run; 0 for ``data``.
    """

    data: Literal["morse", "recovery", "leuven", "latent"] = "morse"
    model: str = "tversky-bias"
    folds: Literal["pairs", "directions", "objects"] = "pairs"
    k: Count = 10
    repeats: Count = 3
    restarts: Count = 3
    steps: Count = 300
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        known = GIVEN if self.data == "leuven" else MODELS
        if self.model not in known:
            raise ValueError(f"model must be one of {', '.join(known)} for data={self.data}; got {self.model!r}.")


RECIPES = {
    "paper": Config(),
    "recovery": Config(data="recovery", model="tversky", steps=400),
    "leuven": Config(data="leuven", model="given-own", repeats=1, restarts=1, steps=200),
    "latent": Config(data="latent", model="direct", k=4, repeats=1, restarts=2),
}
SMOKE = Config(model="tversky", k=3, repeats=1, restarts=1, steps=20, made_up=8)
ROWS = {
    "paper": [[f"model={model}"] for model in MODELS]
    + [[f"model={model}", "folds=directions"] for model in ("tversky-bias", "tversky", "mds", "mds-choice")],
    "recovery": [[f"model={model}"] for model in ("tversky", "direct", "ignorematch", "mds-choice", "nmf")],
    "leuven": [[f"model={model}", *rest] for rest in ([], ["folds=objects", "k=5"]) for model in GIVEN],
    "latent": [[f"model={model}"] for model in ("direct", "tversky", "ignorematch", "mds", "nmf")],
}


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """What the model predicts of held-out judgements, for each table; a checkpoint follows each."""
    tables = _tables(config, record)
    _, _, state = record.load() or (0, {}, {})
    found: list[dict[str, Any]] = state.get("found", [])
    for i in range(len(found), len(tables)):
        name, said, has = tables[i]
        found.append({"name": name, **_measured(config, said, has, config.seed + i)})
        record.log(i + 1, R2=found[-1]["R2"])
        record.save(i + 1, {}, {"found": found})
        progress(i + 1, len(tables), name, R2=found[-1]["R2"])
    return {"tables": found}


def _tables(config: Config, record: Record) -> list[tuple[str, Judgements, np.ndarray | None]]:
    """Name, judgements and known features of each table."""
    if config.made_up:
        return [(f"made up {i + 1}", *people.simulated(config.seed + i)) for i in range(2)]
    if config.data == "morse":
        record.hashes["morse.csv"] = people.morse_hash()
        return [("morse", morse(), None)]
    if config.data == "recovery":
        return [(f"table {i + 1}", *people.simulated(config.seed + i)) for i in range(config.repeats)]
    categories, hashes = people.leuven()
    record.hashes.update(hashes)
    return [(one.name, one.said, one.features) for one in categories]


def _measured(config: Config, said: Judgements, has: np.ndarray | None, seed: int) -> dict[str, Any]:
    choices = _families(config, said, has)
    repeats = 1 if config.data == "recovery" else config.repeats
    started = time.monotonic()
    settings: dict[str, Any] = {"restarts": config.restarts, "steps": config.steps, "seed": seed}
    table = rivals.compare([(config.model, choices)], said, config.folds, config.k, repeats, **settings)
    row = table.rows[0]
    out: dict[str, Any] = {**row.measures, "error": row.error, "parameters": list(row.parameters)}
    out["ceiling"] = table.ceiling
    if has is not None and config.data in ("recovery", "latent"):
        out.update(_features(config, choices[0], said, has, seed))
    return {**out, "seconds": time.monotonic() - started}


def _families(config: Config, said: Judgements, has: np.ndarray | None) -> list[Family]:
    """The families of a model; the cells that stop a fold's fits choose among them."""
    name, same = config.model, said.symmetric
    if name in GIVEN and has is not None:
        own = GIVEN[name]
        X = torch.tensor(has, dtype=torch.float32)
        decays = (1e-5, 1e-4, 1e-3, 1e-2)
        return [families.given(X, own, l2=decays, intersection="min", **SUBTRACT, symmetric=same)]
    if name == "direct":
        K = 10 if config.data == "latent" else 12
        return [families.direct(K, l2=(1e-3,), intersection="min", **SUBTRACT, symmetric=same, leak=0.1)]
    if name not in TVERSKY:
        dims = {"recovery": (4, 8), "latent": (10,)}.get(config.data, (3, 4, 6))
        return rivals.RIVALS[RIVALS[name]](dims)
    form: dict[str, Any] = {} if name == "ignorematch" else SUBTRACT
    same = same or name == "symmetric"
    if config.data == "recovery":
        return [families.tversky(24, 8, l2=(3e-4,), symmetric=same, **form)]
    if config.data == "latent":
        return [families.tversky(24, 6, intersection=i, symmetric=same, **form) for i in ("product", "min")]
    wide = [
        families.tversky(24, d, intersection=i, symmetric=same, **form) for i in ("product", "min") for d in (3, 4, 6)
    ]
    return [with_bias(family, "object") for family in wide] if name == "tversky-bias" else wide


def _features(config: Config, family: Family, said: Judgements, has: np.ndarray, seed: int) -> dict[str, Any]:
    """How well learned features tell known ones apart, fitted to all judgements, and the sign of α − β."""
    everything = np.ones((1, len(said)), dtype=bool)
    fitted = fit(family, said, everything, everything, restarts=8, steps=config.steps + 100, seed=seed)
    p = {name: t[0] for name, t in fitted.params.items()}
    best = int(fitted.each[0].argmin())
    learned = p["A"][best] if "A" in p else p["X"][best]
    if "F" in p and "A" not in p and "alpha" in p:
        learned = p["X"][best] @ p["F"][best].T
    measures = learned.clamp_min(0).numpy() if "alpha" in p else learned.numpy()
    known = has if config.data == "recovery" else _usual(has)
    best_of = auc(measures, known).max(0)
    out = {"auc": float(best_of.mean()), "found": float((best_of > 0.95).mean())}
    if "alpha" in p and "beta" in p:
        out["alpha > beta"] = float((p["alpha"] > p["beta"]).float().mean())
    return out


def _usual(features: np.ndarray) -> np.ndarray:
    """Features that at least half of the judges ascribe, of 20 to 80 % of the objects; equal ones once."""
    has = features >= 0.5
    return np.unique(has[:, (has.mean(0) >= 0.2) & (has.mean(0) <= 0.8)], axis=1)


def auc(measures: Array, has: Array) -> Array:
    """The chance that an object with a known feature measures more than one without, ``[learned, known]``."""
    from scipy.stats import rankdata

    ranks = rankdata(measures, axis=0)
    having, lacking = has.sum(0), (~has.astype(bool)).sum(0)
    return (ranks.T @ has - having * (having + 1) / 2) / (having * lacking)


def summary(content: dict[str, Any]) -> list[Any]:
    return tables([content])


TITLES = {
    "morse": "confusions of Morse signals",
    "recovery": "simulated judgements of a contrast model",
    "leuven": "Leuven norms, features that people listed",
    "latent": "Leuven norms, features learned",
}


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """A table for each kind of data and of held-out judgements: a line for each model."""
    from rich.table import Table

    out = []
    for data, title in TITLES.items():
        for held in ("pairs", "directions", "objects"):
            rows = [row for row in by_row(runs) if (row.config["data"], row.config["folds"]) == (data, held)]
            if not rows:
                continue
            rows.sort(key=lambda row: ([*MODELS, *GIVEN].index(row.config["model"]), row.name))
            columns = _columns(rows)
            out.append(Table("model", title=f"{title}: held out by {held}"))
            for heading in ("parameters", *columns, "seconds"):
                out[-1].add_column(heading, justify="right")
            for row in rows:
                out[-1].add_row(row.config["model"], *_cells(row, columns))
    return out


def _columns(rows: list[Row]) -> list[str]:
    keys = {key for row in rows for one in row.runs[-1]["result"]["tables"] for key in one}
    known = ["R2", "deviance", "r", "asymmetry r", "auc", "found", "alpha > beta"]
    if rows[0].config["folds"] == "directions":
        # Each direction is predicted by a fit that has seen the other: their difference says nothing.
        known.remove("asymmetry r")
    return [name for name in known if name in keys]


def _cells(row: Row, columns: list[str]) -> list[str]:
    found = [one for run in row.runs for one in run["result"]["tables"]]
    counts = [count for one in found for count in one["parameters"]]
    cells = [f"{min(counts)}–{max(counts)}" if min(counts) < max(counts) else str(counts[0])]
    for name in columns:
        values = np.array([one[name] for one in found if name in one])
        error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else found[0]["error"]
        shown = name == "R2" or len(values) > 1
        cells.append("–" if not len(values) else f"{values.mean():.3f}" + (f" ± {error:.3f}" if shown else ""))
    return [*cells, f"{sum(one['seconds'] for one in found):.0f}"]


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper measures no judgements of people."""
    return []


EXPERIMENT = Experiment("human", "People's judgements", Config, RECIPES, SMOKE, run, summary, tables, claims, rows=ROWS)
