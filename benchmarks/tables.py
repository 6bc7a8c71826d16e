"""Measurements as CSV and as pictures."""

import csv
import platform
from pathlib import Path

import torch

from .measure import commit, processor

HERE = Path(__file__).parent


def where(device: str) -> dict[str, str]:
    return {
        "machine": processor(device),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
    }


def write_csv(rows: list[dict], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def draw(rows: list[dict], path: Path) -> None:
    """Time and memory against each size, a line a contender."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = ["#0072b2", "#56b4e9", "#d55e00", "#e69f00", "#009e73", "#cc79a7"]
    names = list(dict.fromkeys(r["contender"] for r in rows))
    style = {name: dict(color=colours[i % 6], marker="os^vDP"[i % 6]) for i, name in enumerate(names)}
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), constrained_layout=True)
    for column, size in enumerate("NPK"):
        for row, (key, label) in enumerate((("both_ms", "forward + backward, ms"), ("peak_gib", "peak memory, GiB"))):
            axis = axes[row][column]
            for name in names:
                points = sorted(
                    (int(r[size]), float(r[key])) for r in rows if r["sweep"] == size and r["contender"] == name
                )
                points = [p for p in points if p[1] > 0]
                if points:
                    axis.plot(*zip(*points), label=name, markersize=4, linewidth=1.2, **style[name])
            axis.set(xscale="log", yscale="log", xlabel=size, ylabel=label)
            axis.set_xscale("log", base=2)
            axis.grid(alpha=0.3, which="major")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    first = rows[0]
    figure.suptitle(
        f"{first['options']}; {first['machine']}, torch {first['torch']}, commit {first['commit']}", fontsize=10
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
