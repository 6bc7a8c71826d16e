"""The tables of README and docs/guides/cost.md: cost from benchmarks/results, accuracy from results/.

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
PAGES = (ROOT / "README.md", ROOT / "docs" / "guides" / "cost.md")
LINEAR = "nn.Linear(D, P)"
MADE = "written by `python -m benchmarks --readme`"
# README's few rows: shapes and options of shapes-cuda.csv, and rows of ratios-cpu.csv.
ON_A_GPU = {
    "a head on ResNet-50, 2048 → 555": ("resnet-head", "product + ignorematch"),
    "GPT-2's head, 768 → 50257": ("gpt2-head", "product + ignorematch"),
}
ON_A_CPU = {
    "a head on ResNet-50, 2048 → 555": "a head (256, 2048, 555, 224), forward + backward, to nn.Linear(2048, 555)",
    "a head, 768 → 5000": "a head (512, 768, 5000, 1024), forward + backward, to nn.Linear(768, 5000)",
    "the same, one input in `eval()`": "one input in eval (768, 5000, 1024) to nn.Linear",
}


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
        tables |= {"cpu": cpu(ratios), "short": short(rows, ratios)}
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


def short(rows: list[dict], ratios: Sequence[dict]) -> str:
    """README's few rows: time and memory of a layer as multiples of nn.Linear's, on a GPU and on a CPU."""
    lines = ["| a training step | on | time | memory |", "|---|---|--:|--:|"]
    cases = list(_cases(rows))
    for task, (shape, options) in ON_A_GPU.items():
        contenders = next(c for title, c in cases if title.startswith(shape) and title.endswith(options))
        ours, linear = contenders["ours"], contenders[LINEAR]
        cells = [f"{float(ours[key]) / float(linear[key]):.1f} ×" for key in ("both_ms", "peak_gib")]
        lines.append(f"| {task} | {rows[0]['machine']} | {' | '.join(cells)} |")
    measured = {row["what"]: f"{float(row['measured']):.1f} ×" for row in ratios}
    for task, name in ON_A_CPU.items():
        if name in measured:
            memory = measured.get(f"{name}, memory", "–")
            lines.append(f"| {task} | one CPU core | {measured[name]} | {memory} |")
    return "\n".join([*lines, "", f"Multiples of `nn.Linear`'s, {MADE}; [Cost](docs/guides/cost.md) has the rest."])


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
        '"At most" is what we aim at; what is above it is bold.',
        "",
        "| on one core of a CPU | measured | at most |",
        "|---|--:|--:|",
    ]
    for row in rows:
        measured = f"**{row['measured']}**" if float(row["measured"]) > float(row["at_most"]) else row["measured"]
        lines.append(f"| {row['what']} | {measured} | {row['at_most']} |")
    return "\n".join([*lines, "", f"Measured on {_origin(rows)}"])


def accuracy(folder: Path) -> str:
    """Five rows out of results/, each with a rival and a Tversky layer under one recipe. ``paper`` is as published."""

    def found(pattern: str) -> list[dict]:
        runs = [json.loads(path.read_text()) for path in sorted(folder.glob(pattern + ".json"))]
        if not runs:
            raise SystemExit(f"no result {pattern}.json in {folder}; make it with: similitude reproduce NAME --all")
        return runs

    def best(pattern: str) -> list[dict]:
        """The runs, one a seed, of the rate that is best on the validation part."""
        seeds = [list(runs) for _, runs in groupby(found(pattern), key=lambda run: run["row"])]
        return min(seeds, key=lambda runs: mean(run["result"]["valid"] for run in runs))

    xor = found("xor-tuned-seed0")[0]["result"]["rows"]
    eight = next(row for row in xor if row["num_features"] == 8)
    networks = found("mnist-paper-seed0")[0]["result"]["networks"]
    heads = found("heads-paper-*")[0]["result"]
    frozen = [
        spread(
            [100 * run["result"]["accuracy"] for run in found(f"resnet-paper-{kind}data_cub-source_ResNet50-seed[0-9]")]
        )
        for kind in ("network_baseline-", "")
    ]
    whole = best("ptb-tuned-[ls][re]*")
    long = {kind: found(f"ptb-paper-{kind}seed0")[0]["result"]["test"] for kind in (
        "network_baseline-", "network_tversky_head-num_features_4096-difference_subtractmatch-", "intersection_min-"
    )}  # fmt: skip
    people = [found(f"human-paper-{kind}seed0")[0]["result"]["tables"][0] for kind in ("model_mds_choice-", "")]
    marks: dict[str, str] = {}

    def digits(name: str) -> str:
        return f"{100 * networks[name]['accuracy']:.2f} % ({networks[name]['parameters']:,} parameters)"

    def perplexity(runs: list[dict]) -> str:
        caveat = runs[0].get("caveat")
        mark = marks.setdefault(caveat, "\\*" * (len(marks) + 1)) if caveat else ""
        shown = spread([run["result"]["test"] for run in runs])
        return f"{shown}{mark} ({runs[0]['result']['parameters'] / 1e6:.0f} M)"

    def birds(kind: str, recipe: str) -> str:
        count = f"{heads['parameters'][kind] / 1e6:.1f} M"
        return f"{spread([100 * value for value in heads['accuracy'][kind]])} % ({count}); paper's recipe {recipe} %"

    def said(table: dict) -> str:
        return f"{table['R2']:.2f} ± {table['error']:.2f}"

    linear, head, every = long.values()
    rows = [
        ("[XOR](docs/results/xor.md) by one layer of 8 features: runs that learn it", "cannot",
            f"{100 * eight['p_conv']:.0f} % of {eight['n']}, tuned", "– → 53 % (best options, any size)"),
        ("[Digits](docs/results/mnist.md) (MNIST), small CNN: accuracy", digits("MNISTNet"), digits("TverskyMNISTNet"),
            "99.1 → 98.7 %"),
        ("[Penn Treebank](docs/results/ptb.md), GPT-2 with this head: perplexity, lower is better",
            f"{perplexity(best('ptb-tuned-network_baseline-*'))}; paper's recipe {linear:.2f}",
            f"{perplexity(best('ptb-tuned-network_tversky_head-*'))}; paper's recipe {head:.2f}; "
            f"for MLPs too {perplexity(whole)}; {every:.2f}",
            "112.81 → 103.99 (MLPs too)"),
        ("[Birds](docs/results/heads.md) (CUB-200), head on a frozen ResNet-50: accuracy",
            birds("linear", frozen[0]), birds("tversky", frozen[1]), "36.0 → 44.9 % (NABirds)"),
        ("[People](docs/results/human.md) who confuse Morse signals: R² on held-out pairs",
            f"distances, {said(people[0])}", said(people[1]), "–"),
    ]  # fmt: skip
    lines = ["| task | `nn.Linear` | Tversky | paper: linear → Tversky |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    note = "±: standard error over seeds, or over folds for people; without it, one seed. M: million parameters."
    lines += ["", f"{note} {MADE.capitalize()} from `results`."]
    lines += [f"<br>{mark} {caveat[0].upper()}{caveat[1:]}." for caveat, mark in marks.items()]
    return "\n".join(lines)


def spread(values: Sequence[float]) -> str:
    """Mean ± standard error, or the value if there is one alone."""
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{error}"
