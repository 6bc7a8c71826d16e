"""The paper's figures of images: prototypes, their evolution, salience, common and distinctive features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from .base import BLUE, INK, ORANGE, Array, array, blank, parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def prototypes(
    groups: Mapping[str, Array | nn.Module],
    columns: int = 10,
    shape: Sequence[int] | None = None,
    title: str = "",
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Figure:
    """A figure of prototypes, features or rows as images, with a block for each group.

    Images are drawn like inputs, with the highest value black. Vectors that are given a shape are drawn as weights: 0
    white, positive purple, negative orange.

    Args:
        groups: by name, images ``[n, H, W]``, ``[n, 1, H, W]`` or, with ``shape``, ``[n, H·W]``, or a layer with such
            parameters.
        columns: images per row.
        shape: ``(H, W)`` of vectors.
        title: heading of the figure.
        labels: for some blocks, by their headings, what stands above each column, such as its class.
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
        _label(ax, images, (labels or {}).get(name, ()))
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def evolution(histories: Mapping[str, Mapping[int, Array]], columns: int = 10, labels: Sequence[str] = ()) -> Figure:
    """A figure of images over training, with a block for each network and a row for each epoch.

    Args:
        histories: by name of the network, the images after each epoch, ``{epoch: [n, H, W]}``.
        columns: images per row.
        labels: what stands above each column, such as its class.
    """
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
        _label(ax, images, labels)
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    return figure


def salience_strip(images: Array, salience: Array | Mapping[str, Array], count: int = 16) -> Figure:
    """A figure of images from low to high salience at even steps of rank, with a strip for each measure.

    Args:
        images: ``[N, H, W]`` or ``[N, 1, H, W]``.
        salience: ``[N]``, or several measures by name.
        count: images per strip.
    """
    pictures = _images("images", images)
    measures = salience if isinstance(salience, Mapping) else {"salience": salience}
    count = min(count, len(pictures))
    figure = blank(0.8 * count + 0.4, 1.32 * len(measures) + 0.3, "constrained")
    axes = figure.subplots(len(measures), 1, squeeze=False)[:, 0]
    for ax, (name, values) in zip(axes, measures.items(), strict=True):
        measure = array(values)
        if measure.shape != (len(pictures),):
            raise ValueError(f"salience must be [{len(pictures)}], one an image; got shape {list(measure.shape)}.")
        order = np.argsort(measure, kind="stable")[np.linspace(0, len(measure) - 1, count).round().astype(int)]
        _show(ax, pictures[order], count)
        step = pictures.shape[2] + 2
        ax.set_xticks(step * np.arange(count) + step / 2 - 1, [f"{measure[i]:.3g}" for i in order])
        ax.tick_params(length=0, labelsize=8)
        ax.set_title(name, fontsize=11, loc="left", parse_math=False)
    figure.supxlabel("low  →  high", fontsize=10, color=INK)
    return figure


def sheet(rows: Mapping[str, Array], title: str = "") -> Figure:
    """A figure with a row of images for each name, such as the images that have a feature most.

    Args:
        rows: by name, images ``[n, H, W]``, or in colour ``[n, 3, H, W]``, of values from 0 to 255 or from 0 to 1.
        title: heading of the figure.
    """
    pictures = {name: _pictures(name, images) for name, images in rows.items()}
    if not pictures:
        raise ValueError("rows must have one name with images or more; got none.")
    columns = max(len(row) for row in pictures.values())
    figure = blank(0.9 * columns + 1.6, 0.92 * len(pictures) + 0.4 * bool(title), "constrained")
    axes = figure.subplots(len(pictures), columns, squeeze=False)
    for line, (name, row) in zip(axes, pictures.items(), strict=True):
        for ax, picture in zip(line, [*row, *[None] * (columns - len(row))], strict=True):
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if picture is not None:
                ax.imshow(picture, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9, parse_math=False)
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def venn(
    a: Array, b: Array, a_only: Array, common: Array, b_only: Array, names: tuple[str, str] = ("A", "B")
) -> Figure:
    """A figure of two images and two circles with the examples that best show A−B, A∩B and B−A.

    Args:
        a: the first image, ``[H, W]``.
        b: the second image, ``[H, W]``.
        a_only: up to nine examples of what only A has, ``[n, H, W]``.
        common: up to nine examples of what both have.
        b_only: up to nine examples of what only B has.
        names: names of the two images.
    """
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
        _place(ax, _images(name, array(image)[None]), 1, x, 1.5)
        ax.text(x, 0.7, name, weight="bold", **texts)
    for x, images, side in ((-2.05, a_only, 1.5), (0, common, 1.15), (2.05, b_only, 1.5)):
        if len(images):
            _place(ax, _images("examples", images)[:9], 3, x, side)
        else:
            ax.text(x, -0.25, "none", color=INK, **texts)
    first, second = names
    for x, y, text in (
        (-2.05, 0.7, f"{first} − {second}"),
        (0, 0.53, f"{first} ∩ {second}"),
        (2.05, 0.7, f"{second} − {first}"),
    ):
        ax.text(x, y, text, **texts)
    return figure


def _images(name: str, images: Any, shape: Sequence[int] | None = None) -> np.ndarray:
    """Images ``[n, H, W]`` in float32, from any accepted shape."""
    found = array(images).astype(np.float32)
    if shape is not None:
        height, width = shape
        if found.ndim < 2 or found[0].size != height * width:
            raise ValueError(f"{name} must have {height}×{width} values each; got shape {list(found.shape)}.")
        return found.reshape(-1, height, width)
    if found.ndim == 4 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 3 or 0 in found.shape:
        hint = "; give shape=(H, W) for vectors" if found.ndim == 2 else ""
        raise ValueError(f"{name} must be images [n, H, W] or [n, 1, H, W]; got shape {list(found.shape)}{hint}.")
    return found


def _pictures(name: str, images: Any) -> np.ndarray:
    """Images from 0 to 1, ``[n, H, W]``, or ``[n, H, W, 3]`` in colour."""
    found = array(images)
    size = 255 if found.dtype == np.uint8 or (found.size and found.max() > 1) else 1
    if found.ndim == 4 and found.shape[1] == 3 and found.size:
        return np.moveaxis(found, 1, -1).astype(np.float32) / size
    if found.ndim != 3 or not found.size:
        raise ValueError(f"{name} must be images [n, H, W] or, in colour, [n, 3, H, W]; got shape {list(found.shape)}.")
    return found.astype(np.float32) / size


def _filled(images: np.ndarray, width: int) -> np.ndarray:
    """The images, and blank ones up to a whole row."""
    missing = -len(images) % width
    return np.concatenate([images, np.full((missing, *images.shape[1:]), np.nan, images.dtype)])


def _scaled(images: np.ndarray, signed: bool) -> tuple[np.ndarray, str]:
    """The images scaled to full contrast each, from 0 to 1, and the name of their colour map."""
    # Quantiles, since one strong pixel would make all others pale.
    low, high = (np.nanquantile(images, q, axis=(1, 2), keepdims=True) for q in (0.01, 0.99))
    if signed and np.nanmin(images) < 0:
        limit = np.maximum(np.abs(low), np.abs(high))
        return 0.5 + 0.5 * images / np.where(limit > 0, limit, 1), "PuOr"
    high = np.maximum(high, np.nanmax(images, axis=(1, 2), keepdims=True) / 2)
    return (images - low) / np.where(high > low, high - low, 1), "gray_r"


def _show(
    ax, images: np.ndarray, columns: int, rows: int = 0, extent: tuple | None = None, signed: bool = False
) -> None:
    """Draws images side by side as one picture, two pixels apart, in ``rows`` or as many rows as they need."""
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


def _label(ax, images: np.ndarray, labels: Sequence[str]) -> None:
    """Writes labels above the first columns of images that ``_show`` drew."""
    step = images.shape[2] + 2
    if labels:
        above = ax.secondary_xaxis("top")
        above.set_xticks(step * np.arange(len(labels)) + step / 2 - 1.5, labels)
        above.tick_params(length=0, labelsize=9, pad=1)
        above.spines[:].set_visible(False)


def _place(ax, images: np.ndarray, columns: int, x: float, side: float) -> None:
    """Draws a square of images around (x, −0.15) of the axes."""
    limits = ax.get_xlim(), ax.get_ylim()
    half = side / 2
    _show(ax, images, columns, columns, (x - half, x + half, -0.15 - half, -0.15 + half))
    ax.set(xlim=limits[0], ylim=limits[1])
