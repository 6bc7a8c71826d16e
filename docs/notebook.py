"""Writes docs/start.ipynb from docs/start.md: ``python docs/notebook.py``. It needs the docs extra."""

from pathlib import Path

import jupytext

PAGE = Path(__file__).with_name("start.md")


def made(page: Path = PAGE) -> str:
    """The page as a notebook: its Python blocks are cells, and what they print is left out."""
    notebook = jupytext.read(page, fmt="md")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    return jupytext.writes(notebook, fmt="ipynb") + "\n"


if __name__ == "__main__":
    PAGE.with_suffix(".ipynb").write_text(made())
