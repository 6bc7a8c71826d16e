"""What all figures stand on: an empty figure, colours, and files that appear whole."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = Tensor | np.ndarray | Sequence

# Okabe and Ito's, and the ends of viridis: colour-blind readers tell them apart.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
SERIES = (GREY, BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", "-.", ":")
CLASSES = ("#440154", "#bbbbbb", "#fde725")


def blank(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    """An empty figure of so many inches, apart from pyplot and its windows."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        need = "figures need the viz extra: pip install 'similitude[viz]'"
        raise ModuleNotFoundError(need, name="matplotlib") from None
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Writes the figure as .png or .svg, as the name ends: whole or not at all, the same bytes for the same figure."""
    import matplotlib

    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"a figure is written as .png or .svg; got {path.name!r}.")
    # An SVG has the time and random names in it unless told otherwise.
    options: dict = {"metadata": {"Date": None}} if kind == "svg" else {}
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "similitude"}), boxes_for_missing_glyphs():
        figure.draw_without_rendering()  # beside images of a fixed shape, a layout settles at its second drawing
        figure.savefig(content, format=kind, dpi=dpi, **options)
    write(path, _in_few_colours(content) if kind == "png" else content.getvalue())


def _in_few_colours(png: io.BytesIO) -> bytes:
    """The picture in 256 colours, which nobody can tell from it, at a third of its size."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(png) as picture:
        few = picture.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True, dpi=picture.info["dpi"])
    return out.getvalue()


@contextmanager
def boxes_for_missing_glyphs() -> Iterator[None]:
    """A character that the font does not have is a box, with no warning for each time it is drawn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def write(path: Path, content: bytes) -> None:
    """The file, whole or not at all."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to.")
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        half.write_bytes(content)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def parameters(layer: nn.Module) -> dict[str, Tensor]:
    """What can be looked at in a layer: prototypes and features, or the rows of an nn.Linear."""
    if isinstance(layer, nn.Linear):
        return {"rows": layer.weight.detach()}
    prototypes, features = getattr(layer, "prototypes", None), getattr(layer, "features", None)
    features = getattr(features, "weight", features)
    if isinstance(prototypes, Tensor):
        found = {"rows": prototypes} if features is None else {"prototypes": prototypes, "features": features}
        return {name: vectors.detach() for name, vectors in found.items()}
    raise TypeError(f"layer must be a TverskyProjection, DataDomain or nn.Linear; got {type(layer).__name__}.")


def array(values: Any) -> np.ndarray:
    return values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def plain(ax) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)
