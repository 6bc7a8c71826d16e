"""Which of the paper's figures a run has the numbers for, a function for each experiment: ``similitude gallery``."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .. import functional as F
from ..checks import DIFFERENCES, INTERSECTIONS
from ..interpret import compare, figures
from ..models.data_domain import DataDomain
from ..nn import TverskyProjection
from . import data, mnist, synthetic, xor
from .record import RunError, paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (2, 4, 8, 16, 32, 64, 128, 256)  # features in the paper's figure of boundaries
BY = {
    "by_reductions": "intersection and difference",
    "by_init": "starting values of features and prototypes",
    "by_normalize": "normalisation",
    "by_num_features": "number of features",
}
TRIES = 12  # starts, at the most, for one figure or panel
EXAMPLES = 2000  # digits in the strip and the Venn figure


class Run(NamedTuple):
    """A run that has ended: what to call it, its result, and where its files begin."""

    label: str
    whole: dict
    files: str

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """What is in the run's NAME.npz; nothing if it has none."""
        path = Path(f"{self.files}{name}.npz")
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, EOFError) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None


class Picture(NamedTuple):
    """A figure, the name of its file, a heading, and what one sees in it, for those who cannot see it."""

    name: str
    title: str
    alt: str
    figure: Figure


class Missing(NamedTuple):
    """A figure that could not be made, and why."""

    title: str
    why: str


Report = Callable[..., None]
Made = Iterator[Picture | Missing]


def of_xor(runs: list[Run], report: Report) -> Made:
    """Bars of p(conv) by factor for all runs, and for each run its boundaries."""
    yield Picture(
        "xor-convergence",
        "XOR: share of models that converge, by factor",
        "Bars of p(conv) by reductions, initialisation, normalisation and number of features: the paper's and ours.",
        figures.convergence_bars(bars(runs)),
    )
    for run in runs:
        settings: dict = run.whole["config"]
        config = xor.Config(**{**settings, "num_features": tuple(settings["num_features"])})
        right = run.arrays("outcomes").get("right")
        tell = lambda n, c=config: report(n, 8 + len(SIZES), f"boundaries, {c.level} level")  # noqa: E731
        tell(0)
        for n, (name, converged) in enumerate((("converged", True), ("not-converged", False))):
            title = f"XOR: boundaries of models with 4 features that {'' if converged else 'did not '}converge"
            found = {}
            for at in itertools.islice(candidates(config, 4, right, converged), TRIES):
                layer, count = xor.alone(config, 4, at)
                if (count == 4) is converged and len(found) < 4:
                    start = f"{xor.INITS[at['prototypes_init']]}, {xor.INITS[at['features_init']]}, seed {at['seed']}"
                    found[f"{start}\n{count} of 4 points right"] = layer
                    tell(4 * n + len(found))
                if len(found) == 4:
                    break
            if not found:
                yield Missing(title, f"none of {TRIES} starts did")
                continue
            alt = "Planes coloured by the class that a layer gives, one for each start of prototypes and features"
            yield Picture(f"xor-{name}-{config.level}", title, alt, figures.decision_boundaries(found))
        found = {}
        for n, K in enumerate(SIZES):
            layer, count = successful(config, K, right)
            found[f"{K} features" + ("" if count == 4 else f"\n{count} of 4 points right")] = layer
            tell(9 + n)
        found["nn.Linear: undecided"] = linear(config)
        alt = (
            "Planes coloured by the class that a layer gives, for growing feature banks: bent boundaries for Tversky "
            "layers; the linear layer cannot separate XOR and gives all points the same answer."
        )
        title = f"XOR: boundaries with {SIZES[0]} to {SIZES[-1]} features, {config.level} level, and of nn.Linear"
        yield Picture(f"xor-sizes-{config.level}", title, alt, figures.decision_boundaries(found, columns=3))


def bars(runs: list[Run]) -> dict:
    """p(conv) and its standard error by factor, series and value; gmean counts as in ``xor.compare``."""
    out = {}
    for name, factors in xor.FACTORS.items():
        which = "tables" if name == "by_reductions" else "without_gmean"
        series = {"paper": paper(f"xor_{name}")}
        series |= {f"ours, {r.whole['config']['level']} level": r.whole["result"][which][name] for r in runs}
        if name == "by_num_features":
            series = {s: sorted(rows, key=lambda row: float(row["num_features"])) for s, rows in series.items()}
        out[BY[name]] = {s: dict(_bar(row, factors) for row in rows) for s, rows in series.items()}
    return out


def _bar(row: dict, factors: tuple[str, ...]) -> tuple[str, tuple[float, float]]:
    return ", ".join(xor._key(row, factors)), (float(row["p_conv"]), float(row["p_conv_se"]))


def successful(config: xor.Config, K: int, right: np.ndarray | None) -> tuple[TverskyProjection, int]:
    """The first of some models with K features that learns XOR, or the last of them, and its right answers."""
    hopeful = list(itertools.islice(candidates(config, K, right, True), TRIES))
    # If the grid knows that all fail, one is enough to show.
    hopeful = hopeful or list(itertools.islice(candidates(config, K, right, False), 1))
    for at in hopeful[:-1]:
        layer, count = xor.alone(config, K, at)
        if count == 4:
            return layer, count
    return xor.alone(config, K, hopeful[-1])


def candidates(config: xor.Config, K: int, right: np.ndarray | None, converged: bool) -> Iterator[dict[str, int]]:
    """Models of the grid with the paper's best reductions that ended so, or all where the grid does not know."""
    at = {"intersection": INTERSECTIONS.index("product"), "difference": DIFFERENCES.index("subtractmatch")}
    at["normalize"] = 0
    for seed, a, b in itertools.product(range(config.seeds), range(3), range(3)):
        at |= {"prototypes_init": a, "features_init": b, "seed": seed}
        if right is not None and K in config.num_features:
            place = tuple({**at, "num_features": config.num_features.index(K)}[axis] for axis in xor.AXES)
            if bool(right[place] == 4) != converged:
                continue
        yield dict(at)


def linear(config: xor.Config) -> nn.Linear:
    """What nn.Linear learns of XOR by the same recipe."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layer = nn.Linear(2, 2)
    x, y = torch.tensor(xor.POINTS), torch.tensor(xor.LABELS)
    optimizer = torch.optim.Adam(layer.parameters(), lr=config.lr)
    for _ in range(config.steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(layer(x), y).backward()
        optimizer.step()
    return layer


def of_mnist(runs: list[Run], report: Report) -> Made:
    """Prototypes and features, linear rows beside them, how they came to be, and what the networks make of digits."""
    for run in runs:
        end = f"-{run.label}" if len(runs) > 1 else ""
        config, networks = run.whole["config"], run.whole["result"]["networks"]
        curves = {name: network["curve"] for name, network in networks.items()}
        alt = "Training loss and test accuracy of the networks over the epochs."
        yield Picture(f"mnist-training{end}", "MNIST: training", alt, figures.training(curves, "test accuracy"))
        digits, why = _digits(config)
        images = run.arrays("images")
        if not images:
            yield Missing("MNIST: prototypes and features", "the run has no images.npz: no visual network was trained")
        else:
            yield from _prototypes(images, digits, config["epochs"], end)
            yield from _evolution(images, config["snapshots"], end)
        weights = run.arrays("networks")
        if digits is None or not weights:
            why = why or "the run has no networks.npz, so its trained networks are gone"
            yield Missing("MNIST: salience, common and distinctive features", why)
        else:
            yield from _examples(config, weights, *digits, end)


def _digits(config: dict) -> tuple[tuple[Tensor, Tensor] | None, str]:
    """Test digits of 0 to 1, ``[N, 28, 28]``, and their labels, or why there are none."""
    try:
        found = synthetic.synthetic_digits(config["digits"]) if config["digits"] else data.mnist()
    except data.DataError as error:
        return None, str(error)
    return (found.test_x[:EXAMPLES].float() / 255, found.test_y[:EXAMPLES]), ""


def _prototypes(images: dict[str, np.ndarray], digits: tuple[Tensor, Tensor] | None, epoch: int, end: str) -> Made:
    groups: dict = {}
    if digits is not None:
        x, y = digits
        rows = [(y == c).nonzero()[:3, 0] for c in range(10)]
        if all(len(r) == 3 for r in rows):
            groups["digits, three of each class"] = x[torch.stack(rows).T.flatten()]
    shown = {"VisualMNISTNet.prototypes": "linear: rows of the last layer"}
    shown |= {f"VisualTverskyMNISTNet.{kind}": f"Tversky: {kind}" for kind in ("prototypes", "features")}
    groups |= {title: images[f"{key}.{epoch}"] for key, title in shown.items() if f"{key}.{epoch}" in images}
    alt = (
        f"Images that the networks learned in {epoch} epochs: the linear layer's ten rows, and the Tversky layer's ten "
        "prototypes and its features, under digits of each class."
    )
    yield Picture(f"mnist-prototypes{end}", "MNIST: prototypes in the data domain", alt, figures.prototypes(groups))


def _evolution(images: dict[str, np.ndarray], epochs: list[int], end: str) -> Made:
    histories = {
        title: {e: images[f"{name}.prototypes.{e}"] for e in epochs if f"{name}.prototypes.{e}" in images}
        for name, title in (("VisualMNISTNet", "linear rows"), ("VisualTverskyMNISTNet", "Tversky prototypes"))
    }
    histories = {title: history for title, history in histories.items() if history}
    if histories:
        alt = f"The ten images of each network after epochs {', '.join(map(str, epochs))}."
        figure = figures.evolution(histories)
        yield Picture(f"mnist-evolution{end}", "MNIST: prototypes over the epochs", alt, figure)


def _examples(config: dict, weights: dict[str, np.ndarray], x: Tensor, y: Tensor, end: str) -> Made:
    """The strip and the Venn figure of each network; a linear layer's rows stand in for features."""
    strips = {}
    for name in (n for n in mnist.NETWORKS if any(key.startswith(f"{n}/") for key in weights)):
        network = mnist.NETWORKS[name](dropout=config["dropout"])
        own = {k.removeprefix(f"{name}/"): torch.from_numpy(v) for k, v in weights.items() if k.startswith(f"{name}/")}
        network.load_state_dict(own)
        layer, vectors = seen(network.eval(), x[:, None])
        kind = "rows of the linear layer" if name in LINEAR else "features"
        strips[f"{name}, by {kind}"] = F.salience(vectors, layer.features.weight.detach())
        a, b = (int((y == c).nonzero()[0, 0]) for c in (2, 1))
        sets = compare.venn(layer, vectors[a], vectors[b], vectors)
        only_a, both, only_b = (x[field.examples] for field in sets.fields())
        alt = (
            f"A two and a one, and the digits that best show what {name} finds in the two alone, in both, and in the "
            f"one alone, by the {kind}."
        )
        title = f"MNIST: common and distinctive {kind}, {name}"
        yield Picture(f"mnist-venn-{name}{end}", title, alt, figures.venn(x[a], x[b], only_a, both, only_b))
    alt = "Test digits from low to high salience, a strip for each network."
    yield Picture(f"mnist-salience{end}", "MNIST: salience", alt, figures.salience_strip(x, strips))


LINEAR = ("MNISTNet", "VisualMNISTNet")


@torch.no_grad()
def seen(network: nn.Module, x: Tensor) -> tuple[TverskyProjection, Tensor]:
    """The network's last layer and what it sees; a linear one as a Tversky layer whose features are its rows."""
    if isinstance(network, DataDomain):
        head, vectors = network.materialize(), network.encode(x)
    else:
        head, vectors = network.get_submodule("head"), network.get_submodule("backbone")(x)
    if isinstance(head, nn.Linear):
        rows = TverskyProjection(head.in_features, head.out_features, head.out_features)
        rows.features.weight.copy_(head.weight)
        rows.prototypes.copy_(head.weight)
        head = rows
    assert isinstance(head, TverskyProjection)
    return head, vectors


def of_resnet(runs: list[Run], report: Report) -> Made:
    """Curves of linear and Tversky heads under each condition, and α, β, θ of the Tversky ones."""
    groups: dict[str, dict] = {}
    traces = {}
    for run in runs:
        c, rows = run.whole["config"], np.array(run.whole["result"]["curve"], dtype=float)
        where = f"{'made-up pictures' if c['pictures'] else c['data']}, {c['condition']}"
        own = f"{'linear' if c['model'] == 'baseline' else c['model']}, seed {c['seed']}"
        groups.setdefault(where, {})[own] = rows[:, :3]
        if rows.shape[1] >= 6:
            traces[f"{where}, seed {c['seed']}"] = dict(
                zip(("step", "alpha", "beta", "theta"), rows[:, [0, 3, 4, 5]].T)
            )
    for where, curves in groups.items():
        name = "resnet-training-" + "".join(ch if ch.isalnum() else "-" for ch in where)
        alt = f"Training loss and test accuracy over the epochs, {', '.join(curves)}."
        yield Picture(name, f"ResNet: training on {where}", alt, figures.training(curves, "test accuracy"))
    if traces:
        alt = "α, β and θ of the head over the epochs of training."
        yield Picture("resnet-constants", "ResNet: α, β and θ over training", alt, figures.constants(traces))
    else:
        yield Missing("ResNet: α, β and θ over training", "there is no run of a Tversky head")


def of_ptb(runs: list[Run], report: Report) -> Made:
    """Curves, perplexity against K beside the paper's, and α, β, θ where there are logs."""
    named = {_ptb_name(run.whole["config"]): run for run in runs}
    curves = {name: run.whole["result"]["curve"] for name, run in named.items()}
    alt = "Training loss and validation perplexity over the epochs."
    yield Picture("ptb-training", "PTB: training", alt, figures.training(curves, "validation perplexity"))
    for init, tied in sorted({(r.whole["config"]["init"], r.whole["config"]["tied"]) for r in runs}):
        own = [r for r in runs if (r.whole["config"]["init"], r.whole["config"]["tied"]) == (init, tied)]
        series, levels = perplexities(own, init, tied)
        ties = "tied" if tied else "untied"
        made_up = ", ours on made-up tokens" if any(r.whole["config"]["text"] for r in own) else ""
        title = f"PTB: validation perplexity against K, {init}, {ties} prototypes{made_up}"
        alt = "Lines of perplexity against the number of features: the paper's, and ours beside them."
        figure = figures.perplexity(series, levels)
        yield Picture(f"ptb-perplexity-{init}-{ties}", title, alt, figure)
    traces = {name: trace for name, run in named.items() if (trace := _trace(run))}
    if traces:
        alt = "α, β and θ of the head over the epochs of training."
        yield Picture("ptb-constants", "PTB: α, β and θ over training", alt, figures.constants(traces))
    else:
        yield Missing("PTB: α, β and θ over training", "they are in the log.jsonl of a Tversky run's own folder")


def _ptb_name(c: dict) -> str:
    what = "" if c["model"] == "baseline" else f", K {c['num_features']}, {c['intersection']} + {c['difference']}"
    how = f"{c['init']}, {'tied' if c['tied'] else 'untied'}, {c['epochs']} epochs, seed {c['seed']}"
    return f"{c['model']}{what}, {c['level']} level, {how}" if what else f"{c['model']}, {how}"


def perplexities(runs: list[Run], init: str, tied: bool) -> tuple[dict, dict]:
    """Lines of (K, perplexity) of the paper and of ours, means over seeds, and the perplexities of linear models."""
    rows = [r for r in paper("ptb_validation_perplexity") if (r["init"], r["tied_prototypes"] == "Y") == (init, tied)]
    points: dict[str, dict[int, list[float]]] = {}
    levels: dict[str, list[float]] = {
        "paper, linear": [float(r["perplexity"]) for r in rows if r["model"] == "baseline"]
    }
    wanted = [tuple(r.whole["config"][k] for k in ("model", "intersection", "difference")) for r in runs]
    for r in rows:
        if (r["model"], r["intersection"], r["difference"]) in wanted and r["num_features"]:
            name = f"paper, {r['model']}, {r['intersection']} + {r['difference']}"
            points.setdefault(name, {}).setdefault(int(r["num_features"]), []).append(float(r["perplexity"]))
    for run in runs:
        c, value = run.whole["config"], run.whole["result"]["valid"]
        if c["model"] == "baseline":
            levels.setdefault(f"ours, linear, {c['epochs']} epochs", []).append(value)
        else:
            name = f"ours, {c['model']}, {c['intersection']} + {c['difference']}, {c['level']}, {c['epochs']} epochs"
            points.setdefault(name, {}).setdefault(c["num_features"], []).append(value)
    series = {name: (list(line), [float(np.mean(v)) for v in line.values()]) for name, line in points.items()}
    return series, {name: float(np.mean(values)) for name, values in levels.items() if values}


def _trace(run: Run) -> dict[str, list[float]]:
    """step, alpha, beta and theta from the run's log, if it has them."""
    path = Path(f"{run.files}log.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    keys = ("step", "alpha", "beta", "theta")
    lines = [line for line in lines if all(key in line for key in keys)]
    return {key: [line[key] for line in lines] for key in keys} if lines else {}


def of_sevens(runs: list[Run], report: Report) -> Made:
    """Images of prototypes and features before and after the edit."""
    for run in runs:
        images = run.arrays("images")
        names = [f"{kind}.{when}" for kind in ("prototypes", "features") for when in ("before", "after")]
        groups = {name.replace(".", " "): images[name] for name in names if name in images}
        title = "Sevens: images before and after the edit"
        if not groups:
            yield Missing(title, "the run has no images.npz")
            continue
        end = f"-{run.label}" if len(runs) > 1 else ""
        alt = "Images of the network's prototypes and features, before and after a mid stroke was drawn into them."
        yield Picture(f"sevens-images{end}", title, alt, figures.prototypes(groups))


KINDS: dict[str, Callable[[list[Run], Report], Made]] = {
    "xor": of_xor,
    "mnist": of_mnist,
    "resnet": of_resnet,
    "ptb": of_ptb,
    "sevens": of_sevens,
}
