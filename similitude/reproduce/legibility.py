"""Do features of a trained layer mean something, and at what price in accuracy? Layers that start in ten ways.

A layer on frozen vectors is trained from each seed. Its features are read on objects that it was not trained on, beside
untrained k-means, random directions and shuffled attributes; see ``similitude.interpret.legibility``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..initialize import init_from_data
from ..interpret.legibility import Legibility, legibility
from ..interpret.matching import pixel_neighbours
from ..names import LEAST
from ..nn import TverskyProjection
from ..optim import parameter_groups, unit_length_
from . import Experiment, language
from . import tables as classifiers
from .data import attributed
from .data.attributed import Attributed
from .data.given import given
from .record import Record, RunError
from .results import Claim, Row, by_row, with_error
from .settings import Count, Seed, Share, Size, Weight, check

# How each Tversky layer starts and trains: its bank's rate, whether it has thresholds, and what init_from_data gets.
BANKS: dict[str, dict[str, Any]] = {
    "default": {"bank_rate": 0.1},
    "full-rate": {"bank_rate": 1.0},
    "random": {"bank_rate": 0.0, "start": "kept"},
    "k-means": {"bank_rate": 0.0, "start": "k-means"},
    "let-go": {"bank_rate": 1.0, "start": "k-means"},
    "slow": {"bank_rate": 0.1, "start": "k-means"},
    "held": {"bank_rate": 1.0, "start": "k-means", "hold": True},
    "rebuilt": {"bank_rate": 0.1, "start": "k-means", "hold": True, "reconstruction": 0.3},
    "mixed": {"bank_rate": 1.0, "start": "k-means", "mixed": 0.5},
    "named": {"bank_rate": 1.0, "start": "k-means", "named": True},
}
LAYERS = ("linear", "mlp", *BANKS)
WARM_UP = 50
# Features that are kept as pictures: the first ones, none picked.
PICTURES = 20


@dataclass(frozen=True)
class Config:
    """Ours: the paper measures no such thing.

    Args:
        data: "digits" (MNIST at 14 × 14), "fashion" (Fashion-MNIST at 14 × 14), "planted" attributes, "words" (Penn
            Treebank), "tables", which a TverskyClassifier with its own defaults classifies, or "text" (Penn Treebank),
            for a small language model with a "linear" or a "default" head, which is read when it is trained.
        file: An npz file in place of ``data``, with arrays X, y, attributes and names.
        layer: "linear"; "mlp", whose hidden units are read; or a Tversky layer: "default", "full-rate" (the bank learns
            as fast as all else), "random" or "k-means" directions with a frozen bank, "let-go" (k-means that trains),
            "slow" (the same, its bank at a tenth of the rate), "held" (at its presence), "rebuilt" (held and slow, and
            inputs are to be rebuilt from their features), "mixed" (half k-means, half default), "named" (features from
            examples, fixed, beside k-means). Of tables also "three-max" and "three-logsumexp" (let-go with three
            prototypes a class, and their pooling); there "random" is a classifier's ``start``, which trains.
        unit: Whether features return to length 1 after each step.
        presence: Share of the objects that have a feature at the start.
        examples: Objects that have an attribute which its named feature is made from; others are ten times as many.
        train, test: Numbers of digits; test=0 is MNIST's own test digits.
        seeds: Number of trainings; of tables the number of splits into five folds.
        made_up: Number of made-up digits, for a smoke run; 0 for ``data``.
    """

    data: Literal["digits", "fashion", "planted", "words", "tables", "text"] = "digits"
    layer: Literal[
        "linear", "mlp", "default", "full-rate", "random", "k-means", "let-go", "slow", "held", "rebuilt", "mixed",
        "named", "three-max", "three-logsumexp",
    ] = "let-go"  # fmt: skip
    unit: bool = False
    num_features: Count = 256
    presence: Share = 0.1
    examples: Count = 20
    steps: Count = 2000
    batch: Count = 256
    lr: Weight = 5e-3
    weight_decay: Weight = 0.01
    train: Count = 10_000
    test: Size = 4000
    seeds: Count = 5
    seed: Seed = 0
    made_up: Size = 0
    file: str = ""

    def __post_init__(self) -> None:
        check(self)


RECIPES = {
    "paper": Config(),
    "fashion": Config(data="fashion"),
    "planted": Config(data="planted"),
    "words": Config(data="words", num_features=384, examples=10, steps=900, batch=160, weight_decay=0.0),
}
SMOKE = Config(num_features=40, steps=40, batch=32, seeds=2, made_up=240)
# Rows with features of length 1: the best layer cut at 0, and the layers that let a presence go or hold it.
UNIT = ("full-rate", "let-go", "held")
ROWS = {
    recipe: [[f"layer={layer}"] for layer in LAYERS] + [[f"layer={layer}", "unit=true"] for layer in UNIT]
    for recipe in RECIPES
}
RECIPES["tables"] = Config(data="tables", num_features=128, seeds=2)
ROWS["tables"] = [[f"layer={layer}"] for layer in classifiers.LAYERS]
RECIPES["text"] = Config(
    data="text", layer="linear", num_features=384, steps=1000, batch=16, lr=4e-3, weight_decay=0.0, seeds=3
)
ROWS["text"] = [[f"layer={layer}"] for layer in language.LAYERS]


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """The score of a layer from each seed and how legible its features are; a checkpoint follows each training."""
    if config.data in ("tables", "text"):
        if config.file:
            raise RunError(f"file= is read in place of digits; leave --recipe {config.data} out.")
        return (classifiers if config.data == "tables" else language).run(config, record, progress)
    if config.layer not in LAYERS:
        raise RunError(f"layer={config.layer} is for data=tables; there are {', '.join(LAYERS)}.")
    data = load(config)
    record.hashes.update(data.hashes)
    _, _, state = record.load() or (0, {}, {})
    trained: list[dict[str, Any]] = state.get("trained", [])
    for i in range(len(trained), config.seeds):
        torch.manual_seed(config.seed + i)
        layer = make(config, data).to(record.device)
        start(config, layer, data)

        def tell(step: int, loss: float, before: int = i * config.steps) -> None:
            progress(before + step, config.seeds * config.steps, config.layer, loss=loss)

        loss = fit(config, layer, data, config.seed + i, tell)
        score = measure(layer, data)
        trained.append({"score": score, "loss": loss, "tensors": {k: v.cpu() for k, v in layer.state_dict().items()}})
        record.log(i + 1, score=score, loss=loss)
        record.save(i + 1, layer.state_dict(), {"trained": trained})
    layers = []
    for one in trained:
        layers.append(make(config, data))
        layers[-1].load_state_dict(one["tensors"])
    read = []
    for i, layer in enumerate(layers):
        second = layers[(i + 1) % len(layers)] if len(layers) > 1 else None
        # Each seed has halves of its own, unless one half has given the named features.
        read.append(_read(data, layer, second, config.seed + i if data.apart else 0))
        progress(i + 1, len(layers), "reading features")
    pictures = {}
    if data.picture is not None:
        weights = [_features(layer) for layer in layers]
        pictures["neighbours"] = [pixel_neighbours(weight, data.picture) for weight in weights]
        first = weights[0][:PICTURES].view(-1, *data.picture)
        record.save_arrays("images", {"features": first.numpy().astype(np.float16)})
    return {
        **pictures,
        "score": [one["score"] for one in trained],
        "loss": [one["loss"] for one in trained],
        "parameters": sum(p.numel() for p in layers[0].parameters()),
        "legibility": [found.summary() for found in read],
        "attributes": [{name: found.layer.mcc[j].item() for j, name in enumerate(found.names)} for found in read],
    }


def load(config: Config) -> Attributed:
    if config.file and not config.made_up:
        return given(config.file, config.train)
    if config.made_up or config.data == "digits":
        return attributed.digits(config.train, config.test, config.made_up)
    if config.data == "fashion":
        return attributed.fashion(config.train, config.test)
    return {"planted": attributed.planted, "words": attributed.words}[config.data]()


def make(config: Config, data: Attributed) -> nn.Module:
    """A layer with the library's usual starting values."""
    D, P, K = data.train_x.shape[1], data.outputs, config.num_features
    if config.layer == "linear":
        return nn.Linear(D, P)
    if config.layer == "mlp":
        return nn.Sequential(nn.Linear(D, K), nn.ReLU(), nn.Linear(K, P))
    bank = BANKS[config.layer]
    presence = config.presence if "start" in bank else None
    return TverskyProjection(D, P, K, bias=True, presence=presence, hold=config.steps if "hold" in bank else False)


def start(config: Config, layer: nn.Module, data: Attributed) -> None:
    """Starts a bank with thresholds from the training data, and makes its named features."""
    bank = BANKS.get(config.layer, {})
    if not isinstance(layer, TverskyProjection) or "start" not in bank:
        return
    if "named" in bank and len(data.names) > config.num_features:
        raise RunError(
            f"num_features must be {len(data.names)} or more, one for each attribute that is named; "
            f"got {config.num_features}."
        )
    x = data.train_x.to(layer.prototypes.device)
    init_from_data(layer, x, start=bank["start"], mixed=bank.get("mixed", 0.0))
    for j, name in enumerate(data.names if "named" in bank else ()):
        has = data.known_has[:, j]
        having, lacking = (
            rows[torch.randperm(len(rows))[:n]].to(x)
            for rows, n in ((data.known[has], config.examples), (data.known[~has], 10 * config.examples))
        )
        if min(len(having), len(lacking)) >= LEAST:
            layer.features.name(name, having, lacking, presence=has.double().mean().item(), background=x)


def fit(config: Config, layer: nn.Module, data: Attributed, seed: int, tell: Callable[[int, float], object]) -> float:
    """Trains with AdamW, a linear rise and a cosine, and returns the mean loss of the last tenth of the steps."""
    groups = parameter_groups(layer, config.lr, config.weight_decay, BANKS.get(config.layer, {}).get("bank_rate"))
    optimizer = torch.optim.AdamW(groups)
    rising = min(WARM_UP, config.steps)
    rate = lambda step: min(1, (step + 1) / rising) * (1 + math.cos(math.pi * step / config.steps)) / 2  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    generator = torch.Generator().manual_seed(seed)
    device = next(layer.parameters()).device
    x, y = data.train_x.to(device), data.train_y.to(device)
    weights = torch.ones(len(x)) if data.weights is None else data.weights
    losses, rebuilding = [], BANKS.get(config.layer, {}).get("reconstruction", 0.0)
    layer.train()
    for step in range(config.steps):
        rows = torch.multinomial(weights, min(config.batch, len(x)), generator=generator).to(device)
        loss = each(layer(x[rows]), y[rows]).mean()
        if rebuilding and isinstance(layer, TverskyProjection):
            loss = loss + rebuilding * layer.reconstruction(x[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if config.unit:
            unit_length_(layer)
        schedule.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise RunError(f"the loss of step {step + 1} is {losses[-1]}; try a lower lr than {config.lr}.")
        if (step + 1) % 50 == 0:
            tell(step + 1, losses[-1])
    layer.eval()
    return float(np.mean(losses[-max(1, config.steps // 10) :]))


def each(out: Tensor, y: Tensor) -> Tensor:
    """The loss of each row: of its class, or the mean over the words that stood before and after it."""
    if y.dim() == 1:
        return nn.functional.cross_entropy(out, y, reduction="none")
    return -(y * _log_probabilities(out, y)).sum((1, 2)) / y.sum((1, 2)).clamp(min=1)


def _log_probabilities(out: Tensor, y: Tensor) -> Tensor:
    return out.view_as(y).log_softmax(-1)


@torch.no_grad()
def measure(layer: nn.Module, data: Attributed) -> float:
    """Accuracy in %, or the perplexity of the words before and after."""
    device = next(layer.parameters()).device
    parts = [
        (layer(x.to(device)).cpu(), y) for x, y in zip(data.test_x.split(1000), data.test_y.split(1000), strict=True)
    ]
    if data.test_y.dim() == 1:
        return 100 * sum((out.argmax(-1) == y).sum().item() for out, y in parts) / len(data.test_y)
    total = sum(-(y * _log_probabilities(out, y)).sum(dtype=torch.float64).item() for out, y in parts)
    return math.exp(total / data.test_y.sum(dtype=torch.float64).item())


def _read(data: Attributed, layer: nn.Module, second: nn.Module | None, seed: int) -> Legibility:
    bank, again = (of[0] if isinstance(of, nn.Sequential) else of for of in (layer, second))
    attributes = data.has, data.names
    return legibility(bank, data.objects, attributes, again, classes=data.classes, train=data.train_x, seed=seed)


def _features(layer: Any) -> Tensor:
    """The vectors that are read: a bank's, an MLP's hidden units', or a linear layer's rows."""
    layer = layer[0] if isinstance(layer, nn.Sequential) else layer
    return getattr(layer, "features", layer).weight.detach()


def summary(content: dict[str, Any]) -> list[Any]:
    return tables([content])


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """A table for each kind of data: a line for each layer, with what stands beside its own scores."""
    from rich.table import Table

    of_tables = [row for row in by_row(runs) if row.config["data"] == "tables"]
    of_text = [row for row in by_row(runs) if row.config["data"] == "text"]
    out = [*(classifiers.shown(of_tables) if of_tables else []), *(language.shown(of_text) if of_text else [])]
    files = dict.fromkeys(row.config["file"] for row in by_row(runs) if row.config.get("file"))
    for kind in ("digits", "fashion", "planted", "words", *files):
        rows = [row for row in by_row(runs) if (row.config.get("file") or row.config["data"]) == kind]
        rows.sort(key=lambda row: (LAYERS.index(row.config["layer"]), _label(row)))
        if not rows:
            continue
        fake = any(row.config["made_up"] for row in rows)
        title = f"legible features: {'made-up digits' if fake else kind}"
        score = "perplexity" if kind == "words" and not fake else "accuracy"
        out.append(Table("layer", title=title))
        for heading in (score, "MCC", "k-means", "random", "recovered, %", "k-means"):
            out[-1].add_column(heading, justify="right")
        out.append(Table("layer", title=f"{title}, continued"))
        for heading in ("shuffled, %", "above", "1-probe", "AUC", "stable", "presence, %", "none, %", "decide"):
            out[-1].add_column(heading, justify="right")
        if kind in ("digits", "fashion"):
            out.append(Table("layer", title=f"{title}, as pictures"))
            for heading in ("pixel neighbours", "purity", "named, impure %", "by chance"):
                out[-1].add_column(heading, justify="right")
        own = [table for table in out if str(table.title).startswith(title)]
        for row in rows:
            for table, cells in zip(own, _cells(row)):
                table.add_row(_label(row), *cells)
    return out


def _label(row: Row) -> str:
    changes = {key: value for key, value in row.settings.items() if key not in ("layer", "data", "file")}
    return ", ".join([row.config["layer"], *(k if v == "True" else f"{k} {v}" for k, v in changes.items())])


def _cells(row: Row) -> list[list[str]]:
    read = [one for run in row.runs for one in run["result"]["legibility"]]

    def mean(*keys: str, form: str = ".2f", scale: float = 1.0) -> str:
        values: list[Any] = read
        for key in keys:
            values = [found for value in values if (found := value.get(key)) is not None]
        return format(scale * float(np.mean(values)), form) if values else "–"

    score = with_error(score for run in row.runs for score in run["result"]["score"])
    share = {"form": ".0f", "scale": 100}
    of = [mean(name, "mcc") for name in ("layer", "k-means", "random")]
    found = [mean(name, "recovered", **share) for name in ("layer", "k-means")]
    # The most of all seeds, and the least.
    shuffled = f"{100 * max(one['shuffled']['recovered'] for one in read):.0f}"
    above = f"{round(min(one['layer']['mcc'] - one['random']['mcc'] for one in read), 2) + 0.0:+.2f}"
    single = [shuffled, above, *(mean("layer", name) for name in ("probe", "auc", "stable"))]
    sets = [mean("presence", **share), mean("featureless", form=".1f", scale=100), mean("deciding", form=".0f")]
    near = [near for run in row.runs for near in run["result"].get("neighbours", ())]
    pictures = [format(float(np.mean(near)), ".2f") if near else "–", mean("layer", "purity")]
    impure = [mean(name, **share) for name in ("impurity", "impurity by chance")]
    return [[score, *of, *found], [*single, *sets], [*pictures, *impure]]


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper does not measure what its features mean."""
    return []


EXPERIMENT = Experiment(
    "legibility",
    "Legible features",
    Config,
    RECIPES,
    SMOKE,
    run,
    summary,
    tables,
    claims,
    rows=ROWS,
    figures="legibility.of_legibility",
)
