"""What importing costs, which way imports point, and that README's code runs."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
import torch

from similitude._moved import MOVED

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "similitude"

# The rooms of the package from the lowest up: a file imports from its own room and from those before it.
# CONTRIBUTING.md says what each is for.
LAYERS = [
    "_moved",
    "_starting",
    "_registered",
    "form",
    "files",
    "_text",
    "extras",
    "batches",
    "ops",
    "checks",
    "functional",
    "kept",
    "contrast",
    "clusters",
    "presence",
    "pooling",
    "reach",
    "names",
    "initialize",
    "shares",
    "usage",
    "bank",
    "explain",
    "making",
    "nn",
    "losses",
    "optim",
    "distributed",
    "models",
    "convert",
    "page",
    "interpret",
    "export",
    "tabular",
    "fitting",
    "estimator",
    "human",
    "retrieval",
    "integrations",
    "explore",
    "reproduce",
    "doctor",
    "cli",
    "__main__",
]
HEAVY = ["transformers", "sklearn", "matplotlib", "triton", "typer", "rich", "mlxtend", "networkx"]
HEAVY += ["starlette", "uvicorn"]
HEAVY += ["sentence_transformers", "pytorch_metric_learning", "huggingface_hub", "faiss", "psycopg", "pyarrow"]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_is_quick_and_loads_nothing_heavy():
    code = f"""
import time, sys, torch
start = time.process_time()
import similitude
print(time.process_time() - start)
print([m for m in {HEAVY} if m in sys.modules])
"""
    runs = [python(code).splitlines() for _ in range(3)]
    assert min(float(run[0]) for run in runs) < 0.2
    assert runs[0][1] == "[]"


@cache
def modules() -> dict[str, Path]:
    """The package's modules by their dotted names, without its own."""
    names = {path.relative_to(PACKAGE).with_suffix(""): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {".".join(p for p in name.parts if p != "__init__"): path for name, path in names.items()}


class Imports(ast.NodeVisitor):
    """All imports of a module that run: at the top, inside functions and inside try; not those for type checkers."""

    def __init__(self, name: str, path: Path):
        self.package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        self.package = [part for part in self.package if part]
        self.ours: set[str] = set()
        self.top: set[str] = set()  # of others, at the top of the file
        self.depth = 0
        self.visit(ast.parse(path.read_text()))

    def visit_If(self, node: ast.If) -> None:
        parts = node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else [*node.body, *node.orelse]
        for part in parts:
            self.visit(part)

    def visit_FunctionDef(self, node) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    def visit_Import(self, node: ast.Import) -> None:
        if not self.depth:
            self.top |= {alias.name.split(".")[0] for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level:
            assert node.module
            if not self.depth:
                self.top.add(node.module.split(".")[0])
            return
        base = self.package[: len(self.package) - node.level + 1]
        base += node.module.split(".") if node.module else []
        for alias in node.names:
            inner = ".".join([*base, alias.name])
            self.ours.add(inner if inner in modules() else ".".join(base))


def room(name: str) -> str:
    return name.split(".")[0]


@cache
def imported() -> dict[str, set[str]]:
    return {name: Imports(name, path).ours - {""} for name, path in modules().items() if name}


def test_every_room_has_its_place():
    assert {room(name) for name in imported()} == set(LAYERS)


def test_imports_point_one_way():
    for name, others in imported().items():
        for other in others:
            own, target = room(name), room(other)
            assert own == target or LAYERS.index(target) < LAYERS.index(own), f"{name} imports {other}"


def test_no_module_imports_itself_by_way_of_others():
    """Imports inside of functions count too."""
    graph = TopologicalSorter(imported())
    try:
        graph.prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_heavy_libraries_are_imported_where_they_are_used():
    """At the top of a file only where the file is of no use without them."""
    needed = {"transformers": ("models",), "triton": ("ops",), "typer": ("cli", "reproduce")}
    needed |= {"sklearn": ("estimator", "human"), "starlette": ("explore",), "uvicorn": ("explore",)}
    adapters = ("sentence_transformers", "pytorch_metric_learning", "huggingface_hub")
    needed |= dict.fromkeys(adapters, ("integrations",))
    for name, path in modules().items():
        for library in Imports(name, path).top & set(HEAVY):
            assert room(name) in needed.get(library, ()), f"{name} imports {library} at its top"


def test_imports_are_seen_wherever_they_stand(tmp_path):
    """The tests above would hold of anything if these were overlooked."""
    path = tmp_path / "a.py"
    path.write_text(
        "try:\n    from . import nn\nexcept ImportError:\n    from .ops import leak\n"
        "def f():\n    from .interpret.sets import Universe\n    import transformers\n"
        "if TYPE_CHECKING:\n    from . import cli\nelse:\n    from .form import Form\nimport sklearn.svm\n"
    )
    found = Imports("a", path)
    assert found.ours == {"nn", "ops.leak", "interpret.sets", "form"}
    assert found.top == {"sklearn"}


def blocks(page: Path) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the plain block that follows it at once, its output."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", page.read_text(), flags=re.DOTALL)
    return [(code, output or None) for code, output in found]


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def one_thread():
    """Small matrices gain nothing from a second thread, and two workers of pytest then have a core each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


@pytest.mark.parametrize("old", ["from similitude import hygiene", "import similitude.experiments.xor"])
def test_old_names_say_where_the_new_ones_are(old):
    with pytest.raises(ImportError, match=r"of version 0\.1 is now similitude\.(bank|reproduce)\.$"):
        exec(old, {})


def test_old_names_lead_to_modules_that_are_there():
    for name in (new for several in MOVED.values() for new in several.split(" and similitude.")):
        assert name in modules(), name
