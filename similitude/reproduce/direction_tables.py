"""Tables of the experiment on direction: what models find, Tversky's lead, what was selected, answers explained."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from .direction_models import MODELS, RIVALS, TVERSKY
from .results import Row, by_row, with_error

MEASURES = ("up", "up@10", "down", "down@10", "direction")
# Dropout and weight decay of a choice that is not regular and of one that is.
REGULAR = ((0.0, 0.01), (0.2, 1.0))
# Features of each kind that the table of answers shows.
SHOWN = 2


def summary(content: dict[str, Any]) -> list[Any]:
    return tables([content])


RELATIONS = {"kind": "a kind of", "part": "a part of"}


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """For each relation what models find, Tversky's lead over rivals, what was selected, and answers explained."""
    out = []
    for relation, title in RELATIONS.items():
        rows = [row for row in by_row(runs) if row.config["relation"] == relation]
        rows.sort(key=lambda row: (row.config["sides"], MODELS.index(row.config["model"]), row.name))
        if rows:
            fake = "made-up words, " if rows[0].config["made_up"] else ""
            out += [
                _of_measures(rows, f"{fake}{title}"),
                *_of_leads(rows, f"{fake}{title}"),
                _of_settings(rows, f"{fake}{title}"),
                *_of_answers(rows, f"{fake}{title}"),
            ]
    return out


def _called(row: Row) -> str:
    return row.config["model"] + (" + sides" if row.config["sides"] else "")


def _of_measures(rows: list[Row], title: str) -> Any:
    from rich.table import Table

    result = rows[0].runs[-1]["result"]
    of = f"{result['pairs']['test']:,} pairs of {result['words']['test']:,} unseen words"
    table = Table("model", title=f"{title}, {of}: MRR, recall@10 and direction in %, ± over seeds")
    for heading in ("parameters", *MEASURES, "CPU s"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = [with_error(100 * _all(row, name), ".1f" if "@" in name else ".2f") for name in MEASURES]
        count = f"{row.runs[-1]['result']['parameters']:,}"
        table.add_row(_called(row), count, *cells, f"{_all(row, 'seconds').mean():.1f}")
    return table


def _all(row: Row, name: str) -> np.ndarray:
    """The values of all seeds of all runs of a row."""
    return np.concatenate([np.atleast_1d(run["result"][name]) for run in row.runs])


def _of_leads(rows: list[Row], title: str) -> list[Any]:
    """Differences of MRR to the rival that did best on validation words and to order embeddings, by groups of words."""
    from rich.table import Table

    out = []
    for sides in (False, True):
        here = [row for row in rows if row.config["sides"] == sides]
        rivals = [row for row in here if row.config["model"] in RIVALS and row.runs[-1]["result"]["best"]]
        ours = [row for row in here if row.config["model"] in TVERSKY]
        if not rivals or not ours:
            continue
        best = max(rivals, key=lambda row: row.runs[-1]["result"]["validation"])
        others = [best, *(row for row in rivals if row.config["model"] == "order" and row is not best)]
        of = "with sides" if sides else "without sides"
        out.append(Table("model", title=f"{title}, {of}: MRR above that of rivals, in points, ± over words"))
        for other, name in product(others, ("up", "down")):
            out[-1].add_column(f"{name}, {other.config['model']}", justify="right")
        for row in ours:
            cells = [_lead(row, other, name) for other, name in product(others, ("up", "down"))]
            out[-1].add_row(row.config["model"], *cells)
    return out


def _lead(row: Row, other: Row, name: str) -> str:
    one, two = (np.array(of.runs[-1]["result"]["groups"][name]) for of in (row, other))
    return with_error(100 * (one - two), "+.2f") if len(one) == len(two) else "–"


def _of_settings(rows: list[Row], title: str) -> Any:
    from rich.table import Table

    table = Table("model", title=f"{title}: what was selected on validation words, and α, β, θ after training")
    for heading in ("MRR there, %", "rate", "matrices", "length", "dropout, decay", "α", "β", "θ"):
        table.add_column(heading, justify="right")
    for row in rows:
        result = row.runs[-1]["result"]
        best = result["best"]
        if not best:
            continue
        regular = ", ".join(f"{value:g}" for value in REGULAR[best["regular"]])
        cells = f"{best['rate']:g}", "× 0.1" if best["slow"] else "× 1", "one" if best["unit"] else "own", regular
        own = [f"{_all(row, name).mean():.3f}" if name in result else "–" for name in ("alpha", "beta", "theta")]
        table.add_row(_called(row), f"{100 * result['validation']:.2f}", *cells, *own)
    return table


def _of_answers(rows: list[Row], title: str) -> list[Any]:
    """Answers of the k-means model, which has features that few words have."""
    from rich.table import Table

    found = [row.runs[-1]["result"] for row in rows if row.config["model"] == "k-means" and row.config["sides"]]
    if not found or not found[0].get("answers"):
        return []
    share = f"{found[0]['named']:.0%} of the features have a name"
    table = Table("word → answer", title=f"{title}: the most frequent test words whose best answer is right; {share}")
    for heading in ("both have", "the word alone", "the answer alone"):
        table.add_column(heading)
    table.add_column("sides", justify="right")
    for one in found[0]["answers"]:
        cells = []
        for name, features in one["features"].items():
            shown = "; ".join(f"{feature} {share:+.2f}" for feature, share in features[:SHOWN])
            cells.append(f"{one['sums'][name]:+.2f}: {shown}" if features else "–")
        sides = one["score"] - sum(one["sums"].values())
        table.add_row(f"{one['word']} → {one['answer']}", *cells, f"{sides:+.2f}")
    return [table]
