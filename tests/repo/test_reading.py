"""The pictures of docs: all are there, small, described, and drawn by docs/figures/make.py."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SHOWN = [
    (page.name, alt, target)
    for page in sorted(DOCS.glob("*.md"))
    for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text())
]


@pytest.mark.parametrize(("page", "alt", "target"), SHOWN, ids=lambda value: value[:40])
def test_a_picture_is_there_small_and_described(page, alt, target):
    picture = (DOCS / target).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(picture) < 200_000
    assert len(alt) > 40


def test_no_picture_is_left_over():
    assert {target for _, _, target in SHOWN} == {f"figures/{path.name}" for path in (DOCS / "figures").glob("*.png")}


def test_links_within_the_page_lead_somewhere():
    text = (DOCS / "reading.md").read_text()
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(links) > 5
    assert links <= slugs
