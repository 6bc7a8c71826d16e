"""MNIST and Fashion-MNIST from their published idx files, checked as they are read."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import hub
from .find import DataError, Labelled, contents, find, hashes_of

# Fashion-MNIST's classes, 0 to 9.
CLOTHING = ("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
# Where Debian's package dataset-fashion-mnist puts its files.
PACKAGED = Path("/usr/share/datasets/fashion-mnist")


def mnist(where: str | Path | None = None, check: bool = True) -> Labelled:
    """MNIST's 60,000 training and 10,000 test digits, uint8 ``[N, 28, 28]``.

    Args:
        where: the folder with the four idx files, packed or not, or its parent. Default: ``SIMILITUDE_DATA``, then the
            hub.
        check: whether the files must be the published ones; with False, any images in that format are read.
    """
    return _images("mnist", tuple("0123456789"), where, check, hub.mnist)


def fashion_mnist(where: str | Path | None = None, check: bool = True) -> Labelled:
    """Fashion-MNIST's 60,000 training and 10,000 test pictures of clothing, uint8 ``[N, 28, 28]``.

    Args:
        where: the folder with the four idx files, packed or not, or its parent. Default: ``fashion-mnist`` in
            ``SIMILITUDE_DATA``, then the folder of Debian's package ``dataset-fashion-mnist``.
        check: whether the files must be the published ones; with False, any images in that format are read.
    """

    def nowhere() -> dict[str, bytes]:
        raise LookupError("or, on Debian: apt install dataset-fashion-mnist")

    if find("fashion-mnist", where) is None and PACKAGED.is_dir():
        where = PACKAGED
    return _images("fashion-mnist", CLOTHING, where, check, nowhere)


def _images(
    name: str, classes: tuple[str, ...], where: str | Path | None, check: bool, get: Callable[[], dict[str, bytes]]
) -> Labelled:
    files = [f"{split}-{kind}" for split in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    found = contents(name, files, where, get)
    arrays = [_parse_idx(*found[file], axes) for file, axes in zip(files, (3, 1, 3, 1), strict=True)]
    for images, labels, file in zip(arrays[::2], arrays[1::2], files[1::2], strict=True):
        shown = found[file].shown
        if len(images) != len(labels):
            raise DataError(f"{shown} has {len(labels)} labels for {len(images)} images.")
        if labels.max() > 9:
            i = int(labels.argmax())
            raise DataError(f"{shown} has the label {labels[i]} at {i}; labels are from 0 to 9.")
    hashes = hashes_of(name, found, check)
    train_x, train_y, test_x, test_y = arrays
    return Labelled(train_x, train_y.long(), test_x, test_y.long(), classes, hashes)


def _parse_idx(content: bytes, shown: str, axes: int) -> Tensor:
    """The uint8 array in an idx file: a magic number, the size of each axis, then one byte per element."""
    magic, header = bytes([0, 0, 8, axes]), 4 + 4 * axes
    if content[:4] != magic:
        start = f"it starts with {content[:4].hex()}, not {magic.hex()}"
        raise DataError(f"{shown} is not an idx file of bytes with {axes} axes: {start}.")
    if len(content) < header:
        raise DataError(f"{shown} is cut short: it ends inside its header, after {len(content)} bytes.")
    shape = struct.unpack(f">{axes}I", content[4:header])
    expected, found = math.prod(shape), len(content) - header
    if expected != found or not found:
        trouble = "is cut short" if found < expected else "holds nothing" if not found else "is too long"
        raise DataError(f"{shown} {trouble}: {list(shape)} is {expected} bytes, and it has {found} after its header.")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy())
