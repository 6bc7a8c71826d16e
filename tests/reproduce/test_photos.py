"""Photographs: lists and folders load as they are, and whatever is damaged is named."""

import io
import os
import struct
import sys
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from similitude.reproduce.data.find import DataError, sha256
from similitude.reproduce.data.photos import cub200, image_folder, nabirds

Image = pytest.importorskip("PIL.Image")

REAL = Path(os.environ.get("SIMILITUDE_DATA") or "nowhere")


@pytest.fixture(autouse=True)
def nothing_by_the_environment(monkeypatch):
    monkeypatch.delenv("SIMILITUDE_DATA", raising=False)


def pixels(seed: int, width: int = 12, height: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, kind)
    return file.getvalue()


# Classes of the hierarchy without photographs get no label.
BIRDS = {
    "classes.txt": "0 Birds\n1 Ducks, Geese, and Swans\n7 Mute Swan\n12 Snow Goose (White morph)\n100 Brant\n",
    "images.txt": "aa-1 0012/aa1.png\nbb-2 0007/bb2.png\ncc-3 0012/cc3.png\ndd-4 0100/dd4.png\n",
    "image_class_labels.txt": "aa-1 12\nbb-2 7\ncc-3 12\ndd-4 100\n",
    "train_test_split.txt": "aa-1 1\nbb-2 0\ncc-3 0\ndd-4 1\n",
}


@pytest.fixture
def birds(tmp_path):
    folder = tmp_path / "data" / "nabirds"
    folder.mkdir(parents=True)
    for file, content in BIRDS.items():
        (folder / file).write_text(content)
    for i, line in enumerate(BIRDS["images.txt"].splitlines()):
        path = folder / "images" / line.split()[1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(pixels(i, width=20 if i == 1 else 12)))
    return folder


def test_birds_are_read_from_their_lists(birds):
    found = nabirds(birds)
    assert found.classes == ("Mute Swan", "Snow Goose (White morph)", "Brant")
    assert [(p.label, p.train) for p in found.photos] == [(1, True), (0, False), (1, False), (2, True)]
    assert found.photos[0].path == str(birds / "images" / "0012" / "aa1.png")
    assert len(found) == 4
    assert found.hashes == {file: sha256(content.encode()) for file, content in BIRDS.items()}
    # The archive unpacks into a folder of its own, one deeper.
    assert nabirds(birds.parent).photos == found.photos


def test_the_official_folder_of_cub_is_read_too(birds):
    assert cub200(birds).photos == nabirds(birds).photos
    birds.rename(birds.parent / "CUB_200_2011")
    assert len(cub200(birds.parent)) == 4


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"), [(20, 12, (0, 12), (4, 16)), (12, 18, (3, 15), (0, 12))]
)
def test_a_photo_is_its_middle_square(birds, width, height, rows, columns):
    found, array = nabirds(birds), pixels(1, width, height)
    Path(found.photos[1].path).write_bytes(encoded(array))
    whole = torch.from_numpy(array).permute(2, 0, 1)
    assert torch.equal(found.pixels(found.photos[1], 12), whole[:, slice(*rows), slice(*columns)])
    square = (columns[0], rows[0], columns[1], rows[1])
    small = Image.fromarray(array).resize((6, 6), Image.Resampling.BICUBIC, square)
    assert torch.equal(found.pixels(found.photos[1], 6), torch.tensor(np.array(small)).permute(2, 0, 1))


def test_tensors_are_the_photos_in_order(birds):
    found, seen = nabirds(birds), []
    stacked = found.tensors(5, on_photo=lambda: seen.append(1))
    assert len(seen) == 4
    train = [photo for photo in found.photos if photo.train]
    assert torch.equal(stacked.train_x, torch.stack([found.pixels(photo, 5) for photo in train]))
    assert (stacked.train_y.tolist(), stacked.test_y.tolist()) == ([1, 2], [0, 1])
    assert (stacked.train_x.dtype, stacked.test_x.shape) == (torch.uint8, (2, 3, 5, 5))
    assert (stacked.classes, stacked.hashes) == (found.classes, found.hashes)
    with pytest.raises(ValueError, match="size must be 1 or more; got 0"):
        found.tensors(0)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("image_class_labels.txt", "cc-3 12", "cc-3 13", "gives cc-3 the class 13, which classes.txt has not"),
        (
            "image_class_labels.txt",
            "cc-3 12\n",
            "",
            "images.txt has the image cc-3, and image_class_labels.txt has not",
        ),
        ("images.txt", "dd-4 0100/dd4.png\n", "", "has the image dd-4, and images.txt has not"),
        ("images.txt", "0100/dd4.png", "0100/gone.png", "gone.png is in images.txt and not in the folder"),
        ("images.txt", "bb-2", "aa-1", "images.txt, line 2, has the id aa-1 a second time"),
        ("train_test_split.txt", "bb-2 0", "bb-2 2", "gives bb-2 '2'; expected 0 or 1"),
        ("train_test_split.txt", "bb-2 0", "bb-2", "train_test_split.txt, line 2, has nothing after its id"),
        ("classes.txt", BIRDS["classes.txt"], "", "classes.txt is empty"),
        ("classes.txt", "Brant", "Br\udce4nt", "classes.txt is not UTF-8 text"),
        ("train_test_split.txt", None, None, "train_test_split.txt is not there; nabirds needs nabirds.tar.gz"),
    ],
)
def test_lists_that_do_not_fit_are_named(birds, file, old, new, message):
    if old is None:
        (birds / file).unlink()
    else:
        assert old in BIRDS[file]
        (birds / file).write_bytes(BIRDS[file].replace(old, new).encode(errors="surrogateescape"))
    with pytest.raises(DataError, match=message):
        nabirds(birds)


NAMES = ["train/b/1.png", "train/b/2.PNG", "train/a/3.png", "train/c/4.png", "test/b/5.png", "test/a/6.png"]


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(NAMES):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(pixels(i)))
    return tmp_path / "pictures"


@pytest.fixture
def archive(folder):
    path = folder.parent / "data" / "cub-200-2011-112" / "cub112.zip"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as file:
        for name in ("__MACOSX/train/z/._1.png", "train/", *NAMES):
            file.writestr(name, b"" if name not in NAMES else (folder / name).read_bytes())
    return path


def test_labels_are_the_folders_in_order(folder):
    (folder / "train" / "a" / "notes.txt").write_text("no image")
    (folder / "train" / "a" / ".hidden.png").write_text("no image")
    found = image_folder(folder)
    assert found.classes == ("a", "b", "c")
    assert [(Path(p.path).name, p.label, p.train) for p in found.photos] == [
        ("6.png", 0, False),
        ("5.png", 1, False),
        ("3.png", 0, True),
        ("1.png", 1, True),
        ("2.PNG", 1, True),
        ("4.png", 2, True),
    ]
    assert torch.equal(found.tensors(12).test_x[0], torch.tensor(pixels(5)).permute(2, 0, 1))
    (folder / "test" / "a" / "6.png").write_bytes(encoded(pixels(6, width=14)))
    assert image_folder(folder).hashes != found.hashes


def test_a_zip_gives_what_its_folder_gives(folder, archive, monkeypatch):
    monkeypatch.setenv("SIMILITUDE_DATA", str(archive.parent.parent))
    expected = image_folder(folder).tensors(12)
    for where in (None, archive, archive.parent, archive.parent.parent):
        found = cub200(where)
        stacked = found.tensors(12)
        assert torch.equal(stacked.train_x, expected.train_x)
        assert torch.equal(stacked.test_y, expected.test_y)
        assert stacked.classes == expected.classes
        assert found.hashes == {"cub112.zip": sha256(archive.read_bytes())}


def test_grey_transparent_and_palette_images_have_three_channels(folder):
    path = folder / "test" / "a" / "6.png"
    for mode in ("L", "P", "RGBA", "1", "CMYK"):
        kind = "TIFF" if mode == "CMYK" else "PNG"
        Image.fromarray(pixels(1)).convert(mode).save(path, kind)
        assert image_folder(folder).tensors(12).test_x.shape == (2, 3, 12, 12), mode


def second_chunk_broken() -> bytes:
    """A PNG whose pixels are in two chunks, the second with a name that cannot be."""
    whole = encoded(pixels(0))
    at = whole.index(b"IDAT")
    body, rest = whole[at + 4 :].split(b"IEND")[0][:-8], whole[whole.index(b"IEND") - 4 :]
    chunks = [(b"IDAT", body[:100]), (b"\1\2\3\4", body[100:])]
    made = [struct.pack(">I", len(b)) + name + b + struct.pack(">I", zlib.crc32(name + b)) for name, b in chunks]
    return whole[: at - 4] + b"".join(made) + rest


@pytest.mark.parametrize(
    "broken",
    [
        encoded(pixels(0, 64, 64))[:5000],
        encoded(pixels(0, 64, 64), "JPEG")[:2000],
        encoded(pixels(0, 64, 64), "JPEG")[:300],
        # In the middle of the header, and of the pixels.
        encoded(pixels(0))[:20] + bytes(4) + encoded(pixels(0))[24:],
        encoded(pixels(0))[:60] + bytes(4) + encoded(pixels(0))[64:],
        second_chunk_broken(),
        b"no image at all",
        b"",
    ],
    ids=["cut PNG", "cut JPEG", "cut header", "header", "pixels", "chunk", "text", "empty"],
)
def test_an_image_that_is_not_whole_is_named(folder, broken):
    path = folder / "train" / "b" / "1.png"
    path.write_bytes(broken)
    with pytest.raises(DataError, match=str(path)):
        image_folder(folder).tensors(12)


def test_folders_without_images_or_with_a_class_that_is_only_tested_are_named(folder, tmp_path):
    with pytest.raises(DataError, match="nothing is not a folder"):
        image_folder(tmp_path / "nothing")
    (folder / "test" / "z").mkdir()
    (folder / "test" / "z" / "1.png").write_bytes(encoded(pixels(0)))
    with pytest.raises(DataError, match=r"class 'z' in test/ and not in train/"):
        image_folder(folder)
    (folder / "test").rename(folder / "tests")
    with pytest.raises(DataError, match="has no images in test/<class>/"):
        image_folder(folder)


def test_a_broken_zip_is_named(archive):
    whole = archive.read_bytes()
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cub112.zip is not a whole zip"):
        cub200(archive)
    archive.write_bytes(b"")
    with pytest.raises(DataError, match=r"cub112.zip is empty"):
        cub200(archive)
    # A byte in the middle of one member, which is stored as it is.
    at = whole.index(encoded(pixels(2))) + 100
    archive.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    found = cub200(archive)
    with pytest.raises(DataError, match=r"train/a/3.png in .*cub112.zip cannot be read: Bad CRC-32"):
        found.tensors(12)
    archive.with_name("second.zip").write_bytes(whole)
    with pytest.raises(DataError, match=r"one zip; zips found: cub112.zip, second.zip"):
        cub200(archive.parent)


@pytest.mark.skipif(not (REAL / "cub-200-2011-112").is_dir(), reason="SIMILITUDE_DATA has no cub-200-2011-112")
def test_the_published_birds():
    found = cub200(REAL)
    assert len(found) == 11788
    assert sum(photo.train for photo in found.photos) == 5994
    assert [photo.label for photo in found.photos if photo.train] == sorted(p.label for p in found.photos if p.train)
    assert {photo.label for photo in found.photos} == set(range(len(found.classes))) == set(range(200))
    some = replace(found, photos=found.photos[::600]).tensors(112)
    assert some.train_x.shape[1:] == some.test_x.shape[1:] == (3, 112, 112)
    assert len(some.train_x) + len(some.test_x) == 20


def test_a_missing_pillow_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"similitude\[viz\]"):
        image_folder(folder).tensors(12)
