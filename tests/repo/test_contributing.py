"""CONTRIBUTING.md: its order of imports is that of the test, and its map has every room."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGE = ROOT / "similitude"


def layers() -> list:
    """LAYERS of test_package.py, which the test of imports uses."""
    tree = ast.parse((ROOT / "tests" / "repo" / "test_package.py").read_text())
    found = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["LAYERS"]
    ]
    return list(ast.literal_eval(found[0]))


def line() -> str:
    """The order in one line; rooms of one row, if the list has rows, are separated by commas."""
    rows = [[row] if isinstance(row, str) else list(row) for row in layers()]
    return " ← ".join(", ".join(f"`{room}`" for room in row) for row in rows)


def test_the_order_of_imports_is_that_of_the_test():
    shown = re.search(r"<!-- imports -->\n(.*?)\n<!-- /imports -->", TEXT, flags=re.DOTALL)
    order = line()
    assert shown, "CONTRIBUTING.md has no order of imports"
    assert shown[1].replace("\n", " ") == order, f"write between the imports marks of CONTRIBUTING.md: {order}"


def on_the_map() -> set[str]:
    rooms = TEXT.partition("## Map")[2].partition("###")[0]
    return {
        name.strip("/") for row in re.findall(r"^\|(.*?)\|", rooms, re.MULTILINE) for name in re.findall("`(.*?)`", row)
    }


def test_the_map_has_every_room_and_no_other():
    rooms = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("__") and path.name != "py.typed"}
    outside = {"tests", "benchmarks", "docs", "results", "release"}
    assert on_the_map() - outside == rooms


def test_files_in_its_recipes_exist():
    """Paths such as ``ops/pairwise.py``, in the package or in the repository; NAME stands for a new one."""
    paths = {path for path in re.findall(r"`([\w./]+\.(?:py|md))`", TEXT) if "NAME" not in path}
    assert len(paths) > 20
    folders = [ROOT, PACKAGE, PACKAGE / "reproduce" / "data", PACKAGE / "interpret" / "figures", PACKAGE / "interpret"]
    assert not sorted(path for path in paths if not any((folder / path).exists() for folder in folders))
