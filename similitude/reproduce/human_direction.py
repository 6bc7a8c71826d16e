"""Tversky's own test: is the less salient object more similar to the more salient one than the other way round?

Counted in what people said, with salience that is known beforehand: how long a Morse signal sounds, how typical of its
category a word is, how many features people list for it. A model is fitted only where learned salience is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..human import families, morse
from ..human.fitting import fit
from ..human.folds import correlation
from ..human.judgements import Array, Judgements
from .data import associations, people
from .record import Record

# Seconds of a dot and of the gap after it; a dash is three dots.
DOT = 0.05
MARKS = """.- -... -.-. -.. . ..-. --. .... .. .--- -.- .-.. -- -. --- .--. --.- .-. ... - ..- ...- .-- -..- -.-- --..
.---- ..--- ...-- ....- ..... -.... --... ---.. ----. -----"""
CODES = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ1234567890", MARKS.split(), strict=True))
# Resamples of an interval.
DRAWN = 1000


def measured(record: Record, progress: Callable[..., object]) -> list[dict[str, Any]]:
    """A row for each question: the number of pairs, the share that goes Tversky's way, and a rank correlation."""
    found = []
    for done, part in enumerate((_morse, _associated, _typical), 1):
        found += part(record)
        progress(done, 3, part.__name__.strip("_"))
    return found


def _morse(record: Record) -> list[dict[str, Any]]:
    record.hashes["morse.csv"] = people.morse_hash()
    said = morse()
    long = np.array([duration(CODES[name]) for name in said.objects])
    table = said.table()
    a, b = np.triu_indices(len(table), 1)
    more, longer = table[a, b] - table[b, a], long[b] - long[a]
    rows = [_row("Morse: more “same” when the shorter signal comes first", more, longer)]
    family = families.tversky(24, 4, l2=(1e-3,), difference="subtractmatch")
    everything = np.ones((1, len(said)), dtype=bool)
    fitted = fit(family, said, everything, everything, restarts=8, steps=400)
    p = {name: t[0] for name, t in fitted.params.items()}
    salience = (p["X"] @ p["F"].mT).clamp_min(0).sum(-1)
    weight = (p["alpha"] - p["beta"])[:, None]  # with α > β, the less salient first is more similar
    told = (weight * (salience[:, b] - salience[:, a])).numpy()
    each = [float(_goes(more, one).mean()) for one in told]
    name = "Morse: the same of learned salience and α − β, lowest and highest of 8 restarts"
    return [*rows, {"name": name, "pairs": len(more), "share": None, "low": min(each), "high": max(each)}]


def duration(code: str) -> float:
    """Seconds of a signal: its dots and dashes, and a dot's length between two of them."""
    return DOT * (sum(1 if mark == "." else 3 for mark in code) + len(code) - 1)


def _associated(record: Record) -> list[dict[str, Any]]:
    strength, cues, hashes = associations.strengths()
    categories, more_hashes = people.leuven()
    record.hashes.update(hashes | more_hashes)
    names, _, rank = associations.glove(cues)
    frequent = dict(zip(names, -np.log(rank + 10.0), strict=True))
    columns: list[tuple[float, ...]] = []
    for one in categories:
        listed, table = one.features.sum(1), one.said.table()
        central = np.nanmean(table, 1)
        objects = one.said.objects
        for a in range(len(objects)):
            for b in range(a + 1, len(objects)):
                pair = (objects[a], objects[b])
                there, back = strength.get(pair, 0.0), strength.get((pair[1], pair[0]), 0.0)
                if there == back or not {*pair} <= frequent.keys():
                    continue
                told = (one.typicality, listed, central)
                columns.append((there - back, *(v[b] - v[a] for v in told), frequent[pair[1]] - frequent[pair[0]]))
    more, typical, listed, central, frequency = np.array(columns).T
    title = "associations within a category: stronger towards the"
    rows = [
        _row(f"{title} more typical", more, typical, frequency),
        _row(f"{title} one with more listed features", more, listed, frequency),
        _row(f"{title} more frequent word", more, frequency),
        _row(f"{title} more central word", more, central, frequency),
    ]
    pairs = {(min(pair), max(pair)) for pair in strength if {*pair} <= frequent.keys() and pair[0] != pair[1]}
    all_more = [
        (strength.get((a, b), 0.0) - strength.get((b, a), 0.0), frequent[b] - frequent[a]) for a, b in sorted(pairs)
    ]
    return [*rows, _row("all associations: stronger towards the more frequent word", *np.array(all_more).T)]


def _typical(record: Record) -> list[dict[str, Any]]:
    """Typicality against three kinds of salience, ρ within each category."""
    categories, hashes = people.leuven()
    record.hashes.update(hashes)
    by: dict[str, list[float]] = {}
    for i, one in enumerate(categories):
        kinds = {
            "number of listed features": one.features.sum(1),
            "mean similarity to the others": np.nanmean(one.said.table(), 1),
            "learned salience": _learned(one.said, i),
        }
        for name, values in kinds.items():
            by.setdefault(name, []).append(spearman(one.typicality, values))
    out = []
    for name, values in by.items():
        error = np.std(values, ddof=1) / np.sqrt(len(values))
        row = {"name": f"typicality and {name}, mean of {len(values)} categories", "rho": float(np.mean(values))}
        out.append({**row, "rho low": row["rho"] - 2 * error, "rho high": row["rho"] + 2 * error})
    return out


def _learned(said: Judgements, seed: int) -> Array:
    said = replace(said, scale=(0.0, 1.0))
    form = {"intersection": "min", "difference": "subtractmatch"}
    family = families.direct(10, l2=(1e-3,), symmetric=True, leak=0.1, **form)
    everything = np.ones((1, len(said)), dtype=bool)
    fitted = fit(family, said, everything, everything, restarts=8, steps=400, seed=seed)
    return fitted.params["A"][0, int(fitted.each[0].argmin())].clamp_min(0).sum(-1).numpy()


def _row(name: str, more: Array, salient: Array, held: Array | None = None) -> dict[str, Any]:
    """How often more was said towards the more salient object: share and 95 % interval, and ρ."""
    goes = _goes(more, salient)
    low, high = _interval(int(goes.sum()), len(goes))
    out = {"name": name, "pairs": len(goes), "share": float(goes.mean()), "low": low, "high": high}
    out["rho"] = spearman(more, salient)
    drawn = np.random.default_rng(0).integers(len(more), size=(DRAWN if len(more) < 5000 else 0, len(more)))
    if len(drawn):
        values = [spearman(more[one], salient[one]) for one in drawn]
        out["rho low"], out["rho high"] = map(float, np.quantile(values, (0.025, 0.975)))
    if held is not None:
        out["rho, frequency held"] = partial(more, salient, held)
    return out


def _goes(more: Array, salient: Array) -> Array:
    """Whether more was said towards the more salient, for each pair that differs in both."""
    both = (more != 0) & (salient != 0)
    return np.sign(more[both]) == np.sign(salient[both])


def _interval(count: int, of: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(count, of).proportion_ci()
    return float(interval.low), float(interval.high)


def spearman(a: Array, b: Array) -> float:
    from scipy.stats import rankdata

    return correlation(rankdata(a), rankdata(b))


def partial(a: Array, b: Array, held: Array) -> float:
    """Spearman's ρ of what is left of both when the ranks of a third are held."""
    from scipy.stats import rankdata

    a, b, held = (rankdata(values) for values in (a, b, held))
    X = np.stack([np.ones(len(held)), held], 1)
    a, b = (values - X @ np.linalg.lstsq(X, values, rcond=None)[0] for values in (a, b))
    return correlation(a, b)


def table(rows: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    out = Table("question", title="salience, typicality and direction")
    for heading in ("pairs", "share", "95 %", "ρ", "95 % of ρ", "ρ, frequency held"):
        out.add_column(heading, justify="right")
    for row in rows:
        share = "–" if row.get("share") is None else f"{row['share']:.2f}"
        out.add_row(
            row["name"],
            f"{row['pairs']:,}" if "pairs" in row else "–",
            share,
            _range(row, "low", "high"),
            _shown(row, "rho"),
            _range(row, "rho low", "rho high"),
            _shown(row, "rho, frequency held"),
        )
    return out


def _shown(row: dict[str, Any], key: str) -> str:
    return f"{row[key]:.2f}" if key in row else "–"


def _range(row: dict[str, Any], low: str, high: str) -> str:
    return f"{row[low]:.2f} to {row[high]:.2f}" if low in row else "–"
