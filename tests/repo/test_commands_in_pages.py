"""Commands that README and docs name are commands that there are: names, options, recipes and settings."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command

from similitude.cli import make_app
from similitude.reproduce import EXPERIMENTS, find
from similitude.reproduce.settings import of_recipe

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = get_command(make_app()).commands
# Words that stand for what the reader puts there.
PLACEHOLDER = re.compile(r"[A-Z_/]+|\$.*|…|\.\.\.")


def commands(page: Path) -> list[list[str]]:
    """The words behind ``similitude`` in every command of a page, comments and placeholders left out."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for block in re.findall(r"```(?:bash|sh)?\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))]
    found = [line.strip() for line in [*lines, *spans] if re.match(r"(\.venv/bin/)?similitude [a-z]", line.strip())]
    return [shlex.split(line, comments=True)[1:] for line in found]


CASES = [(page, words) for page in PAGES for words in commands(page)]


@pytest.mark.parametrize(("page", "words"), CASES, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_a_command_in_a_page_is_accepted(page, words):
    name, *given = words
    assert name in COMMANDS, f"{page.name}: no command {name!r}"
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert {word for word in given if word.startswith("--")} <= known | {"--help"}
    if name not in ("reproduce", "table") or not given or given[0].startswith("--") or PLACEHOLDER.fullmatch(given[0]):
        return
    experiment = find(given[0])
    options = {option: [b for a, b in pairwise(given) if a == option] for option in ("--recipe", "--set")}
    settings = [s for s in options["--set"] if not PLACEHOLDER.fullmatch(s.partition("=")[2] or s)]
    of_recipe(experiment, (options["--recipe"] or ["paper"])[0], [s for s in settings if s.partition("=")[2]])


def test_commands_are_found_in_blocks_and_in_text(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`similitude table\nptb` and `similitude`\n```bash\nsimilitude reproduce ptb \\\n  --all  # rows\n```\n"
    )
    assert commands(page) == [["reproduce", "ptb", "--all"], ["table", "ptb"]]
    assert {words[1] for _, words in CASES if words[0] == "reproduce" and len(words) > 1} & set(EXPERIMENTS)
