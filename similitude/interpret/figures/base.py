"""What all figures share: an empty figure, colours, names that can be written, and saving."""

from __future__ import annotations

import colorsys
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from torch import Tensor, nn

from ...files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = Tensor | np.ndarray | Sequence[Any]

# Okabe and Ito's colours and the ends of viridis, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
# Ink that can be read on white and on near black.
INK = "#777777"
SERIES = (GREY, BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", INK)
DASHES = ("-", "--", "-.", ":")
CLASSES = ("#440154", "#bbbbbb", "#fde725")
# Of tokens in a graph, and of its fields: Okabe and Ito's without that yellow.
TOKEN = "#f0e442"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", INK)
# XML has no control characters, and UTF-8 no halves of surrogate pairs.
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def blank(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    """An empty figure, sizes in inches, that pyplot does not know and shows in no window."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        need = "figures need the viz extra: pip install 'similitude[viz]'"
        raise ModuleNotFoundError(need, name="matplotlib") from None
    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


@contextmanager
def on_any_ground() -> Iterator[None]:
    """Figures that are drawn and saved within have no ground of their own, and can be read on white and near black."""
    import matplotlib

    inked = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    grounds = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    with matplotlib.rc_context({**dict.fromkeys(inked, INK), **dict.fromkeys(grounds, "none")}):
        yield


def save(figure: Figure, path: str | Path, dpi: int = 130) -> None:
    """Writes a figure whole or not at all; the same figure gives the same bytes.

    Args:
        figure: a matplotlib figure.
        path: a file whose name ends in .png or .svg.
        dpi: dots per inch of a .png.
    """
    import matplotlib

    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise ValueError(f"a figure is written as .png or .svg; got {path.name!r}.")
    # By default an SVG contains the time and random names.
    options: dict = {"metadata": {"Date": None}} if kind == "svg" else {}
    content = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "similitude"}), boxes_for_missing_glyphs():
        figure.draw_without_rendering()  # beside images of a fixed shape, a layout settles at its second drawing
        figure.savefig(content, format=kind, dpi=dpi, **options)
    write_bytes(path, _in_few_colours(content) if kind == "png" else content.getvalue())


def _in_few_colours(png: io.BytesIO) -> bytes:
    """The PNG with 256 colours: it looks the same, at a third of the size."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(png) as picture:
        clear = picture.mode == "RGBA" and min(picture.getchannel("A").tobytes()) < 255
        how = Image.Quantize.FASTOCTREE if clear else Image.Quantize.MEDIANCUT  # which takes no transparency
        few = picture.convert("RGBA" if clear else "RGB").quantize(256, how, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True, dpi=picture.info["dpi"])
    return out.getvalue()


@contextmanager
def boxes_for_missing_glyphs() -> Iterator[None]:
    """Draws characters that the font lacks as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def parameters(layer: nn.Module) -> dict[str, Tensor]:
    """The vectors or images of a layer by kind: prototypes and features, or the rows of a linear one.

    Args:
        layer: A TverskyProjection, a DataDomain network or a linear layer.
    """
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


def plain(ax: Any) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)


def distinct_colours(n: int) -> list[str]:
    """n distinct colours, first those that colour-blind readers can tell apart."""
    out: list[str] = list(PALETTE[:n])
    for i in range(n - len(out)):
        # Steps of the golden ratio never come back to a hue; lightness tells neighbours apart too.
        red, green, blue = colorsys.hls_to_rgb((0.05 + 0.618034 * i) % 1, (0.35, 0.6, 0.48)[i % 3], 0.45)
        out.append(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")
    return out


def printable(name: str) -> str:
    """The name with control characters as their pictures (␀ for \\0), and other unwritable ones as �."""
    return UNWRITABLE.sub(lambda m: chr(0x2400 + ord(m[0])) if ord(m[0]) < 32 else "\ufffd", name)
