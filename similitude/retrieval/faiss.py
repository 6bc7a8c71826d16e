"""Codes of an index in faiss: quick and approximate. What it finds is compared exactly, by the index's measures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..checks import check_sizes
from ..explain import Pair
from ..files import SUMS, changed, make_folder, read_json, whole, write_json, write_sums
from ..form import check_choice
from .codes import Vectors, Weights, constants, vectors_of, weights
from .engines import code_blocks
from .hits import Hits, Progress, checked, measured
from .saved import NoIndex, bank_digest

if TYPE_CHECKING:
    from .index import TverskyIndex

__all__ = ["FaissIndex"]

KINDS = ("ivf", "hnsw")
CODES, ABOUT = "codes.faiss", "faiss.json"
# Below this a search of all documents takes well under a millisecond, and there is too little to learn clusters from.
FEWEST = 1000
# Numbers of a code that are quantised together, in 4 bits. Documents that clusters are learned from, for each cluster.
TOGETHER, SAMPLE = 2, 40
# Share of the clusters that a search looks into; neighbours of a node of a graph, how many are looked at to link it.
PROBED, LINKS, LINKING, EFFORT = 1 / 5, 16, 80, 128
# Candidates that are compared for each document asked for, and at least.
FACTOR, LEAST = 5, 50


class FaissIndex:
    """What ``TverskyIndex.to_faiss`` returns: the index's documents, found by faiss.

    Attributes:
        index: the TverskyIndex, which compares what faiss finds.
        engine: faiss's index of the codes.
        kind: "ivf" or "hnsw".
        effort: how many clusters a search looks into, or how many candidates it follows through the graph.
    """

    def __init__(self, index: TverskyIndex, engine: Any, kind: str, effort: int):
        self.index, self.engine, self.kind, self.effort = index, engine, kind, effort

    def __len__(self) -> int:
        return self.engine.ntotal

    def __repr__(self) -> str:
        return f"FaissIndex({len(self):,} documents, kind={self.kind!r}, effort={self.effort})"

    def search(
        self,
        queries: Vectors,
        k: int = 10,
        reverse: bool = False,
        alpha: float | None = None,
        beta: float | None = None,
        theta: float | None = None,
        candidates: int | None = None,
        effort: int | None = None,
    ) -> Hits:
        """The k documents that are most similar to each query, ``[D]`` or ``[Q, D]``, of those that faiss finds.

        Values are exact, in float64. Whether no other document is better is not certified.

        Args:
            queries: a query, or several.
            k: how many documents.
            reverse: whether documents are ranked by S(document, query) instead of S(query, document).
            alpha, beta, theta: other constants than the layer's.
            candidates: how many documents faiss finds for each query, to be compared exactly; by default five times k,
                and 50 at least.
            effort: how many clusters, or candidates of the graph, instead of the index's own. More find more.
        """
        check_sizes(k=k, **{n: v for n, v in (("candidates", candidates), ("effort", effort)) if v is not None})
        index = self.index
        if len(index) != len(self):
            raise ValueError(
                f"the index has {len(index):,} documents and faiss {len(self):,}: call to_faiss again after a change."
            )
        if k > len(self):
            raise ValueError(f"k must be up to {len(self):,}, the number of documents; got {k:,}.")
        x = vectors_of(queries, "queries")
        one = x.dim() == 1
        a = measured(index.layer, checked(index.layer, x[None] if one else x, "queries"), "queries")
        by = constants(index.layer, alpha, beta, theta)
        wanted = min(len(self), max(k, candidates or max(LEAST, FACTOR * k)))
        effort = effort or self.effort
        w = _weights(index, a, by, reverse)
        rows = self._rows(_codes(w), wanted, effort)
        fewest = int((rows >= 0).sum(1).min())
        if fewest < k:
            raise ValueError(f"faiss finds {fewest} documents with effort={effort}, of k={k}: give more effort.")
        values, best = self._best(w, np.sort(rows, axis=1), k)
        ids = [[index.ids[row] for row in found] for found in best]
        hits = Hits(torch.from_numpy(values), ids, torch.zeros(len(a), dtype=torch.bool))
        return Hits(hits.values[0], ids[0], hits.certified[0]) if one else hits

    def explain(self, query: Any, id: str | int, *args: Any, **kwargs: Any) -> Pair:
        """As ``TverskyIndex.explain``."""
        return self.index.explain(query, id, *args, **kwargs)

    def save(self, folder: str | Path) -> None:
        """Writes faiss's index to a folder; save the TverskyIndex too, which ``load`` needs."""
        import faiss

        folder = Path(folder)
        make_folder(folder)
        (folder / SUMS).unlink(missing_ok=True)
        with whole(folder / CODES) as half:
            faiss.write_index(self.engine, str(half))
        write_json(folder / ABOUT, {"kind": self.kind, "effort": self.effort, "of": _digest(self.index)})
        write_sums(folder, (CODES, ABOUT))

    @classmethod
    def load(cls, folder: str | Path, index: TverskyIndex) -> FaissIndex:
        """What ``save`` wrote, checked: of this index, and unchanged."""
        folder, faiss = Path(folder), _faiss()
        missing = [name for name in (CODES, ABOUT, SUMS) if not (folder / name).is_file()]
        if missing:
            raise NoIndex(f"no index of faiss in {folder}: {missing[0]} is not there; save one with .save(folder).")
        damaged = changed(folder, (CODES, ABOUT))
        if damaged:
            raise NoIndex(f"{folder / damaged[0]} is damaged: it is not what was saved; call to_faiss again.")
        about = read_json(folder / ABOUT)
        if about["of"] != _digest(index):
            raise NoIndex(f"{folder} was made of another index, or of other documents: call to_faiss again.")
        return cls(index, faiss.read_index(str(folder / CODES)), about["kind"], about["effort"])

    def _rows(self, codes: np.ndarray, wanted: int, effort: int) -> np.ndarray:
        """Rows of candidates ``[Q, wanted]``, −1 where faiss finds fewer."""
        faiss = _faiss()
        if self.kind == "ivf":
            options = faiss.SearchParametersIVF(nprobe=min(effort, self.engine.nlist))
        else:
            options = faiss.SearchParametersHNSW(efSearch=max(effort, wanted))
        return self.engine.search(_padded(codes, self.engine.d), wanted, params=options)[1]

    def _best(self, w: Weights, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k best of the candidates, equal ones in the order of the documents: values and rows ``[Q, k]``."""
        Q, wanted = rows.shape
        b = self._measures(rows.ravel()).reshape(Q, wanted, -1)
        values = b @ w.measured.numpy()[:, :, None]
        values += (b > 0) @ w.had.numpy()[:, :, None]
        if w.roots is not None:
            values += np.sqrt(b) @ w.roots.numpy()[:, :, None]
        values = values[:, :, 0] + w.constant.numpy()[:, None]
        values[rows < 0] = -np.inf
        order = (-values).argsort(axis=1, kind="stable")[:, :k]
        own = np.arange(Q)[:, None]
        return values[own, order], rows[own, order]

    def _measures(self, rows: np.ndarray) -> np.ndarray:
        """Measures of documents, ``[n, K]`` in float64; of row −1, anything."""
        out, first = np.zeros((len(rows), self.index.num_features)), 0
        for block in self.index._blocks:
            last = first + len(block)
            own = ((rows >= first) & (rows < last)).nonzero()[0]
            out[own] = block.rows(torch.from_numpy(rows[own] - first)).numpy()
            first = last
        return out


def to_faiss(index: TverskyIndex, kind: str = "ivf", seed: int = 0, progress: Progress | None = None) -> FaissIndex:
    """See ``TverskyIndex.to_faiss``."""
    faiss = _faiss()
    check_choice("kind", kind, KINDS)
    if index.codes == "sparse":
        raise ValueError(
            "sparse codes have an index of their own, which is exact; faiss takes codes='full' and smaller."
        )
    if len(index) < FEWEST:
        raise ValueError(f"faiss is for {FEWEST:,} documents or more; this index has {len(index):,}: search it itself.")
    one = torch.ones(1, index.num_features)
    width = _codes(_weights(index, one, constants(index.layer, None, None, None), False)).shape[1]
    if kind == "hnsw":
        longest = max(float(codes.double().square().sum(-1).max()) for _, codes in code_blocks(index))
        engine = faiss.IndexHNSWFlat(width + 1, LINKS)
        engine.hnsw.efConstruction = LINKING
        effort = EFFORT
    else:
        lists, parts = max(1, round(2 * len(index) ** 0.5)), -(-width // TOGETHER)
        engine = faiss.index_factory(parts * TOGETHER, f"IVF{lists},PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
        engine.cp.niter, engine.cp.seed, longest = 8, seed, 0.0
        engine.train(_sample(index, SAMPLE * lists, engine.d, seed))
        effort = max(1, round(PROBED * lists))
    done = 0
    for ids, codes in code_blocks(index):
        if kind == "hnsw":
            # With this last number all codes are equally long, and the nearest has the largest inner product.
            rest = (longest - codes.double().square().sum(-1)).clamp(min=0).sqrt()
            codes = torch.cat([codes, rest[:, None].to(codes)], -1)
        engine.add(_padded(codes.float().numpy(), engine.d))
        done += len(ids)
        if progress is not None:
            progress(done, len(index))
    return FaissIndex(index, engine, kind, effort)


def _weights(index: TverskyIndex, a: torch.Tensor, by: tuple[float, float, float], reverse: bool) -> Weights:
    """The queries' side of S, from their measures; S is exact in float64 by it."""
    w = weights(index.layer.form, a.double(), *by, reverse=reverse)
    if w is None:
        raise ValueError(
            f"{index.layer.form.described()} is no inner product of codes, which faiss searches by; product, mean and "
            "feature-level gmean with ignorematch are, in the contrast model. TverskyIndex searches by every form."
        )
    return w


def _codes(w: Weights) -> np.ndarray:
    return torch.cat([part for part in w[:3] if part is not None], -1).float().numpy()


def _padded(codes: np.ndarray, width: int) -> np.ndarray:
    return np.pad(codes, ((0, 0), (0, width - codes.shape[1]))) if codes.shape[1] < width else codes


def _sample(index: TverskyIndex, most: int, width: int, seed: int) -> np.ndarray:
    """Codes of so many documents at most, from all of them."""
    N = len(index)
    chosen = np.sort(np.random.default_rng(seed).choice(N, min(N, most), replace=False))
    found, first = [], 0
    for _, codes in code_blocks(index):
        own = chosen[(chosen >= first) & (chosen < first + len(codes))] - first
        found.append(codes[torch.from_numpy(own)].float().numpy())
        first += len(codes)
    return _padded(np.concatenate(found), width)


def _digest(index: TverskyIndex) -> str:
    """What faiss's codes depend on and are found by: the bank, and the documents' ids and measures, by their sums."""
    sums = hashlib.sha256(f"{bank_digest(index.layer)} {index.layer.form.intersection}".encode())
    for part in (index.ids.numbers, index.ids.letters):
        sums.update(b"" if part is None else np.ascontiguousarray(part).data)
    for _, codes in code_blocks(index):
        sums.update(np.ascontiguousarray(codes.double().sum(-1).numpy()).data)
    return sums.hexdigest()


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError("to_faiss needs faiss: pip install 'similitude[faiss]'.") from None
    return faiss
