"""Editing a network by drawing: a DataDomain network's features and prototypes are images that a person can change.

edit = Edit(net).add_feature(stroke).set_prototype(7, seven_with_stroke)
print(edit.preview(loader))
edit.apply()
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._text import as_html, columns
from ..models.data_domain import DataDomain
from ..nn import TverskyProjection

# Inputs that go through the backbone at once.
ROWS = 1000


# Classes that are printed.
SHOWN = 20


@dataclass(frozen=True)
class Preview:
    """A network's answers before and after an edit. Print it.

    Attributes:
        labels: right class of each input, ``[N]``, in the order of the data.
        before: the network's answers without the edit, ``[N]``.
        after: its answers with the edit, ``[N]``.
    """

    labels: Tensor
    before: Tensor
    after: Tensor

    @property
    def flips(self) -> Tensor:
        """Indices of the inputs whose answer changes."""
        return (self.before != self.after).nonzero()[:, 0]

    @property
    def repaired(self) -> Tensor:
        """Indices of the inputs whose answer is wrong before and right after."""
        return ((self.before != self.labels) & (self.after == self.labels)).nonzero()[:, 0]

    @property
    def broken(self) -> Tensor:
        """Indices of the inputs whose answer is right before and wrong after."""
        return ((self.before == self.labels) & (self.after != self.labels)).nonzero()[:, 0]

    def accuracy(self, label: int | None = None) -> tuple[float, float]:
        """Fraction of right answers before and after, of one class or of all; NaN for a class without examples."""
        rows = self._rows(label)
        right = [(answers[rows] == self.labels[rows]).double().mean().item() for answers in (self.before, self.after)]
        return right[0], right[1]

    def __str__(self) -> str:
        table = [["class", "inputs", "before", "after", "change", "repaired", "broken"]]
        labels = self.labels.unique().tolist()
        for label in [None, *labels[:SHOWN]]:
            rows, (before, after) = self._rows(label), self.accuracy(label)
            counts = (f"{int(rows[i].sum()):,}" for i in (self.repaired, self.broken))
            accuracies = f"{before:.2%}", f"{after:.2%}", f"{100 * (after - before):+.2f}"
            table.append(["all" if label is None else str(label), f"{int(rows.sum()):,}", *accuracies, *counts])
        if len(labels) > SHOWN:
            table.append([f"… {len(labels) - SHOWN} more"])
        flips = self.flips.tolist()
        shown = ", ".join(f"{i} ({self.before[i]}→{self.after[i]})" for i in flips[:8])
        more = f", … {len(flips) - 8} more" if len(flips) > 8 else ""
        told = f"{len(flips)} answer{'s' * (len(flips) != 1)} flip: {shown}{more}" if flips else "no answer flips"
        return f"{columns(table)}\n{told}"

    __repr__ = __str__
    _repr_html_ = as_html

    def _rows(self, label: int | None) -> Tensor:
        return torch.ones_like(self.labels, dtype=torch.bool) if label is None else self.labels == label


class Edit:
    """Changes to the images of a DataDomain network, which can be previewed, applied and undone.

    Nothing changes before ``apply``. Features and prototypes are given by their indices at the time when the edit
    begins; added features come after all others.

    Args:
        net: the network. Images that are drawn must have the shape of its input.
    """

    def __init__(self, net: DataDomain):
        if not isinstance(net, DataDomain):
            raise TypeError(
                f"only a DataDomain network holds its features and prototypes as images; got {type(net).__name__}: "
                "make one with DataDomain(backbone, head, shape)."
            )
        self.net = net
        self._sizes = _sizes(net)
        self._prototypes: dict[int, Tensor] = {}
        self._features: dict[int, Tensor] = {}
        self._removed: set[int] = set()
        self._added: list[Tensor] = []
        self._before: tuple[Tensor, Tensor | None, Tensor | None] | None = None

    def add_feature(self, image: Tensor) -> Edit:
        """Adds a feature after all others."""
        self._check_features()
        self._added.append(self._image(image))
        return self

    def swap_feature(self, feature: int, image: Tensor) -> Edit:
        """Replaces the image of a feature."""
        self._check_feature(feature)
        self._features[feature] = self._image(image)
        return self

    def remove_feature(self, feature: int) -> Edit:
        """Removes a feature; when the edit is applied, the indices of those after it fall by one."""
        self._check_feature(feature)
        if self._sizes[1] + len(self._added) - len(self._removed) == 1:
            raise ValueError("a network keeps one feature at least; add another one before removing the last.")
        self._features.pop(feature, None)
        self._removed.add(feature)
        return self

    def set_prototype(self, prototype: int, image: Tensor) -> Edit:
        """Replaces the image of a prototype."""
        self._check_open()
        _check_index("prototype", prototype, self._sizes[0])
        self._prototypes[prototype] = self._image(image)
        return self

    @torch.no_grad()
    def images(self) -> tuple[Tensor, Tensor | None]:
        """The network's prototypes ``[P, *shape]`` and features ``[K, *shape]`` after the edit."""
        if self._before is not None:
            return self.net.prototypes.detach().clone(), _copied(self.net.features)
        self._check_same()
        prototypes = self.net.prototypes.detach().clone()
        for p, image in self._prototypes.items():
            prototypes[p] = image
        features = _copied(self.net.features)
        if features is not None:
            for k, image in self._features.items():
                features[k] = image
            kept = [k for k in range(len(features)) if k not in self._removed]
            features = torch.cat([features[kept], *(image[None] for image in self._added)])
        return prototypes, features

    @torch.no_grad()
    def threshold(self) -> Tensor | None:
        """The features' thresholds ``[K]`` after the edit; an added feature has the mean of all."""
        own = _copied(self.net.threshold)
        if own is None or self._before is not None:
            return own
        kept = [k for k in range(len(own)) if k not in self._removed]
        return torch.cat([own[kept], own.mean().expand(len(self._added))])

    @torch.no_grad()
    def preview(self, data: Tensor | Iterable[Any], labels: Tensor | None = None) -> Preview:
        """Answers before and after the edit, in ``eval()``; the network does not change.

        Args:
            data: inputs, ``[N, *shape]``, or a loader of batches ``(x, y)``.
            labels: right class of each input, ``[N]``; not with a loader.
        """
        self._check_open()
        heads = self.net.materialize().eval(), self.head().eval()
        right, answers = [], ([], [])
        for x, y in _batches(data, labels):
            vectors = self.net.encode(x.to(self.net.prototypes.device))
            right.append(y.cpu())
            for head, found in zip(heads, answers, strict=True):
                found.append(head(vectors).argmax(-1).cpu())
        if not right:
            raise ValueError("there are no inputs: the loader is empty, or was used up before.")
        return Preview(torch.cat(right), torch.cat(answers[0]), torch.cat(answers[1]))

    @torch.no_grad()
    def head(self) -> TverskyProjection | nn.Linear:
        """The head after the edit as a plain layer; ``net.materialize()`` returns the one before."""
        prototypes, features = self.images()
        vectors = self.net.encode(prototypes if features is None else torch.cat([prototypes, features]))
        vectors = vectors.to(prototypes.dtype)
        head, P = self.net.materialize(), len(prototypes)
        if isinstance(head, nn.Linear):
            head.weight = nn.Parameter(vectors)
        else:
            head.prototypes, head.features.weight = nn.Parameter(vectors[:P]), nn.Parameter(vectors[P:])
            threshold = self.threshold()
            head.features.threshold = None if threshold is None else nn.Parameter(threshold)
        return head

    def apply(self) -> DataDomain:
        """Changes the network and returns it.

        If the number of features changes, their parameter is a new one, which an optimizer must be given.
        """
        self._check_open()
        images, threshold = self.images(), self.threshold()
        before = self.net.prototypes.detach().clone(), _copied(self.net.features), _copied(self.net.threshold)
        self.net.set_images(*images, threshold)
        self._before = before
        return self.net

    def undo(self) -> DataDomain:
        """Restores all images to what they were before ``apply``, later changes included, and returns the network."""
        if self._before is None:
            raise RuntimeError("there is nothing to undo: the edit is not applied.")
        self.net.set_images(*(None if x is None else x.to(self.net.prototypes) for x in self._before))
        self._before = None
        return self.net

    def __repr__(self) -> str:
        steps = [f"set_prototype({p})" for p in self._prototypes] + [f"swap_feature({k})" for k in self._features]
        steps += [f"remove_feature({k})" for k in sorted(self._removed)] + ["add_feature()"] * len(self._added)
        return f"Edit({', '.join(steps) or 'nothing'}; {'not ' * (self._before is None)}applied)"

    def _check_open(self) -> None:
        if self._before is not None:
            raise RuntimeError("the edit is applied; undo() it first, or begin another one with Edit(net).")

    def _check_same(self) -> None:
        if _sizes(self.net) != self._sizes:
            raise RuntimeError(
                f"the network has {_counted(_sizes(self.net))} now and had {_counted(self._sizes)} when the edit "
                "began; begin another one with Edit(net)."
            )

    def _check_features(self) -> None:
        self._check_open()
        if self.net.features is None:
            raise ValueError("a linear head has no features; its rows are the prototypes.")

    def _check_feature(self, feature: int) -> None:
        self._check_features()
        _check_index("feature", feature, self._sizes[1])
        if feature in self._removed:
            raise ValueError(f"feature {feature} was removed by this edit.")

    def _image(self, image: Tensor) -> Tensor:
        """A checked copy, so that the caller may go on drawing on the image."""
        if not isinstance(image, Tensor):
            raise TypeError(f"image must be a tensor of shape {list(self.net.shape)}; got {type(image).__name__}.")
        if image.shape != self.net.shape:
            hint = f": for one image use image.reshape{self.net.shape}" if image.numel() == self._size() else ""
            raise ValueError(
                f"image must have the shape of an input, {list(self.net.shape)}; got shape {list(image.shape)}{hint}."
            )
        if not image.is_floating_point() or not image.isfinite().all():
            raise ValueError("image must have finite numbers of a floating dtype, as the network's inputs have.")
        return image.detach().to(self.net.prototypes, copy=True)

    def _size(self) -> int:
        return self.net.prototypes[0].numel()


def load_state(net: DataDomain, state: Mapping[str, Tensor]) -> DataDomain:
    """Loads the state of an edited network, whose numbers of prototypes and features may differ; returns ``net``.

    Args:
        net: a network made as the edited one was before its edits.
        state: ``state_dict()`` of the edited network.
    """
    own = net.state_dict()
    lists = [name for name in ("prototypes", "features", "threshold") if name in own]
    wrong = [n for n in (*own, *state) if n not in state or n not in own]
    wrong += [n for n in own if n not in wrong and state[n].shape[n in lists :] != own[n].shape[n in lists :]]
    if net.bias is not None and not wrong and len(state["prototypes"]) != len(net.bias):
        wrong.append("prototypes")
    if wrong:
        n = wrong[0]
        here, there = (list(s[n].shape) if n in s else "nothing" for s in (own, state))
        raise ValueError(f"the state is not of such a network: {n!r} is {there} there and {here} here.")
    for name in lists:
        own, images = getattr(net, name), state[name]
        if len(images) != len(own):
            new = torch.empty_like(images, device=own.device, dtype=own.dtype)
            setattr(net, name, nn.Parameter(new, own.requires_grad) if isinstance(own, nn.Parameter) else new)
    net.load_state_dict(state)
    return net


def _sizes(net: DataDomain) -> tuple[int, int]:
    return len(net.prototypes), 0 if net.features is None else len(net.features)


def _counted(sizes: tuple[int, int]) -> str:
    return f"{sizes[0]} prototypes and {sizes[1]} features"


def _copied(images: Tensor | None) -> Tensor | None:
    return None if images is None else images.detach().clone()


def _check_index(name: str, index: object, size: int) -> None:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < size:
        raise ValueError(f"there is no {name} {index!r}; they are numbered from 0 to {size - 1}.")


def _batches(data: Tensor | Iterable, labels: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(data, Tensor):
        if labels is None or len(labels) != len(data):
            given = "none" if labels is None else len(labels)
            raise ValueError(f"{len(data)} inputs need as many labels; got {given}.")
        yield from zip(data.split(ROWS), labels.split(ROWS), strict=True)
        return
    for batch in data:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise TypeError("a batch must be inputs and labels, (x, y); or give tensors: preview(x, y).")
        yield batch[0], batch[1]
