"""README and docs: pictures are there, small, described and drawn by docs/figures/make.py; links lead somewhere."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def prose(page: Path) -> str:
    """The page without its blocks and spans of code, in which brackets are no links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


SHOWN = [
    (page, alt, target) for page in PAGES for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page; a heading that comes again is numbered."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        again = sum(1 for other in found if re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other))
        found.add(f"{slug}-{again}" if again else slug)
    return found


def links(page: Path) -> list[tuple[str, str]]:
    """Relative links of a page, as path and anchor; either may be empty."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    relative = [target for target in targets if not re.match(r"[a-z]+:", target)]
    return [(path, anchor) for path, _, anchor in (target.partition("#") for target in relative)]


@pytest.mark.parametrize(("page", "alt", "target"), SHOWN, ids=lambda value: str(value)[-40:])
def test_a_picture_is_there_small_and_described(page, alt, target):
    picture = (page.parent / target).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) < 200_000
    assert len(alt) > 40


def test_no_picture_is_left_over():
    shown = {(page.parent / target).resolve() for page, _, target in SHOWN}
    assert {path for path in shown if path.parent == DOCS / "figures"} == set((DOCS / "figures").glob("*.png"))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_relative_links_lead_somewhere(page):
    lost = []
    for path, anchor in links(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            lost.append(path)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            lost.append(f"{path}#{anchor}")
    assert not lost


def listed(page: Path) -> set[Path]:
    """Pages in the tables of contents of a page, which the site shows at its side."""
    trees = re.findall(r"^```{toctree}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    return {(page.parent / (re.sub(r".*<(.*)>", r"\1", line) + ".md")).resolve() for line in lines}


def test_the_index_leads_to_every_page():
    """By a link, and at the side of the site; what the site copies from the root is linked where it lies."""
    index = DOCS / "index.md"
    every = set(DOCS.rglob("*.md")) - {index}
    inner = {page for page in every if page.name == "index.md"}
    led = {(DOCS / path).resolve() for path, _ in links(index)}
    below = set().union(*(listed(page) for page in inner))
    assert {page for page in every - below if page.parent.name != "project"} <= led
    assert every == below | listed(index)


def test_guides_have_one_order():
    """In the table of the index and at the side of the site."""
    text = (DOCS / "index.md").read_text()
    table = re.findall(r"^\| \[[^\]]*\]\((guides/[\w-]+)\.md\)", text.partition("## Guides")[2], flags=re.MULTILINE)
    side = re.findall(r"guides/[\w-]+", text.partition(":caption: Guides")[2].partition("```")[0])
    assert len(side) > 10
    assert table == side


@pytest.mark.parametrize("folder", ["similitude", "tests", "benchmarks", "examples", "docs/figures"])
def test_pages_that_code_names_are_there(folder):
    lost = {}
    for path in sorted((ROOT / folder).rglob("*.py")):
        named = re.findall(r"\b(docs/[\w/-]+\.(?:md|py))\b", path.read_text())
        if missing := [page for page in named if not (ROOT / page).exists()]:
            lost[str(path.relative_to(ROOT))] = missing
    assert not lost


def test_links_are_seen(tmp_path):
    """What the tests above look for, on a page with one of each."""
    page = tmp_path / "page.md"
    page.write_text(
        "# A, `b` & [c](x.md)\n## A\n## A\n[in](#a) [out](https://a.b/c) [file](../up.md#part)\n"
        "`[no](code.md)` ![alt](pic.png)\n```\n# no heading\n[no](block.md)\n```\n"
    )
    assert links(page) == [("x.md", ""), ("", "a"), ("../up.md", "part"), ("pic.png", "")]
    assert anchors(page) == {"a-b--c", "a", "a-1"}


def test_the_notebook_is_made_from_its_page():
    pytest.importorskip("jupytext")
    made = runpy.run_path(str(DOCS / "notebook.py"))["made"]
    assert (DOCS / "start.ipynb").read_text() == made(), "make it again: python docs/notebook.py"
