"""The site: links get the form that the site has them in, and it is built without a warning or a broken link."""

import re
import runpy
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINKED = {
    "[home](../../README.md#cost)": "[home](../index.md)",
    "[law](../../CONTRIBUTING.md)": "[law](../project/contributing.md)",
    "[all](../../results) [one](../equations.md#precision)": "all [one](../equations.md#precision)",
    "[live](../explore/digits.html)": "[live](../explore/digits.html){.external}",
    "[out](https://a.b/c) [in](#part)": "[out](https://a.b/c) [in](#part)",
    "![a](../figures/a.png)": "![a](../figures/a.png)",
}


@pytest.mark.parametrize("text", LINKED)
def test_links_get_the_form_of_the_site(text):
    linked = runpy.run_path(str(DOCS / "conf.py"))["linked"]
    page = DOCS / "guides" / "layers.md"
    assert linked(text, page, page.parent) == LINKED[text]


class Links(HTMLParser):
    """Addresses on a page, and places on it that an address can name."""

    def __init__(self, page: Path):
        super().__init__()
        self.links: list[str] = []
        self.places: set[str | None] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.places.add(value)
            elif name in ("href", "src") and value and not re.match(r"[a-z]+:", value):
                self.links.append(value)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_or_a_broken_link(tmp_path):
    for library in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(library)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    own = [page for page in tmp_path.rglob("*.html") if page.parent.name not in ("explore", "_static")]
    found = {page: Links(page) for page in own}
    assert len(found) > 50
    lost = []
    for page, links in found.items():
        for link in links.links:
            path, _, place = link.partition("#")
            target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
            known = target.exists() and (not place or target not in found or unquote(place) in found[target].places)
            lost += [] if known else [f"{page.relative_to(tmp_path)}: {link}"]
    assert not lost
