"""The paper's proposal of an edit, carried out: a network that never saw sevens with a mid stroke is shown one, drawn.

The network is trained without such sevens and fails on them. Then the stroke is painted into the image that is its
prototype of a seven, and features are added as images. How they are drawn is chosen by the answers on a validation
part of the training digits, by hand-sized steps that a person could make with ``Edit.preview``; no weight is trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ..interpret import salience
from ..interpret.edit import Edit
from ..models.mnist import SHAPE, VisualTverskyMNISTNet
from .data import made_up
from .data.digits import mnist
from .mnist import start_as_digits
from .record import Record, RunError

SEVEN = 7
# How far, in pixels, a stroke sticks out of the stem on both sides: for sure, and so far that it may be one.
SURE, DOUBTFUL = 2.5, 1.5
GROUPS = ("stroke", "doubtful", "other")
EDITS = ("prototype", "prototype and strokes", "prototype and crossed sevens")
# Any feature that the prototype has speaks for its class; this one shows how much of a repair is only that.
CONTROL = "control: plain sevens"

NOTE = """
VisualTverskyMNISTNet is trained without sevens that have a mid stroke, and then edited: the stroke is painted into its
prototype of a seven, and features are added, drawn as images: strokes alone, or that prototype with a stroke.
The control has no stroke: the prototype is left as it is and added, moved by a pixel or not, as features.
Drawings are chosen on validation digits; the numbers are of test digits. "Repaired" is the share of the errors on
sevens with a stroke that are gone, "cost" the points of accuracy lost on all digits that surely have none.

**What holds:** an edit of prototype and features repairs part of the errors without training. **What does not:** a
stroke in the prototype alone repairs no more than the control, and strokes as features besides hardly more; whole
crossed sevens do, and half of the errors in two of three seeds.

The paper says that digits of good form are the salient ones. The second table checks it on the network before the edit:
typicality is the cosine with the mean image of the class.
"""


@dataclass(frozen=True)
class Config:
    """Ours: the paper proposes the edit and gives no recipe.

    start: what images begin as: "digits" are one training digit a class and ``num_features`` others, so that a person
    sees what to edit after a few epochs; "noise" is the network's own start. cost: points of accuracy on other
    validation digits that an edit may lose. steps: how many features may be added.
    """

    start: str = "digits"
    epochs: int = 8
    batch: int = 250
    lr: float = 0.004
    weight_decay: float = 1e-5
    dropout: float = 0.05
    num_features: int = 20
    validation: int = 10_000
    cost: float = 0.3
    steps: int = 5
    seed: int = 0
    digits: int = 0  # made-up digits instead of MNIST's, for a smoke run

    def __post_init__(self):
        if self.start not in ("digits", "noise"):
            raise ValueError(f"start must be digits or noise; got {self.start!r}.")
        if min(self.epochs, self.batch, self.num_features, self.validation, self.steps) < 1:
            raise ValueError("epochs, batch, num_features, validation and steps must be 1 or more.")


RECIPES = {"paper": Config()}
ROWS = {"paper": [["start=digits"], ["start=noise"]]}
SMOKE = Config(epochs=2, batch=50, num_features=4, validation=150, steps=1, digits=600)


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """Accuracy by group of digits before and after each kind of edit, and how the edits were drawn."""
    parts, hashes = load(config)
    record.hashes.update(hashes)
    parts = {name: (x.to(record.device), y.to(record.device), group) for name, (x, y, group) in parts.items()}
    network, curve = train(config, parts, record, report)
    network.eval()
    drawings = choose(config, network, parts["validation"], report)
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
    kept = {"before": Edit(network).images(), "after": edit.images()}
    arrays: dict = {
        f"{kind}.{when}": images.cpu().numpy().astype(np.float16)
        for when, pair in kept.items()
        for kind, images in zip(("prototypes", "features"), pair, strict=True)
        if images is not None
    }
    record.save_arrays("images", arrays)
    return result


def outcome(before: dict, after: dict) -> dict:
    """The share of the errors on sevens with a stroke that are gone, and what others lost, in points."""
    wrong = 1 - before["stroke"]
    repaired = (after["stroke"] - before["stroke"]) / wrong if wrong else None
    return {"repaired": repaired, "cost": 100 * (before["other"] - after["other"])}


def form_of(network: VisualTverskyMNISTNet, x: Tensor, y: Tensor) -> dict[str, list[float | None]]:
    """Rank correlation of salience with each measure of form: over all digits, and the mean within the classes."""
    layer, vectors = salience.seen(network, x)
    found = salience.form(salience.rank(layer, vectors, y), x)
    pairs = {name: (value, found.within(name)) for name, value in found.overall.items()}
    return {name: [None if math.isnan(v) else v for v in pair] for name, pair in pairs.items()}


def load(config: Config) -> tuple[dict[str, tuple[Tensor, Tensor, Tensor]], dict[str, str]]:
    """Digits ``[N, 1, 28, 28]``, labels and groups, to train, to choose, to test; and strokes that nobody used."""
    digits = made_up.synthetic_digits(config.digits, config.seed) if config.digits else mnist()
    train_x, test_x = (x.float().div(255).unsqueeze(1) for x in (digits.train_x, digits.test_x))
    if config.digits:
        for x, y in ((train_x, digits.train_y), (test_x, digits.test_y)):
            crossed = (y == SEVEN).nonzero()[::2, 0]
            x[crossed] = paint(x[crossed], line(13, 11, 13, 25, 3), 0.8)
    group, test_group = group_of(train_x, digits.train_y), group_of(test_x, digits.test_y)
    order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(config.seed))
    choose, rest = order[: config.validation], order[config.validation :]
    rows = {"train": rest[group[rest] == 2], "validation": choose, "unused": rest[group[rest] == 0]}
    if not len(rows["train"]) or not {0, 2} <= set(group[choose].tolist()):
        what = f"validation={config.validation} of {len(order)} digits"
        raise RunError(f"{what} leaves none to train on, or no sevens with a stroke to choose by.")
    parts = {name: (train_x[r], digits.train_y[r].long(), group[r]) for name, r in rows.items()}
    return parts | {"test": (test_x, digits.test_y.long(), test_group)}, digits.hashes


def group_of(x: Tensor, y: Tensor) -> Tensor:
    """Which of GROUPS each digit belongs to, ``[N]``."""
    far = torch.where(y == SEVEN, protrusion(x[:, 0]), 0.0)
    return (far < SURE).long() + (far < DOUBTFUL)


def protrusion(images: Tensor) -> Tensor:
    """How many pixels the ink at mid-height sticks out of the stem, on the side where it does less: ``[N]``.

    In each row the last run of ink is taken, which is the stem, or the stroke where it crosses the stem. The stem's
    own edges in a row are half-way between those of the rows 3 to 5 above and below. A stroke may slant: its two ends
    may be up to 3 rows apart.

    Looked at by eye, of MNIST's test sevens 112 of the 117 that are SURE have a stroke, about 14 of the 46 between have
    one, and none of 200 of the others; of the training sevens, 193 of 200 that are SURE and 2 of 200 others.
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
    """An image of one straight stroke between two points, with soft edges, from 0 to 1."""
    rows, columns = torch.arange(28.0)[:, None], torch.arange(28.0)
    down, right = to_row - row, to_column - column
    along = (((rows - row) * down + (columns - column) * right) / (down**2 + right**2)).clamp(0, 1)
    away = torch.hypot(rows - row - along * down, columns - column - along * right)
    return (width / 2 + 0.5 - away).clamp(0, 1).reshape(SHAPE)


def paint(image: Tensor, stroke: Tensor, strength: float) -> Tensor:
    """The image with the stroke on top; other pixels are left alone."""
    return torch.where(stroke > 0, torch.maximum(image, strength * stroke), image)


def train(config: Config, parts: dict, record: Record, report: Callable) -> tuple[VisualTverskyMNISTNet, list]:
    """The network, trained, and its curve: epoch, loss, accuracy on other validation digits and on strokes."""
    x, y, _ = parts["train"]
    torch.manual_seed(config.seed)
    network = VisualTverskyMNISTNet(config.num_features, dropout=config.dropout).to(record.device)
    if config.start == "digits":
        start_as_digits(network, x, y)
    optimizer = torch.optim.Adam(network.parameters(), config.lr, weight_decay=config.weight_decay)
    done, tensors, state = record.load() or (0, {}, {})
    if done:
        network.load_state_dict(tensors)
        optimizer.load_state_dict(state["optimizer"])
    curve = state.get("curve", [])
    size = min(config.batch, len(x))
    steps = len(x) // size
    for epoch in range(done, config.epochs):
        torch.manual_seed(config.seed * 100_003 + epoch + 1)
        order, losses = torch.randperm(len(x)).to(x.device), []
        network.train()
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = config.lr * (1 - (epoch + step / steps) / config.epochs)
            rows = order[step * size : (step + 1) * size]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            report(epoch * steps + step + 1, config.epochs * steps, "training", loss=losses[-1].item())
        if not all(p.isfinite().all() for p in network.parameters()):
            raise RunError(f"epoch {epoch + 1} ends with numbers that are not finite; try a lower lr than {config.lr}.")
        found = shares(Edit(network), *parts["validation"])
        curve.append([epoch + 1, torch.stack(losses).mean().item(), found["other"], found["stroke"]])
        record.log(epoch + 1, loss=curve[-1][1], other=found["other"], stroke=found["stroke"])
        record.save(epoch + 1, network.state_dict(), {"optimizer": optimizer.state_dict(), "curve": curve})
    return network, curve


@torch.no_grad()
def shares(edit: Edit, x: Tensor, y: Tensor, group: Tensor) -> dict[str, float]:
    """Share of right answers after an edit, in each group that has digits."""
    right, group = edit.preview(x, y).after == y.cpu(), group.cpu()
    rows = {name: group == i for i, name in enumerate(GROUPS)}
    return {name: right[of].double().mean().item() for name, of in rows.items() if of.any()}


@dataclass(frozen=True)
class Drawing:
    """An edit as it was drawn, and what the validation digits say of it: right answers on strokes and on others.

    stroke: rows and columns of both ends, width and strength of the stroke in the prototype, if there is one.
    added: the same for each feature.
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


def choose(config: Config, network: VisualTverskyMNISTNet, part: tuple, report: Callable) -> dict[str, Drawing]:
    """For each of EDITS, and the control, the drawing that repairs most of the validation digits' strokes.

    None may cost others more than allowed. The prototype's stroke is chosen first, then features one at a time, as long
    as one more of them repairs more. Crossed sevens are the prototype as it was, with a full stroke; plain ones are the
    prototype, moved by a pixel or not.
    """
    vectors = torch.cat([network.encode(x) for x in part[0].split(1000)])
    groups = [(part[2] == GROUPS.index(name)).to(part[1].device) for name in ("stroke", "other")]

    def judged(drawing: Drawing) -> Drawing:
        right = drawing.edit(network).head()(vectors).argmax(-1) == part[1]
        return replace(drawing, scores=tuple(right[rows].double().mean().item() for rows in groups))

    def best(drawings: list[Drawing], what: str) -> Drawing | None:
        """The one that repairs most, and costs least of those; None if all cost too much."""
        found = []
        for i, drawing in enumerate(drawings):
            found.append(judged(drawing))
            report(i + 1, len(drawings), f"choosing {what}")
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
            # The first stroke is what that edit is about, even where it does not help.
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
    """Strokes that a person might draw across the stem: rows and columns of both ends, and the width."""
    for down in (-1, 0, 1):
        for row, column, to_row, to_column in ((14, 8, 14, 21), (16, 9, 14, 21), (15, 10, 14, 20), (14, 12, 14, 22)):
            for width in (2, 3):
                yield row + down, column, to_row + down, to_column, width


def summary(whole: dict) -> list:
    return compare([whole])


def compare(results: list[dict]) -> list:
    """A table for each run: before, and after each kind of edit, on test digits."""
    from rich.table import Table

    tables = []
    for whole in results:
        config, result = whole["config"], whole["result"]
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
        form = Table(
            "measure of form", title=f"its rank correlation with salience on test digits, seed {config['seed']}"
        )
        for heading in ("all digits", "within classes"):
            form.add_column(heading, justify="right")
        for name, values in result["form"].items():
            form.add_row(name, *("–" if v is None else f"{v:+.2f}" for v in values))
        tables += [table, form]
    return tables
