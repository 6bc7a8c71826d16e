"""A graph of semantic fields as a figure: circles, lines, and boxes of top tokens in the margins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .base import INK, TOKEN, blank, boxes_for_missing_glyphs, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..graph import Field, FieldGraph

MARGIN, BOTTOM = 0.25, 0.45  # inches
LEAST, MOST = 8.0, 10.5  # height
COLUMN, GAP, BOXES = 3.0, 0.15, 16  # of boxes: inches, and how many there is room for
FONT, LINE = 8, 8 * 1.3 / 72  # points, and inches a line
PAD = 0.09  # inside a box
# Where a token's name may stand, best first: offset from its circle in points, and the name's alignment.
NAME_PLACES = (((0, 11), "center", "baseline"), ((0, -10), "center", "top"))
NAME_PLACES += (((10, 0), "left", "center"), ((-10, 0), "right", "center"))
LEGEND = "yellow: tokens · dots: features, one colour a distinct intersection · circles: the semantic fields they form"


@boxes_for_missing_glyphs()
def draw(graph: FieldGraph, title: str = "") -> Figure:
    """A figure with the graph in the middle and a box for each field with top tokens at the sides."""
    from matplotlib.collections import LineCollection

    figure = blank(LEAST, LEAST)
    left, right = _sides(graph)
    head = 0.6 if title else MARGIN
    notes, height = _notes(figure, graph, (left, right), head)
    x0, x1 = MARGIN + COLUMN * bool(left), MARGIN + COLUMN * bool(left) + height - head - BOTTOM
    width = x1 + COLUMN * bool(right) + MARGIN
    figure.set_size_inches(width, height)
    ax = figure.add_axes((x0 / width, BOTTOM / height, (x1 - x0) / width, (height - head - BOTTOM) / height))
    ax.axis("off")
    if title:
        figure.text(0.5, 1 - 0.33 / height, printable(title), ha="center", va="center", fontsize=13, parse_math=False)
    figure.text(0.5, 0.2 / height, LEGEND, ha="center", va="center", fontsize=9, color=INK)

    T, F = len(graph.tokens), len(graph.features)
    at, colours = graph.positions, graph.colours()
    many = len(graph.edges) > 2000
    # As single paths so many lines would make an SVG of many megabytes.
    lines = LineCollection(list(at[graph.edges]), colors="0.6", linewidths=0.4, alpha=0.12 if many else 0.5, zorder=1)
    lines.set_rasterized(many)
    ax.add_collection(lines)
    small = float(np.clip(9000 / max(F, 1), 2, 30))
    ax.scatter(*at[T : T + F].T, s=small, c=colours[T : T + F], linewidths=0, zorder=2, rasterized=many)
    sizes = [3 * small + 10 * np.sqrt(len(field.features)) for field in graph.fields]
    ax.scatter(*at[T + F :].T, s=sizes, c=colours[T + F :], edgecolors="white", linewidths=0.8, zorder=3)
    ax.scatter(*at[:T].T, s=160, c=TOKEN, edgecolors="black", linewidths=0.8, zorder=4)
    low, high = at.min(0), at.max(0)
    room = 0.06 * max(*(high - low), 1e-9)
    ax.set(aspect="equal", xlim=(low[0] - room, high[0] + room), ylim=(low[1] - room, high[1] + 1.5 * room))
    # Places on the page are known from here on.
    ax.apply_aspect()
    for which, x in ((left, MARGIN), (right, x1 + 0.2)):
        _boxes(figure, ax, graph, which, [notes[i] for i in which], x, height - head)
    _name_tokens(figure, ax, graph)
    return figure


def _sides(graph: FieldGraph) -> tuple[list[int], list[int]]:
    """Indices of the largest fields with top tokens, half for each side by their places, from top to bottom."""
    x, y = graph.positions[len(graph) - len(graph.fields) :].T
    noted = [i for i, field in enumerate(graph.fields) if field.top][:BOXES]
    across = sorted(noted, key=lambda i: x[i])
    half = (len(across) + 1) // 2
    left, right = (sorted(part, key=lambda i: -y[i]) for part in (across[:half], across[half:]))
    return left, right


def _notes(figure: Figure, graph: FieldGraph, sides: Sequence[list[int]], head: float) -> tuple[dict, float]:
    """Lines of each box, heading and tokens, and the height of a figure with room for the boxes."""
    measure, width = _measure(figure), COLUMN - 0.2 - 2 * PAD
    most = max(map(len, sides))
    room = (MOST - head - BOTTOM) / max(most, 1) - GAP - 2 * PAD
    notes = {i: _wrap_note(graph.fields[i], width, int(room / LINE), measure) for side in sides for i in side}
    needed = max(sum(_height(notes[i]) + GAP for i in side) for side in sides)
    return notes, float(np.clip(needed + head + BOTTOM, LEAST, MOST))


def _height(note: tuple[list[str], list[str]]) -> float:
    return sum(map(len, note)) * LINE + 2 * PAD


def _boxes(figure: Figure, ax, graph: FieldGraph, which: Sequence[int], notes: list, x: float, top: float) -> None:
    """Draws a column of boxes from ``x`` inches on, each as near to its field's height as fits, with a line to it."""
    from matplotlib.patches import ConnectionPatch, Rectangle

    width, (wide, high) = COLUMN - 0.2, figure.get_size_inches()
    first = len(graph) - len(graph.fields)
    fields = ax.transData.transform(graph.positions[first:])[list(which), 1] / figure.dpi if len(which) else ()
    tops = _apart(fields, [_height(note) for note in notes], top - GAP / 2, BOTTOM + GAP / 2)
    for i, note, y in zip(which, notes, tops, strict=True):
        (head, body), height, colour = note, _height(note), graph.colours()[first + i]
        box = Rectangle((x / wide, (y - height) / high), width / wide, height / high, transform=figure.transFigure)
        box.set(facecolor="white", edgecolor=colour, linewidth=2, zorder=5)
        figure.add_artist(box)
        for n, line in enumerate([*head, *body]):
            weight = "bold" if n < len(head) else "normal"
            across, down = (x + PAD) / wide, (y - PAD - n * LINE) / high
            figure.text(across, down, line, fontsize=FONT, va="top", parse_math=False, weight=weight, zorder=6)
        side = x + width if x == MARGIN else x
        ends = (side / wide, (y - height / 2) / high), tuple(graph.positions[first + i])
        leader = ConnectionPatch(*ends, figure.transFigure, ax.transData)
        leader.set(color=colour, linewidth=1.2, zorder=2.5)
        figure.add_artist(leader)


def _apart(centres: Sequence[float], heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Upper ends of boxes, from top to bottom, as near to these centres as boxes fit without overlap."""
    ends = []
    for centre, height in zip(centres, heights, strict=True):
        ends.append(min(centre + height / 2, top))
        top = ends[-1] - height - GAP
    for n, height in reversed(list(enumerate(heights))):
        ends[n] = max(ends[n], bottom + height)
        bottom = ends[n] + GAP
    return ends


def _measure(figure: Figure) -> Callable[[str, str], float]:
    """A function that returns the width of a text in inches."""
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    fonts = {weight: FontProperties(size=FONT, weight=weight) for weight in ("normal", "bold")}

    def measure(text: str, weight: str = "normal") -> float:
        return renderer.get_text_width_height_descent(text, fonts[weight], False)[0] / figure.dpi

    return measure


def _wrap_note(field: Field, width: float, most: int, measure: Callable) -> tuple[list[str], list[str]]:
    """Lines of a box, its heading and its tokens: as many as fit, with … for those left out."""
    head = _wrap(printable(field.expression).split(" "), width, lambda t: measure(t, "bold"), " ")
    head = _cut(head, max(1, most // 2))
    tokens = [printable(t) for t in field.top]
    return head, _cut(_wrap(tokens, width, measure, ", "), max(1, most - len(head)))


def _cut(lines: list[str], most: int) -> list[str]:
    """Up to ``most`` lines; if there are more, … replaces the last word."""
    if len(lines) <= most:
        return lines
    kept, space, _ = lines[most - 1].rstrip(", ").rpartition(" ")
    return [*lines[: most - 1], f"{kept} …" if space else lines[most - 1][:-2] + "…"]


def _wrap(words: Sequence[str], width: float, measure: Callable[[str], float], between: str) -> list[str]:
    """The words in lines no wider than ``width``; a wider word is broken."""
    lines = [""]
    for n, word in enumerate(words):
        rest = word + (between if n + 1 < len(words) else "")
        if lines[-1] and measure((lines[-1] + rest).rstrip()) > width:
            lines.append("")
        while measure((lines[-1] + rest).rstrip()) > width:
            fits = max([1, *(c for c in range(1, len(rest)) if measure(lines[-1] + rest[:c]) <= width)])
            lines[-1] += rest[:fits]
            rest = rest[fits:]
            lines.append("")
        lines[-1] += rest
    return [line.rstrip() for line in lines]


def _name_tokens(figure: Figure, ax, graph: FieldGraph) -> None:
    """Writes the tokens' names above, below or beside their circles, and moves those that still overlap."""
    from matplotlib.patheffects import withStroke
    from matplotlib.transforms import Bbox

    names = [
        ax.annotate(printable(token), at, (0, 0), textcoords="offset points", fontsize=10, weight="bold", zorder=7)
        for token, at in zip(graph.tokens, _tokens(graph), strict=True)
    ]
    for name in names:
        name.set(path_effects=[withStroke(linewidth=3, foreground="white")], parse_math=False)
    per_point = figure.dpi / 72
    circles = [Bbox.from_bounds(x, y, 0, 0).padded(7.5 * per_point) for x, y in ax.transData.transform(_tokens(graph))]
    for n, name in enumerate(names):
        taken = [*circles[:n], *circles[n + 1 :], *(other.get_window_extent().padded(1) for other in names[:n])]
        for at, across, along in NAME_PLACES:
            name.set(position=at, ha=across, va=along)
            if not any(name.get_window_extent().padded(1).overlaps(box) for box in taken):
                break
        else:
            name.set(position=NAME_PLACES[0][0], ha="center", va="baseline")
    for _ in range(100):
        boxes = [name.get_window_extent().padded(1) for name in names]
        pairs = [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])]
        for i, j in pairs:
            low, high = sorted((i, j), key=lambda k: (boxes[k].y0, k))
            step = (boxes[low].y1 - boxes[high].y0) / per_point / 2 + 0.5
            for which, move in ((low, -step), (high, step)):
                dx, dy = names[which].get_position()
                names[which].set_position((dx, dy + move))
        if not pairs:
            break


def _tokens(graph: FieldGraph) -> np.ndarray:
    """Places of the tokens, ``[T, 2]``."""
    return graph.positions[: len(graph.tokens)]
