"""The paper's figures, one function each, from plain arrays or our own layers; every one returns a matplotlib Figure.

A linear layer has the same views: its rows are its prototypes, and it has no features.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..models.data_domain import DataDomain
from ..nn import TverskyProjection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Array = Tensor | np.ndarray | Sequence

# Okabe and Ito's, and the ends of viridis: colour-blind readers tell them apart.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#999999"
SERIES = (GREY, BLUE, ORANGE, GREEN, "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", "-.", ":")
CLASSES = ("#440154", "#bbbbbb", "#fde725")
XOR = ([[0, 0], [0, 1], [1, 0], [1, 1]], [0, 1, 1, 0])


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
        figure.savefig(content, format=kind, dpi=dpi, **options)
    write(path, content.getvalue())


@contextmanager
def boxes_for_missing_glyphs() -> Iterator[None]:
    """A character that the font does not have is a box, with no warning for each time it is drawn."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def write(path: Path, content: bytes) -> None:
    """The file, whole or not at all."""
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
    if isinstance(layer, TverskyProjection):
        return {"prototypes": layer.prototypes.detach(), "features": layer.features.weight.detach()}
    if isinstance(layer, DataDomain):
        if layer.features is None:
            return {"rows": layer.prototypes.detach()}
        return {"prototypes": layer.prototypes.detach(), "features": layer.features.detach()}
    raise TypeError(f"layer must be a TverskyProjection, DataDomain or nn.Linear; got {type(layer).__name__}.")


def decision_boundaries(
    layers: Mapping[str, Callable[[Tensor], Tensor]],
    points: Array = XOR[0],
    labels: Array = XOR[1],
    columns: int = 4,
    extent: float = 2.0,
) -> Figure:
    """Which of two classes each layer of 2 inputs gives in the plane: a panel a layer, under its name.

    Training points ``[N, 2]`` are drawn in the colour that is right for them, so that one on the other colour is wrong.
    Where both answers are the same, to rounding, the plane is grey. Features beyond the frame are not seen, and
    prototypes end at it.
    """
    points, labels = _array(points), _array(labels).astype(int)
    if not layers:
        raise ValueError("layers must have one layer or more; got none.")
    columns = min(columns, len(layers))
    rows = -(-len(layers) // columns)
    figure = blank(2.7 * columns, 2.95 * rows + 0.6, "constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr]
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    shown = {}
    for ax, (name, layer) in zip(axes, layers.items()):
        plane = _classes(name, layer, extent)
        ax.imshow(
            plane, cmap=_colours(CLASSES), vmin=0, vmax=1, origin="lower", extent=2 * (-extent, extent), alpha=0.8
        )
        inside = parameters(layer) if isinstance(layer, nn.Module) else {}
        if "features" in inside:
            shown["features, and prototypes as arrows"] = ax.scatter(
                *_array(inside["features"]).T, s=14, c="white", edgecolors="black", lw=0.7
            )
        vectors = inside.get("prototypes", inside.get("rows"))
        for c, vector in enumerate(() if vectors is None else _array(vectors)):
            _arrow(ax, vector * min(1, 0.99 * extent / max(np.abs(vector).max(), 1e-9)), CLASSES[2 * c])
        for c, rim in ((0, "white"), (1, "black")):
            which, colour = points[labels == c], CLASSES[2 * c]
            dots = ax.scatter(*which.T, s=90, c=colour, edgecolors=rim, linewidths=1.6, zorder=5)
            shown[f"points of class {c}"] = dots
        ax.set_title(fill(name, 28, replace_whitespace=False), fontsize=10, parse_math=False)
        ax.set(xlim=(-extent, extent), ylim=(-extent, extent), xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        ax.tick_params(labelsize=8)
    for ax in axes[len(layers) :]:
        ax.set_axis_off()
    names = sorted(shown, reverse=True, key=lambda name: name.startswith("points"))
    figure.legend([shown[n] for n in names], names, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    return figure


def _classes(name: str, layer: Callable[[Tensor], Tensor], extent: float) -> np.ndarray:
    """0 or 1, the class that the layer gives, or ½ where it gives none, over the plane."""
    line = torch.linspace(-extent, extent, 201)
    plane = torch.cartesian_prod(line, line)
    with torch.no_grad():
        out = layer(plane)
    if out.shape != (len(plane), 2):
        raise ValueError(f"layer {name!r} must give [N, 2] for [N, 2]; got shape {list(out.shape)}.")
    more = out[:, 1] - out[:, 0]
    undecided = more.abs() <= 1e-5 * max(1.0, out.abs().max().item())
    return torch.where(undecided, 0.5, (more > 0).float()).view(201, 201).T.numpy()


def _arrow(ax, vector: np.ndarray, colour: str) -> None:
    """From the origin; the white rim is seen on every background."""
    from matplotlib.patheffects import withStroke

    rim = [withStroke(linewidth=4, foreground="white")]
    how: dict[str, Any] = dict(arrowstyle="-|>", color="black", linewidth=1.8, shrinkA=0, shrinkB=0, path_effects=rim)
    ax.annotate("", vector, (0, 0), arrowprops=how)
    ax.plot([0, 0.9 * vector[0]], [0, 0.9 * vector[1]], color=colour, linewidth=1, zorder=4)


def prototypes(
    groups: Mapping[str, Array | nn.Module], columns: int = 10, shape: Sequence[int] | None = None, title: str = ""
) -> Figure:
    """Prototypes, features or rows as images: a block a group, under its name.

    groups: images ``[n, H, W]``, ``[n, 1, H, W]``, or ``[n, H·W]`` with ``shape=(H, W)``, or layers with such
    parameters. What has the shape of an input is drawn as inputs are, the highest black; vectors that are given a
    shape are weights, with 0 as white, purple above and orange below.
    """
    blocks: dict[str, np.ndarray] = {}
    for name, group in groups.items():
        found = parameters(group) if isinstance(group, nn.Module) else {"": group}
        blocks |= {f"{name} {kind}".strip(): _images(name, images, shape) for kind, images in found.items()}
    if not blocks:
        raise ValueError("groups must have one group of images or more; got none.")
    heights = [-(-len(images) // columns) for images in blocks.values()]
    figure = blank(0.85 * columns + 0.3, 0.85 * sum(heights) + 0.4 * len(blocks) + 0.4 * bool(title), "constrained")
    axes = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, (name, images) in zip(axes, blocks.items(), strict=True):
        _show(ax, images, columns, signed=shape is not None)
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def evolution(histories: Mapping[str, Mapping[int, Array]], columns: int = 10) -> Figure:
    """Images after so many epochs: a block a network, a row an epoch. Images are as in ``prototypes``."""
    if not histories or not all(histories.values()):
        raise ValueError("histories must have images of one epoch or more for each network.")
    blocks = {n: {e: _images(n, images)[:columns] for e, images in sorted(h.items())} for n, h in histories.items()}
    rows = [len(block) for block in blocks.values()]
    figure = blank(0.85 * columns + 1.1, 0.87 * sum(rows) + 0.45 * len(rows), "constrained")
    axes = figure.subplots(len(blocks), 1, squeeze=False, height_ratios=rows)[:, 0]
    for ax, (name, block) in zip(axes, blocks.items(), strict=True):
        width = min(columns, max(len(images) for images in block.values()))
        images = np.concatenate([_filled(images, width) for images in block.values()])
        _show(ax, images, width)
        step = images.shape[1] + 2
        ax.set_yticks(step * np.arange(len(block)) + step / 2 - 1, [f"epoch {e}" for e in block])
        ax.tick_params(length=0, labelsize=9)
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    return figure


def salience_strip(images: Array, salience: Array | Mapping[str, Array], count: int = 16) -> Figure:
    """Images from low to high salience, evenly by rank: a strip for each measure that is given, under its name."""
    pictures = _images("images", images)
    measures = salience if isinstance(salience, Mapping) else {"salience": salience}
    count = min(count, len(pictures))
    figure = blank(0.8 * count + 0.4, 1.55 * len(measures) + 0.35, "constrained")
    axes = figure.subplots(len(measures), 1, squeeze=False)[:, 0]
    for ax, (name, values) in zip(axes, measures.items(), strict=True):
        measure = _array(values)
        if measure.shape != (len(pictures),):
            raise ValueError(f"salience must be [{len(pictures)}], one an image; got shape {list(measure.shape)}.")
        order = np.argsort(measure, kind="stable")[np.linspace(0, len(measure) - 1, count).round().astype(int)]
        _show(ax, pictures[order], count)
        step = pictures.shape[2] + 2
        ax.set_xticks(step * np.arange(count) + step / 2 - 1, [f"{measure[i]:.3g}" for i in order])
        ax.tick_params(length=0, labelsize=8)
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    figure.supxlabel("low  →  high", fontsize=10, color="0.3")
    return figure


def venn(
    a: Array, b: Array, a_only: Array, common: Array, b_only: Array, names: tuple[str, str] = ("A", "B")
) -> Figure:
    """Two images, and up to nine that best show what only one of them has and what both have, in two circles."""
    from matplotlib.patches import Circle

    figure = blank(11, 5.3)
    ax = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    ax.set(xlim=(-5.1, 5.1), ylim=(-2.45, 2.45), aspect="equal")
    ax.axis("off")
    for x, colour in ((-1.25, BLUE), (1.25, ORANGE)):
        ax.add_patch(Circle((x, -0.15), 2, facecolor=colour, alpha=0.1))
        ax.add_patch(Circle((x, -0.15), 2, fill=False, edgecolor=colour, linewidth=1.5))
    texts: dict[str, Any] = dict(ha="center", va="bottom", fontsize=12, parse_math=False)
    for x, image, name in ((-4.2, a, names[0]), (4.2, b, names[1])):
        _place(ax, _images(name, _array(image)[None]), 1, x, 1.5)
        ax.text(x, 0.7, name, weight="bold", **texts)
    for x, images, side in ((-2.05, a_only, 1.5), (0, common, 1.15), (2.05, b_only, 1.5)):
        if len(images):
            _place(ax, _images("examples", images)[:9], 3, x, side)
        else:
            ax.text(x, -0.25, "none", color="0.4", **texts)
    first, second = names
    for x, y, text in (
        (-2.05, 0.7, f"{first} − {second}"),
        (0, 0.53, f"{first} ∩ {second}"),
        (2.05, 0.7, f"{second} − {first}"),
    ):
        ax.text(x, y, text, **texts)
    return figure


def constants(runs: Mapping[str, Mapping[str, Array]]) -> Figure:
    """α, β and θ over training: a panel a run. Each run has ``step``, ``alpha``, ``beta`` and ``theta``, as its log."""
    if not runs:
        raise ValueError("runs must have one run or more; got none.")
    columns = min(3, len(runs))
    rows = -(-len(runs) // columns)
    figure = blank(4.6 * columns, 3.5 * rows, "constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, (name, run) in zip(axes, runs.items()):
        steps = _array(run["step"])
        for (key, letter), colour, dash in zip(
            (("alpha", "α"), ("beta", "β"), ("theta", "θ")), (BLUE, ORANGE, GREEN), DASHES
        ):
            values = _array(run[key])
            marker = "o" if len(steps) < 2 else None
            ax.plot(
                steps, values, dash, color=colour, marker=marker, label=f"{letter} → {values[-1]:.3f}".replace("-", "−")
            )
        ax.set_title(fill(name, 48), fontsize=10, parse_math=False)
        ax.set_xlabel("epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        _plain(ax)
        if len(steps) < 2:
            ax.set_xticks(steps)
        # Below the panel it covers no line.
        ax.legend(fontsize=9, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=3)
    for ax in axes[len(runs) :]:
        ax.set_axis_off()
    return figure


def convergence_bars(factors: Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]) -> Figure:
    """p(conv) by factor: a panel a factor, a group of bars a value of it, a bar a series such as the paper's and ours.

    factors: ``{factor: {series: {value: (p, standard error)}}}``.
    """
    if not factors or not all(any(s.values()) for s in factors.values()):
        raise ValueError("factors must have one series with a value or more for each factor.")
    panels = list(factors.items())
    labels = {name: list(dict.fromkeys(v for one in series.values() for v in one)) for name, series in panels}
    columns = min(2, len(panels))
    split = [panels[i::columns] for i in range(columns)]
    tall = max(sum(len(labels[name]) + 1.6 for name, _ in part) for part in split)
    figure = blank(5.6 * columns, 0.42 * tall + 0.8, "constrained")
    every = list(dict.fromkeys(s for _, series in panels for s in series))
    for part, group in zip(split, np.atleast_1d(np.asarray(figure.subfigures(1, columns)))):
        axes = group.subplots(len(part), 1, squeeze=False, height_ratios=[len(labels[n]) + 0.6 for n, _ in part])[:, 0]
        for ax, (name, series) in zip(axes, part, strict=True):
            at, thick = np.arange(len(labels[name])), 0.8 / len(every)
            for i, one in enumerate(every):
                found = [series.get(one, {}).get(v, (np.nan, np.nan)) for v in labels[name]]
                p, error = np.array(found, dtype=float).T
                ax.barh(at + (i + 0.5) * thick - 0.4, p, thick, xerr=error, color=SERIES[i % len(SERIES)], label=one)
            ax.set_yticks(at, labels[name], fontsize=8, parse_math=False)
            ax.invert_yaxis()
            ax.set_xlim(0, 1)
            ax.set_title(fill(f"p(conv) by {name}", 46), fontsize=10, loc="left", parse_math=False)
            _plain(ax)
    handles, names = figure.subfigs[0].axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    return figure


def perplexity(
    series: Mapping[str, tuple[Array, Array]], baselines: Mapping[str, float] | None = None, title: str = ""
) -> Figure:
    """Perplexity against the number of features: a line a series of (K, perplexity), a level line a model without K."""
    if not series and not baselines:
        raise ValueError("series must have one line or more; got none.")
    figure = blank(7.2, 4.6, "constrained")
    ax = figure.subplots()
    every = []
    for i, (name, (K, values)) in enumerate(series.items()):
        order = np.argsort(_array(K))
        K, values = _array(K)[order], _array(values)[order]
        every += K.tolist()
        colour, marker = SERIES[i % len(SERIES)], "osD^vP*X"[i % 8]
        ax.plot(K, values, DASHES[i % 4], marker=marker, color=colour, label=name)
    for i, (name, value) in enumerate((baselines or {}).items(), start=len(series)):
        ax.axhline(value, color=SERIES[i % len(SERIES)], linestyle=DASHES[i % 4], linewidth=1, label=name)
    if every:
        ax.set_xscale("log", base=2)
        ticks = sorted(set(every))
        ax.set_xticks(ticks, [f"{K:,.0f}" for K in ticks], fontsize=8, rotation=90)
        ax.minorticks_off()
    ax.set(xlabel="features K", ylabel="perplexity")
    ax.set_title(title, fontsize=11, loc="left", parse_math=False)
    _plain(ax)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def training(curves: Mapping[str, Array], score: str = "accuracy") -> Figure:
    """Loss and score over training: a line a network. curves: rows of epoch, loss, score."""
    if not curves:
        raise ValueError("curves must have one network or more; got none.")
    figure = blank(9.5, 3.9, "constrained")
    for column, (ax, what) in enumerate(zip(figure.subplots(1, 2), ("training loss", score)), start=1):
        for i, (name, curve) in enumerate(curves.items()):
            rows = _array(curve)
            style = dict(color=SERIES[(i + 1) % len(SERIES)], linestyle=DASHES[i % 4], marker="o", markersize=3)
            ax.plot(rows[:, 0], rows[:, column], label=name if column == 1 else None, **style)
        ax.set_title(what, fontsize=10, loc="left", parse_math=False)
        ax.set_xlabel("epoch")
        ax.xaxis.get_major_locator().set_params(integer=True)
        _plain(ax)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _array(values: Any) -> np.ndarray:
    return values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _images(name: str, images: Any, shape: Sequence[int] | None = None) -> np.ndarray:
    """Images ``[n, H, W]`` in float32, out of any of the shapes that are taken."""
    array = _array(images).astype(np.float32)
    if shape is not None:
        height, width = shape
        if array.ndim < 2 or array[0].size != height * width:
            raise ValueError(f"{name} must have {height}×{width} values each; got shape {list(array.shape)}.")
        return array.reshape(-1, height, width)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 3 or 0 in array.shape:
        hint = "; give shape=(H, W) for vectors" if array.ndim == 2 else ""
        raise ValueError(f"{name} must be images [n, H, W] or [n, 1, H, W]; got shape {list(array.shape)}{hint}.")
    return array


def _filled(images: np.ndarray, width: int) -> np.ndarray:
    """The images with blank ones up to a whole row."""
    missing = -len(images) % width
    return np.concatenate([images, np.full((missing, *images.shape[1:]), np.nan, images.dtype)])


def _scaled(images: np.ndarray, signed: bool) -> tuple[np.ndarray, str]:
    """The images with each at its full contrast, from 0 to 1, and the colours to draw them in."""
    # One strong pixel would make all others pale.
    low, high = (np.nanquantile(images, q, axis=(1, 2), keepdims=True) for q in (0.01, 0.99))
    if signed and np.nanmin(images) < 0:
        limit = np.maximum(np.abs(low), np.abs(high))
        return 0.5 + 0.5 * images / np.where(limit > 0, limit, 1), "PuOr"
    high = np.maximum(high, np.nanmax(images, axis=(1, 2), keepdims=True) / 2)
    return (images - low) / np.where(high > low, high - low, 1), "gray_r"


def _show(
    ax, images: np.ndarray, columns: int, rows: int = 0, extent: tuple | None = None, signed: bool = False
) -> None:
    """Images side by side in one picture, two pixels apart, in as many rows as they take or as are given."""
    from matplotlib import colormaps

    scaled, colours = _scaled(images, signed)
    scaled = _filled(scaled, columns * rows if rows else columns)
    n, height, width = scaled.shape
    sheet = np.full((n // columns, height + 2, columns, width + 2), np.nan)
    sheet[:, :height, :, :width] = scaled.reshape(-1, columns, height, width).transpose(0, 2, 1, 3)
    sheet = sheet.reshape(n // columns * (height + 2), columns * (width + 2))[:-2, :-2]
    colour_map = colormaps[colours].with_extremes(bad="white")
    ax.imshow(sheet, cmap=colour_map, vmin=0, vmax=1, extent=extent, interpolation="nearest", zorder=2)
    if extent is None:
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)


def _place(ax, images: np.ndarray, columns: int, x: float, side: float) -> None:
    """A square of images around (x, −0.15) of the axes."""
    limits = ax.get_xlim(), ax.get_ylim()
    half = side / 2
    _show(ax, images, columns, columns, (x - half, x + half, -0.15 - half, -0.15 + half))
    ax.set(xlim=limits[0], ylim=limits[1])


def _colours(colours: Sequence[str]):
    from matplotlib.colors import ListedColormap

    return ListedColormap(list(colours))


def _plain(ax) -> None:
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    ax.set_axisbelow(True)
