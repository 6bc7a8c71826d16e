"""NABirds, CUB-200 and any folder of images: lists of pictures that are decoded when they are asked for."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .find import DataError, Labelled, decode_text, find, missing, read, sha256

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm")
# How many numbers each line of these lists has. Nothing needs them but crop=True; CUB-200 comes without the second.
OPTIONAL = {"bounding_boxes.txt": 4, "sizes.txt": 2}
# What pillow and zipfile raise for files that they cannot make sense of.
BROKEN = (OSError, ValueError, SyntaxError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Record(NamedTuple):
    """One picture of a list; box is x, y, width, height and size is width, height, in pixels."""

    path: str
    label: int
    train: bool
    box: tuple[float, float, float, float] | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Pictures:
    """Records, the name of each label, and the sha256 of what the list was made from.

    ``read`` gives the bytes of a record's path.
    """

    records: list[Record]
    classes: tuple[str, ...]
    hashes: dict[str, str]
    read: Callable[[str], bytes]

    def picture(self, record: Record, size: int, crop: bool = False) -> Tensor:
        """One picture, uint8 ``[3, size, size]``: the largest square in the middle; with ``crop``, about its box."""
        Image = _pillow()
        if crop and record.box is None:
            raise DataError(f"{record.path} has no bounding box to crop to.")
        try:
            with Image.open(io.BytesIO(self.read(record.path))) as image:
                square = _square(image.size, record.box if crop else None)
                small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC, square, reducing_gap=3.0)
        except DataError:
            raise
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise DataError(f"{record.path} is not a whole image: {error}.") from None
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)

    def tensors(
        self,
        size: int,
        crop: bool = False,
        limit: int | None = None,
        on_picture: Callable[[], object] = lambda: None,
    ) -> Labelled:
        """All pictures, uint8 ``[N, 3, size, size]``, decoded on all cores; ``on_picture`` is called after each.

        limit: at most that many of each split, spread evenly over the list.
        """
        if size < 1 or (limit is not None and limit < 1):
            raise ValueError(f"size and limit must be 1 or more; got size={size}, limit={limit}.")
        splits = []
        for train in (True, False):
            chosen = [record for record in self.records if record.train is train]
            if limit is not None and limit < len(chosen):
                chosen = [chosen[i * len(chosen) // limit] for i in range(limit)]
            x = torch.empty(len(chosen), 3, size, size, dtype=torch.uint8)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for i, one in enumerate(pool.map(partial(self.picture, size=size, crop=crop), chosen)):
                    x[i] = one
                    on_picture()
            splits += [x, torch.tensor([record.label for record in chosen], dtype=torch.int64)]
        return Labelled(*splits, classes=self.classes, hashes=self.hashes)


def nabirds(where: str | Path | None = None) -> Pictures:
    """The 48,562 photographs of NABirds from its unpacked folder, with labels 0 … 554 in the order of classes.txt.

    Of its 1,011 classes, a hierarchy, only those that some picture has get a label.
    """
    folder = find("nabirds", where)
    if folder is None:
        raise missing("nabirds")
    return _listed(find("nabirds", folder) or folder, "nabirds")


def cub200(where: str | Path | None = None) -> Pictures:
    """The 11,788 photographs of CUB-200-2011, from a zip with train/ and test/ or from the official folder."""
    name = "cub-200-2011-112"
    path = find(name, where) or find("CUB_200_2011")
    if path is None:
        raise missing(name)
    path = find("CUB_200_2011", path) or path
    if (path / "images.txt").is_file():
        return _listed(path, name)
    archives = sorted(path.glob("*.zip")) if path.is_dir() else [path]
    if len(archives) != 1:
        found = ", ".join(a.name for a in archives) or "none"
        raise DataError(f"{path} must have images.txt and its like, or one zip; zips found: {found}.")
    return _zipped(archives[0], name)


def image_folder(folder: str | Path) -> Pictures:
    """The pictures in train/<class>/ and test/<class>/ of a folder, with labels in the order of the classes' names.

    Its hash is of the names and sizes of the files.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; expected one with train/<class>/*.jpg and test/<class>/*.jpg.")
    files = sorted(file for split in ("train", "test") for file in root.glob(f"{split}/*/*") if file.is_file())
    names = [file.relative_to(root).as_posix() for file in files]
    listing = "".join(f"{name} {file.stat().st_size}\n" for name, file in zip(names, files, strict=True))
    records, classes = _by_folder(names, str(root))
    records = [record._replace(path=str(root / record.path)) for record in records]
    return Pictures(records, classes, {"listing": sha256(listing.encode())}, _read_file)


def _zipped(path: Path, name: str) -> Pictures:
    content = read(path, name)
    try:
        # From memory, so that processes and threads that read it do not move one another's place in the file.
        archive = zipfile.ZipFile(io.BytesIO(content))
    except BROKEN as error:
        raise DataError(f"{path} is not a whole zip: {error}.") from None
    records, classes = _by_folder(archive.namelist(), str(path))

    def read_member(member: str) -> bytes:
        try:
            return archive.read(member)
        except BROKEN as error:
            raise DataError(f"{member} in {path} cannot be read: {error}.") from None

    return Pictures(records, classes, {path.name: sha256(content)}, read_member)


def _read_file(path: str) -> bytes:
    return read(Path(path), "")


def _by_folder(names: Iterable[str], source: str) -> tuple[list[Record], tuple[str, ...]]:
    """Records of the pictures among names …/train/<class>/<file> and …/test/<class>/<file>; others are passed over."""
    found = []
    for name in sorted(names):
        *_, split, label, file = ("", "", *PurePosixPath(name).parts)
        if split in ("train", "test") and file.lower().endswith(SUFFIXES) and not file.startswith("."):
            found.append((name, label, split == "train"))
    train, test = ({label for _, label, is_train in found if is_train is kind} for kind in (True, False))
    for split, classes in (("train", train), ("test", test)):
        if not classes:
            raise DataError(f"{source} has no pictures in {split}/<class>/; expected {split}/<class>/*.jpg.")
    if test - train:
        raise DataError(f"{source} has the class {min(test - train)!r} in test/ and not in train/.")
    numbers = {label: i for i, label in enumerate(sorted(train))}
    return [Record(name, numbers[label], is_train) for name, label, is_train in found], tuple(numbers)


def _listed(folder: Path, name: str) -> Pictures:
    """The pictures that the text files of NABirds and CUB-200 list, each a line of an image's id and a value."""
    contents = {
        file: read(folder / file, name)
        for file in ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")
    }
    contents |= {file: read(folder / file, name) for file in OPTIONAL if (folder / file).exists()}
    tables = {file: _table(content, folder / file) for file, content in contents.items()}
    images, classes = tables.pop("images.txt"), tables.pop("classes.txt")
    for file, table in tables.items():
        if odd := sorted(images.keys() ^ table.keys()):
            has, lacks = ("images.txt", file) if odd[0] in images else (file, "images.txt")
            raise DataError(f"{folder}: {has} has the image {odd[0]}, and {lacks} has not.")
    labels, splits = tables["image_class_labels.txt"], tables["train_test_split.txt"]
    for image in images:
        if labels[image] not in classes:
            raise DataError(
                f"{folder}/image_class_labels.txt gives {image} the class {labels[image]}, which classes.txt has not."
            )
        if splits[image] not in ("0", "1"):
            raise DataError(f"{folder}/train_test_split.txt gives {image} {splits[image]!r}; expected 0 or 1.")
    used = set(labels.values())
    numbers = {c: i for i, c in enumerate(c for c in classes if c in used)}
    boxes, sizes = (_numbers(tables.get(file), n, folder / file) for file, n in OPTIONAL.items())
    records = [
        Record(
            str(folder / "images" / path),
            numbers[labels[image]],
            splits[image] == "1",
            boxes.get(image),
            sizes.get(image),
        )
        for image, path in images.items()
    ]
    if absent := [record.path for record in records if not os.path.isfile(record.path)]:
        more = f", nor are {len(absent) - 1} more" if len(absent) > 1 else ""
        raise DataError(f"{absent[0]} is in images.txt and not in the folder{more}.")
    hashes = {file: sha256(content) for file, content in contents.items()}
    return Pictures(records, tuple(classes[c] for c in numbers), hashes, _read_file)


def _table(content: bytes, path: Path) -> dict[str, str]:
    """The lines of a file, each an id and the rest."""
    table: dict[str, str] = {}
    for number, line in enumerate(decode_text(content, str(path)).splitlines(), 1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value or key in table:
            trouble = "has nothing after its id" if not value else f"has the id {key} a second time"
            raise DataError(f"{path}, line {number}, {trouble}.")
        table[key] = value.strip()
    return table


def _numbers(table: dict[str, str] | None, n: int, path: Path) -> dict[str, tuple]:
    """The values of a table as n numbers each."""
    try:
        found = {image: tuple(map(float, value.split())) for image, value in (table or {}).items()}
    except ValueError as error:
        raise DataError(f"{path}: {error}.") from None
    if wrong := [image for image, values in found.items() if len(values) != n]:
        raise DataError(f"{path} has {len(found[wrong[0]])} numbers for {wrong[0]}; expected {n}.")
    return found


def _square(size: tuple[int, int], box: tuple[float, float, float, float] | None) -> tuple[float, float, float, float]:
    """Left, top, right, bottom of the square to keep: in the middle, or about the box, and inside the picture."""
    x, y, w, h = box or (0, 0, *size)
    side = min(max(w, h) if box else min(w, h), *size)
    left, top = min(max(x + (w - side) / 2, 0), size[0] - side), min(max(y + (h - side) / 2, 0), size[1] - side)
    return left, top, left + side, top + side


def _pillow():
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("pictures need pillow: pip install 'similitude[viz]'") from None
    return Image
