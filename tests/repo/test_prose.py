"""README and docs read well: pages are short, sentences too, and words mean what they mean elsewhere."""

import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
# Pages that are looked things up in, not read from top to bottom.
LONG = {DOCS / "results", DOCS / "reference"}
WORDS, MEDIAN = 2_500, 18
# Words of ours for which the trade has one.
ODD = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bin the place of\b": "instead of",
    r"\b(is|are|was|were|be) had\b": "have, in the active",
    r"\bhad by\b": "have, in the active",
    r"\bof before\b": "from before",
    r"\bwhat is learned behind\b": "parameters",
}


def sentences(text: str) -> list[str]:
    """The prose of a page: no code, tables, headings, pictures or comments; items of lists are sentences."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\|.*$|^#.*$|^!\[.*$|^</?(details|summary).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    parts = (" ".join(part.split()) for part in re.split(r"\n\s*\n|^[-*] |^\d+\. ", text, flags=re.MULTILINE))
    found = (s for part in parts for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*“\"0-9α-ω])", part))
    return [s for s in found if len(s.split()) > 2]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_is_short(page):
    if not LONG & set(page.parents) and not page.stem.startswith("log"):
        assert len(page.read_text().split()) <= WORDS


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_sentences_are_short(page):
    lengths = [len(sentence.split()) for sentence in sentences(page.read_text())]
    assert not lengths or statistics.median(lengths) <= MEDIAN


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_words_are_the_trades(page):
    text = " ".join(sentences(page.read_text()))
    assert not [f"{found[0]!r}: {better}" for odd, better in ODD.items() if (found := re.search(odd, text))]


def test_prose_is_seen():
    """What the tests above count, on a page with one of each."""
    page = "# Title\n\nOne two three. Four five six: seven.\n\n- eight nine ten\n- `a b c` [d](e)\n"
    page += "\n```\nno no no\n```\n| no | no |\n"
    assert sentences(page) == ["One two three.", "Four five six: seven.", "eight nine ten", "`a b c` d"]


NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)"


def unfounded(paragraph: str, linked: str) -> list[str]:
    """Decimals and percentages of a paragraph that the pages it links do not have, to as many places."""
    prose = re.sub(r"\]\([^)]*\)|`[^`]*`", "", paragraph)
    there = [float(n.replace(",", "")) for n in re.findall(NUMBER, linked)]
    there += [100 * n for n in there if n <= 1]
    claims = [n for n in re.findall(NUMBER, prose) if "." in n or f"{n} %" in prose]
    return [n for n in claims if not any(f"{y:.{len(n.partition('.')[2])}f}" == n for y in there)]


@pytest.mark.parametrize("name", ["options.md", "compare.md"])
def test_numbers_are_those_of_the_pages_that_are_linked(name):
    text = re.sub(r"^```.*?^```|^\|.*?$", "", (DOCS / name).read_text(), flags=re.DOTALL | re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        pages = {(DOCS / path) for path in re.findall(r"\]\(([^)#\s]+\.md)", paragraph)}
        assert not unfounded(paragraph, "\n".join(page.read_text() for page in pages)), paragraph


def test_a_number_from_nowhere_is_seen():
    assert unfounded("46.8 % of [these](a.md), 2.5 of those, 3 of `0.7`", "46.83 and 2.51") == []
    assert unfounded("46.9 %, 2.6", "46.83 and 2.51") == ["46.9", "2.6"]
