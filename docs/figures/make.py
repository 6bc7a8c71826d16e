"""Draws all pictures of docs again: ``python docs/figures/make.py``, in two minutes; it needs MNIST (see docs/data.md).

Pictures come from the page itself, whose blocks write some, and from ``similitude gallery results``.
"""

import os
import re
import shutil
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def wanted() -> set[str]:
    """Names of the pictures that pages of docs show."""
    pages = "".join(page.read_text() for page in HERE.parent.glob("*.md"))
    return set(re.findall(r"\]\(figures/([\w.-]+\.png)\)", pages))


def main() -> None:
    from similitude.experiments.gallery import make

    with tempfile.TemporaryDirectory() as folder:
        make(HERE.parent.parent / "results", Path(folder))
        os.chdir(folder)
        code = re.findall(r"```python\n(.*?)```", (HERE.parent / "reading.md").read_text(), flags=re.DOTALL)
        exec(compile("\n".join(code), "reading.md", "exec"), {"__name__": "page"})
        missing = sorted(name for name in wanted() if not Path(name).exists())
        if missing:
            raise SystemExit(f"nothing draws {', '.join(missing)}; the old ones were left as they were.")
        for name in wanted():
            shutil.copyfile(name, HERE / name)


if __name__ == "__main__":
    main()
