"""The paper's four networks on MNIST digits: accuracies, and images of what the visual ones learned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ..models import mnist as networks
from ..models.data_domain import DataDomain
from ..optim import parameter_groups
from .data import made_up
from .data.digits import mnist
from .loop import captured, in_turn, side_by_side
from .record import Record, RunError, paper
from .results import with_error

NETWORKS = {
    "MNISTNet": networks.MNISTNet,
    "VisualMNISTNet": networks.VisualMNISTNet,
    "TverskyMNISTNet": networks.TverskyMNISTNet,
    "VisualTverskyMNISTNet": networks.VisualTverskyMNISTNet,
}

TITLES = {"paper": "paper's recipe"}


NOTE = """
Four small convolutional networks, 1000 epochs each by the paper's recipe. The visual ones hold prototypes and features
as images.

**What holds:** a third of the parameters is enough: TverskyMNISTNet is level with MNISTNet. By the tuned recipe, AdamW
on a cosine, it is better after 50 epochs than after the paper's 1000. **What does not:** by the paper's recipe we see
no strokes of digits in the images of Tversky prototypes, at any epoch. `--recipe legible`, with images that decay and
are blurred a little at each step, shows short strokes, in linear rows less clearly; `--recipe examples`, with images
that start as digits, keeps the digits, in both ([Reading a Tversky network](reading.md)).
"""


@dataclass(frozen=True)
class Config:
    """The paper's recipe; ``snapshots`` are epochs after which the visual networks' images are kept.

    images: what the visual networks' images start as: "noise", as in the paper, or "digits", the training digit of each
    class that is nearest to their mean, and any others for features.
    start: "paper", rows of unit length and constants of 0.5, 0.5, 1 that are learned plainly, or "calibrated".
    schedule: "constant", or "cosine" after a fifth of the steps of rising; decoupled: AdamW in the place of Adam, and
    with it image_rate, image_decay and image_blur: the images' share of lr, their decay to 0, the dark of digits'
    ground, and to their own 3×3 means. bounded: whether images are kept within 0 and 1, as digits are.
    """

    networks: tuple[str, ...] = tuple(NETWORKS)
    epochs: int = 1000
    batch: int = 500
    lr: float = 0.002
    weight_decay: float = 1e-5
    decoupled: bool = False
    schedule: str = "constant"
    start: str = "paper"
    images: str = "noise"
    dropout: float = 0.05
    image_rate: float = 1.0
    image_decay: float = 0.0
    image_blur: float = 0.0
    bounded: bool = False
    snapshots: tuple[int, ...] = (0, 200, 400, 600)
    checkpoint_every: int = 25
    seed: int = 0
    digits: int = 0  # made-up digits instead of MNIST's, for a smoke run

    def __post_init__(self):
        unknown = [n for n in self.networks if n not in NETWORKS]
        if unknown or not self.networks:
            raise ValueError(f"networks must be out of {', '.join(NETWORKS)}; got {', '.join(unknown) or 'none'}.")
        if len(set(self.networks)) < len(self.networks):
            raise ValueError(f"each of the networks may be named once; got {', '.join(self.networks)}.")
        for name, choices in (
            ("schedule", ("constant", "cosine")),
            ("start", ("paper", "calibrated")),
            ("images", ("noise", "digits")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        if min(self.epochs, self.batch, self.checkpoint_every) < 1:
            raise ValueError("epochs, batch and checkpoint_every must be 1 or more.")
        of_images = self.image_rate, self.image_decay, self.image_blur
        names, given = "image_rate, image_decay and image_blur", f"got {', '.join(map(str, of_images))}"
        if min(of_images) < 0:
            raise ValueError(f"{names} must be 0 or more; {given}.")
        if of_images != (1.0, 0.0, 0.0) and not self.decoupled:
            raise ValueError(f"{names} other than 1, 0 and 0 need decoupled=true; {given}.")
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
    # Images lose the noise that they start from, and what is finer than a stroke.
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
    # Images that a person can read from the first epoch on, and learn as everything else does.
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
SMOKE = Config(epochs=2, batch=50, snapshots=(0, 1), checkpoint_every=1, digits=200)


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """Test accuracy of each network after the last epoch, with its curve. A stopped run goes on after a checkpoint."""
    torch.backends.cudnn.benchmark = True
    digits = made_up.synthetic_digits(config.digits) if config.digits else mnist()
    record.hashes.update(digits.hashes)
    pixels = {name: _pixels(getattr(digits, name), record.device) for name in ("train_x", "test_x")}
    labels = {name: getattr(digits, name).long().to(record.device) for name in ("train_y", "test_y")}
    train, test = (pixels["train_x"], labels["train_y"]), (pixels["test_x"], labels["test_y"])
    learners = {name: make(config, name, record.device) for name in config.networks}
    for network, _ in learners.values() if config.images == "digits" else ():
        start_as_digits(network, *train)
    done, tensors, state = record.load() or (0, {}, {})
    images = {k.removeprefix("images."): v.numpy() for k, v in tensors.items() if k.startswith("images.")}
    curves: dict[str, list] = state.get("curves", {name: [] for name in learners})
    for name, (network, optimizer) in learners.items() if done else ():
        network.load_state_dict({k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")})
        optimizer.load_state_dict(state["optimizers"][name])
    for epoch, losses in epochs(config, list(learners.values()), *train, done):
        if epoch in config.snapshots or epoch == config.epochs:
            images |= look(learners, epoch)
        if epoch == 0:
            continue
        if not np.isfinite(losses).all():
            raise RunError(f"a loss of epoch {epoch} is not finite; try a lower lr than {config.lr}.")
        report(epoch, config.epochs, f"{len(learners)} networks", loss=sum(losses) / len(losses))
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            kept = {f"images.{k}": torch.from_numpy(v) for k, v in images.items()}
            for (name, (network, _)), loss in zip(learners.items(), losses, strict=True):
                curves[name].append([epoch, loss, accuracy := measure(network, *test)])
                record.log(epoch, **{f"{name}/loss": loss, f"{name}/accuracy": accuracy})
                kept |= {f"{name}/{k}": v for k, v in network.state_dict().items()}
            optimizers = {name: optimizer.state_dict() for name, (_, optimizer) in learners.items()}
            record.save(epoch, kept, {"curves": curves, "optimizers": optimizers})
    results = {
        name: {"parameters": count(network), "accuracy": curves[name][-1][2], "curve": curves[name]}
        for name, (network, _) in learners.items()
    }
    halves: dict = {k: v.astype(np.float16) for k, v in images.items()}
    if images:
        record.save_arrays("images", halves)
    return {"networks": results}


def _pixels(images: Tensor, device: str) -> Tensor:
    """Digits ``[N, 28, 28]`` of 0 to 255 as ``[N, 1, 28, 28]`` of 0 to 1, on the device for the whole run."""
    return images.to(device).float().div_(255).unsqueeze(1)


def make(config: Config, name: str, device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(config.seed)
    plain = "Tversky" in name and config.start == "paper"
    options = {"init": "unit", "parametrization": "plain"} if plain else {}
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
    """Prototypes and features that are images."""
    held = (network.prototypes, network.features) if isinstance(network, DataDomain) else ()
    return [image for image in held if image is not None]


def start_as_digits(network: nn.Module, x: Tensor, y: Tensor) -> None:
    missing = sorted(set(range(10)) - set(y.tolist()))
    if missing:
        raise RunError(f"images cannot start as digits: none of {len(y)} training digits is a {missing[0]}.")
    if isinstance(network, DataDomain):
        others = None if network.features is None else x[: len(network.features)]
        network.set_images(torch.stack([typical(x[y == c]) for c in range(10)]), others)


def typical(x: Tensor) -> Tensor:
    """The image that is nearest to the mean of all."""
    return x[(x - x.mean(0)).flatten(1).norm(dim=1).argmin()]


@torch.no_grad()
def smooth(config: Config, rate: float | Tensor, images: list[nn.Parameter]) -> None:
    """Images a little nearer to their blurred selves, after a step at their rate, and within bounds."""
    for image in images:
        if config.image_blur:
            mean = nn.functional.avg_pool2d(image, 3, 1, padding=1, count_include_pad=False)
            image.add_((mean - image) * rate * config.image_blur)
        if config.bounded:
            image.clamp_(0, 1)


def look(learners: dict[str, tuple], epoch: int) -> dict[str, np.ndarray]:
    """What the visual networks hold as images now."""
    found = {}
    for name, (network, _) in learners.items():
        for kind in ("prototypes", "features") if isinstance(network, DataDomain) else ():
            if getattr(network, kind) is not None:
                found[f"{name}.{kind}.{epoch}"] = getattr(network, kind).detach().clone().cpu().numpy()
    return found


def epochs(
    config: Config, learners: list[tuple[nn.Module, torch.optim.Optimizer]], x: Tensor, y: Tensor, first: int
) -> Iterator[tuple[int, list[float]]]:
    """Trains all networks at once on the same batches, and gives each epoch, from 0, and their mean losses.

    What is random depends on seed and epoch alone.
    """
    if first == 0:
        yield 0, []
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
    for epoch in range(first + 1, config.epochs + 1):
        for network, _ in learners:
            network.train()
        torch.manual_seed(config.seed * 100_003 + epoch)
        order = torch.randperm(len(x)).to(x.device)
        losses = []
        for start in range(0, len(x) - size + 1, size):
            set_rate(config, learners, (epoch - 1 + start / len(x)) / config.epochs)
            rows.copy_(order[start : start + size])
            if advance is None:
                advance = captured(partial(side_by_side, steps), 1) if x.is_cuda else partial(in_turn, steps)
            losses.append(advance().clone())
        yield epoch, torch.stack(losses).mean(0).tolist()


def set_rate(config: Config, learners, done: float) -> None:
    """The rate after a part of the training, each group's share; on a GPU in tensors, which a CUDA graph reads."""
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
def measure(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """Share of right answers."""
    network.eval()
    right = sum((network(part).argmax(-1) == labels).sum() for part, labels in zip(x.split(1000), y.split(1000)))
    return float(right) / len(y)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def summary(whole: dict) -> list:
    return compare([whole])


def compare(results: list[dict]) -> list:
    """The paper's table, with ours beside it by settings: the mean over seeds, and its standard error.

    Two kinds of settings fit beside each other into 80 columns.
    """
    from rich.table import Table

    kinds = sorted({_kind(r) for r in results})
    out = []
    for pair in (kinds[i : i + 2] for i in range(0, len(kinds), 2)):
        made_up = all(r["config"]["digits"] for r in results if _kind(r) in pair)
        table = Table(title=f"accuracy on {'made-up' if made_up else 'MNIST test'} digits, %")
        table.add_column("network", no_wrap=True)
        table.add_column("parameters", justify="right", no_wrap=True)
        for heading in ("paper", *(f"ours, {kind}" for _, kind in pair)):
            table.add_column(heading, justify="right")
        for row in paper("mnistnet"):
            cells = [_accuracy([r for r in results if _kind(r) == kind], row) for kind in pair]
            if any(cell != "–" for cell in cells):
                table.add_row(row["model"], f"{int(row['params']):,}", row["valid_acc"], *cells)
        out.append(table)
    return out


def _accuracy(results: list[dict], row: dict[str, str]) -> str:
    own = [r for r in results if row["model"] in r["result"]["networks"]]
    runs = {r["config"]["seed"]: r["result"]["networks"][row["model"]] for r in own}
    percent = [100 * run["accuracy"] for run in runs.values()]
    return with_error(percent, theirs=row["valid_acc"]) if percent else "–"


def _kind(whole: dict) -> tuple[int, str]:
    """The nearest recipe, by its place, and what a run's settings are in its terms; networks and seeds may be any."""
    given: dict = {k: tuple(v) if isinstance(v, list) else v for k, v in whole["config"].items()}
    config = Config(**given)

    def others(recipe: Config) -> list[str]:
        names = [f.name for f in fields(recipe) if f.name not in ("networks", "snapshots", "checkpoint_every", "seed")]
        return [name for name in names if getattr(config, name) != getattr(recipe, name)]

    place, (name, recipe) = min(enumerate(RECIPES.items()), key=lambda item: len(others(item[1][1])))
    changed = "".join(f", {k} {getattr(config, k)}" for k in others(recipe) if k != "epochs")
    return place, f"{TITLES.get(name, name)}, {config.epochs} epochs{changed}"
