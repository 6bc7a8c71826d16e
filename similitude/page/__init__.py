"""Pages for the browser as one file: style, modules and data are in it, so that it needs no server and no network.

A page is an HTML file with links to style sheets and to one module. These lie in its own folder, or here: ``theme.css``
and ``graph.js`` are for all pages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable

SHARED = resources.files(__name__)
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export ", re.MULTILINE)
EXPORTED = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
# What is replaced in a page's HTML.
STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w-]+\.css)">')
SCRIPT = re.compile(r'<script type="module" src="page/([\w-]+\.js)"></script>')
CHARSET, TITLE = '<meta charset="utf-8">', re.compile(r"<title>[^<]*</title>")
# What the page may do; the hashes are those of its own style and script. It may load nothing from anywhere.
POLICY = (
    "default-src 'none'; img-src data: blob:; style-src {style}; script-src {script}; "
    "base-uri 'none'; form-action 'none'"
)


def one_file(own: Traversable, name: str, title: str, parts: Sequence[str] = ()) -> str:
    """A page of HTML with its style sheets and its module in it, and a policy that lets it run and load nothing else.

    Args:
        own: the folder of the page's files.
        name: its HTML file.
        title: its title, as text.
        parts: elements that hold its data, see ``json_part`` and ``bytes_part``; they stand before the script.
    """
    page = read(own, name)
    styles = {sheet: read(own, sheet) for sheet in STYLE.findall(page)}
    scripts = {script: bundle(own, script) for script in SCRIPT.findall(page)}
    policy = POLICY.format(style=_hashes(styles.values()), script=_hashes(scripts.values()))
    page = page.replace(CHARSET, f'{CHARSET}\n<meta http-equiv="Content-Security-Policy" content="{policy}">', 1)
    page = TITLE.sub(lambda _: f"<title>{escape(title)}</title>", page, count=1)
    page = STYLE.sub(lambda link: f"<style>{styles[link[1]]}</style>", page)
    # Last, and by a function, so that nothing within the data is taken for a place.
    return SCRIPT.sub(lambda at: "\n".join([*parts, f'<script type="module">{scripts[at[1]]}</script>']), page)


def json_part(name: str, value: object) -> str:
    """An element that holds a value as JSON."""
    return f'<script type="application/json" id="{name}">{safe_json(value)}</script>'


def bytes_part(name: str, content: bytes) -> str:
    """An element that holds bytes as base64."""
    return f'<script type="text/plain" id="{name}">{base64.b64encode(content).decode()}</script>'


def safe_json(value: object) -> str:
    """JSON that a script element of HTML can hold: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


@cache
def read(own: Traversable, name: str) -> str:
    """The text of a page's file, from its own folder or from the shared one."""
    found = own / name
    return (found if found.is_file() else SHARED / name).read_text(encoding="utf-8")


def files(own: Traversable) -> list[str]:
    """Names of the style sheets and modules of a page, its own and the shared ones."""
    there = {file.name for folder in (own, SHARED) for file in folder.iterdir()}
    return sorted(name for name in there if name.endswith((".js", ".css")))


@cache
def bundle(own: Traversable, first: str) -> str:
    """A page's modules as one script, each a function that returns what it exports, in the order of their imports.

    A file that is opened without a server cannot import another one.
    """
    order: list[str] = []
    _visit(own, first, order, ())
    return "const modules = {};\n" + "\n".join(_module(own, name) for name in order)


def _module(own: Traversable, name: str) -> str:
    exported = ", ".join(EXPORTED.findall(read(own, name)))
    body = IMPORT.sub(r'const {\1} = modules["\2"];\n', EXPORT.sub("", read(own, name)))
    return f'modules["{name}"] = (() => {{\n{body}return {{ {exported} }};\n}})();'


def _visit(own: Traversable, name: str, order: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import one another in a circle: {' imports '.join((*above, name))}.")
    if name not in order:
        for _, other in IMPORT.findall(read(own, name)):
            _visit(own, other, order, (*above, name))
        order.append(name)


def _hashes(texts: Iterable[str]) -> str:
    """What a policy allows: these texts, or nothing."""
    return " ".join(map(_hash, texts)) or "'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
