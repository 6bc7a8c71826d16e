"""What importing costs, which way imports point, and that README's code runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "similitude"

# A file may import, at its top, from these and from what stands before it in its own row.
LAYERS = [
    "files",
    "ops",
    "checks",
    "precision",
    "functional",
    "initialize",
    "contrast",
    "nn",
    "recipes",
    "explain",
    "bank",
    "distributed",
    "convert",
    "models",
    "interpret",
    "export",
    "estimator",
    "reproduce",
    "doctor",
    "cli",
    "__main__",
]
HEAVY = ["transformers", "sklearn", "matplotlib", "triton", "typer", "rich", "mlxtend", "networkx"]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_is_quick_and_loads_nothing_heavy():
    code = f"""
import time, sys, torch
start = time.perf_counter()
import similitude
print(time.perf_counter() - start)
print([m for m in {HEAVY} if m in sys.modules])
"""
    runs = [python(code).splitlines() for _ in range(3)]
    assert min(float(run[0]) for run in runs) < 0.3
    assert runs[0][1] == "[]"


def imports(path: Path):
    """Names of the modules of ours, and of others, that a file imports at its top."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [node.module] if node.module else [alias.name for alias in node.names]
            yield from ((node.level, name) for name in names)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    where = path.relative_to(PACKAGE).parts
    own = where[0].removesuffix(".py")
    if own == "__init__":
        return
    for level, name in imports(path):
        if level == 0:
            assert name.split(".")[0] not in HEAVY or path.parent.name == "triton", f"{name} is imported at the top"
            continue
        # How many folders up the import starts from, counted from the package.
        base = list(where[: len(where) - level])
        target = (base + name.split("."))[0]
        assert target in ("__version__", own) or LAYERS.index(target) < LAYERS.index(own), f"{own} imports {target}"


def blocks(page: Path) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the plain block that follows it at once, its output."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", page.read_text(), flags=re.DOTALL)
    return [(code, output or None) for code, output in found]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_code_in_pages_runs_and_prints_what_it_says(page, tmp_path, monkeypatch, capsys):
    """The blocks of a page run one after another, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "page"}
    for code, output in blocks(page):
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        if output is not None:
            assert capsys.readouterr().out == output


def test_readme_has_code():
    found = blocks(ROOT / "README.md")
    assert len(found) >= 3
    assert any(output for _, output in found)


def test_every_module_says_why_it_exists():
    for path in PACKAGE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
