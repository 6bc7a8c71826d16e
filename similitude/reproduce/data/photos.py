"""NABirds, CUB-200-2011 and any folder of images: lists of photographs, each decoded when it is asked for."""

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

from .find import DataError, Labelled, decoded, find, missing, read, sha256

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm")
LISTS = ("images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt")
# What pillow and zipfile raise for damaged files.
BROKEN = (OSError, ValueError, SyntaxError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


class Photo(NamedTuple):
    """One photograph of a list; ``train`` says which split it belongs to."""

    path: str
    label: int
    train: bool


@dataclass(frozen=True)
class Photos:
    """A list of photographs, the name of each label, and the sha256 of the files that the list was made from.

    ``read`` returns the bytes of a photo's path.
    """

    photos: list[Photo]
    classes: tuple[str, ...]
    hashes: dict[str, str]
    read: Callable[[str], bytes]

    def __len__(self) -> int:
        return len(self.photos)

    def pixels(self, photo: Photo, size: int) -> Tensor:
        """The largest square in the middle of one photograph, uint8 ``[3, size, size]``."""
        Image = _pillow()
        try:
            with Image.open(io.BytesIO(self.read(photo.path))) as image:
                side = min(image.size)
                left, top = ((length - side) / 2 for length in image.size)
                square = (left, top, left + side, top + side)
                small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC, square, reducing_gap=3.0)
        except DataError:
            raise
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise DataError(f"{photo.path} is not a whole image: {error}.") from None
        return torch.from_numpy(np.array(small)).permute(2, 0, 1)

    def tensors(self, size: int, on_photo: Callable[[], object] = lambda: None) -> Labelled:
        """All photographs, uint8 ``[N, 3, size, size]``, decoded on all cores.

        Args:
            size: side of the square, in pixels.
            on_photo: called after each photograph.
        """
        if size < 1:
            raise ValueError(f"size must be 1 or more; got {size}.")
        splits = []
        for train in (True, False):
            chosen = [photo for photo in self.photos if photo.train is train]
            x = torch.empty(len(chosen), 3, size, size, dtype=torch.uint8)
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for i, one in enumerate(pool.map(partial(self.pixels, size=size), chosen)):
                    x[i] = one
                    on_photo()
            splits += [x, torch.tensor([photo.label for photo in chosen], dtype=torch.int64)]
        return Labelled(*splits, classes=self.classes, hashes=self.hashes)


def nabirds(where: str | Path | None = None) -> Photos:
    """The 48,562 photographs of NABirds, with labels 0 … 554 in the order of classes.txt.

    classes.txt lists a hierarchy of 1,011 classes; only those with photographs get a label.

    Args:
        where: the unpacked folder, or its parent. Default: ``SIMILITUDE_DATA``.
    """
    folder = find("nabirds", where)
    if folder is None:
        raise missing("nabirds")
    return _listed(find("nabirds", folder) or folder, "nabirds")


def cub200(where: str | Path | None = None) -> Photos:
    """The 11,788 photographs of CUB-200-2011, from a zip with train/ and test/ or from the official folder.

    Args:
        where: the zip, its folder, the official folder, or the parent of either. Default: ``SIMILITUDE_DATA``.
    """
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
        raise DataError(f"{path} must have either images.txt and the other lists, or one zip; zips found: {found}.")
    return _zipped(archives[0], name)


def image_folder(folder: str | Path) -> Photos:
    """The photographs in train/<class>/ and test/<class>/ of a folder, with labels in the order of the class names.

    The hash is that of the files' names and sizes.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; expected one with train/<class>/*.jpg and test/<class>/*.jpg.")
    files = sorted(file for split in ("train", "test") for file in root.glob(f"{split}/*/*") if file.is_file())
    names = [file.relative_to(root).as_posix() for file in files]
    listing = "".join(f"{name} {file.stat().st_size}\n" for name, file in zip(names, files, strict=True))
    photos, classes = _by_folder(names, str(root))
    photos = [photo._replace(path=str(root / photo.path)) for photo in photos]
    return Photos(photos, classes, {"listing": sha256(listing.encode())}, _read_file)


def _zipped(path: Path, name: str) -> Photos:
    content = read(path, name)
    try:
        # In memory, because threads that share an open file would move each other's position in it.
        archive = zipfile.ZipFile(io.BytesIO(content))
    except BROKEN as error:
        raise DataError(f"{path} is not a whole zip: {error}.") from None
    photos, classes = _by_folder(archive.namelist(), str(path))

    def read_member(member: str) -> bytes:
        try:
            return archive.read(member)
        except BROKEN as error:
            raise DataError(f"{member} in {path} cannot be read: {error}.") from None

    return Photos(photos, classes, {path.name: sha256(content)}, read_member)


def _read_file(path: str) -> bytes:
    return read(Path(path), "")


def _by_folder(names: Iterable[str], source: str) -> tuple[list[Photo], tuple[str, ...]]:
    """The photos among names like …/train/<class>/<file> and …/test/<class>/<file>, and the classes."""
    found = []
    for name in sorted(names):
        *_, split, label, file = ("", "", *PurePosixPath(name).parts)
        if split in ("train", "test") and file.lower().endswith(SUFFIXES) and not file.startswith("."):
            found.append((name, label, split))
    train, test = ({label for _, label, split in found if split == own} for own in ("train", "test"))
    for split, classes in (("train", train), ("test", test)):
        if not classes:
            raise DataError(f"{source} has no images in {split}/<class>/; expected {split}/<class>/*.jpg.")
    if test - train:
        raise DataError(f"{source} has the class {min(test - train)!r} in test/ and not in train/.")
    numbers = {label: i for i, label in enumerate(sorted(train))}
    return [Photo(name, numbers[label], split == "train") for name, label, split in found], tuple(numbers)


def _listed(folder: Path, name: str) -> Photos:
    """The photos in the four text files of NABirds and CUB-200, whose lines have an id and a value."""
    contents = {file: read(folder / file, name) for file in LISTS}
    images, classes, labels, splits = (_table(content, folder / file) for file, content in contents.items())
    for file, table in zip(LISTS[2:], (labels, splits), strict=True):
        _check_same_images(folder, images, file, table)
    _check_values(folder, labels, classes, splits)
    used = set(labels.values())
    numbers = {c: i for i, c in enumerate(c for c in classes if c in used)}
    photos = [
        Photo(str(folder / "images" / path), numbers[labels[image]], splits[image] == "1")
        for image, path in images.items()
    ]
    if absent := [photo.path for photo in photos if not os.path.isfile(photo.path)]:
        more = f", nor are {len(absent) - 1} more" if len(absent) > 1 else ""
        raise DataError(f"{absent[0]} is in images.txt and not in the folder{more}.")
    hashes = {file: sha256(content) for file, content in contents.items()}
    return Photos(photos, tuple(classes[c] for c in numbers), hashes, _read_file)


def _table(content: bytes, path: Path) -> dict[str, str]:
    """The value of each id in a file of lines ``ID VALUE``."""
    table: dict[str, str] = {}
    for number, line in enumerate(decoded(content, str(path)).splitlines(), 1):
        if not line.strip():
            continue
        key, _, value = line.strip().partition(" ")
        if not value or key in table:
            trouble = "has nothing after its id" if not value else f"has the id {key} a second time"
            raise DataError(f"{path}, line {number}, {trouble}.")
        table[key] = value.strip()
    return table


def _check_same_images(folder: Path, images: dict[str, str], file: str, table: dict[str, str]) -> None:
    if odd := sorted(images.keys() ^ table.keys()):
        has, lacks = ("images.txt", file) if odd[0] in images else (file, "images.txt")
        raise DataError(f"{folder}: {has} has the image {odd[0]}, and {lacks} has not.")


def _check_values(folder: Path, labels: dict[str, str], classes: dict[str, str], splits: dict[str, str]) -> None:
    for image, label in labels.items():
        if label not in classes:
            raise DataError(
                f"{folder}/image_class_labels.txt gives {image} the class {label}, which classes.txt has not."
            )
    for image, split in splits.items():
        if split not in ("0", "1"):
            raise DataError(f"{folder}/train_test_split.txt gives {image} {split!r}; expected 0 or 1.")


def _pillow():
    try:
        from PIL import Image
    except ImportError:
        raise ImportError("photographs need pillow: pip install 'similitude[viz]'") from None
    return Image
