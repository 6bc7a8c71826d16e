"""The page as one file: its style, its modules and its data inlined, so that it needs no server and no network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np

from .content import Content

FILES = resources.files(__name__.rpartition(".")[0]) / "page"
FIRST = "main.js"
STYLE = "style.css"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
# What the page may do; the hashes are those of its own style and script. It may load nothing from anywhere.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {style}; script-src {script}; "
    "base-uri 'none'; form-action 'none'"
)


def whole_page(content: Content, note: str = "") -> str:
    """The page with all its data in it.

    Args:
        content: what it shows.
        note: a sentence on where the data is from, shown at the foot of the page.
    """
    about = {**content.about, "arrays": described(content), "sprites": sprites(content), "note_of_page": note}
    script, style = bundle(), read(STYLE)
    policy = POLICY.format(style=_hash(style), script=_hash(script))
    parts = [f'<script type="application/json" id="about">{safe_json(about)}</script>']
    parts += [_part(f"array-{name}", np.ascontiguousarray(a).tobytes()) for name, a in content.arrays.items()]
    parts += [_part(f"sprite-{name}", sprite.png) for name, sprite in content.sprites.items()]
    parts.append(f'<script type="module">{script}</script>')
    page = read("index.html")
    page = page.replace(
        '<meta charset="utf-8">',
        f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">',
    )
    page = page.replace(f'<link rel="stylesheet" href="page/{STYLE}">', f"<style>{style}</style>")
    page = page.replace("<title>Explorer</title>", f"<title>{escape(content.about['title'])}</title>")
    # Not by re.sub, and last, so that nothing within the data is taken for a mark.
    before, after = page.split(f'<script type="module" src="page/{FIRST}"></script>')
    return before + "\n".join(parts) + after


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


def safe_json(value: object) -> str:
    """JSON that a script element of HTML can hold: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@cache
def read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def files() -> list[str]:
    """Names of the page's files."""
    return sorted(file.name for file in FILES.iterdir() if file.name.endswith((".js", ".css")))


@cache
def bundle() -> str:
    """The page's modules as one script, each a function that returns what it exports, in the order of their imports.

    A file that is opened without a server cannot import another one.
    """
    order: list[str] = []
    _visit(FIRST, order, ())
    return "const modules = {};\n" + "\n".join(map(_module, order))


def _module(name: str) -> str:
    exported = ", ".join(EXPORTED.findall(read(name)))
    body = IMPORT.sub(r'const {\1} = modules["\2"];\n', EXPORT.sub("", read(name)))
    return f'modules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();'


def _visit(name: str, order: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import one another in a circle: {' imports '.join((*above, name))}.")
    if name not in order:
        for _, other in IMPORT.findall(read(name)):
            _visit(other, order, (*above, name))
        order.append(name)


def _part(name: str, content: bytes) -> str:
    return f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode()}</script>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
