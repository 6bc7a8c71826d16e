"""Judgements of people, and simulated ones: Morse signals, the Leuven norms, contrast models of known features."""

from __future__ import annotations

import io
from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np

from ...human import Judgements, confusions, similarities
from .find import DataError, find, missing, sha256

CATEGORIES = [
    "bird",
    "clothing",
    "fish",
    "fruit",
    "insect",
    "kitchen_utensil",
    "mammal",
    "musical_instrument",
    "profession",
    "reptile",
    "sport",
    "tool",
    "vegetable",
    "vehicle",
    "weapon",
]
# Judges who said whether an exemplar has a feature.
JUDGES = 4
SIMULATED = {"objects": 36, "features": 8, "share": 0.35, "alpha": 0.9, "beta": 0.3, "answers": 150}


class Category(NamedTuple):
    """A category of the Leuven norms: similarities, and the share of judges that ascribed each feature."""

    name: str
    said: Judgements
    features: np.ndarray
    feature_names: list[str]
    typicality: np.ndarray


def morse_hash() -> str:
    return sha256(resources.files("similitude.human").joinpath("morse.csv").read_bytes())


def simulated(seed: int) -> tuple[Judgements, np.ndarray]:
    """Confusions by a contrast model with binary features, α = 0.9 and β = 0.3, and the features, ``[N, K]``."""
    random = np.random.default_rng(seed)
    N, K = int(SIMULATED["objects"]), int(SIMULATED["features"])
    has = random.random((N, K)) < SIMULATED["share"]
    while not (has.any(0) & ~has.all(0)).all():
        has = random.random((N, K)) < SIMULATED["share"]
    weights = 0.5 + random.random(K)
    common, whole = (has * weights) @ has.T, has @ weights
    S = common - SIMULATED["alpha"] * (whole[:, None] - common) - SIMULATED["beta"] * (whole[None] - common)
    answers = int(SIMULATED["answers"])
    counts = random.binomial(answers, 1 / (1 + np.exp(0.3 - S)))
    return confusions(counts / answers, n=answers), has


@cache
def leuven(where: str | Path | None = None) -> tuple[tuple[Category, ...], dict[str, str]]:
    """The 15 categories, and the archive's hash; from leuven.zip in the folder ``human`` of SIMILITUDE_DATA."""
    folder = find("human", where)
    path = None if folder is None else folder / "leuven.zip"
    if path is None or not path.is_file():
        raise missing("human")
    try:
        with ZipFile(path) as archive:
            names = archive.namelist()
            found = tuple(_category(archive, names, name) for name in CATEGORIES)
    except (BadZipFile, KeyError) as error:
        raise DataError(f"{path} is not the archive of the Leuven norms ({error}).") from None
    return found, {"leuven.zip": sha256(path.read_bytes())}


def _category(archive: ZipFile, names: list[str], name: str) -> Category:
    exemplars, similarity = _table(
        _text(archive, f"pairwise_similarities/{name}/{name}_pairwise_similarities_mean.csv")
    )
    said = similarities((similarity + similarity.T) / 2, exemplars)
    columns: dict[str, np.ndarray] = {}
    for kind in ("exemplar", "category"):
        file = f"exemplar_feature_judgments/{kind}_features/categories/{name}/{name}_{kind}_features_sum.csv"
        if file in names:
            rows, table, heads = _sheet(_text(archive, file))
            order = [rows.index(exemplar) for exemplar in exemplars]
            columns = {**{head: table[order, i] / JUDGES for i, head in enumerate(heads)}, **columns}
    columns = {head: np.nan_to_num(column) for head, column in columns.items()}
    columns = {head: column for head, column in columns.items() if column.std() > 0}
    rows, table, heads = _sheet(_text(archive, f"exemplar_judgments/typicality_ratings/{name}_typicality_ratings.csv"))
    people = [i for i, head in enumerate(heads) if head.startswith("respondent")]
    order = [rows.index(exemplar) for exemplar in exemplars]
    typicality = np.nanmean(table[order][:, people], 1)
    return Category(name, said, np.stack(list(columns.values()), 1), list(columns), typicality)


def _text(archive: ZipFile, name: str) -> str:
    return archive.read(name).decode("utf-8")


def _table(text: str) -> tuple[list[str], np.ndarray]:
    rows, table, _ = _sheet(text)
    return rows, table


def _sheet(text: str) -> tuple[list[str], np.ndarray, list[str]]:
    """Names of rows, numbers and names of columns of CSV text."""
    import csv

    head, *lines = list(csv.reader(io.StringIO(text)))
    lines = [line for line in lines if line]
    table = np.array([[float(cell) if cell.strip() else np.nan for cell in line[1:]] for line in lines])
    return [line[0] for line in lines], table, head[1:]
