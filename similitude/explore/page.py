"""The explorer's page as one file, with all its data in it."""

from __future__ import annotations

from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np

from .. import page
from ..page import bytes_part, json_part, one_file
from .content import Content

FILES = resources.files(__name__.rpartition(".")[0]) / "page"
read, files = partial(page.read, FILES), partial(page.files, FILES)
bundle = partial(page.bundle, FILES, "main.js")


def whole_page(content: Content, note: str = "") -> str:
    """The page with all its data in it.

    Args:
        content: what it shows.
        note: a sentence on where the data is from, shown at the foot of the page.
    """
    about = {**content.about, "arrays": described(content), "sprites": sprites(content), "note_of_page": note}
    parts = [json_part("about", about)]
    parts += [bytes_part(f"array-{name}", np.ascontiguousarray(a).tobytes()) for name, a in content.arrays.items()]
    parts += [bytes_part(f"sprite-{name}", sprite.png) for name, sprite in content.sprites.items()]
    return one_file(FILES, "index.html", content.about["title"], parts)


class NotHtml(ValueError):
    """A page was to be written as something else."""


def check_place(path: Path) -> None:
    """Raises before the work starts, if a page cannot be written there."""
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "No such folder", str(path.parent))
    if path.suffix.lower() not in (".html", ".htm"):
        raise NotHtml(f"a page is written as .html; got {path.name!r}.")


def described(content: Content) -> dict[str, dict[str, object]]:
    """dtype and shape of each array."""
    return {name: {"dtype": str(a.dtype), "shape": list(a.shape)} for name, a in content.arrays.items()}


def sprites(content: Content) -> dict[str, dict[str, int]]:
    return {name: sprite.about() for name, sprite in content.sprites.items()}
