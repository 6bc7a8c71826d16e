"""Data of the user's own for the experiment on legible features: rows, their classes, and attributes with names."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .attributed import Attributed
from .find import DataError, read, sha256

WANTED = "X [N, D], y [N], attributes [N, J] and names [J]"
# A fifth of the rows is read and tested on; fewer rows have no halves to choose and to score features on.
FEWEST = 50


def given(file: str, train: int) -> Attributed:
    """The data of an npz file with ``X``, ``y``, ``attributes`` and ``names``; a fifth of its rows, drawn once, tests.

    Columns are standardised by the rows that layers are trained on.

    Args:
        file: its path.
        train: the most rows that are trained on.
    """
    path = Path(file).expanduser()
    content = read(path, "")
    arrays = _arrays(path, content)
    X, y, has, names = _checked(path, arrays)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1977)).numpy()
    other, own = order[: len(X) // 5], order[len(X) // 5 :][:train]
    if len(np.unique(y[own])) < len(np.unique(y)):
        raise DataError(f"{path} has classes that only the test rows have; leave out those of few rows.")
    scale = X[own].std(0)
    x = torch.from_numpy((X - X[own].mean(0)) / np.where(scale > 0, scale, 1)).float()
    classes, attributes = torch.from_numpy(y), torch.from_numpy(has)
    return Attributed(
        x[own], classes[own], x[other], classes[other], x[other], attributes[other], names, x[own], attributes[own],
        {path.name: sha256(content)}, classes=classes[other],
    )  # fmt: skip


def _arrays(path: Path, content: bytes) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(content)) as found:
            names = set(found.files) if hasattr(found, "files") else set()
            missing = [name for name in ("X", "y", "attributes", "names") if name not in names]
            if not missing:
                return {name: found[name] for name in ("X", "y", "attributes", "names")}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        why = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise DataError(f"{path} is not an npz file of plain arrays ({why}); expected {WANTED}.") from None
    raise DataError(
        f"{path} has no array {missing[0]!r}, only {', '.join(sorted(names)) or 'none'}; expected {WANTED}."
    )


def _checked(path: Path, arrays: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[str]]:
    """X in float64, classes from 0 on, attributes as bool, and their names."""
    X, y, has, names = (arrays[name] for name in ("X", "y", "attributes", "names"))

    def refuse(name: str, expected: str) -> DataError:
        array = arrays[name]
        return DataError(f"{name} of {path} must be {expected}; got {array.dtype} {list(array.shape)}.")

    if X.ndim != 2 or X.dtype.kind not in "fiub" or not X.shape[1]:
        raise refuse("X", "numbers [N, D]")
    if len(X) < FEWEST:
        raise refuse("X", f"{FEWEST} rows or more")
    if y.shape != (len(X),) or y.dtype.kind not in "iubUS":
        raise refuse("y", f"classes [{len(X)}], whole numbers or text")
    if has.ndim != 2 or len(has) != len(X) or not has.shape[1] or not np.isin(has, (0, 1)).all():
        raise refuse("attributes", f"bool [{len(X)}, J]")
    if names.shape != has.shape[1:] or names.dtype.kind not in "US":
        raise refuse("names", f"the names of {has.shape[1]} attributes")
    X = X.astype(np.float64)
    if not np.isfinite(X).all():
        raise DataError(f"X of {path} must be finite; row {int(np.argmin(np.isfinite(X).all(1)))} is not.")
    classes, targets = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y of {path} must have two classes or more; all rows are {classes[0]}.")
    return X, targets.astype(np.int64), has.astype(bool), [str(name) for name in names.astype(str)]
