"""What a release says of itself: one version, README as the package's page has it, and a workflow that publishes."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from similitude import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def described():
    """The function of release/metadata.py, which imports hatchling at its top."""
    tree = ast.parse((ROOT / "release" / "metadata.py").read_text())
    kept = [node for node in tree.body if not isinstance(node, ast.ImportFrom | ast.ClassDef)]
    names: dict = {}
    exec(compile(ast.Module(kept, []), "metadata.py", "exec"), names)
    return names["described"]


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["project"]["dynamic"]
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()
    for name in ("pyproject.toml", "CITATION.cff", "README.md", "Makefile"):
        assert __version__ not in (ROOT / name).read_text()


def test_the_package_page_has_absolute_links_and_needs_no_clone():
    text = (ROOT / "README.md").read_text()
    page = described()(text, "https://a.b/c", "v1")
    assert not re.findall(r"\]\((?!https://)", page)
    assert "](https://a.b/c/raw/v1/docs/figures/readme.png)" in page
    assert "](https://a.b/c/blob/v1/docs/index.md)" in page
    assert "pip install 'similitude[demo]'" in page
    assert "in a clone" not in page
    assert described()(text, "", "v1") == text


def test_every_extra_of_users_is_tried_for_what_it_is_for():
    tree = ast.parse((ROOT / "release" / "check.py").read_text())
    (tried,) = (
        {key.value for key in node.value.keys}
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PURPOSES"
    )
    assert tried - {""} == set(PROJECT["project"]["optional-dependencies"]) - {"dev", "docs"}


@pytest.mark.parametrize("name", ["check.py", "metadata.py", "results.py"])
def test_what_the_release_needs_is_in_the_sdist(name):
    assert (ROOT / "release" / name).exists()
    assert "release" in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


def test_publishing_waits_for_the_check():
    flow = (ROOT / ".github" / "workflows" / "publish.yml").read_text()
    assert "release/check.py" in flow
    assert "needs: check" in flow
    assert "needs: build" in flow
