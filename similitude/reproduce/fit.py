"""``similitude fit CSV``: the command, which imports nothing heavy before it knows what is asked."""

from __future__ import annotations

import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .commands import MOST, fail, sentences

if TYPE_CHECKING:
    import typer
else:
    # cli.main says what to install if it is missing.
    with suppress(ModuleNotFoundError):
        import typer

KINDS = ("confusions", "identification", "similarities", "ratings", "directed", "triplets", "rankings")
BIASES = ("none", "object", "row+column")
HELD_OUT = ("cells", "pairs", "directions", "objects", "raters")


def fit(
    csv: Annotated[Path, typer.Argument(help="What people said.", show_default=False)],
    kind: Annotated[str, typer.Option(help=f"{', '.join(KINDS[:-1])} or {KINDS[-1]}.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder that everything is written to.", show_default=False)],
    n: Annotated[float | None, typer.Option("--n", min=1, help="Answers to each cell, or row.")] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="LOW,HIGH", help="Ends of a scale of ratings, such as 1,7."),
    ] = None,
    features: Annotated[Path | None, typer.Option(help="CSV of features that people listed, objects in rows.")] = None,
    bias: Annotated[str, typer.Option(help="none, object or row+column.")] = "none",
    compare: Annotated[bool, typer.Option("--compare", help="Fit the rivals to the same folds: minutes.")] = False,
    held_out: Annotated[str, typer.Option(help="Of --compare: cells, pairs, directions, objects, raters.")] = "pairs",
    folds: Annotated[int, typer.Option(min=3, max=1000, help="Of --compare: folds.")] = 10,
    repeats: Annotated[int, typer.Option(min=1, max=1000, help="Of --compare: how often they are drawn anew.")] = 2,
    restarts: Annotated[int, typer.Option(min=1, max=1000, help="Fits from different starts.")] = 8,
    steps: Annotated[int, typer.Option(min=1, max=MOST, help="Steps of each fit.")] = 300,
    bootstrap: Annotated[int, typer.Option(min=2, max=1000, help="Fits to resampled pairs.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of starts and folds.")] = 0,
) -> None:
    """Fit Tversky's model to what people said about pairs, and write a report.

    The CSV is a square table with names (confusions, identification, similarities), or has the columns first, second,
    value (ratings), cue, target (directed; count, if counted), first, second, odd (triplets), or query, candidate, rank
    (rankings); ratings, triplets and rankings may have a column rater. The folder gets report.html, predicted.csv,
    features.csv, figures and the model; with --compare, comparison.csv too.
    After a stop of any kind the same command goes on where it stopped.
    """
    for name, value, choices in (("kind", kind, KINDS), ("bias", bias, BIASES), ("held-out", held_out, HELD_OUT)):
        if value not in choices:
            fail(f"--{name} must be one of {', '.join(choices)}; got {value!r}.", code=2)
    if n is not None and kind not in KINDS[:2]:
        fail(f"--n is the number of answers behind confusions or identification; {kind} have none.", code=2)
    if held_out == "raters" and not compare:
        fail("--held-out raters says what --compare holds out; add --compare.", code=2)
    stopped = f"stopped; go on with: {shlex.join(['similitude', *sys.argv[1:]])}"
    ends = None if scale is None else _ends(scale, kind)
    try:
        from ..human.report import Asked, study
        from ..human.sheets import SheetError
    except ImportError as error:
        fail(str(error))
    with sentences("fit needs {}", stopped, OSError):
        import matplotlib  # noqa: F401

        asked = Asked(
            csv, kind, out, n, features, bias, compare, held_out, folds, repeats, restarts, steps, bootstrap, seed, ends
        )
        try:
            page = study(asked, typer.echo)
        except SheetError as error:
            fail(str(error))
        typer.echo(f"report written to {page}")


def _ends(scale: str, kind: str) -> tuple[float, float]:
    if kind not in ("similarities", "ratings"):
        fail(f"--scale is the ends of a scale of similarities or ratings; {kind} have none.", code=2)
    try:
        low, high = map(float, scale.split(","))
    except ValueError:
        low = high = 0.0
    if not low < high:
        fail(f"--scale must be the lowest and the highest number, such as 1,7; got {scale!r}.", code=2)
    return low, high
