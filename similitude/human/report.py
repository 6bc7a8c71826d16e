"""From a CSV file to a folder: the fit, its rivals, tables, figures and one page that tells what was found."""

from __future__ import annotations

import base64
import csv
import io
import math
import shlex
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..files import check_place, clear_halves, locked, make_folder, write_text
from . import folds, plots, saved, sheets
from .found import Summary, answered
from .judgements import Judgements
from .model import TverskySimilarityModel
from .progress import bar
from .rivals import NAMES, Comparison

PAGE = "report.html"
TABLES = ("predicted.csv", "features.csv", "comparison.csv")
FIGURES = ("fit", "directions", "features", "salience")
KEPT = "rivals"
# All that is in the folder.
OWN = (PAGE, *TABLES, *(f"{name}.png" for name in FIGURES), saved.NUMBERS, saved.SETTINGS, KEPT)


@dataclass(frozen=True)
class Asked:
    """What is fitted and where to; the command's options."""

    csv: Path
    kind: str
    out: Path
    n: float | None = None
    features: Path | None = None
    bias: str = "none"
    compare: bool = False
    held_out: str = "pairs"
    folds: int = 10
    repeats: int = 2
    restarts: int = 8
    steps: int = 300
    bootstrap: int = 20
    seed: int = 0
    scale: tuple[float, float] | None = None


def study(asked: Asked, say: Callable[[str], object] = print) -> Path:
    """The page, after everything is fitted and written; what was done before with the same judgements is kept."""
    check_place(asked.out, saved.SETTINGS, "judgements", OWN)
    said = sheets.read_csv(asked.csv, asked.kind, asked.n, asked.scale)
    model = _model(asked, said)
    if asked.compare:
        if asked.held_out == "objects" and asked.features is None:
            raise sheets.SheetError("objects can be held out where their features are given: --features.")
        try:
            folds.split(said, asked.held_out, asked.folds, asked.repeats, asked.seed)
        except ValueError as error:
            raise sheets.SheetError(str(error)) from None
    say(repr(said))
    make_folder(asked.out)
    try:
        lock = locked(asked.out)
    except BlockingIOError:
        raise sheets.SheetError(f"another process works in {asked.out}; give another --out.") from None
    try:
        return _studied(asked, said, model, say)
    except KeyboardInterrupt:
        if saved.fitted_in(asked.out, model, said) is None:
            raise KeyboardInterrupt("stopped before the fit ended; nothing of it was kept.") from None
        raise
    finally:
        lock.release()


def _model(asked: Asked, said: Judgements) -> TverskySimilarityModel:
    settings: dict[str, Any] = {"bias": asked.bias, "restarts": asked.restarts, "steps": asked.steps}
    if asked.features is not None:
        table, names = sheets.read_features(asked.features, said.objects)
        settings |= {"features": table, "feature_names": names, "own": "common+distinctive", "intersection": "min"}
    return TverskySimilarityModel(**settings, random_state=asked.seed, verbose=True)


def _studied(asked: Asked, said: Judgements, model: TverskySimilarityModel, say: Callable[[str], object]) -> Path:
    out = asked.out
    clear_halves(out)
    there = saved.fitted_in(out, model, said)
    # What another fit left behind must not stand beside this one.
    for name in (PAGE, *TABLES, *(f"{figure}.png" for figure in FIGURES)):
        (out / name).unlink(missing_ok=True)
    if there is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # they stand in the summary
            model.fit(said)
        model.save(out)
    else:
        model = there
        say(f"the fit is in {out} already")
    summary = model.summary(asked.bootstrap, bar("resampling"))
    say(str(summary))
    comparison = None
    if asked.compare:
        where = {"folds": asked.held_out, "k": asked.folds, "repeats": asked.repeats, "seed": asked.seed}
        comparison = model.compare(**where, progress=bar("rivals"), folder=out / KEPT)
        say(str(comparison))
    write(asked, model, summary, comparison)
    return out / PAGE


def write(asked: Asked, model: TverskySimilarityModel, summary: Summary, comparison: Comparison | None) -> None:
    """Tables, figures and the page; the page last, so that it stands for a whole folder."""
    from ..interpret.figures.base import save

    out, said = asked.out, model.judgements_
    write_text(out / "predicted.csv", _csv(*predicted(model)))
    write_text(out / "features.csv", _csv(*measures(model)))
    if comparison is not None:
        lines = comparison.table()
        write_text(out / "comparison.csv", _csv(list(lines[0]), [list(line.values()) for line in lines]))
    drawn = {name: getattr(plots, name)(model) for name in FIGURES if name != "directions" or _both_ways(said)}
    for name, figure in drawn.items():
        save(figure, out / f"{name}.png", dpi=200)
    pictures = {name: (out / f"{name}.png").read_bytes() for name in drawn}
    write_text(out / PAGE, page(asked, model, summary, comparison, pictures))


def predicted(model: TverskySimilarityModel) -> tuple[list[str], list[list[Any]]]:
    """A line for each cell that was judged: what was said, and what the model expects."""
    said = model.judgements_
    value, guess = answered(model, said)
    head = ["first", "second", "said", "predicted"]
    more: dict[str, Any] = {"answers": said.answers} if said.kind != "rating" else {"rater": said.rater}
    more |= {"question": said.question} if said.kind == "choice" else {}
    more = {name: column for name, column in more.items() if column is not None}
    names = np.array(said.objects)
    columns = [names[said.first], names[said.second], value, guess, *more.values()]
    return [*head, *more], [list(line) for line in zip(*columns, strict=True)]


def measures(model: TverskySimilarityModel) -> tuple[list[str], list[list[Any]]]:
    """A line for each object: its salience, and its measure of each feature; above 0, it has the feature."""
    table = model.measures()
    order = np.argsort(-table.clip(0).sum(0))
    names = model._feature_names(table.shape[1])
    lines = [[name, row.clip(0).sum(), *row[order]] for name, row in zip(model.names_, table, strict=True)]
    return ["object", "salience", *(names[k] for k in order)], lines


def verdict(model: TverskySimilarityModel, comparison: Comparison) -> list[str]:
    """What the table of rivals says, in sentences."""
    ours = [row for row in comparison.rows if row.name not in NAMES]
    others = [row for row in comparison.rows if row.name in NAMES]
    our, other = (max(rows, key=lambda row: row.measures["R2"]) for rows in (ours, others))
    difference, error = comparison.paired(our.name, other.name)
    tie = not abs(difference) > 2 * error
    level = "a tie" if tie else "Tversky's model predicts better" if difference > 0 else "the rival predicts better"
    sentences = [
        f"{our.name} against the best rival, {other.name}: R² {our.measures['R2']:.3f} and {other.measures['R2']:.3f}, "
        f"a difference of {difference:+.3f} ± {error:.3f}: {level}."
    ]
    plain, biased = (
        next((row for row in rows if row.name == name), None)
        for rows, name in ((ours, ours[0].name), (others, "mds-choice"))
    )
    if model.bias == "none" and plain is not None and biased is not None and "asymmetry r" in plain.measures:
        one, two = plain.measures["asymmetry r"], biased.measures["asymmetry r"]
        if two >= one:
            sentences.append(
                f"Distances with one bias an object tell the direction as well (r {two:.2f} against {one:.2f}), so the "
                "asymmetry is no evidence that α and β differ."
            )
    return sentences


TITLES = {
    "fit": ("Fitted against said", "A dot is a judged pair; on the line the model expects what people said."),
    "directions": (
        "Both directions of each pair",
        "A dot is a pair. To the right more was said of (a, b) than of (b, a); above, the model expects more.",
    ),
    "features": ("Features and objects", "The darker, the more an object has of a feature."),
    "salience": ("Salience", "The sum of the measures of all features that an object has."),
}
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a;
  background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ccc; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; } img { max-width: min(100%, 40rem); height: auto; }
.warning { border-left: 4px solid #d55e00; padding: .1rem 1rem; background: #fff6ee; }
code { background: #f2f2f2; padding: .1rem .3rem; overflow-wrap: anywhere; }
"""


def page(
    asked: Asked,
    model: TverskySimilarityModel,
    summary: Summary,
    comparison: Comparison | None,
    pictures: dict[str, bytes],
) -> str:
    """One HTML file that needs no other."""
    parts = [f"<h1>Tversky's model of {escape(asked.csv.name)}</h1>", f"<p>{escape(summary.judgements)}.</p>"]
    if summary.warnings:
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in summary.warnings)
        parts.append(f'<div class="warning"><h2>What these judgements do not tell</h2><ul>{items}</ul></div>')
    parts += ["<h2>Weights</h2>", _constants(model, summary)]
    score = model.score(model.judgements_)
    parts.append(
        f"<p>The model learned {summary.parameters:,} numbers. On the judgements that it was fitted to, R² is "
        f"{score:.3f}; how well it predicts others is in the table of rivals"
        + (".</p>" if comparison else ", which --compare makes.</p>")
    )
    if comparison is not None:
        parts += ["<h2>Rivals</h2>", *(f"<p>{escape(line)}</p>" for line in verdict(model, comparison))]
        parts.append(_table(list(comparison.table()[0]), [list(line.values()) for line in comparison.table()]))
        ceiling = ", ".join(f"{name} {value:.3f}" for name, value in comparison.ceiling.items())
        highest = f" The noise of the answers allows at most: {ceiling}." if ceiling else ""
        parts.append(
            f"<p>All were fitted to the same folds; {escape(comparison.folds)} were held out. ± R2 is the standard "
            f"error over folds, which overlap.{escape(highest)}</p>"
        )
    for name, content in pictures.items():
        title, told = TITLES[name]
        source = base64.b64encode(content).decode()
        parts.append(f"<h2>{title}</h2><p>{told}</p>")
        parts.append(f'<img alt="{title}: {told}" src="data:image/png;base64,{source}">')
    found = [[one.name, one.count, ", ".join(name for name, _ in one.objects)] for one in model.found()]
    parts += ["<h2>Features</h2>", _table(["feature", "objects", "those that have it most"], found[:40])]
    parts += ["<h2>How this was made</h2>", f"<p><code>{escape(command(asked))}</code></p>"]
    parts.append(f"<p>similitude {__version__}; <code>TverskySimilarityModel.load</code> opens this folder.</p>")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(asked.csv.name)}: Tversky's model</title><style>{STYLE}</style>"
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body><main>\n{body}\n</main></body></html>\n'


def command(asked: Asked) -> str:
    """The command that makes the folder again."""
    words = ["similitude", "fit", str(asked.csv), "--kind", asked.kind, "--out", str(asked.out)]
    usual = Asked(asked.csv, asked.kind, asked.out)
    for name, value in vars(asked).items():
        if value != getattr(usual, name):
            words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [_option(value)])
    return shlex.join(words)


def _constants(model: TverskySimilarityModel, summary: Summary) -> str:
    meaning = {
        "alpha": "α, what only the first has",
        "beta": "β, what only the second has",
        "theta": "θ, what both have",
    }
    rows = [
        [meaning[name], value, f"{low:.3f} to {high:.3f}"] for name, (value, low, high) in summary.constants.items()
    ]
    table = _table(["weight", "best fit", summary.interval], rows)
    if not summary.ordered:
        return table + "<p>α and β are one number here.</p>"
    return table + f"<p>α &gt; β in {summary.agree:.0%} of these fits.</p>"


def _both_ways(said: Judgements) -> bool:
    table = said.table()
    np.fill_diagonal(table, np.nan)
    return not said.symmetric and bool((~np.isnan(table + table.T)).any())


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = ("".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _shown(cell: Any) -> str:
    if isinstance(cell, float):
        return "–" if math.isnan(cell) else f"{cell:.3f}"
    return str(cell)


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([[_written(cell) for cell in row] for row in rows])
    return out.getvalue()


def _option(value: Any) -> str:
    return ",".join(map(_written, value)) if isinstance(value, tuple) else _written(value)


def _written(cell: Any) -> str:
    if isinstance(cell, float | np.floating):
        return "" if math.isnan(cell) else f"{cell:.6g}"
    return str(cell)
