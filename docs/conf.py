"""The site: `make docs` builds it from these pages and from the docstrings, offline, into site/."""

import os
import re
import shutil
from pathlib import Path

import similitude

DOCS = Path(__file__).parent
ROOT = DOCS.parent

project = "similitude"
author = "The similitude authors"
project_copyright = "The similitude authors, Apache-2.0"
release = version = similitude.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["figures", "explore"]
root_doc = "index"
highlight_language = "text"
nitpicky = False

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
# Headings of a generated table may start at any level.
suppress_warnings = ["myst.header"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
pygments_style, pygments_dark_style = "default", "github-dark"
html_title = "similitude"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# Pages outside of docs/ that the site has too, and what stands for them.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "CITATION.cff": "cite.md",
}
# Files that are opened in the browser, or downloaded, under their own address.
LIVE = (".html", ".ipynb")


def linked(text: str, page: Path, home: Path) -> str:
    """The Markdown of a page with its relative links as the site has them. They are read from the folder ``home``."""

    def target(match: re.Match) -> str:
        shown, path, anchor = match.groups()
        if re.match(r"[a-z]+:", path) or not path:
            return match.group()
        place = (home / path).resolve()
        if place.is_dir() or not place.exists():
            return shown
        name = place.relative_to(ROOT).as_posix()
        there = DOCS / PAGES.get(name, "")
        if name not in PAGES or there == page:
            there = place
        anchor = "" if name == "README.md" else anchor
        live = "{.external}" if place.suffix in LIVE else ""
        return f"[{shown}]({os.path.relpath(there, page.parent)}{anchor or ''}){live}"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s#]*)(#[^)\s]*)?\)", target, text)


def read(app, name: str, content: list[str]) -> None:
    """Gives the links of a page their form, and a page that stands for a file of the root that file's text."""
    page = DOCS / f"{name}.md"
    for path, there in PAGES.items():
        if there == f"{name}.md" and there.startswith("project/"):
            content[0] = linked((ROOT / path).read_text(), page, ROOT)
            return
    content[0] = linked(content[0], page, page.parent)


def copy_live(app, error: Exception | None) -> None:
    """Pages that are no part of Sphinx's, such as the explorer's, at their own addresses."""
    if error is None:
        for path in (path for suffix in LIVE for path in DOCS.rglob(f"*{suffix}")):
            there = Path(app.outdir) / path.relative_to(DOCS)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, there)


def not_ours(app, what: str, name: str, value: object, skip: bool, options) -> bool | None:
    """Leaves out methods that a library put into a class of ours."""
    return True if not getattr(value, "__module__", "similitude").startswith("similitude") else None


def setup(app) -> dict[str, bool]:
    app.connect("source-read", read)
    app.connect("autodoc-skip-member", not_ours)
    app.connect("build-finished", copy_live)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
