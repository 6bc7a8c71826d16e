"""Editing a network by drawing, as the paper proposes: one that never saw sevens with a mid stroke learns to read them.

The network is trained without such sevens and misreads them. Then a stroke is painted into its prototype of a seven,
which is an image, and features are added as images. The drawings are selected on validation digits, out of those that a
person could try with ``Edit.preview``; no weight is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..interpret import salience
from ..interpret.edit import Edit
from ..models.mnist import SHAPE, VisualTverskyMNISTNet
from . import Experiment
from .data import made_up
from .data.digits import mnist
from .loop import resumed, train_epochs
from .mnist import constants, start_as_digits
from .record import Record, RunError
from .results import FAILS, HOLDS, OPEN, Claim, by_row
from .settings import Count, Dropout, Seed, Size, Weight, check

SEVEN = 7
# Pixels by which ink must stick out of the stem on both sides to be a stroke for sure, and to be one perhaps.
SURE, DOUBTFUL = 2.5, 1.5
GROUPS = ("stroke", "doubtful", "other")
EDITS = ("prototype", "prototype and strokes", "prototype and crossed sevens")
# Any feature of the prototype raises its class; the control measures how much of a repair is due to that alone.
CONTROL = "control: plain sevens"


@dataclass(frozen=True)
class Config:
    """Ours: the paper proposes the edit and gives no recipe.

    Args:
        start: What images start as: "digits", one training digit a class and ``num_features`` others, which a person
            can read after a few epochs, or "noise", as in the paper's network.
        validation: Training digits that are kept apart to select drawings.
        cost: Points of accuracy on other validation digits that an edit may lose.
        steps: Most features that an edit may add.
        made_up: Number of made-up digits, for a smoke run; 0 for MNIST.
    """

    start: Literal["digits", "noise"] = "digits"
    epochs: Count = 8
    batch: Count = 250
    lr: Weight = 0.004
    weight_decay: Weight = 1e-5
    dropout: Dropout = 0.05
    num_features: Count = 20
    validation: Count = 10_000
    cost: Weight = 0.3
    steps: Count = 5
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)


RECIPES = {"paper": Config()}
ROWS = {"paper": [["start=digits"], ["start=noise"]]}
SMOKE = Config(epochs=2, batch=50, num_features=4, validation=150, steps=1, made_up=600)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Accuracy by group of digits before and after each edit, and how the edits were drawn."""
    parts, hashes = load(config)
    record.hashes.update(hashes)
    parts = {name: (x.to(record.device), y.to(record.device), group) for name, (x, y, group) in parts.items()}
    network, curve = train(config, parts, record, progress)
    network.eval()
    drawings = choose(config, network, parts["validation"], progress)
    result: dict = {
        "digits": {n: {g: int((group == i).sum()) for i, g in enumerate(GROUPS)} for n, (_, _, group) in parts.items()},
        "curve": curve,
        "before": {name: shares(Edit(network), *part) for name, part in parts.items() if name != "train"},
        "edits": {},
    }
    for name, drawing in drawings.items():
        after = {part: shares(drawing.edit(network), *parts[part]) for part in result["before"]}
        drawn = {"stroke": list(drawing.stroke), "features": [list(said) for said in drawing.added]}
        result["edits"][name] = {"drawn": drawn, "after": after, **outcome(result["before"]["test"], after["test"])}
    x, y, group = parts["test"]
    edit = drawings[EDITS[2]].edit(network)
    found = edit.preview(x, y)
    result["read_as"] = {
        when: torch.bincount(answers[group == 0], minlength=10).tolist()
        for when, answers in (("before", found.before), ("after", found.after))
    }
    result["classes"] = {str(c): list(found.accuracy(c)) for c in range(10)}
    result["form"] = form_of(network, x, y)
    record.save_arrays("images", _images(before=Edit(network), after=edit))
    return result


def _images(**edits: Edit) -> dict[str, Any]:
    """Prototypes and features of each edit's network, as float16 arrays."""
    return {
        f"{kind}.{when}": images.cpu().numpy().astype(np.float16)
        for when, edit in edits.items()
        for kind, images in zip(("prototypes", "features"), edit.images(), strict=True)
        if images is not None
    }


def outcome(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Fraction of the errors on sevens with a stroke that are gone, and points of accuracy that other digits lost."""
    wrong = 1 - before["stroke"]
    repaired = (after["stroke"] - before["stroke"]) / wrong if wrong else None
    return {"repaired": repaired, "cost": 100 * (before["other"] - after["other"])}


def form_of(network: VisualTverskyMNISTNet, x: Tensor, y: Tensor) -> dict[str, list[float | None]]:
    """Rank correlation of salience with each measure of form: over all digits, and its mean within classes."""
    layer, vectors = salience.seen(network, x)
    found = salience.form(salience.rank(layer, vectors, y), x)
    pairs = {name: (value, found.within(name)) for name, value in found.overall.items()}
    return {name: [None if math.isnan(v) else v for v in pair] for name, pair in pairs.items()}


def load(config: Config) -> tuple[dict[str, tuple[Tensor, Tensor, Tensor]], dict[str, str]]:
    """Digits ``[N, 1, 28, 28]``, labels and groups by part; "unused" holds the strokes kept out of training."""
    digits = made_up.synthetic_digits(config.made_up, config.seed) if config.made_up else mnist()
    train_x, test_x = (x.float().div(255).unsqueeze(1) for x in (digits.train_x, digits.test_x))
    if config.made_up:
        for x, y in ((train_x, digits.train_y), (test_x, digits.test_y)):
            crossed = (y == SEVEN).nonzero()[::2, 0]
            x[crossed] = paint(x[crossed], line(13, 11, 13, 25, 3), 0.8)
    group, test_group = group_of(train_x, digits.train_y), group_of(test_x, digits.test_y)
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(config.seed))
    choose, rest = order[: config.validation], order[config.validation :]
    rows = {"train": rest[group[rest] == 2], "validation": choose, "unused": rest[group[rest] == 0]}
    if not len(rows["train"]) or not {0, 2} <= set(group[choose].tolist()):
        what = f"validation={config.validation} of {len(order)} digits"
        raise RunError(f"{what} leaves no digits to train on, or no sevens with a stroke to select by.")
    parts = {name: (train_x[r], digits.train_y[r].long(), group[r]) for name, r in rows.items()}
    return parts | {"test": (test_x, digits.test_y.long(), test_group)}, digits.hashes


def group_of(x: Tensor, y: Tensor) -> Tensor:
    """Index into GROUPS of each digit, ``[N]``."""
    far = torch.where(y == SEVEN, protrusion(x[:, 0]), 0.0)
    return (far < SURE).long() + (far < DOUBTFUL)


def protrusion(images: Tensor) -> Tensor:
    """Pixels by which ink at mid-height sticks out of the stem, on the side where it sticks out less: ``[N]``.

    In each row the last run of ink counts: the stem, or the stroke where it crosses the stem. The stem's edges in a row
    are half-way between those 3 to 5 rows above and below. The two ends of a stroke may be up to 3 rows apart, so a
    stroke may slant.

    Checked by eye on MNIST's test sevens: 112 of the 117 above SURE have a stroke, about 14 of the 46 above DOUBTFUL,
    and none of 200 others. Of the training sevens, 193 of 200 above SURE have one, and 2 of 200 others.
    """
    side, on = images.shape[-1], images > 0.4
    columns = torch.arange(side)
    last = torch.where(on, columns, -1).amax(-1)
    first = torch.where(~on & (columns < last[..., None]), columns, -1).amax(-1) + 1
    inked, rows = on.any(-1), torch.arange(side)
    top = torch.where(inked, rows, side).amin(-1, keepdim=True)
    bottom = torch.where(inked, rows, -1).amax(-1, keepdim=True)
    height = (rows - top) / (bottom - top).clamp(min=1)
    middle = (height > 0.35) & (height < 0.72) & inked
    found = torch.full((len(images),), -1.0)
    for d in (3, 4, 5):
        left, right = ((edge.roll(d, 1) + edge.roll(-d, 1)) / 2 for edge in (first, last))
        crosses = middle & inked.roll(d, 1) & inked.roll(-d, 1) & (first <= right + 1) & (last >= left - 1)
        ends = (torch.where(crosses, out, -1.0) for out in (left - first, last - right))
        near = [nn.functional.max_pool1d(end[:, None], 7, 1, 3)[:, 0] for end in ends]
        found = torch.maximum(found, torch.minimum(*near).amax(-1))
    return found


def line(row: float, column: float, to_row: float, to_column: float, width: float) -> Tensor:
    """An image of one straight stroke between two points, from 0 to 1, with soft edges."""
    rows, columns = torch.arange(28.0)[:, None], torch.arange(28.0)
    down, right = to_row - row, to_column - column
    along = (((rows - row) * down + (columns - column) * right) / (down**2 + right**2)).clamp(0, 1)
    away = torch.hypot(rows - row - along * down, columns - column - along * right)
    return (width / 2 + 0.5 - away).clamp(0, 1).reshape(SHAPE)


def paint(image: Tensor, stroke: Tensor, strength: float) -> Tensor:
    """The image with the stroke on top of it; other pixels do not change."""
    return torch.where(stroke > 0, torch.maximum(image, strength * stroke), image)


def train(
    config: Config, parts: dict[str, Any], record: Record, progress: Callable[..., Any]
) -> tuple[VisualTverskyMNISTNet, list[Any]]:
    """The trained network, and its curve: epoch, loss, accuracy on other validation digits and on strokes."""
    x, y, _ = parts["train"]
    torch.manual_seed(config.seed)
    network = VisualTverskyMNISTNet(config.num_features, dropout=config.dropout).to(record.device)
    if config.start == "digits":
        start_as_digits(network, x, y)
    optimizer = torch.optim.Adam(network.parameters(), config.lr, weight_decay=config.weight_decay)
    curve: list[list[float]] = []
    size = min(config.batch, len(x))
    steps = len(x) // size

    def resume(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        network.load_state_dict(tensors)
        optimizer.load_state_dict(state["optimizer"])
        curve.extend(state["curve"])

    def one_epoch(epoch: int, tell: Callable[..., None]) -> float:
        order, losses = torch.randperm(len(x)).to(x.device), []
        network.train()
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = config.lr * (1 - (epoch - 1 + step / steps) / config.epochs)
            rows = order[step * size : (step + 1) * size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            tell(step + 1, steps, "training", loss=losses[-1].item())
        # The last step may have left parameters whose loss nobody saw.
        finite = all(p.isfinite().all() for p in network.parameters())
        return torch.stack(losses).mean().item() if finite else math.nan

    def evaluate(epoch: int, loss: float) -> dict[str, float]:
        found = shares(Edit(network), *parts["validation"])
        curve.append([epoch, loss, found["other"], found["stroke"]])
        return {"loss": loss, "other": found["other"], "stroke": found["stroke"], **constants(network)}

    def keep() -> tuple[dict[str, Any], dict[str, Any]]:
        return network.state_dict(), {"optimizer": optimizer.state_dict(), "curve": curve}

    train_epochs(config, record, progress, resumed(record, resume), one_epoch, evaluate, keep, every=1)
    return network, curve


@torch.no_grad()
def shares(edit: Edit, x: Tensor, y: Tensor, group: Tensor) -> dict[str, float]:
    """Accuracy after an edit, from 0 to 1, in each group that has digits."""
    right, group = edit.preview(x, y).after == y.cpu(), group.cpu()
    rows = {name: group == i for i, name in enumerate(GROUPS)}
    return {name: right[of].double().mean().item() for name, of in rows.items() if of.any()}


@dataclass(frozen=True)
class Drawing:
    """An edit as it was drawn.

    Args:
        scores: Accuracy on the validation digits with a stroke, and on others.
        prototype: The prototype of a seven.
        stroke: Rows and columns of both ends, width and strength of the stroke in the prototype, if there is one.
        features: Features to add, as images.
        added: The strokes of the features, in the form of ``stroke``.
    """

    scores: tuple[float, float]
    prototype: Tensor
    stroke: tuple[float, ...] = ()
    features: tuple[Tensor, ...] = ()
    added: tuple[tuple[float, ...], ...] = ()

    def edit(self, network: VisualTverskyMNISTNet) -> Edit:
        edit = Edit(network).set_prototype(SEVEN, self.prototype)
        for feature in self.features:
            edit.add_feature(feature)
        return edit


def choose(
    config: Config, network: VisualTverskyMNISTNet, part: tuple[Any, ...], progress: Callable[..., Any]
) -> dict[str, Drawing]:
    """The drawing of each of EDITS, and of the control, that repairs most validation digits with a stroke.

    A drawing may cost other digits no more than ``config.cost``. The prototype's stroke is selected first, then
    features one at a time, as long as one more repairs more. Crossed sevens are the first prototype with a full stroke;
    plain sevens are that prototype, moved by a pixel or not.
    """
    vectors = torch.cat([network.encode(x) for x in part[0].split(1000)])
    groups = [(part[2] == GROUPS.index(name)).to(part[1].device) for name in ("stroke", "other")]

    def judged(drawing: Drawing) -> Drawing:
        right = drawing.edit(network).head()(vectors).argmax(-1) == part[1]
        return replace(drawing, scores=tuple(right[rows].double().mean().item() for rows in groups))

    def best(drawings: list[Drawing], what: str) -> Drawing | None:
        """The drawing that repairs most, and of those costs least; None if all cost too much."""
        found = []
        for i, drawing in enumerate(drawings):
            found.append(judged(drawing))
            progress(i + 1, len(drawings), f"choosing {what}")
        return max((d for d in found if d.scores[1] >= lowest), key=lambda d: d.scores, default=None)

    prototype = network.prototypes[SEVEN].detach()
    strokes = [(said, line(*said).to(prototype)) for said in lines()]
    nothing = judged(Drawing((0.0, 0.0), prototype))
    lowest = nothing.scores[1] - config.cost / 100
    painted = [
        replace(nothing, prototype=paint(prototype, stroke, s), stroke=(*said, s))
        for said, stroke in strokes
        for s in (0.4, 0.5, 0.6, 0.75, 1.0, 1.25)
    ]
    first = best([nothing, *painted], "the prototype's stroke") or nothing

    pictures = {
        "strokes": strokes,
        "crossed sevens": [(said, paint(prototype, stroke, 1.0)) for said, stroke in strokes],
        "plain sevens": [
            ((down, right), prototype.roll((down, right), (1, 2))) for down in (-1, 0, 1) for right in (-1, 0, 1)
        ],
    }

    def with_features(drawing: Drawing, kind: str) -> Drawing:
        for step in range(config.steps):
            pool = [
                replace(drawing, features=(*drawing.features, s * picture), added=(*drawing.added, (*said, s)))
                for said, picture in pictures[kind]
                for s in (0.5, 1.0, 1.5, 2.0)
            ]
            more = best(pool, f"{kind} as features, {step + 1}")
            # The edit by strokes has at least one, whether it helps or not.
            asked = kind == "strokes" and not drawing.features
            if more is None or (more.scores <= drawing.scores and not asked):
                break
            drawing = more
        return drawing

    return {
        EDITS[0]: first,
        EDITS[1]: with_features(first, "strokes"),
        EDITS[2]: with_features(first, "crossed sevens"),
        CONTROL: with_features(nothing, "plain sevens"),
    }


def lines() -> Iterator[tuple[float, ...]]:
    """Strokes that a person might draw across the stem: rows and columns of both ends, and width."""
    for down in (-1, 0, 1):
        for row, column, to_row, to_column in ((14, 8, 14, 21), (16, 9, 14, 21), (15, 10, 14, 20), (14, 12, 14, 22)):
            for width in (2, 3):
                yield row + down, column, to_row + down, to_column, width


def summary(content: dict[str, Any]) -> list[Any]:
    return tables([content])


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """Two tables for each run: test accuracy before and after each edit, and salience against form."""
    return [table for run in runs for table in (_edits(run), _form(run))]


def _edits(run: dict):
    from rich.table import Table

    config, result = run["config"], run["result"]
    counts, before = result["digits"]["test"], result["before"]["test"]
    title = f"images that start as {config['start']}, {config['epochs']} epochs, seed {config['seed']}: accuracy"
    table = Table("edit", title=title)
    for heading in (f"{counts['stroke']} sevens with a stroke", "repaired", f"{counts['other']:,} others", "cost"):
        table.add_column(heading, justify="right")
    table.add_row("none", f"{before['stroke']:.1%}", "", f"{before['other']:.2%}", "")
    for name, edit in result["edits"].items():
        after, repaired = edit["after"]["test"], edit["repaired"]
        share = "–" if repaired is None else f"{repaired:.0%}"
        table.add_row(name, f"{after['stroke']:.1%}", share, f"{after['other']:.2%}", f"{edit['cost']:.2f}")
    return table


def _form(run: dict):
    from rich.table import Table

    title = f"its rank correlation with salience on test digits, seed {run['config']['seed']}"
    table = Table("measure of form", title=title)
    for heading in ("all digits", "within classes"):
        table.add_column(heading, justify="right")
    for name, values in run["result"]["form"].items():
        table.add_row(name, *("–" if v is None else f"{v:+.2f}" for v in values))
    return table


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    edited = "Drawing a mid stroke into prototype and features makes a network read sevens that it never saw."
    salient = "The salient digits are those of good form (rank correlation of salience and typicality within classes)."
    own = next((row.runs for row in by_row(runs) if (row.recipe, row.name) == ("paper", "")), [])
    if not own:
        return [Claim(says, OPEN, "–", "not run") for says in (edited, salient)]
    strokes, sevens, plain = (
        [run["result"]["edits"][name]["repaired"] or 0.0 for run in own] for name in (*EDITS[1:], CONTROL)
    )
    typical = [run["result"]["form"]["typicality"][1] or 0.0 for run in own]
    range_of = lambda values, form: f"{min(values):{form}} to {max(values):{form}}"  # noqa: E731
    ours = f"{range_of(strokes, '.0%')} of the errors repaired, {range_of(plain, '.0%')} by the control; "
    ours += f"{range_of(sevens, '.0%')} with crossed sevens as features"
    return [
        Claim(edited, HOLDS if all(a > b for a, b in zip(strokes, plain)) else FAILS, "–", ours),
        Claim(salient, HOLDS if min(typical) > 0 else FAILS, "–", range_of(typical, "+.2f")),
    ]


EXPERIMENT = Experiment(
    "editing",
    "Editing: sevens with a mid stroke",
    Config,
    RECIPES,
    SMOKE,
    run,
    summary,
    tables,
    claims,
    rows=ROWS,
    figures="editing.of_editing",
)
