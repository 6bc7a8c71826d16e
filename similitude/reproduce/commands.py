"""The commands of experiments: ``similitude demo``, ``reproduce``, ``table`` and ``gallery``, and their errors.

Each command imports what it needs itself, so that the help is quick.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, NoReturn

from .. import _starting
from .._text import printable
from . import EXPERIMENTS, UnknownExperiment, check_name

if TYPE_CHECKING:
    import typer
else:
    # cli.main says what to install if it is missing.
    with suppress(ModuleNotFoundError):
        import typer

NAMES = ", ".join(EXPERIMENTS)
# The largest number that an option takes.
MOST = 2**63 - 1
# Where a command line's experiment is kept for the help and for completion.
NAMED = "similitude.named"


def fail(sentence: str, code: int = 1) -> NoReturn:
    typer.echo("\n".join(printable(line) for line in sentence.split("\n")), err=True)
    raise typer.Exit(code)


def known(name: str) -> None:
    try:
        check_name(name)
    except UnknownExperiment as error:
        fail(str(error), code=2)


@contextmanager
def sentences(missing: str, stopped: str, *errors: type[Exception], extra: str = ""):
    """Turns errors into one sentence and an exit code.

    What takes long to import is imported before.

    Args:
        missing: the sentence about a missing library, with ``{}`` for its name; what to run follows it.
        stopped: the sentence after Ctrl-C, if the interrupt has none of its own.
        errors: errors whose own sentence is shown.
        extra: the extra that has all that is needed; by default the smallest that brings the missing library.
    """
    _starting.started()
    try:
        yield
    except KeyboardInterrupt as stop:
        fail(str(stop) or stopped, code=130)
    except UnknownExperiment as error:
        fail(str(error), code=2)
    except ModuleNotFoundError as error:
        from ..extras import advice

        how = f"pip install 'similitude[{extra}]'" if extra else advice(error.name or "")
        fail(f"{missing.format(error.name)}: {how}")
    except errors as error:
        if isinstance(error, OSError) and error.filename and error.strerror:
            fail(f"cannot open {error.filename}: {error.strerror}.")
        fail(str(error))
    except (MemoryError, RuntimeError) as error:
        from .record import too_little_memory

        if not too_little_memory(error):
            raise
        fail(f"too little memory: {str(error).splitlines()[0]}")


def listing_settings() -> type:
    """The class of the command ``reproduce``: its help lists the settings of the experiment that is named."""
    from typer.core import TyperCommand

    class Reproduce(TyperCommand):
        def parse_args(self, ctx, args):
            # Neither the help nor a shell's completion has the arguments as values.
            ctx.meta[NAMED] = [word for word in args if word in EXPERIMENTS][:1]
            return super().parse_args(ctx, args)

        def format_help(self, ctx, formatter):
            super().format_help(ctx, formatter)
            for line in told(*ctx.meta[NAMED]):
                typer.echo(line)

    return Reproduce


def told(name: str | None = None) -> Iterator[str]:
    """The settings and recipes of an experiment, or of all in short."""
    from . import described

    if name is None:
        yield "Settings for --set (similitude reproduce NAME --help says what each is):\n"
        for one in EXPERIMENTS:
            keys = ", ".join(setting.key for setting in described.settings(one))
            yield fill(f"{one}: {keys}", 96, initial_indent="  ", subsequent_indent="    ")
        return
    yield f"Recipes of {name}: {', '.join(described.recipes(name))}. Settings for --set, with their values in Config:\n"
    for key, value, says in described.settings(name):
        text = f"{key}={value}" + f"  {says.replace('``', '')}" * bool(says)
        yield fill(text, 96, initial_indent="  ", subsequent_indent="      ", break_long_words=False)


def _names(incomplete: str) -> list[str]:
    return [name for name in EXPERIMENTS if name.startswith(incomplete)]


def _recipes(ctx: typer.Context, incomplete: str) -> list[str]:
    from . import described

    return [recipe for name in ctx.meta[NAMED] for recipe in described.recipes(name) if recipe.startswith(incomplete)]


def _keys(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from . import described

    found = [setting for name in ctx.meta[NAMED] for setting in described.settings(name)]
    return [(f"{setting.key}=", setting.says) for setting in found if setting.key.startswith(incomplete)]


def demo(
    out: Annotated[Path, typer.Option(help="PNG file that the picture is written to.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Splits the digits and starts the models.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, max=MOST, help="Passes over the training digits, for each model.")] = 20,
    features: Annotated[int, typer.Option(min=1, max=MOST, help="Size of the feature bank.")] = 256,
) -> None:
    """Read digits with a Tversky projection, and show why.

    Trains one TverskyProjection and one nn.Linear on 4,000 MNIST digits, in seconds and on the CPU, prints their
    accuracies on 1,000 others, explains one answer feature by feature and draws it. Nothing is downloaded.
    """
    from . import demo

    stopped = "stopped; no picture was written."
    with sentences("the demo needs {}, which the demo extra brings", stopped, OSError, extra="demo"):
        demo.check_writable(out)
        demo.show(demo.Config(seed=seed, epochs=epochs, num_features=features), out)


def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which experiment: {NAMES}.", show_default=False, autocompletion=_names)],
    recipe: Annotated[
        str,
        typer.Option(help="The paper's settings, or another recipe of the experiment.", autocompletion=_recipes),
    ] = "paper",
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Another seed than the recipe's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Another value of one setting; may be repeated. KEYs are listed below.",
            autocompletion=_keys,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder, by default runs/NAME-...; of --all, the runs' folder.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder that the result is copied to.")] = Path("results"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few steps on made-up data; no result is copied.")] = False,
    every: Annotated[bool, typer.Option("--all", help="All rows of its table; --set selects or changes rows.")] = False,
    share: Annotated[str | None, typer.Option(metavar="I/N", help="Of --all: every N-th row, from row I on.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print the command of each row and exit.")] = False,
) -> None:
    """Run one of the paper's experiments, or resume it.

    The run's folder holds settings, log, checkpoints and the result. After a stop of any kind, the same command resumes
    from the last checkpoint. Several processes can share the rows of --all: a row in which another process works is
    skipped.
    """
    from rich.console import Console

    known(name)
    if share and not (every or listed):
        fail("--share divides the rows of --all; add --all.", code=2)
    from . import run
    from .data.find import DataError
    from .record import RunError

    needs = f"{name} needs {{}}"
    stopped = f"stopped; resume from the last checkpoint with: {shlex.join(['similitude', *sys.argv[1:]])}"
    settings = (settings or []) + ([] if seed is None else [f"seed={seed}"])
    with sentences(needs, stopped, RunError, DataError, ImportError):
        if listed:
            for line in run.commands(name, recipe, settings, smoke, share or "1/1"):
                typer.echo(f"similitude reproduce {line}")
        elif every:
            run.run_all(name, recipe, settings, out, results, device, smoke, share or "1/1", Console())
        else:
            run.run(name, recipe, settings, out, results, device, smoke, Console())


def table(
    name: Annotated[str | None, typer.Argument(help=f"Which experiment: {NAMES}.", autocompletion=_names)] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results, one JSON a run.")] = Path("results"),
    docs: Annotated[Path | None, typer.Option(help="Write the tables into the pages of this folder.")] = None,
) -> None:
    """Print our results beside the paper's.

    --docs writes the blocks between the markers of all pages of results, and leaves their prose alone.
    """
    from rich.console import Console

    if docs and name:
        fail(f"--docs writes the pages of all experiments; leave out {name}, or --docs.", code=2)
    if name:
        known(name)
    elif not docs:
        fail(f"name an experiment out of {NAMES}, or give --docs for all of them.", code=2)
    from . import find, pages
    from . import results as found
    from .record import RunError

    with sentences("tables need {}", "stopped.", RunError):
        if docs:
            for path in pages.write(docs, results):
                Console().out(f"new: {path}", highlight=False)
            Console().out(f"pages written to {docs}", highlight=False)
        elif name:
            results = found.at_hand(results)
            runs = found.load(results, name)
            if not runs:
                fail(f"no results of {name} in {results}; make some with: similitude reproduce {name}")
            own = list(runs.values())
            with found.naming(name, runs):
                tables = find(name).tables(own)
            for line in [*tables, *found.caveats(own)]:
                Console().print(line)


def gallery(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a folder of results.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder that the figures and index.html are written to.")] = Path("gallery"),
    svg: Annotated[bool, typer.Option("--svg", help="Write every figure as SVG too.")] = False,
) -> None:
    """Draw the paper's figures from a run, or from all results, with a page that shows them."""
    from rich.console import Console

    from .figures.gallery import make
    from .record import RunError
    from .run import progress_of

    console = Console()
    stopped = f"stopped; the figures so far are in {out}, without a page."
    with (
        sentences("figures need {}", stopped, RunError, OSError, extra="viz"),
        progress_of(console, "gallery", transient=True, elapsed=True) as progress,
    ):
        written, missing = make(run, out, svg, progress)
    figures = len([path for path in written if path.suffix == ".png"])
    console.out(f"{figures} figure{'s' * (figures != 1)} written to {out / 'index.html'}", highlight=False)
    for item in missing:
        console.out(f"left out: {item.title}, because {item.why}.", highlight=False)
