"""Texts of a figure that cover each other or leave the page, as they are drawn."""

from matplotlib.axes import Axes
from matplotlib.axis import Tick
from matplotlib.text import Text

from similitude.interpret.figures.base import boxes_for_missing_glyphs


def texts_of(figure) -> list[Text]:
    """All texts that are seen."""
    with boxes_for_missing_glyphs():
        figure.canvas.draw()
    # Of the ticks that an axis keeps, these are the ones that it draws.
    axes = [ax for ax in figure.findobj(Axes) if ax.axison and ax.get_visible()]
    drawn = {
        id(text) for ax in axes for axis in (ax.xaxis, ax.yaxis) for t in axis._update_ticks() for text in (t.label1,)
    }
    ticks = {id(text) for tick in figure.findobj(Tick) for text in (tick.label1, tick.label2)}
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in found if id(text) not in ticks or id(text) in drawn]


def overlapping(figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other, and single ones that are cut off at the page's end."""
    texts = texts_of(figure)
    boxes = [text.get_window_extent().shrunk(0.98, 0.9) for text in texts]
    page = figure.bbox.padded(1)
    bad = [
        (a.get_text(), b.get_text())
        for i, a in enumerate(texts)
        for j, b in enumerate(texts[:i])
        if boxes[i].overlaps(boxes[j])
    ]
    inside = lambda box: page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1  # noqa: E731
    return bad + [(text.get_text(), "page") for text, box in zip(texts, boxes, strict=True) if not inside(box)]
