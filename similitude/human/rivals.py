"""Models side by side: each fitted to the same folds of the same judgements, in one table."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..files import make_folder, read_json, write_json
from . import families, folds, given
from .families import Family, Start, with_bias
from .fitting import Fitted, Told, fit, predict, scores
from .judgements import Array, Judgements

# Each rival is a list of families, from which the cells that stop a fold's fit choose.
RIVALS: dict[str, Callable[[Sequence[int]], list[Family]]] = {
    "mds": lambda dims: [families.metric(d, decay) for decay in (True, False) for d in dims],
    "mds-choice": lambda dims: [
        with_bias(families.metric(d, decay), "object") for decay in (True, False) for d in dims
    ],
    "slide vector": lambda dims: [families.metric(d, shift="slide") for d in dims],
    "unfolding": lambda dims: [families.metric(d, shift="unfold") for d in dims],
    "cosine": lambda dims: [families.cosine(d) for d in dims],
    "dot": lambda dims: [families.dot(d) for d in dims],
    "bilinear": lambda dims: [families.bilinear(d) for d in dims],
    "common only": lambda dims: [families.common_only(dim=d) for d in dims],
    "nmf": lambda dims: [families.dot(2 * d, floor=0.0) for d in dims],
    "bias only": lambda _: [with_bias(families.constant(), "row+column")],
}
DIMS = (3, 5)
# Rivals that see what is given: features that people listed, or vectors.
OF_FEATURES: dict[str, Callable[[Tensor], Family]] = {
    f"weighted {by}": partial(given.alike, by=by) for by in ("cosine", "dot", "city block", "Euclid")
}
OF_VECTORS: dict[str, Callable[[Tensor], Family]] = {
    "cosine of vectors": partial(given.linear, cosine=True, sides=False),
    "cosine with sides": partial(given.linear, cosine=True),
    "sides only": given.linear,
    "bilinear with sides": given.turned,
    "distance with sides": partial(given.turned, way="metric"),
    "network": given.network,
}
NAMES = (*RIVALS, *OF_FEATURES, *OF_VECTORS)


@dataclass(frozen=True)
class Row:
    """One model's row: what it predicts of what was held out, means over repeats, and the standard error of R²."""

    name: str
    parameters: tuple[int, int]
    measures: dict[str, float]
    error: float
    by_fold: Array
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """A table of models; ``str`` prints it, ``frame()`` is a pandas frame."""

    rows: list[Row]
    folds: str
    ceiling: dict[str, float] = field(default_factory=dict)

    def columns(self) -> list[str]:
        return [
            name for name in ("R2", "deviance", "r", "asymmetry r") if any(name in row.measures for row in self.rows)
        ]

    def table(self) -> list[dict[str, Any]]:
        out = []
        for row in self.rows:
            low, high = row.parameters
            line: dict[str, Any] = {"model": row.name, "parameters": low if low == high else f"{low}–{high}"}
            line |= {name: row.measures.get(name, math.nan) for name in self.columns()}
            out.append(line | {"± R2": row.error, "seconds": row.seconds})
        return out

    def frame(self) -> Any:
        import pandas

        return pandas.DataFrame(self.table()).set_index("model")

    def paired(self, one: str, other: str) -> tuple[float, float]:
        """Mean difference of R² over folds of two models, and its standard error."""
        rows = {row.name: row for row in self.rows}
        for name in (one, other):
            if name not in rows:
                raise ValueError(f"no model {name!r} in this table; it has {', '.join(rows)}.")
        difference = rows[one].by_fold - rows[other].by_fold
        return float(difference.mean()), folds.standard_error(difference, len(difference))

    def __str__(self) -> str:
        names = [*self.columns(), "± R2"]
        lines = [
            f"{'model':32s} {'parameters':>11s} " + " ".join(f"{name:>12s}" for name in names) + f" {'seconds':>8s}"
        ]
        for line in self.table():
            values = " ".join("           –" if math.isnan(line[name]) else f"{line[name]:12.3f}" for name in names)
            lines.append(f"{line['model']:32s} {line['parameters']!s:>11s} {values} {line['seconds']:8.1f}")
        if self.ceiling:
            said = ", ".join(f"{name} {value:.3f}" for name, value in self.ceiling.items())
            lines.append(f"noise ceiling: {said}")
        return "\n".join([*lines, f"held out by {self.folds}; ± is the standard error of R² over folds that overlap"])


def candidates(
    names: Sequence[str] | str,
    dims: Sequence[int] = DIMS,
    features: Tensor | None = None,
    vectors: Tensor | None = None,
    unseen: bool = False,
) -> Iterator[tuple[str, list[Family]]]:
    """Rivals by name: a name, a list of names, or all that the data allow.

    ``features`` or ``vectors`` are what is given; of ``unseen`` objects only rivals that use them can say anything.
    """
    known: dict[str, list[Family]] = {} if unseen else {name: make(dims) for name, make in RIVALS.items()}
    for makers, values in ((OF_FEATURES, features), (OF_VECTORS, vectors)):
        known |= {name: [make(values)] for name, make in makers.items() if values is not None}
    for name in list(known) if names == "all" else [names] if isinstance(names, str) else list(names):
        if name not in NAMES:
            raise ValueError(f"no rival {name!r}; there are {', '.join(NAMES)}.")
        if name not in known:
            lacks = "unseen objects" if name in RIVALS else "judgements without such features or vectors"
            raise ValueError(f"{name!r} says nothing of {lacks}; there are {', '.join(known) or 'no others'}.")
        yield name, known[name]


def compare(
    models: Sequence[tuple[str, list[Family]]],
    said: Judgements,
    by: str = "pairs",
    k: int = 10,
    repeats: int = 2,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    folder: Path | None = None,
    **settings: Any,
) -> Comparison:
    """The models, fitted to the same folds. ``settings`` are those of ``fitting.fit``.

    ``folder`` keeps each model's row as soon as it is done; a row of the same judgements and settings is done once.
    """
    if by == "objects" and (blind := [name for name, choices in models if not all(one.given for one in choices)]):
        raise ValueError(
            f"{blind[0]} knows an object by its judgements; to hold out objects, give features or vectors."
        )
    masks = folds.split(said, by, k, repeats, seed, settings.get("restarts", 3))
    total = sum(len(choices) for _, choices in models)
    rows, done = [], 0
    for name, choices in models:
        path = None if folder is None else folder / f"{name.replace(' ', '_')}.json"
        key = "" if path is None else _key(said, by, k, repeats, seed, choices, settings)
        if path is not None and (kept := _kept(path, key)) is not None:
            rows.append(kept)
            done += len(choices)
            if progress is not None:
                progress(done, total)
            continue
        started, fits = time.monotonic(), []
        for family in choices:
            fits.append((family, fit(family, said, masks[1], masks[2], seed=seed, **settings)))
            done += 1
            if progress is not None:
                progress(done, total)
        rows.append(row(name, fits, said, masks, repeats, time.monotonic() - started, bool(settings.get("ordinal"))))
        if path is not None:
            make_folder(path.parent)
            write_json(path, {"key": key, **vars(rows[-1]), "by_fold": rows[-1].by_fold.tolist()})
    return Comparison(rows, by, folds.ceiling(said))


def _key(said: Judgements, *settings: Any) -> str:
    """A digest of the judgements, the settings, and S of each family with random parameters, which tells its form."""
    digest = hashlib.sha256(__version__.encode())
    for name, value in vars(said).items():
        digest.update(f"{name} {value.tobytes() if isinstance(value, np.ndarray) else value!r}".encode())
    *rest, choices, given = settings
    digest.update(repr((rest, sorted(given.items()))).encode())
    for family in choices:
        random = torch.Generator().manual_seed(0)
        p = family.start(Start(1, len(said.objects), random, torch.zeros(1)))
        p = {name: t + torch.randn(t.shape, generator=random) / 10 for name, t in p.items()}
        with torch.no_grad():
            digest.update(scores(family, p, said).numpy().tobytes() + repr((family.name, family.l2)).encode())
    return digest.hexdigest()


def _kept(path: Path, key: str) -> Row | None:
    """The row that the file keeps, or None if it is not there, broken, or of another comparison."""
    try:
        content = read_json(path)
        if content.pop("key") != key:
            return None
        lists = {"parameters": tuple(content["parameters"]), "by_fold": np.array(content["by_fold"])}
        return Row(**{**content, **lists})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def row(
    name: str,
    fits: list[tuple[Family, Fitted]],
    said: Judgements,
    masks: tuple[Array, Array, Array],
    repeats: int,
    seconds: float,
    ordinal: bool = False,
) -> Row:
    """The row of a model: for each fold the family whose fit was best on the cells that stopped it."""
    test = masks[0]
    best = np.stack([fitted.held for _, fitted in fits]).argmin(0)
    told = Told.of(said, ordinal)
    chosen = [fits[i] for i in best]
    predicted = np.stack([predict(family, fitted, said, told, f) for f, (family, fitted) in enumerate(chosen)])
    each = len(test) // repeats
    parts = [slice(i * each, (i + 1) * each) for i in range(repeats)]
    found = [folds.measures(said, predicted[part], test[part]) for part in parts]
    mean = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
    by_fold = folds.by_fold(said, predicted, test)
    counts = [family.parameters(len(said.objects)) for family, _ in fits]
    return Row(name, (min(counts), max(counts)), mean, folds.standard_error(by_fold, each), by_fold, seconds)
