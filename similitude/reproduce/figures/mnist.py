"""MNIST's figures: the networks' images and how they were learned, salience, common and distinctive features."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from ... import functional as F
from ...explain import venn
from ...interpret import figures
from ...models.data_domain import DataDomain
from ...nn import TverskyProjection
from .. import mnist
from ..data import digits as data
from ..data.find import DataError
from ..data.made_up import synthetic_digits
from .curves import training
from .runs import Drawn, Made, Missing, Progress, Run

EXAMPLES = 2000  # digits that the salience strip and the Venn figures choose from
LINEAR = ("MNISTNet", "VisualMNISTNet")
CLASSES = tuple(map(str, range(10)))
BLUR = 1.5  # pixels
Digits = tuple[Tensor, Tensor]


def of_mnist(runs: list[Run], progress: Progress) -> Made:
    """Training curves, images of prototypes, features and linear rows over the epochs, salience and Venn figures."""
    # A figure's name has the run's label only if another run has the same figure.
    with_images = [run.label for run in runs if run.arrays("images")]
    for run in runs:
        end, which = (f"-{run.label}", f", {run.label}") if len(runs) > 1 else ("", "")
        config = run.config
        curves = {name: network["curve"] for name, network in run.whole["result"]["networks"].items()}
        alt = "Training loss and test accuracy of the networks over the epochs."
        yield Drawn(f"mnist-training{end}", f"MNIST: training{which}", alt, training(curves, "test accuracy"))
        digits, why = _digits(run.config["made_up"])
        images = run.arrays("images")
        if not images:
            why_none = "the run has no images.npz: no visual network was trained"
            yield Missing(f"MNIST: prototypes and features{which}", why_none)
        else:
            own = (end, which) if len(with_images) > 1 else ("", "")
            yield from _prototypes(images, digits, config["epochs"], *own)
            yield from _smoothed(images, digits, config["epochs"], *own)
            yield from _evolution(images, sorted({*config["snapshots"], config["epochs"]}), *own)
        weights = run.tensors()
        if digits is None or not weights:
            why = why or "the trained networks are in the model.safetensors of the run's own folder"
            yield Missing(f"MNIST: salience, common and distinctive features{which}", why)
        else:
            yield from _examples(config, weights, *digits, end)


def _digits(made_up: int) -> tuple[Digits | None, str]:
    """Test digits of 0 to 1, ``[N, 28, 28]``, and their labels, or why there are none."""
    try:
        found = synthetic_digits(made_up) if made_up else data.mnist()
    except DataError as error:
        return None, str(error)
    return (found.test_x[:EXAMPLES].float() / 255, found.test_y[:EXAMPLES]), ""


def _prototypes(images: dict[str, np.ndarray], digits: Digits | None, epoch: int, end: str, which: str) -> Made:
    groups: dict = {}
    if digits is not None:
        x, y = digits
        rows = [(y == c).nonzero()[:3, 0] for c in range(10)]
        if all(len(r) == 3 for r in rows):
            groups["digits, three of each class"] = x[torch.stack(rows).T.flatten()]
    shown = {"VisualMNISTNet.prototypes": "linear: rows of the last layer"}
    shown |= {f"VisualTverskyMNISTNet.{kind}": f"Tversky: {kind}" for kind in ("prototypes", "features")}
    groups |= {title: images[f"{key}.{epoch}"] for key, title in shown.items() if f"{key}.{epoch}" in images}
    alt = f"Images that the networks learned in {epoch} epochs. {'; '.join(groups)}."
    title = f"MNIST: prototypes in the data domain{which}"
    yield Drawn(f"mnist-prototypes{end}", title, alt, figures.prototypes(groups, labels=_classes(groups)))


def _classes(groups: dict) -> dict[str, tuple[str, ...]]:
    """A class above each column of all blocks but those of features, which have none."""
    return {title: CLASSES for title in groups if "features" not in title}


def _smoothed(images: dict[str, np.ndarray], digits: Digits | None, epoch: int, end: str, which: str) -> Made:
    """Learned images without the mean of their ten, blurred; the title counts those most like their own class."""
    keys = {"VisualMNISTNet": "linear rows", "VisualTverskyMNISTNet": "Tversky prototypes"}
    found = {title: images[k] for name, title in keys.items() if (k := f"{name}.prototypes.{epoch}") in images}
    if digits is None or not found:
        return
    x, y = digits
    if len(y.unique()) < 10:
        return
    means = smoothed(torch.stack([x[y == c].mean(0) for c in range(10)]))
    groups = {"mean digits": means}
    for title, learned in found.items():
        rows = smoothed(torch.from_numpy(learned).float().view(10, 28, 28))
        own = int((alike(rows, means).argmax(-1) == torch.arange(10)).sum())
        groups[f"{title}: {own} of 10 are most like the mean digit of their own class"] = rows
    alt = (
        f"Mean digits, and the images that the networks learned in {epoch} epochs: each without the mean of its ten, "
        f"and blurred by {BLUR} pixels. {'; '.join(list(groups)[1:])}."
    )
    figure = figures.prototypes(groups, labels=_classes(groups))
    yield Drawn(f"mnist-smoothed{end}", f"MNIST: prototypes, smoothed{which}", alt, figure)


def smoothed(images: Tensor) -> Tensor:
    """Ten images ``[10, H, W]`` less their mean image, blurred."""
    at = torch.arange(-6.0, 7)
    line = torch.exp(-((at / BLUR) ** 2) / 2)
    kernel = line[:, None] * line / line.sum() ** 2
    wide = nn.functional.pad((images - images.mean(0))[:, None], (6, 6, 6, 6), mode="replicate")
    return nn.functional.conv2d(wide, kernel[None, None])[:, 0]


def alike(a: Tensor, b: Tensor) -> Tensor:
    """Correlation of each image in ``a`` with each in ``b`` over the pixels, ``[len(a), len(b)]``."""
    a, b = (nn.functional.normalize(x.flatten(1) - x.flatten(1).mean(1, keepdim=True), dim=1) for x in (a, b))
    return a @ b.T


def _evolution(images: dict[str, np.ndarray], epochs: list[int], end: str, which: str) -> Made:
    histories = {
        title: {e: images[f"{name}.prototypes.{e}"] for e in epochs if f"{name}.prototypes.{e}" in images}
        for name, title in (("VisualMNISTNet", "linear rows"), ("VisualTverskyMNISTNet", "Tversky prototypes"))
    }
    histories = {title: history for title, history in histories.items() if history}
    if histories:
        shown = sorted({epoch for history in histories.values() for epoch in history})
        alt = f"The ten images of each network, for classes 0 to 9, after epochs {', '.join(map(str, shown))}."
        figure = figures.evolution(histories, labels=CLASSES)
        yield Drawn(f"mnist-evolution{end}", f"MNIST: prototypes over the epochs{which}", alt, figure)


def _examples(config: dict, weights: dict[str, Tensor], x: Tensor, y: Tensor, end: str) -> Made:
    """The salience strip, and a Venn figure for each network; a linear layer's rows take the place of features."""
    strips = {}
    for name in (n for n in mnist.NETWORKS if any(key.startswith(f"{n}/") for key in weights)):
        network = mnist.NETWORKS[name](dropout=config["dropout"])
        own = {k.removeprefix(f"{name}/"): v for k, v in weights.items() if k.startswith(f"{name}/")}
        network.load_state_dict(own)
        layer, vectors = last_layer(network.eval(), x[:, None])
        kind = "rows of the linear layer" if name in LINEAR else "features"
        strips[f"{name}, by {kind}"] = F.salience(vectors, layer.features.weight.detach())
        a, b = (int((y == c).nonzero()[0, 0]) for c in (2, 1))
        sets = venn(layer, vectors[a], vectors[b], vectors)
        only_a, both, only_b = (x[region.examples] for region in sets.regions())
        alt = (
            f"A two and a one, and the digits that best show what {name} finds in the two alone, in both, and in the "
            f"one alone, by the {kind}."
        )
        title = f"MNIST: common and distinctive {kind}, {name}"
        yield Drawn(f"mnist-venn-{name}{end}", title, alt, figures.venn(x[a], x[b], only_a, both, only_b))
    alt = "Test digits from low to high salience, a strip for each network."
    yield Drawn(f"mnist-salience{end}", "MNIST: salience", alt, figures.salience_strip(x, strips))


@torch.no_grad()
def last_layer(network: nn.Module, x: Tensor) -> tuple[TverskyProjection, Tensor]:
    """The network's last layer and its inputs; a linear one becomes a Tversky layer whose features are its rows."""
    if isinstance(network, DataDomain):
        head, vectors = network.materialize(), network.encode(x)
    else:
        head, vectors = network.get_submodule("head"), network.get_submodule("backbone")(x)
    if isinstance(head, nn.Linear):
        rows = TverskyProjection(head.in_features, head.out_features, head.out_features)
        rows.features.weight.copy_(head.weight)
        rows.prototypes.copy_(head.weight)
        head = rows
    assert isinstance(head, TverskyProjection)
    return head, vectors
