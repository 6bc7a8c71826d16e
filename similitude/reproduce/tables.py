"""Is a start from data as accurate as a random one on tables? Classifiers with their defaults, on folds of 17 tables.

It is the part of the experiment on legible features that says what they cost where people have rows and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .data import tables as data
from .record import Record, RunError
from .results import Row

if TYPE_CHECKING:
    from .legibility import Config

# What TverskyClassifier gets; all else is its default.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "random": {"start": "random"},
    "let-go": {"start": "k-means"},
    "mixed": {"start": "mixed"},
    "slow": {"start": "k-means", "bank_rate": 0.1},
    "three-max": {"start": "k-means", "prototypes_per_class": 3},
    "three-logsumexp": {"start": "k-means", "prototypes_per_class": 3, "pooling": "logsumexp"},
}
LAYERS = ("linear", "mlp", *CLASSIFIERS)
FOLDS = 5
# Seed of the first split; LEGIBLE's own tables, which chose the starts, were split by the seed 0.
FIRST_SPLIT = 1919


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """The test accuracy of each fold of each table, for ``seeds`` splits into five; a checkpoint follows each table."""
    if config.layer not in LAYERS:
        raise RunError(f"layer={config.layer} is not among the classifiers of tables; there are {', '.join(LAYERS)}.")
    sheets, hashes = (data.made_up(config.made_up), {}) if config.made_up else data.tables()
    record.hashes.update(hashes)
    _, _, state = record.load() or (0, {}, {})
    found: dict[str, dict[str, Any]] = state.get("tables", {})
    for i, sheet in enumerate(sheets):
        if sheet.name not in found:
            found[sheet.name] = _measure(config, sheet)
            record.log(i + 1, accuracy=float(np.mean(found[sheet.name]["accuracy"])))
            record.save(i + 1, {}, {"tables": found})
        progress(i + 1, len(sheets), sheet.name, accuracy=float(np.mean(found[sheet.name]["accuracy"])))
    return {"score": [float(np.mean([one["accuracy"] for one in found.values()]))], "tables": found}


def _measure(config: Config, sheet: data.Sheet) -> dict[str, Any]:
    """Accuracies in % of all folds, and the share of test rows without any feature in %, where there are features."""
    from sklearn.model_selection import StratifiedKFold
    from sklearn.preprocessing import StandardScaler

    accuracy, featureless = [], []
    for turn in range(config.seeds):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=FIRST_SPLIT + config.seed + turn)
        for train, test in folds.split(sheet.X, sheet.y):
            model = _classifier(config, config.seed + turn)
            scaler = StandardScaler().fit(sheet.X[train])
            X, rows = scaler.transform(sheet.X[train]), scaler.transform(sheet.X[test])
            model.fit(X, sheet.y[train])
            accuracy.append(100 * float((model.predict(rows) == sheet.y[test]).mean()))
            if hasattr(model, "features_"):
                none = ~(rows @ model.features_.T > model.thresholds_).any(1)
                featureless.append(100 * float(none.mean()))
    N, D = sheet.X.shape
    size = {"rows": N, "columns": D, "classes": len(np.unique(sheet.y))}
    return {"accuracy": accuracy, "featureless": featureless, **size}


def _classifier(config: Config, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.neural_network import MLPClassifier

    from ..estimator import TverskyClassifier

    if config.layer == "linear":
        return LogisticRegression(max_iter=1000)
    if config.layer == "mlp":
        return MLPClassifier(config.num_features, random_state=seed)
    options: dict[str, Any] = {**CLASSIFIERS[config.layer], **({"max_iter": config.steps} if config.made_up else {})}
    return TverskyClassifier(config.num_features, presence=config.presence, random_state=seed, **options)


def shown(rows: list[Row]) -> list[Any]:
    """Accuracy by table, a column for each classifier; then means, ranks, and tables better and worse than random."""
    from rich.table import Table
    from scipy.stats import rankdata

    rows = sorted(rows, key=lambda row: (LAYERS.index(row.config["layer"]), row.name))
    found = [row.runs[-1]["result"]["tables"] for row in rows]
    names = [name for name in found[0] if all(name in one for one in found)]
    means = np.array([[np.mean(one[name]["accuracy"]) for one in found] for name in names])  # [tables, classifiers]
    labels = [", ".join([row.config["layer"], *_changes(row)]) for row in rows]
    out = Table("table, columns", title="accuracy on tables, %")
    for label in labels:
        out.add_column(label, justify="right")
    for name, row in zip(names, means, strict=True):
        out.add_row(f"{name}, {found[0][name]['columns']}", *(f"{mean:.1f}" for mean in row))
    out.add_row("mean", *(f"{mean:.2f}" for mean in means.mean(0)))
    ranks = np.array([rankdata(-row.round(2)) for row in means]).mean(0)
    out.add_row("mean rank", *(f"{rank:.2f}" for rank in ranks))
    usual = labels.index("random") if "random" in labels else None
    if usual is not None:
        apart = (means - means[:, usual : usual + 1]).round(2)
        cells = (f"{(d > 0).sum()} / {(d < 0).sum()}" for d in apart.T)
        out.add_row("better / worse than random", *("–" if i == usual else c for i, c in enumerate(cells)))
        out.add_row("difference from random", *("–" if i == usual else _paired(d) for i, d in enumerate(apart.T)))
    none = [[share for name in names for share in one[name]["featureless"]] for one in found]
    out.add_row("rows without a feature, %", *(f"{np.mean(share):.3f}" if share else "–" for share in none))
    return [out]


def _changes(row: Row) -> list[str]:
    return [f"{key} {value}" for key, value in row.settings.items() if key not in ("layer", "data")]


def _paired(differences: np.ndarray) -> str:
    """The mean over tables and its standard error."""
    error = differences.std(ddof=1) / np.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return f"{differences.mean():+.2f} ± {error:.2f}"
