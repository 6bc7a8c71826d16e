"""The explorer: look at a Tversky network in the browser, and change it.

One page in three shells: a file that needs nothing (``explore(..., out=)``), a notebook's frame, and a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from ..files import write_text
from ..interpret.legibility import legibility
from ..interpret.sets import Universe
from .beside import beside as placed
from .content import LAYER, WORDS, Content, content, content_of_words
from .labels import warn_of_order
from .page import check_place, whole_page

# Height of the frame in a notebook, in pixels.
HEIGHT = 800
# What a page may do in that frame.
SANDBOX = "allow-scripts allow-forms allow-downloads"


class Page:
    """A page that is one file, as ``explore`` returns it. A notebook shows it in a frame; ``save`` writes it.

    Args:
        content: What the page shows.
        note: A sentence for its foot.
    """

    def __init__(self, content: Content, note: str = ""):
        self.content = content
        self.html = whole_page(content, note)

    def save(self, path: str | Path) -> Path:
        """Writes the page whole or not at all, and returns its path."""
        path = Path(path)
        check_place(path)
        write_text(path, self.html)
        return path

    def __repr__(self) -> str:
        return f"Page({self.content.about['title']!r}, {len(self.html) / 2**20:.1f} MiB; .save('page.html') writes it)"

    def _repr_html_(self) -> str:
        # The frame has an origin of its own, so that the page cannot touch the notebook. Its forms are answered by its
        # script, since the page's policy lets none be sent; names are saved as a download.
        style = f"width:100%;height:{HEIGHT}px;border:0"
        return f'<iframe sandbox="{SANDBOX}" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def explore(
    model: Any,
    inputs: Any = None,
    labels: Any = None,
    names: Sequence[str] | None = None,
    out: str | Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    images: Any = None,
    layer: str | None = None,
    beside: Any = None,
    attributes: Any = None,
    title: str | None = None,
    note: str = "",
) -> Page:
    """A page to look at a model's Tversky layer, with the data set that it is shown on. A notebook displays it.

    Args:
        model: what has a TverskyProjection, as in ``Universe.of``; or a Universe, which needs no inputs.
        inputs: the data set, N inputs of the model. **The page holds them**: give it to no one who may not see them.
        labels: index of the right prototype of each input, or name of its class, ``[N]``. Whole numbers are indices,
            also where a classifier's classes are texts: places among its sorted classes.
        names: name of each input; by default its number.
        out: an .html file that the page is written to.
        classes: name of each prototype; by default a classifier's classes.
        columns: names of the inputs' columns, where inputs are a table; by default a data frame's, or those that a
            classifier was fitted with. The page then shows values, and the columns that go with each feature.
        images: what is shown of each input, ``[N, H, W]`` or ``[N, C, H, W]``; by default the inputs, if they are
            images.
        layer: name of the layer where the model has several.
        beside: another model of the same inputs, to compare with.
        attributes: which inputs have which attribute, bool ``[N, J]``, and the J names: the page shows how well
            features match them, as ``interpret.legibility`` says. Give inputs that the model was not trained on.
        title: heading of the page.
        note: a sentence at the foot of the page, such as where the data is from.
    """
    if isinstance(model, Universe):
        made = content_of_words(model, title or WORDS)
    elif inputs is None:
        raise ValueError("the page shows the layer on a data set: give inputs.")
    else:
        given = {"labels": labels, "names": names, "classes": classes, "columns": columns, "images": images}
        shown = partial(content, inputs=inputs, layer=layer, **given)
        report = None
        if attributes is not None:
            report = legibility(model, inputs, attributes, classes=labels, layer=layer)
        made = shown(model, title=title or LAYER, report=report)
        if labels is not None:
            warn_of_order(made.about["accuracy"], made.about["most_frequent"])
        if beside is not None:
            made = placed(made, shown(beside, title="the other model"))
    page = Page(made, note)
    if out is not None:
        page.save(out)
    return page
