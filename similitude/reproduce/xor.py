"""XOR by a single Tversky projection: the paper's grid of 11,664 models, trained together as one batched program.

Models are stacked along a leading axis: prototypes ``[M, 2, D]``, features ``[M, K, D]``, α, β, θ ``[M, 1, 1]``. They
do not meet in any operation, and Adam is element-wise, so each is trained as if alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..form import DIFFERENCES, INTERSECTIONS, Form
from ..initialize import fill_
from ..nn import TverskyProjection
from ..ops import reference, separable
from ..optim import parameter_groups
from .loop import captured
from .record import Record, paper

POINTS = [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
LABELS = [0, 1, 1, 0]
INITS = ("uniform", "normal", "orthogonal")
# The axes of the outcome, in this order.
AXES = ("intersection", "difference", "normalize", "num_features", "prototypes_init", "features_init", "seed")


NOTE = """
A single Tversky projection learns XOR, or does not, over the paper's grid: 6 intersections × 2 differences × 2
normalisations × 6 sizes of the bank × 9 starting distributions × 9 seeds, 11,664 models (the paper says 12,960, and its
own factors give 11,664). p(conv) is the share of models that get all four points right after 1000 steps of Adam.
The paper's numbers are those of `level="set"`. Its gmean is NaN, and counts as never converging; ours is finite.
`--recipe tuned` trains product + subtractmatch at feature level from calibrated starts, with a leak (ops/leak.py), and
α and β at ten times the rate.

**What holds:** one layer learns XOR, as no linear layer can, and from the paper's starts most models do not. Uniform
starts are best and orthogonal ones worst, unnormalised vectors are better, and of the reductions that work in the paper
subtractmatch with product or mean is best at set level. **What does not:** gmean need not fail, and with subtractmatch
it is better than those; at feature level so is softmin. And the failures are of training, not of what the layer can
compute: by the tuned recipe there are none from four features on. It takes all of it: calibrated starts alone, without
the leak and the rate of α and β, learn less often than uniform ones of the paper.
"""


@dataclass(frozen=True)
class Config:
    """The paper's grid. Its rate is not printed: of 0.01, 0.0125 and 0.016 the second is nearest to its numbers.

    start: "paper", the whole grid, or "calibrated": only product + subtractmatch, in layers with the library's starting
    values, a rate of α and β of their own, and the ``leak``.
    """

    level: str = "set"
    num_features: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    seeds: int = 9
    seed: int = 0
    steps: int = 1000
    lr: float = 0.0125
    start: str = "paper"
    leak: float = 0.0
    difference_rate: float = 1.0

    def __post_init__(self):
        if self.start not in ("paper", "calibrated"):
            raise ValueError(f"start must be paper or calibrated; got {self.start!r}.")
        if self.start == "paper" and (self.leak, self.difference_rate) != (0, 1):
            given = f"leak={self.leak}" if self.leak else f"difference_rate={self.difference_rate}"
            raise ValueError(f"{given} needs start=calibrated; the paper's grid has none.")
        if self.level not in ("set", "feature"):
            raise ValueError(f"level must be set or feature; got {self.level!r}.")
        if self.seeds < 1 or self.steps < 1 or not self.num_features or min(self.num_features) < 1:
            raise ValueError("seeds, steps and num_features must be 1 or more.")
        if len(set(self.num_features)) < len(self.num_features):
            raise ValueError(f"each of num_features may be named once; got {', '.join(map(str, self.num_features))}.")
        Form.of("product", "subtractmatch", self.level, leak=self.leak)


RECIPES = {
    "paper": Config(),
    "tuned": Config(level="feature", seeds=50, lr=0.03, start="calibrated", leak=0.2, difference_rate=10.0),
}
ROWS = {"paper": [["level=set"], ["level=feature"]]}
SMOKE = Config(num_features=(1, 4), seeds=1, steps=30)


class Models(NamedTuple):
    """What is learned of M models."""

    prototypes: Tensor  # [M, 2, D]
    features: Tensor  # [M, K, D]
    constants: Tensor  # [3, M, 1, 1], α, β, θ


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """p(conv) and the rest by every factor, as the paper's four tables. A stopped run goes on after its last bucket."""
    if config.start == "calibrated":
        return run_calibrated(config, record, report)
    loss, right = np.zeros(shape(config), np.float32), np.zeros(shape(config), np.uint8)
    done, kept, _ = record.load() or (0, {}, {})
    if kept:
        loss, right = kept["loss"].numpy(), kept["right"].numpy()
    for position, K in enumerate(config.num_features):
        if position < done:
            continue
        at = (slice(None), slice(None), slice(None), position)
        tell = lambda step, value, p=position, k=K: report(  # noqa: E731
            p * config.steps + step, len(config.num_features) * config.steps, f"K = {k}", loss=value
        )
        losses, correct = train(config, K, record.device, tell)
        loss[at], right[at] = losses.reshape(loss[at].shape), correct.reshape(right[at].shape)
        record.save(position + 1, {"loss": torch.from_numpy(loss), "right": torch.from_numpy(right)})
        record.log(position + 1, p_conv=float((right[at] == 4).mean()), loss=float(loss[at].mean()))
    record.save_arrays("outcomes", {"loss": loss.astype(np.float16), "right": right, "axes": np.array(AXES)})
    return {
        "models": loss.size,
        "p_conv": float((right == 4).mean()),
        "tables": tables(config, loss, right),
        "without_gmean": tables(config, loss, without_gmean(right)),
    }


def run_calibrated(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """p(conv) by K of layers that start calibrated, and how many prototypes and features are dead, before and after."""
    _, _, state = record.load() or (0, {}, {})
    rows: list[dict] = state.get("rows", [])
    for position, K in list(enumerate(config.num_features))[len(rows) :]:
        tell = lambda step, value, p=position, k=K: report(  # noqa: E731
            p * config.steps + step, len(config.num_features) * config.steps, f"K = {k}", loss=value
        )
        rows.append({"num_features": K, "n": config.seeds, **train_calibrated(config, K, record.device, tell)})
        record.save(position + 1, {}, {"rows": rows})
        record.log(position + 1, p_conv=rows[-1]["p_conv"], loss=rows[-1]["loss"])
    return {"models": config.seeds * len(rows), "p_conv": float(np.mean([r["p_conv"] for r in rows])), "rows": rows}


def train_calibrated(config: Config, K: int, device: str, report: Callable[[int, float], None]) -> dict:
    """What came of one layer a seed with K features: layers are stacked, and each is trained as if alone."""
    options: dict = {"intersection": "product", "difference": "subtractmatch", "level": config.level}
    layers = []
    with torch.random.fork_rng(devices=[]):
        for seed in range(config.seeds):
            torch.manual_seed(config.seed * 1000 + seed)
            layers.append(TverskyProjection(2, 2, K, leak=config.leak, **options).to(device))
    stacked, buffers = torch.func.stack_module_state(layers)
    x, y = torch.tensor(POINTS, device=device), torch.tensor(LABELS, device=device)
    call = lambda *state: torch.func.functional_call(layers[0], state, (x,))  # noqa: E731
    answer = lambda parameters: torch.func.vmap(call)(parameters, buffers)  # noqa: E731
    groups = parameter_groups(layers[0], config.lr, bank_rate=1.0, difference_rate=config.difference_rate)
    rates = {id(p): g["lr"] for g in groups for p in g["params"]}
    named = layers[0].named_parameters()
    optimizer = torch.optim.Adam([{"params": [stacked[name]], "lr": rates[id(p)]} for name, p in named])

    def losses() -> Tensor:
        S = answer(stacked).flatten(0, 1)
        return torch.nn.functional.cross_entropy(S, y.repeat(config.seeds), reduction="none").view(-1, 4).mean(-1)

    before = dead(stacked["prototypes"], stacked["features.weight"], x)
    for i in range(config.steps):
        optimizer.zero_grad()
        each = losses()
        each.sum().backward()
        optimizer.step()
        if i % 50 == 49 or i + 1 == config.steps:
            report(i + 1, each.detach().mean().item())
    with torch.no_grad():
        right = (answer(stacked).argmax(-1) == y).sum(-1)
        loss = losses().mean().item()
    after = dead(stacked["prototypes"], stacked["features.weight"], x)
    p = (right == 4).double().mean().item()
    return {
        "loss": round(loss, 4),
        "acc": round(right.double().mean().item() / 4, 4),
        "p_conv": round(p, 4),
        "p_conv_se": round((p * (1 - p) / config.seeds) ** 0.5, 4),
        "dead": {"at the start": before, "after training": after},
    }


@torch.no_grad()
def dead(prototypes: Tensor, features: Tensor, x: Tensor) -> dict[str, float]:
    """Share of prototypes that have no feature, and of features that no prototype and none of ``x`` has.

    Without a leak neither would get a gradient again. ``[..., P, D]``, ``[..., K, D]``, ``[N, D]``.
    """
    by_prototypes, by_objects = prototypes @ features.mT > 0, x @ features.mT > 0
    nobody = ~(by_prototypes.any(-2) | by_objects.any(-2))
    shares = {"prototypes": ~by_prototypes.any(-1), "features": nobody}
    return {name: round(lost.double().mean().item(), 4) for name, lost in shares.items()}


def without_gmean(right: np.ndarray) -> np.ndarray:
    """The outcome with gmean failing always, as in the paper, where it is NaN: log 0 meets the empty set of [0, 0]."""
    other = right.copy()
    other[INTERSECTIONS.index("gmean")] = 0
    return other


def shape(config: Config) -> tuple[int, ...]:
    """Models along each of AXES."""
    return len(INTERSECTIONS), len(DIFFERENCES), 2, len(config.num_features), len(INITS), len(INITS), config.seeds


def start(config: Config, K: int, device: str) -> Models:
    """Models of one bucket, in the order of AXES without num_features; a seed starts the same whatever the options."""
    prototypes, features = [], []
    for a, b, seed in itertools.product(range(3), range(3), range(config.seeds)):
        for into, drawn in zip((prototypes, features), draw(config, K, a, b, seed), strict=True):
            into.append(drawn)
    times = len(INTERSECTIONS) * len(DIFFERENCES) * 2
    constants = torch.tensor([0.5, 0.5, 1.0]).reshape(3, 1, 1, 1).expand(3, times * len(features), 1, 1)
    stacked = (torch.stack(prototypes).repeat(times, 1, 1), torch.stack(features).repeat(times, 1, 1), constants)
    return Models(*(t.clone().to(device).requires_grad_() for t in stacked))


def draw(config: Config, K: int, a: int, b: int, seed: int) -> tuple[Tensor, Tensor]:
    """Prototypes and features that a model starts with; a and b are the places of their distributions in INITS."""
    torch.manual_seed(((config.seed * 1000 + seed) * 3 + a) * 3 + b)
    return fill_(torch.empty(2, 2), INITS[a]), fill_(torch.empty(K, 2), INITS[b])


def alone(config: Config, K: int, at: Mapping[str, int]) -> tuple[TverskyProjection, int]:
    """One model of the grid, trained as it is there, as a layer to look at, and how many of the four points are right.

    K may be another than the grid's. at: its place on each of the other AXES, as in outcomes.npz.
    """
    options: dict = {"intersection": INTERSECTIONS[at["intersection"]], "difference": DIFFERENCES[at["difference"]]}
    with torch.random.fork_rng(devices=[]):
        options |= {"level": config.level, "normalize": bool(at["normalize"])}
        layer = TverskyProjection(2, 2, K, init="uniform", parametrization="plain", **options)
        starts = draw(config, K, at["prototypes_init"], at["features_init"], at["seed"])
    with torch.no_grad():
        layer.prototypes.copy_(starts[0])
        layer.features.weight.copy_(starts[1])
    x, y = torch.tensor(POINTS), torch.tensor(LABELS)
    optimizer = torch.optim.Adam(layer.parameters(), lr=config.lr)
    for _ in range(config.steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(layer(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return layer, int((layer(x).argmax(-1) == y).sum())


def similarities(models: Models, x: Tensor, level: str) -> Tensor:
    """S of the points ``[4, D]`` to both prototypes of all models, ``[M, 4, 2]``; models are in the order of ``start``.

    What the options have in common is computed once for all: the sums u and v over shared features, and saliences.
    """
    prototypes, features, constants = models
    M, groups = len(features), len(INTERSECTIONS) * len(DIFFERENCES)
    position = torch.arange(M, device=x.device).view(M, 1, 1)
    subtracts, normal = position // (M // groups) % 2 == 1, position // (M // groups // 2) % 2 == 1
    unit = torch.nn.functional.normalize
    a = torch.where(normal, unit(x, dim=-1), x) @ features.mT  # [M, 4, K]
    b = torch.where(normal, unit(prototypes, dim=-1), prototypes) @ features.mT  # [M, 2, K]
    u, v = separable.shared_sums(a, b)  # [M, 4, 2]
    least = reference.common(a[:, :, None], b[:, None], "min", "feature") if level == "feature" else torch.minimum(u, v)
    blocks = [t.unflatten(0, (len(INTERSECTIONS), -1)) for t in (a, b, u, v, least)]
    shared = [_shared(intersection, level, *(t[i] for t in blocks)) for i, intersection in enumerate(INTERSECTIONS)]
    matched_a, matched_b = torch.where(subtracts, least, u), torch.where(subtracts, least, v)
    a_only = separable.salience(a).unsqueeze(-1) - matched_a
    b_only = separable.salience(b).unsqueeze(-2) - matched_b
    return reference.contrast(torch.cat(shared), a_only, b_only, *constants.unbind())


def _shared(intersection: str, level: str, a: Tensor, b: Tensor, u: Tensor, v: Tensor, least: Tensor) -> Tensor:
    """f(A∩B) of the models with one intersection, from the sums that all have."""
    if intersection == "product":
        return separable.product(a, b)
    if intersection == "gmean":
        return separable.gmean(a, b) if level == "feature" else separable.root(u) * separable.root(v)
    if level == "feature" and intersection == "softmin":
        return reference.common(a[:, :, None], b[:, None], "softmin", "feature")
    if level == "feature" and intersection in ("min", "max"):
        return least if intersection == "min" else u + v - least
    return reference.pooled(u, v, intersection)


def train(config: Config, K: int, device: str, report: Callable[[int, float], None]) -> tuple[np.ndarray, np.ndarray]:
    """Losses and numbers of right answers, of 4, after training of all models with K features, ``[M]``."""
    models = start(config, K, device)
    x, y = torch.tensor(POINTS, device=device), torch.tensor(LABELS, device=device)
    optimizer = torch.optim.Adam(models, lr=config.lr, capturable=device == "cuda")

    def losses() -> Tensor:
        S = similarities(models, x, config.level)
        return (
            torch.nn.functional.cross_entropy(S.flatten(0, 1), y.repeat(len(S)), reduction="none").view(-1, 4).mean(-1)
        )

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        each = losses()
        each.sum().backward()
        optimizer.step()
        return each

    advance = captured(step, min(3, config.steps)) if device == "cuda" else step
    for i in range(config.steps):
        each = advance()
        if i % 50 == 49 or i + 1 == config.steps:
            report(i + 1, each.detach().nanmean().item())
    with torch.no_grad():
        S = similarities(models, x, config.level)
        return losses().cpu().numpy(), (S.argmax(-1) == y).sum(-1).cpu().numpy()


def tables(config: Config, loss: np.ndarray, right: np.ndarray) -> dict[str, list[dict]]:
    """The paper's four tables: means and standard errors over all models that share some factors."""
    names: dict[str, tuple] = {
        "intersection": INTERSECTIONS,
        "difference": DIFFERENCES,
        "normalize": (False, True),
        "num_features": config.num_features,
        "prototypes_init": INITS,
        "features_init": INITS,
    }
    return {
        "by_reductions": table(names, loss, right, "intersection", "difference"),
        "by_init": table(names, loss, right, "features_init", "prototypes_init"),
        "by_normalize": table(names, loss, right, "normalize"),
        "by_num_features": table(names, loss, right, "num_features"),
    }


def table(names: dict[str, tuple], loss: np.ndarray, right: np.ndarray, *factors: str) -> list[dict]:
    rows = []
    for values in itertools.product(*(range(len(names[f])) for f in factors)):
        at: list = [slice(None)] * len(AXES)
        for factor, value in zip(factors, values, strict=True):
            at[AXES.index(factor)] = value
        l, r = loss[tuple(at)].ravel().astype(np.float64), right[tuple(at)].ravel() / 4
        converged = (r == 1).astype(np.float64)
        row: dict = {f: names[f][v] for f, v in zip(factors, values, strict=True)}
        row["n"] = int(r.size)
        for key, of in (("loss", l), ("acc", r), ("p_conv", converged)):
            row[key] = round(float(np.nanmean(of)), 4)
            row[f"{key}_se"] = round(float(np.nanstd(of) / np.sqrt(of.size)), 4)
        rows.append(row)
    return sorted(rows, key=lambda row: -row["p_conv"])


def summary(whole: dict) -> list:
    """The run's tables, for people."""
    result, level, start = whole["result"], whole["config"]["level"], whole["config"].get("start", "paper")
    first = f"{result['models']:,} models at {level} level, {start} start: p(conv) {result['p_conv']:.3f}"
    return [first, *compare([whole])]


FACTORS = {
    "by_reductions": ("intersection", "difference"),
    "by_init": ("features_init", "prototypes_init"),
    "by_normalize": ("normalize",),
    "by_num_features": ("num_features",),
}


def named(config: dict) -> str:
    """A run's level, and what else is not as in the paper."""
    usual = asdict(Config())
    given = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items() if k != "level"}
    return f"{config['level']} level" + "".join(f", {k} {v}" for k, v in given.items() if v != usual[k])


def compare(results: list[dict]) -> list:
    """The paper's four tables, with our p(conv) at each level beside it, and one of calibrated starts.

    In the paper gmean is NaN and never converges. Here it does, and stands in the table of reductions as it is; in mean
    differences, and in the other tables, it counts as in the paper.
    """
    from rich.table import Table

    calibrated = [r for r in results if r["config"].get("start") == "calibrated"]
    results = [r for r in results if r not in calibrated]
    out = [_by_features(calibrated)] if calibrated else []
    # Two runs fit beside the paper into 80 columns.
    pairs = [results[i : i + 2] for i in range(0, len(results), 2)]
    for (name, factors), results in itertools.product(FACTORS.items(), pairs):
        which = "tables" if name == "by_reductions" else "without_gmean"
        ours = {named(r["config"]): {_key(row, factors): row for row in r["result"][which][name]} for r in results}
        title = f"p(conv) {name.replace('_', ' ')}" + ("" if which == "tables" else ", gmean counted as in the paper")
        table = Table(*(f.replace("_", " ") for f in factors), title=title)
        for heading in ("paper", *(f"ours, {run}" for run in ours)):
            table.add_column(heading, justify="right")
        differences: dict[str, list[float]] = {run: [] for run in ours}
        for row in paper(f"xor_{name}"):
            cells = []
            for run, rows in ours.items():
                mine = rows.get(_key(row, factors))
                cells.append(_with_error(mine) if mine else "–")
                if mine and "gmean" not in _key(row, factors):
                    differences[run].append(abs(mine["p_conv"] - float(row["p_conv"])))
            table.add_row(*_key(row, factors), _with_error(row), *cells)
        means = [f"{sum(d) / len(d):.3f}" if d else "–" for d in differences.values()]
        table.add_section()
        table.add_row("mean distance", *[""] * (len(factors) - 1), "", *means)
        out.append(table)
    return out


def _by_features(runs: list[dict]):
    """p(conv) by K from calibrated starts, beside the paper's mean of all reductions and its best reductions."""
    from rich.table import Table

    table = Table("num features", title="p(conv) of product + subtractmatch, calibrated start")
    configs = [r["config"] for r in runs]
    by_runs = [f"ours, {c['level']} level, rate {c['lr']}, leak {c['leak']}, seed {c['seed']}" for c in configs]
    for heading in ("paper, mean of reductions", "paper, best reductions, any K", *by_runs):
        table.add_column(heading, justify="right")
    mean = {int(float(row["num_features"])): row for row in paper("xor_by_num_features")}
    best = max(paper("xor_by_reductions"), key=lambda row: float(row["p_conv"]))
    for K in sorted({row["num_features"] for r in runs for row in r["result"]["rows"]}):
        ours = [next((row for row in r["result"]["rows"] if row["num_features"] == K), None) for r in runs]
        cells = [_with_error(row) if row else "–" for row in (mean.get(K), best, *ours)]
        table.add_row(str(K), *cells)
    return table


def _with_error(row: dict) -> str:
    return f"{float(row['p_conv']):.2f} ± {float(row['p_conv_se']):.2f}"


def _key(row: dict, factors: tuple[str, ...]) -> tuple[str, ...]:
    """The factors of a row as text; the paper's CSV writes feature counts as floats."""
    return tuple(str(row[f]).removesuffix(".0") for f in factors)
