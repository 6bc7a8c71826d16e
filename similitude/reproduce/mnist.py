"""The paper's four networks on MNIST digits: accuracies, and images of what the visual ones learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..initialize import init_from_data
from ..models import mnist as networks
from ..models.data_domain import DataDomain
from ..optim import parameter_groups
from ..presence import scattered
from . import Experiment
from .data import made_up
from .data.digits import mnist
from .loop import captured, in_turn, resumed, side_by_side, train_epochs
from .record import Record, RunError, paper
from .results import FAILS, HOLDS, OPEN, Claim, Row, by_row, with_error
from .settings import Count, Dropout, Seed, Size, Weight, check

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "MNISTNet": networks.MNISTNet,
    "VisualMNISTNet": networks.VisualMNISTNet,
    "TverskyMNISTNet": networks.TverskyMNISTNet,
    "VisualTverskyMNISTNet": networks.VisualTverskyMNISTNet,
}
# Training digits that a start from data looks at.
CLUSTERED = 4096
Learner = tuple[nn.Module, torch.optim.Optimizer]


@dataclass(frozen=True)
class Config:
    """The paper's recipe.

    Args:
        networks: Which of the paper's networks are trained.
        decoupled: AdamW instead of Adam. It enables, for image parameters, ``image_rate`` (multiplies ``lr``),
            ``image_decay`` (towards 0, black) and ``image_blur`` (towards the mean of 3×3 pixels).
        schedule: "constant", or "cosine" after a linear rise over a fifth of the steps.
        start: "paper", with rows of unit length and plain α, β, θ of 0.5, 0.5, 1, or "calibrated".
        images: What image parameters start as: "noise", as in the paper; "digits": for each class the training digit
            nearest to the class's mean, and any digits as features; or "clusters": the library's start from data, mean
            digits of clusters as features, and noise as prototypes.
        presence: Share of the digits that have a feature of the visual Tversky network at the start, by thresholds; 0
            for none.
        bounded: Keeps image parameters within 0 and 1.
        snapshots: Epochs after which image parameters are kept.
        made_up: Number of made-up digits, for a smoke run; 0 for MNIST.
    """

    networks: tuple[str, ...] = tuple(NETWORKS)
    epochs: Count = 1000
    batch: Count = 500
    lr: Weight = 0.002
    weight_decay: Weight = 1e-5
    decoupled: bool = False
    schedule: Literal["constant", "cosine"] = "constant"
    start: Literal["paper", "calibrated"] = "paper"
    images: Literal["noise", "digits", "clusters"] = "noise"
    presence: Dropout = 0.0
    dropout: Dropout = 0.05
    image_rate: Weight = 1.0
    image_decay: Weight = 0.0
    image_blur: Weight = 0.0
    bounded: bool = False
    snapshots: tuple[int, ...] = (0, 200, 400, 600)
    checkpoint_every: Count = 25
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        unknown = [n for n in self.networks if n not in NETWORKS]
        if unknown or not self.networks:
            raise ValueError(f"networks must be out of {', '.join(NETWORKS)}; got {', '.join(unknown) or 'none'}.")
        if len(set(self.networks)) < len(self.networks):
            raise ValueError(f"each of the networks may be named once; got {', '.join(self.networks)}.")
        of_images = self.image_rate, self.image_decay, self.image_blur
        given = f"got {', '.join(map(str, of_images))}"
        if of_images != (1.0, 0.0, 0.0) and not self.decoupled:
            raise ValueError(
                f"image_rate, image_decay and image_blur other than 1, 0 and 0 need decoupled=true; {given}."
            )
        if max(of_images[1:]) * self.lr * self.image_rate > 1:
            raise ValueError(
                f"lr * image_rate * image_decay, and * image_blur, must be 1 or less; lr {self.lr}, {given}."
            )


RECIPES = {
    "paper": Config(),
    "tuned": Config(
        networks=("TverskyMNISTNet",),
        epochs=50,
        batch=250,
        lr=0.01,
        weight_decay=0.01,
        decoupled=True,
        schedule="cosine",
        start="calibrated",
    ),
    # Decay and blur remove the noise that images start from, and all that is finer than a stroke.
    "legible": Config(
        networks=("VisualMNISTNet", "VisualTverskyMNISTNet"),
        epochs=20,
        batch=200,
        decoupled=True,
        schedule="cosine",
        image_rate=5.0,
        image_decay=1.0,
        image_blur=3.0,
        bounded=True,
        snapshots=(0, 5, 10, 15),
        checkpoint_every=1,
    ),
    # A person can read the images from the first epoch on; they train as all else does.
    "examples": Config(
        networks=("VisualMNISTNet", "VisualTverskyMNISTNet"),
        images="digits",
        epochs=20,
        batch=200,
        decoupled=True,
        schedule="cosine",
        bounded=True,
        snapshots=(0, 5, 10, 15),
        checkpoint_every=1,
    ),
}
SMOKE = Config(epochs=2, batch=50, snapshots=(0, 1), checkpoint_every=1, made_up=200)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Parameters, final test accuracy and curve of each network; image parameters go to images.npz."""
    torch.backends.cudnn.benchmark = True
    digits = made_up.synthetic_digits(config.made_up) if config.made_up else mnist()
    record.hashes.update(digits.hashes)
    train_x, test_x = (_pixels(x, record.device) for x in (digits.train_x, digits.test_x))
    train_y, test_y = (y.long().to(record.device) for y in (digits.train_y, digits.test_y))
    learners = {name: make(config, name, record.device) for name in config.networks}
    for network, _ in learners.values():
        start_images(config, network, train_x, train_y)
    images = look(learners, 0) if 0 in config.snapshots else {}
    curves: dict[str, list] = {name: [] for name in learners}
    advance = trainer(config, list(learners.values()), train_x, train_y)

    def resume(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        images.update({k.removeprefix("images."): v.numpy() for k, v in tensors.items() if k.startswith("images.")})
        curves.update(state["curves"])
        for name, (network, optimizer) in learners.items():
            own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
            network.load_state_dict(own)
            optimizer.load_state_dict(state["optimizers"][name])

    def train(epoch: int, tell: Callable[..., None]) -> list[float]:
        losses = advance(epoch)
        if epoch in config.snapshots or epoch == config.epochs:
            images.update(look(learners, epoch))
        tell(1, 1, f"{len(learners)} networks", loss=sum(losses) / len(losses))
        return losses

    def evaluate(epoch: int, losses: list[float]) -> dict[str, float]:
        said = {}
        for (name, (network, _)), loss in zip(learners.items(), losses, strict=True):
            curves[name].append([epoch, loss, accuracy := measure(network, test_x, test_y)])
            said |= {f"{name}/loss": loss, f"{name}/accuracy": accuracy}
            said |= {f"{name}/{constant}": value for constant, value in constants(network).items()}
        return said

    def keep() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {f"images.{k}": torch.from_numpy(v) for k, v in images.items()}
        for name, (network, _) in learners.items():
            tensors |= {f"{name}/{k}": v for k, v in network.state_dict().items()}
        return tensors, {
            "curves": curves,
            "optimizers": {name: opt.state_dict() for name, (_, opt) in learners.items()},
        }

    done = resumed(record, resume)
    train_epochs(config, record, progress, done, train, evaluate, keep, config.checkpoint_every)
    if images:
        record.save_arrays("images", {k: v.astype(np.float16) for k, v in images.items()})
    return {
        "networks": {
            name: {"parameters": count(network), "accuracy": curves[name][-1][2], "curve": curves[name]}
            for name, (network, _) in learners.items()
        }
    }


def _pixels(images: Tensor, device: str) -> Tensor:
    """Digits ``[N, 28, 28]`` of 0 to 255 as ``[N, 1, 28, 28]`` of 0 to 1, on the device."""
    return images.to(device).float().div_(255).unsqueeze(1)


def make(config: Config, name: str, device: str) -> Learner:
    """A new network and its optimizer."""
    torch.manual_seed(config.seed)
    plain = "Tversky" in name and config.start == "paper"
    options: dict[str, Any] = {"init": "unit", "parametrization": "plain"} if plain else {}
    if config.presence and name == "VisualTverskyMNISTNet":
        options["presence"] = config.presence
    network = NETWORKS[name](dropout=config.dropout, **options).to(device)
    rate, decay, capturable = config.lr, config.weight_decay, device == "cuda"
    if config.decoupled:
        images, groups = images_of(network), parameter_groups(network, rate, decay, bank_rate=1.0)
        for group in groups:
            group["params"] = [p for p in group["params"] if all(p is not image for image in images)]
        if images:
            groups.append({"params": images, "lr": rate * config.image_rate, "weight_decay": config.image_decay})
        groups = [{**group, "share": group["lr"] / rate} for group in groups if group["params"]]
        return network, torch.optim.AdamW(groups, rate, capturable=capturable)
    return network, torch.optim.Adam(network.parameters(), rate, weight_decay=decay, capturable=capturable)


def images_of(network: nn.Module) -> list[nn.Parameter]:
    """Prototypes and features of a visual network, which are images."""
    held = (network.prototypes, network.features) if isinstance(network, DataDomain) else ()
    return [image for image in held if image is not None]


def start_images(config: Config, network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Starts image parameters and thresholds as the settings say."""
    if config.images == "digits":
        start_as_digits(network, x, y)
    cut = isinstance(network, DataDomain) and network.features is not None
    if cut and (config.presence or config.images == "clusters"):
        init_from_data(network, scattered(x, CLUSTERED), start="k-means" if config.images == "clusters" else "kept")


def start_as_digits(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """Sets image parameters to digits of the training data."""
    missing = sorted(set(range(10)) - set(y.tolist()))
    if missing:
        raise RunError(f"images cannot start as digits: none of {len(y)} training digits is a {missing[0]}.")
    if isinstance(network, DataDomain):
        others = None if network.features is None else x[: len(network.features)]
        network.set_images(torch.stack([typical(x[y == c]) for c in range(10)]), others)


def typical(x: Tensor) -> Tensor:
    """The image nearest to the mean of all."""
    return x[(x - x.mean(0)).flatten(1).norm(dim=1).argmin()]


@torch.no_grad()
def smooth(config: Config, rate: float | Tensor, images: list[nn.Parameter]) -> None:
    """Blurs images in proportion to their rate, and clips them to their bounds, in place."""
    for image in images:
        if config.image_blur:
            mean = nn.functional.avg_pool2d(image, 3, 1, padding=1, count_include_pad=False)
            image.add_((mean - image) * rate * config.image_blur)
        if config.bounded:
            image.clamp_(0, 1)


def look(learners: dict[str, tuple[Any, ...]], epoch: int) -> dict[str, np.ndarray]:
    """Copies of the visual networks' image parameters."""
    found = {}
    for name, (network, _) in learners.items():
        for kind in ("prototypes", "features") if isinstance(network, DataDomain) else ():
            if getattr(network, kind) is not None:
                found[f"{name}.{kind}.{epoch}"] = getattr(network, kind).detach().clone().cpu().numpy()
    return found


def trainer(config: Config, learners: list[Learner], x: Tensor, y: Tensor) -> Callable[[int], list[float]]:
    """A function that trains all networks for one epoch on the same batches, and returns their mean losses."""
    size = min(config.batch, len(x))
    rows = torch.zeros(size, dtype=torch.long, device=x.device)

    def step(network: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        smooth(config, optimizer.param_groups[-1]["lr"], images_of(network))
        return loss.detach()

    steps = [partial(step, *learner) for learner in learners]
    advance: Callable[[], Tensor] | None = None

    def train(epoch: int) -> list[float]:
        nonlocal advance
        for network, _ in learners:
            network.train()
        order = torch.randperm(len(x)).to(x.device)
        losses = []
        for start in range(0, len(x) - size + 1, size):
            set_rate(config, learners, (epoch - 1 + start / len(x)) / config.epochs)
            rows.copy_(order[start : start + size])
            if advance is None:
                advance = captured(partial(side_by_side, steps), 1) if x.is_cuda else partial(in_turn, steps)
            losses.append(advance().clone())
        return torch.stack(losses).mean(0).tolist()

    return train


def set_rate(config: Config, learners: list[Learner], done: float) -> None:
    """Sets each group's rate after a share of the training; on a GPU in a tensor, which a CUDA graph reads."""
    if config.schedule == "constant":
        return
    full = config.lr * (done / 0.2 if done < 0.2 else 0.5 + 0.5 * math.cos(math.pi * (done - 0.2) / 0.8))
    for _, optimizer in learners:
        for group in optimizer.param_groups:
            rate = full * group.get("share", 1.0)
            if not group["capturable"]:
                group["lr"] = rate
            elif isinstance(group["lr"], Tensor) and group["lr"].is_cuda:
                group["lr"].fill_(rate)
            else:
                group["lr"] = torch.tensor(rate, device=group["params"][0].device)


@torch.no_grad()
def constants(network: nn.Module) -> dict[str, float]:
    """α, β and θ of a Tversky network, for the log; nothing of others."""
    owner = network if hasattr(network, "alpha") else getattr(network, "head", None)
    names = ("alpha", "beta", "theta") if hasattr(owner, "alpha") else ()
    return {name: getattr(owner, name).item() for name in names}


def measure(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy, from 0 to 1."""
    network.eval()
    right = sum((network(part).argmax(-1) == labels).sum() for part, labels in zip(x.split(1000), y.split(1000)))
    return float(right) / len(y)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def summary(content: dict[str, Any]) -> list[Any]:
    return tables([content])


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """The paper's table with ours beside it, a column for each row of results; two columns fit 80 characters."""
    from rich.table import Table

    order = list(RECIPES)
    columns = sorted(by_row(runs), key=lambda row: (order.index(row.recipe) if row.recipe in order else 9, row.name))
    out = []
    for pair in (columns[i : i + 2] for i in range(0, len(columns), 2)):
        fake = any(row.config["made_up"] for row in pair)
        table = Table(title=f"accuracy on {'made-up' if fake else 'MNIST test'} digits, %")
        table.add_column("network", no_wrap=True)
        table.add_column("parameters", justify="right", no_wrap=True)
        for heading in ("paper", *(f"ours, {_heading(row)}" for row in pair)):
            table.add_column(heading, justify="right")
        for theirs in paper("mnistnet"):
            cells = [_cell(row, theirs["model"], "" if fake else theirs["valid_acc"]) for row in pair]
            if any(cell != "–" for cell in cells):
                table.add_row(theirs["model"], f"{int(theirs['params']):,}", theirs["valid_acc"], *cells)
        out.append(table)
    return out


def _heading(row: Row) -> str:
    changes = "".join(f", {key} {value}" for key, value in row.settings.items() if key != "epochs")
    name = "paper's recipe" if row.recipe == "paper" else row.recipe
    return f"{name}, {row.config['epochs']} epochs{changes}"


def _cell(row: Row, network: str, theirs: str) -> str:
    percent = [
        100 * r["result"]["networks"][network]["accuracy"] for r in row.runs if network in r["result"]["networks"]
    ]
    return with_error(percent, theirs=theirs) if percent else "–"


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    says = "TverskyMNISTNet is as accurate as MNISTNet with a third of the parameters."
    theirs = {row["model"]: row for row in paper("mnistnet")}
    pair = "MNISTNet", "TverskyMNISTNet"
    papers = " → ".join(f"{theirs[name]['valid_acc']} % ({int(theirs[name]['params']):,})" for name in pair)
    own = next((row for row in by_row(runs) if (row.recipe, row.name) == ("paper", "")), None)
    if own is None:
        return [Claim(says, OPEN, papers, "not run")]
    mean = {n: 100 * np.mean([r["result"]["networks"][n]["accuracy"] for r in own.runs]) for n in pair}
    parameters = own.runs[0]["result"]["networks"]
    ours = " → ".join(f"{mean[name]:.2f} % ({parameters[name]['parameters']:,})" for name in pair)
    # The paper's own pair differs by 0.4 points.
    return [Claim(says, HOLDS if mean[pair[1]] > mean[pair[0]] - 0.5 else FAILS, papers, ours)]


EXPERIMENT = Experiment(
    "mnist", "MNIST", Config, RECIPES, SMOKE, run, summary, tables, claims, figures="mnist.of_mnist"
)
