"""Does Tversky's model explain people's judgements? Each model and its rivals on the same held-out judgements.

Morse signals (confusions, asymmetric), the Leuven norms (similarities, with features that people listed), free
associations and HyperLex (words, directed), and simulated judgements of a contrast model, which say whether the model
would be seen if it were there. ``human_direction`` has Tversky's own test of salience and direction.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from ..human import folds, morse, rivals
from ..human.families import Family
from ..human.fitting import Fitted, Told, fit, predict
from ..human.judgements import Array, Judgements
from . import Experiment, human_direction
from .data import associations, people
from .human_models import LEARNED, NAMES, ORDER, choices
from .record import Record
from .results import Claim, Row, by_row
from .settings import Count, Seed, Size, check

# What one step of a fit to words takes, of a hundred thousand cells.
BATCH = 2048
# Fits of a table whose sign of α − β is counted, and restarts of each.
SIGNED, STARTS = 10, 8


class Data(NamedTuple):
    """Judgements, and the features or vectors that are known of their objects."""

    name: str
    said: Judgements
    known: np.ndarray | None = None
    relation: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """Ours: the paper has no judgements of people.

    Args:
        data: "morse"; "recovery", simulated judgements of a contrast model; "leuven", similarities within 15
            categories, with features that people listed; "latent", the same without them; "usf", free associations;
            "hyperlex", "is a a type of b?"; or "direction", Tversky's test of salience and direction, without a fit.
        model: "tversky" (subtractmatch), "tversky-bias" (with one bias an object), "ignorematch" (the library's default
            form), "symmetric" (α = β), "direct" (features without a bank), or a rival; of leuven "given-one" (a weight
            for each feature), "given-own" (one where it is common, one where it is distinctive), "given-common" or a
            rival; of words "vectors-sides", "vectors", "vectors-ignorematch" or a rival; of direction "counted".
        folds: What is held out: "pairs", "directions", "objects", or "words" (pairs of unseen words).
        k: Folds of each repeat.
        repeats: How often folds are drawn anew, or the number of simulated tables, or of splits of the words.
        restarts: Fits to each fold, whose predictions are averaged.
        steps: Steps of Adam.
        made_up: Number of made-up objects, for a smoke run; 0 for ``data``.
    """

    data: Literal["morse", "recovery", "leuven", "latent", "usf", "hyperlex", "direction"] = "morse"
    model: str = "tversky-bias"
    folds: Literal["pairs", "directions", "objects", "words"] = "pairs"
    k: Count = 10
    repeats: Count = 3
    restarts: Count = 3
    steps: Count = 300
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        known = NAMES.get(self.data, LEARNED)
        if (self.folds == "words") != (self.data in ("usf", "hyperlex")):
            raise ValueError(f"folds={self.folds!r} does not go with data={self.data!r}; words are held out of words.")
        if self.model not in known:
            raise ValueError(f"model must be one of {', '.join(known)} for data={self.data}; got {self.model!r}.")


RECIPES = {
    "paper": Config(),
    "recovery": Config(data="recovery", model="tversky", steps=400),
    "leuven": Config(data="leuven", model="given-own", repeats=1, restarts=1, steps=200),
    "latent": Config(data="latent", model="direct", repeats=1),
    "usf": Config(data="usf", model="vectors-sides", folds="words", restarts=6, steps=600),
    "hyperlex": Config(data="hyperlex", model="vectors-sides", folds="words", repeats=10),
    "direction": Config(data="direction", model="counted"),
}
SMOKE = Config(model="tversky", k=3, repeats=1, restarts=1, steps=20, made_up=8)
ROWS = {
    "paper": [[f"model={model}"] for model in LEARNED]
    + [[f"model={model}", "folds=directions"] for model in ("tversky-bias", "tversky", "mds", "mds-choice")],
    "recovery": [
        [f"model={model}"] for model in ("tversky", "direct", "ignorematch", "mds-choice", "unfolding", "nmf")
    ],
    "leuven": [[f"model={model}", *rest] for rest in ([], ["folds=objects", "k=5"]) for model in NAMES["leuven"]],
    "latent": [[f"model={model}"] for model in ("direct", "tversky", "ignorematch", "mds", "nmf")],
    "usf": [[f"model={model}"] for model in NAMES["usf"]],
    "hyperlex": [[f"model={model}"] for model in NAMES["hyperlex"]],
    "direction": [["model=counted"]],
}


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """What the model predicts of held-out judgements, for each table; a checkpoint follows each."""
    if config.data == "direction" and not config.made_up:
        return {"tables": human_direction.measured(record, progress)}
    tables = _tables(config, record)
    _, _, state = record.load() or (0, {}, {})
    found: list[dict[str, Any]] = state.get("found", [])
    for i in range(len(found), len(tables)):
        one = tables[i]
        found.append({"name": one.name, **_measured(config, one, config.seed + i)})
        record.log(i + 1, R2=found[-1]["R2"])
        record.save(i + 1, {}, {"found": found})
        progress(i + 1, len(tables), one.name, R2=found[-1]["R2"])
    return {"tables": found}


def _tables(config: Config, record: Record) -> list[Data]:
    if config.made_up:
        return [Data(f"made up {i + 1}", *people.simulated(config.seed + i)) for i in range(2)]
    if config.data == "morse":
        record.hashes["morse.csv"] = people.morse_hash()
        return [Data("morse", morse())]
    if config.data == "recovery":
        return [Data(f"table {i + 1}", *people.simulated(config.seed + i)) for i in range(config.repeats)]
    if config.data in ("usf", "hyperlex"):
        words, hashes = getattr(associations, config.data)()
        record.hashes.update(hashes)
        return [Data(f"split {i + 1}", words.said, words.vectors, words.relation) for i in range(config.repeats)]
    categories, hashes = people.leuven()
    record.hashes.update(hashes)
    if config.data == "latent":
        # Similarities from 0 to 1, by a logistic link.
        return [Data(one.name, replace(one.said, scale=(0.0, 1.0)), one.features) for one in categories]
    return [Data(one.name, one.said, one.features) for one in categories]


def _measured(config: Config, data: Data, seed: int) -> dict[str, Any]:
    said, started = data.said, time.process_time()
    models = choices(config.data, config.model, said, data.known)
    repeats = 1 if config.data == "recovery" or config.folds == "words" else config.repeats
    settings: dict[str, Any] = {"restarts": config.restarts, "steps": config.steps, "seed": seed}
    if config.folds == "words":
        masks = associations.split(said, seed, config.restarts)
        settings["batch"] = BATCH
    else:
        masks = folds.split(said, config.folds, config.k, repeats, seed, config.restarts)
    fits = [(family, fit(family, said, *masks[1:], **settings)) for family in models]
    row = rivals.row(config.model, fits, said, masks, repeats, 0)
    out: dict[str, Any] = {
        **row.measures,
        "error": None if math.isnan(row.error) else row.error,
        "parameters": list(row.parameters),
    }
    out["ceiling"] = folds.ceiling(said)
    best = int(np.mean([fitted.held for _, fitted in fits], 1).argmin())
    if config.folds == "words":
        out |= _direction(config, data, *fits[best], masks[0][0])
    if data.known is not None and config.data in ("recovery", "latent"):
        out |= _features(config, models[best], said, data.known, seed)
    return {**out, "processor": time.process_time() - started}


def _direction(config: Config, data: Data, family: Family, fitted: Fitted, test: Array) -> dict[str, float]:
    """Of pairs of unseen words: the share whose stronger direction is told, and Spearman's ρ."""
    said, told = data.said, Told.of(data.said)
    there = predict(family, fitted, said, told)
    back = predict(family, fitted, replace(said, first=said.second, second=said.first), told)
    rho = human_direction.spearman(there[test], said.value[test])
    if config.data == "usf":
        table = said.table()
        more = said.value - table[said.second, said.first]
        sure = test & (more > 1)  # each pair once, in its stronger direction
        return {"rho": rho, "direction": _share(there - back, sure)}
    down, up = (test & np.array([name.startswith(kind) for name in data.relation]) for kind in ("hyp", "r-hyp"))
    return {"rho": rho, "direction": _share(np.where(up, back - there, there - back), down | up)}


def _share(more: Array, where: Array) -> float:
    """The share above 0; half of it where a model has no direction."""
    more = more[where]
    return float(((more > 1e-6) + 0.5 * (np.abs(more) <= 1e-6)).mean())


def _features(config: Config, family: Family, said: Judgements, has: np.ndarray, seed: int) -> dict[str, Any]:
    """How well learned features tell known ones apart, fitted to all judgements, and the sign of α − β."""
    everything = np.ones((1, len(said)), dtype=bool)
    settings: dict[str, Any] = {"restarts": STARTS, "steps": config.steps + 100, "seed": seed}
    fitted = fit(family, said, everything, everything, **settings)
    p = {name: t[0] for name, t in fitted.params.items()}
    best = int(fitted.each[0].argmin())
    learned = p["A"][best] if "A" in p else p["X"][best]
    if "F" in p and "A" not in p and "alpha" in p:
        learned = p["X"][best] @ p["F"][best].T
    measures = learned.clamp_min(0).numpy() if "alpha" in p else learned.numpy()
    known = has if config.data == "recovery" else _usual(has)
    best_of = auc(measures, known).max(0)
    out = {"auc": float(best_of.mean()), "found": float((best_of > 0.95).mean())}
    if "beta" in p:
        # Each fit lacks another tenth of the pairs; half of its restarts start with α > β, and half with β > α.
        _, train, stop = folds.split(said, "pairs", SIGNED, 1, seed)
        signed = fit(family, said, train[:, 0], stop[:, 0], **settings)
        larger = (signed.params["alpha"] > signed.params["beta"]).numpy()
        out["alpha > beta"] = float(larger[range(SIGNED), signed.each.argmin(1)].mean())
        out["of restarts"] = float(larger.mean())
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
    "usf": "free associations",
    "hyperlex": "HyperLex, “is a a type of b?”",
}


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """A table for each kind of data and of held-out judgements: a line for each model."""
    from rich.table import Table

    out = []
    for data, title in TITLES.items():
        for held in ("pairs", "directions", "objects", "words"):
            rows = [row for row in by_row(runs) if (row.config["data"], row.config["folds"]) == (data, held)]
            if not rows:
                continue
            rows.sort(key=lambda row: (ORDER.index(row.config["model"]), row.name))
            columns = _columns(rows)
            out.append(Table("model", title=f"{title}: held out by {held}"))
            for heading in ("parameters", *columns, "processor time, s"):
                out[-1].add_column(heading, justify="right")
            for row in rows:
                out[-1].add_row(row.config["model"], *_cells(row, columns))
    counted = [row for row in by_row(runs) if row.config["data"] == "direction"]
    return out + [human_direction.table(row.runs[-1]["result"]["tables"]) for row in counted]


def _columns(rows: list[Row]) -> list[str]:
    keys = {key for row in rows for one in row.runs[-1]["result"]["tables"] for key in one}
    known = ["R2", "deviance", "r", "rho", "asymmetry r", "direction", "auc", "found", "alpha > beta", "of restarts"]
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
    return [*cells, f"{sum(one.get('processor', one.get('seconds', 0)) for one in found):.0f}"]


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper measures no judgements of people."""
    return []


EXPERIMENT = Experiment("human", "People's judgements", Config, RECIPES, SMOKE, run, summary, tables, claims, rows=ROWS)
