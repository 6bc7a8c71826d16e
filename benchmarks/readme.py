"""The tables of README and docs/guides/layers.md: cost from benchmarks/results, accuracy from results/.

A page marks a table by a pair of comments, ``<!-- cost -->`` and ``<!-- /cost -->``; ``write`` fills it in.
"""

import json
import math
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "guides" / "layers.md")
LINEAR = "nn.Linear(D, P)"
MADE = "written by `python -m benchmarks --readme`"


def write(
    rows: list[dict], ratios: Sequence[dict] = (), results: Path = ROOT / "results", pages: Sequence[Path] = PAGES
) -> None:
    """Fills in every marked table of the pages.

    Args:
        rows: those of shapes-cuda.csv or shapes-cpu.csv.
        ratios: those of ratios-cpu.csv; without any the table of the CPU stays as it is.
        results: folder of the runs' results.
        pages: the pages.
    """
    tables = {"cost": cost(rows), "speed": speed(rows), "results": accuracy(results)}
    if ratios:
        tables["cpu"] = cpu(ratios)
    for page in pages:
        text = page.read_text()
        for name, table in tables.items():
            block = f"<!-- {name} -->\n{table}\n<!-- /{name} -->"
            text = re.sub(rf"<!-- {name} -->.*<!-- /{name} -->", lambda _, b=block: b, text, flags=re.DOTALL)
        page.write_text(text)


def _cases(rows: list[dict]):
    """The contenders of each shape and options, by name, with a title."""
    for key in dict.fromkeys((r["shape"], r["N"], r["D"], r["P"], r["K"], r["options"]) for r in rows):
        shape, *size, options = key
        found = {r["contender"]: r for r in rows if (r["shape"], r["options"]) == (shape, options)}
        yield f"{shape} ({', '.join(size)}), {options}", found


def _origin(rows: Sequence[dict]) -> str:
    return (
        f"{rows[0]['machine']}, torch {rows[0]['torch']}, commit {rows[0]['commit']}; {MADE} from `benchmarks/results`."
    )


def cost(rows: list[dict]) -> str:
    """A Tversky layer beside nn.Linear, time and memory: the default options and one min-sum."""
    lines = [
        "| forward + backward (N, D, P, K), options | time, ms | × `nn.Linear` | GPU alone, ms | × | memory, GiB | × |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for title, found in _cases(rows):
        if "product" not in title and not title.startswith("resnet"):
            continue
        cells = []
        for key in ("both_ms", "graph_ms", "peak_gib"):
            ours, linear = (float(found[name][key] or "nan") for name in ("ours", LINEAR))
            shown = math.isfinite(ours) and round(ours, 2) > 0
            cells += [f"{ours:.2f}", f"{ours / linear:.1f}"] if shown else ["–", "–"]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Medians on {_origin(rows)}"])


def speed(rows: list[dict]) -> str:
    """All shapes: ours, the equations as they stand, and the two linear layers."""
    columns = ("reference", LINEAR, "nn.Linear(K, P aligned)")
    lines = [
        "| forward + backward, ms (N, D, P, K) | ours | GPU alone | GiB | as written "
        "| nn.Linear(D, P) | × | nn.Linear(K, P) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for title, found in _cases(rows):
        values = [found["ours"][key] for key in ("both_ms", "graph_ms", "peak_gib")]
        values += [found[name]["both_ms"] if name in found else "" for name in columns]
        cells = ["–" if value in ("", "nan") else f"{float(value):.2f}" for value in values]
        cells.insert(-1, f"{float(values[0]) / float(values[4]):.1f}" if values[4] else "–")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    note = f"Medians on {_origin(rows)} A dash: does not fit into memory, or was not run."
    return "\n".join([*lines, "", note])


def cpu(rows: Sequence[dict]) -> str:
    """Each ratio on the CPU, beside the most that it may be."""
    lines = [
        'Processor time of one core as ratios in one run, forward and backward unless "eval" is said. "Bare products"',
        "are the matrix products of such a step, nothing else. `python -m benchmarks --check` measures them again.",
        "",
        "| on one core of a CPU | measured | at most |",
        "|---|--:|--:|",
    ]
    lines += [f"| {row['what']} | {row['measured']} | {row['at_most']} |" for row in rows]
    return "\n".join([*lines, "", f"Measured on {_origin(rows)}"])


def accuracy(folder: Path) -> str:
    """Six rows out of results/, each with linear and Tversky under one recipe. ``paper`` is as published."""

    def found(pattern: str) -> list[dict]:
        runs = [json.loads(path.read_text()) for path in sorted(folder.glob(pattern + ".json"))]
        if not runs:
            raise SystemExit(f"no result {pattern}.json in {folder}; make it with: similitude reproduce NAME --all")
        return runs

    def best(pattern: str) -> list[dict]:
        """The runs, one a seed, of the rate that is best on the validation part."""
        seeds = [list(runs) for _, runs in groupby(found(pattern), key=lambda run: run["row"])]
        return min(seeds, key=lambda runs: mean(run["result"]["valid"] for run in runs))

    def row(task: str, linear: str, ours: str, paper: str, page: str, runs: list[dict]) -> str:
        commits = ", ".join(dict.fromkeys(run["commit"] for run in runs))
        return f"| {task} | {linear} | {ours} | {paper} | {commits} | [{page}](docs/results/{page}.md) |"

    xor = found("xor-tuned-seed0")
    eight = next(r for r in xor[0]["result"]["rows"] if r["num_features"] == 8)
    mnist = found("mnist-paper-seed0")
    networks = mnist[0]["result"]["networks"]
    heads = found("heads-paper-*")
    tuned = heads[0]["result"]["accuracy"]
    linear, ours = (f"resnet-paper-{kind}data_cub-source_ResNet50-seed[0-9]" for kind in ("network_baseline-", ""))
    frozen = found(ours)
    birds = [[run["result"]["accuracy"] for run in runs] for runs in (found(linear), frozen)]
    linear, head = best("ptb-tuned-network_baseline-*"), best("ptb-tuned-network_tversky_head-*")
    whole = best("ptb-tuned-[ls][re]*")

    def digits(name: str) -> str:
        return f"{100 * networks[name]['accuracy']:.2f} % ({networks[name]['parameters']:,} parameters)"

    marks: dict[str, str] = {}

    def perplexity(runs: list[dict]) -> str:
        caveat = runs[0].get("caveat")
        mark = marks.setdefault(caveat, "\\*" * (len(marks) + 1)) if caveat else ""
        shown = spread([run["result"]["test"] for run in runs])
        return f"{shown}{mark} ({runs[0]['result']['parameters'] / 1e6:.0f} M)"

    def percent(values: list[float]) -> str:
        return f"{spread([100 * value for value in values])} %"

    lines = [
        "| task | `nn.Linear` | Tversky | paper: linear → Tversky | commit | page |",
        "|---|---|---|---|---|---|",
        row(f"XOR by one layer of 8 features, share of {eight['n']} runs that learn it", "cannot",
            f"{100 * eight['p_conv']:.0f} %", "– → 53 % (best options, any size)", "xor", xor),
        row("MNIST, small CNN, the paper's recipe", digits("MNISTNet"), digits("TverskyMNISTNet"), "99.1 → 98.7 %",
            "mnist", mnist),
        row("birds (CUB-200), head on a frozen ResNet-50, both tuned", percent(tuned["linear"]),
            percent(tuned["tversky"]), "–", "heads", heads),
        row("birds, the same with the paper's recipe and 224 features", percent(birds[0]), percent(birds[1]),
            "36.0 → 44.9 % (NABirds)", "resnet", frozen),
        row("Penn Treebank, GPT-2 with another head, test perplexity", perplexity(linear), perplexity(head), "–", "ptb",
            [*linear, *head]),
        row("Penn Treebank, GPT-2 with another head and MLPs", perplexity(linear), perplexity(whole),
            "112.81 → 103.99", "ptb", [*linear, *whole]),
    ]  # fmt: skip
    note = "± is the standard error over seeds; rows without it have one seed. Lower perplexity is better; M: million"
    lines += ["", f"{note} parameters. {MADE.capitalize()} from `results`."]
    lines += [f"<br>{mark} {caveat[0].upper()}{caveat[1:]}." for caveat, mark in marks.items()]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard error, or the value if there is one alone."""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{error}"
