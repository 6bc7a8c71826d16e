"""``similitude explore SOURCE``: the command, which imports nothing heavy before it knows what is asked."""

from __future__ import annotations

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


def explore(
    source: Annotated[
        str, typer.Argument(help="A run's folder, a checkpoint, an index, word vectors, or demo.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="Write one .html file that needs no server, and exit.")] = None,
    network: Annotated[str | None, typer.Option(help="Of a run with several networks: which.")] = None,
    beside: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="Another run on the same data, to compare with.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="A JSON file that keeps the names given to features; a run has its own.")
    ] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="A vocab.json that is not beside the checkpoint.")] = None,
    how_many: Annotated[int, typer.Option("--words", min=2, max=MOST, help="Of word vectors: how many.")] = 30_000,
    features: Annotated[int | None, typer.Option(min=1, max=MOST, help="Size of a fitted bank.")] = None,
    bank: Annotated[str | None, typer.Option(help="Fit a bank of k-means or random directions.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for a free one.")] = 0,
    host: Annotated[str, typer.Option(help="Address to serve at.")] = "127.0.0.1",
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help="Let --host be reached from elsewhere.")] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
) -> None:
    """Look at a Tversky network in the browser, and change it.

    The page shows features with their examples, why an answer was given, objects as sets, and edits with a preview. It
    is served on this machine alone, until Ctrl-C, and asks nothing of any other. --out writes one file instead, which
    holds the examples that it shows: give it to no one who may not see them.
    """
    from rich.console import Console

    from ..explore import whole_page
    from ..explore.edits import Refused
    from ..explore.page import NotHtml, check_place
    from ..files import write_text
    from ..interpret import words
    from .data.find import DataError
    from .explored import note_of, session_of
    from .record import RunError
    from .run import progress_of

    errors = (RunError, DataError, words.SourceError, Refused, OSError, NotHtml)
    with sentences("explore needs {}", "stopped.", *errors, extra="explore"):
        if out is not None:
            check_place(out)
        else:
            _check_address(host, allow_remote)
        typer.echo(f"reading {source} …", err=True)
        with progress_of(Console(stderr=True), "", transient=True) as progress:
            session = session_of(source, network, names, vocabulary, how_many, features, bank, progress)
            if beside is not None:
                session.place(session_of(beside, network, progress=progress).content)
        if out is not None:
            write_text(out, whole_page(session.named, note_of(source, session)))
            typer.echo(f"page written to {out}")
            return
        from ..explore.server import serve

        serve(session, host, port, allow_remote, lambda address: _ready(address, browser))


def _check_address(host: str, allow_remote: bool) -> None:
    """Before anything is read: what the server needs is there, and the address is allowed."""
    from ..explore.server import RemoteRefused, check_host

    try:
        check_host(host, allow_remote)
    except RemoteRefused as error:
        fail(str(error), code=2)


def _ready(address: str, browser: bool) -> None:
    typer.echo(f"look at {address}\nCtrl-C ends it.")
    if browser:
        import threading
        import webbrowser

        # The server answers a moment later.
        threading.Timer(0.5, webbrowser.open, [address]).start()
