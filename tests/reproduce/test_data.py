"""Data: files load as they were written, damaged ones are named, and each place is searched in its turn."""

import gzip
import json
import os
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from similitude.reproduce.data import digits as idx_files
from similitude.reproduce.data import find, hub
from similitude.reproduce.data.digits import CLOTHING, fashion_mnist, mnist
from similitude.reproduce.data.find import DataError
from similitude.reproduce.data.photos import cub200, nabirds
from similitude.reproduce.data.text import ptb

Image = pytest.importorskip("PIL.Image")
tokenizers = pytest.importorskip("tokenizers")

REAL = Path(os.environ.get("SIMILITUDE_DATA") or "nowhere")


def published(name: str):
    return pytest.mark.skipif(not (REAL / name).is_dir(), reason=f"SIMILITUDE_DATA has no {name}")


@pytest.fixture(autouse=True)
def nowhere_to_look(monkeypatch, tmp_path):
    """No data in the environment, no hub, and a cache for this test alone."""
    monkeypatch.delenv("SIMILITUDE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def digits(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


@pytest.fixture
def mnist_folder(tmp_path):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for split, n in (("train", 7), ("t10k", 3)):
        images, labels = digits(n, seed=n)
        (folder / f"{split}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{split}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
    return folder


def is_the_mnist_of_the_fixture(found) -> bool:
    arrays = [*digits(7, seed=7), *digits(3, seed=3)]
    tensors = [found.train_x, found.train_y, found.test_x, found.test_y]
    return all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays, strict=True))


def test_digits_come_back_as_they_were_written(mnist_folder):
    found = mnist(mnist_folder, check=False)
    assert is_the_mnist_of_the_fixture(found)
    assert (found.train_x.dtype, found.train_y.dtype) == (torch.uint8, torch.int64)
    assert found.classes == tuple("0123456789")
    assert found.hashes["train-labels-idx1-ubyte"] == find.sha256(idx(digits(7, seed=7)[1]))
    assert len(found.hashes) == 4


def test_unpacked_files_are_the_same_data(mnist_folder):
    packed = mnist(mnist_folder, check=False)
    for path in list(mnist_folder.iterdir()):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    found = mnist(mnist_folder, check=False)
    assert is_the_mnist_of_the_fixture(found)
    assert found.hashes == packed.hashes


def test_data_is_looked_for_where_it_is_said_to_be(mnist_folder, monkeypatch):
    assert is_the_mnist_of_the_fixture(mnist(mnist_folder.parent, check=False))
    monkeypatch.setenv("SIMILITUDE_DATA", str(mnist_folder.parent))
    assert is_the_mnist_of_the_fixture(mnist(check=False))
    # A path that is given comes first, even if the environment would have had it.
    with pytest.raises(DataError, match="/nowhere is not there"):
        mnist("/nowhere", check=False)
    monkeypatch.setenv("SIMILITUDE_DATA", "/nowhere")
    with pytest.raises(DataError, match="SIMILITUDE_DATA=/nowhere is not there"):
        mnist()


def test_clothing_is_found_in_its_folder_or_where_debian_has_it(mnist_folder, monkeypatch):
    folder = mnist_folder.rename(mnist_folder.parent / "fashion-mnist")
    found = fashion_mnist(folder.parent, check=False)
    assert is_the_mnist_of_the_fixture(found)
    assert found.classes == CLOTHING
    monkeypatch.setattr(idx_files, "PACKAGED", folder)
    assert is_the_mnist_of_the_fixture(fashion_mnist(check=False))
    monkeypatch.setenv("SIMILITUDE_DATA", str(mnist_folder.parent))
    assert is_the_mnist_of_the_fixture(fashion_mnist(check=False))
    monkeypatch.setattr(idx_files, "PACKAGED", folder / "none")
    monkeypatch.delenv("SIMILITUDE_DATA")
    with pytest.raises(
        DataError, match=r"fashion-mnist was not found: get .* \(or, on Debian: apt install dataset-fash"
    ):
        fashion_mnist()


def test_digits_are_not_taken_for_clothing(mnist_folder, monkeypatch):
    # The files of both have the same names.
    monkeypatch.setattr(find, "KNOWN", {**find.KNOWN, **mnist(mnist_folder, check=False).hashes})
    mnist(mnist_folder)
    with pytest.raises(DataError, match="is not the file that was published"):
        fashion_mnist(mnist_folder)


@published("fashion-mnist")
def test_the_published_clothing_is_found():
    found = fashion_mnist(REAL)
    assert found.train_x.shape == (60_000, 28, 28)
    assert found.test_y.bincount().tolist() == [1000] * 10


@pytest.mark.parametrize("load", [mnist, fashion_mnist, ptb, nabirds, cub200], ids=lambda f: f.__name__)
def test_missing_data_says_where_to_get_it_and_where_to_put_it(load, monkeypatch, tmp_path):
    name = "cub-200-2011-112" if load is cub200 else load.__name__.replace("_", "-")
    with pytest.raises(DataError, match=f"{name} was not found: get .* from https://.* into DIR/{name} and set SIMIL"):
        load()
    monkeypatch.setenv("SIMILITUDE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=f"put it into {tmp_path}/{name}"):
        load()


def repacked(change):
    """Changes what is in a packed file."""
    return lambda packed: gzip.compress(change(gzip.decompress(packed)))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (IMAGES, lambda b: b[: len(b) // 2], "corrupt or cut short"),
        (IMAGES, lambda b: b[:-8] + bytes(4) + b[-4:], "corrupt or cut short"),
        (IMAGES, lambda b: b[:100] + bytes([b[100] ^ 255]) + b[101:], "corrupt or cut short"),
        (IMAGES, lambda b: b[:10] + b"\xff" + b[11:], "corrupt or cut short"),
        (IMAGES, lambda b: b"<html>404</html>", "corrupt or cut short"),
        (IMAGES, lambda b: b"", "is empty"),
        (IMAGES, repacked(lambda b: b""), "is empty"),
        (IMAGES, repacked(lambda b: b"\0\0\x0d\3" + b[4:]), "starts with 00000d03, not 00000803"),
        (IMAGES, repacked(lambda b: b[:10]), "ends inside its header"),
        (IMAGES, repacked(lambda b: b[:-1]), r"cut short: \[7, 28, 28\] is 5488 bytes, and it has 5487"),
        (IMAGES, repacked(lambda b: b + b"\0"), "is too long"),
        (IMAGES, repacked(lambda b: b[:4] + bytes(12)), "holds nothing"),
        (LABELS, repacked(lambda b: b[:-2] + b"\x0a\1"), "has the label 10 at 5; labels are from 0 to 9"),
        (LABELS, repacked(lambda b: b[:7] + b"\6" + b[8:-1]), "has 6 labels for 7 images"),
        (LABELS, None, "is not there; mnist needs train-images"),
    ],
)
def test_a_broken_idx_file_is_named(mnist_folder, file, change, message):
    path = mnist_folder / file
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as caught:
        mnist(mnist_folder, check=False)
    assert str(path.with_suffix("")) in str(caught.value)


def test_other_data_under_a_known_name_is_refused_with_a_way_to_go_on(mnist_folder, text_folder):
    message = r"train-images-idx3-ubyte.gz is not the file that was published .* or pass check=False to use it as it is"
    with pytest.raises(DataError, match=message):
        mnist(mnist_folder)
    with pytest.raises(DataError, match=r"ptb.train.txt is not the file that was published .* check=False"):
        ptb(text_folder)


def test_one_changed_pixel_is_seen(mnist_folder, monkeypatch):
    monkeypatch.setattr(find, "KNOWN", mnist(mnist_folder, check=False).hashes)
    mnist(mnist_folder)
    path = mnist_folder / IMAGES
    path.write_bytes(repacked(lambda b: b[:-1] + bytes([b[-1] ^ 1]))(path.read_bytes()))
    with pytest.raises(DataError, match=str(path)):
        mnist(mnist_folder)


def test_a_file_that_may_not_be_read_is_named(mnist_folder):
    (mnist_folder / IMAGES).unlink()
    (mnist_folder / IMAGES).mkdir()
    with pytest.raises(DataError, match=f"{IMAGES} cannot be read: Is a directory"):
        mnist(mnist_folder)


@published("mnist")
def test_the_published_digits():
    found = mnist(REAL)
    assert found.train_x.shape == (60000, 28, 28)
    assert found.test_x.shape == (10000, 28, 28)
    assert found.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert found.test_y.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


TEXTS = {"train": " the <unk> sat on \n the naïve mat \n", "valid": " the mat \n", "test": " a cat \n"}


@pytest.fixture
def text_folder(tmp_path):
    """Three texts and, beside them, a byte-level vocabulary with two merges."""
    folder = tmp_path / "data" / "ptb"
    folder.mkdir(parents=True)
    for split, text in TEXTS.items():
        (folder / f"ptb.{split}.txt").write_text(text, encoding="utf-8")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    (tmp_path / "data" / "gpt2-tokenizer").mkdir()
    vocabulary = {token: i for i, token in enumerate([*letters, "th", "the"])}
    (tmp_path / "data" / "gpt2-tokenizer" / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "data" / "gpt2-tokenizer" / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    return folder.parent


def test_text_is_encoded_whole(text_folder):
    found = ptb(text_folder, check=False)
    vocabulary = json.loads((text_folder / "gpt2-tokenizer" / "vocab.json").read_text())
    # "a cat" between spaces, a byte a token: Ġ is the space and Ċ the newline.
    assert found.test.tolist() == [vocabulary[c] for c in "ĠaĠcatĠĊ"]
    tokens = {i: token for token, i in vocabulary.items()}
    train = "".join(tokens[i] for i in found.train.tolist())
    assert train == "ĠtheĠ<unk>ĠsatĠonĠĊĠtheĠnaÃ¯veĠmatĠĊ"
    assert (found.train == vocabulary["the"]).sum() == 2
    assert (found.vocabulary, found.train.dtype) == (258, torch.int64)
    assert list(found.hashes) == ["ptb.train.txt", "ptb.valid.txt", "ptb.test.txt", "vocab.json", "merges.txt"]
    # The tokenizer by its own path.
    other = ptb(text_folder / "ptb", tokenizer=text_folder / "gpt2-tokenizer", check=False)
    assert torch.equal(other.train, found.train)
    # No space comes before a text that has none.
    (text_folder / "ptb" / "ptb.valid.txt").write_text("the")
    assert ptb(text_folder, check=False).valid.tolist() == [vocabulary["the"]]


def test_another_tokenizer_may_be_given(text_folder):
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    # Settings for batches would cut the text.
    words.enable_truncation(2)
    found = ptb(text_folder, words, check=False)
    assert (found.train.tolist(), found.test.tolist()) == ([0, 2, 2, 2, 0, 2, 2], [2, 1])
    assert "tokenizer" in found.hashes
    with pytest.raises(TypeError, match=r"folder or a tokenizers.Tokenizer; got int"):
        ptb(text_folder, 3, check=False)  # pyright: ignore[reportArgumentType]


def cached(tmp_path) -> list[Path]:
    folder = tmp_path / "cache" / "similitude"
    return sorted(folder.iterdir()) if folder.exists() else []


def test_tokens_are_kept_in_the_cache_and_not_beside_the_data(text_folder, tmp_path):
    before = sorted(text_folder.rglob("*"))
    found = ptb(text_folder, check=False)
    assert sorted(text_folder.rglob("*")) == before
    (kept,) = cached(tmp_path)
    # What is read the second time is what is kept.
    np.savez(kept, train=np.array([1]), valid=np.array([2]), test=np.array([3]))
    assert ptb(text_folder, check=False).train.tolist() == [1]
    # Other text, and the same text in other tokens, are other keys.
    (text_folder / "ptb" / "ptb.test.txt").write_text(" the cat \n")
    assert torch.equal(ptb(text_folder, check=False).train, found.train)
    (text_folder / "gpt2-tokenizer" / "merges.txt").write_text("#version: 0.2\nt h\n")
    assert len(ptb(text_folder, check=False).train) > len(found.train)
    assert len(cached(tmp_path)) == 3


@pytest.mark.parametrize("damage", [lambda b: b[:-30], lambda b: b[:150] + b"\7" + b[151:], lambda b: b""])
def test_a_broken_cache_is_made_anew(text_folder, tmp_path, damage):
    found = ptb(text_folder, check=False)
    (kept,) = cached(tmp_path)
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert kept.read_bytes() != whole
    assert torch.equal(ptb(text_folder, check=False).train, found.train)
    assert np.load(kept)["train"].tolist() == found.train.tolist()


def test_a_cache_that_cannot_be_written_is_done_without(text_folder, tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert len(ptb(text_folder, check=False).valid) > 0
    assert cached(tmp_path) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(ptb(text_folder, check=False).valid) > 0


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("ptb/ptb.valid.txt", b" caf\xe9 \n", "is not UTF-8 text: .* at byte 4"),
        ("ptb/ptb.test.txt", b"", "is empty"),
        ("ptb/ptb.train.txt", None, "is not there; ptb needs ptb.train.txt, .* from https://"),
        ("gpt2-tokenizer/vocab.json", b'{"a": 0', "make no tokenizer"),
        ("gpt2-tokenizer/vocab.json", b'{"a": 0}', "make no tokenizer"),
        ("gpt2-tokenizer/merges.txt", b"", "is empty"),
    ],
)
def test_a_broken_text_or_vocabulary_is_named(text_folder, file, content, message):
    path = text_folder / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        ptb(text_folder, check=False)
    assert str(path) in str(caught.value)


@published("ptb")
def test_the_published_text_has_the_tokens_that_were_counted():
    found = ptb(REAL)
    assert [len(t) for t in (found.train, found.valid, found.test)] == [1_174_722, 92_830, 105_243]
    assert found.vocabulary == 50257


def fake_datasets(monkeypatch, load_dataset):
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_hubs_copies_are_the_published_files(mnist_folder, text_folder, monkeypatch):
    files = [mnist(mnist_folder, check=False), ptb(text_folder, check=False)]
    rows = {
        "ylecun/mnist": {
            split: [{"image": Image.fromarray(x), "label": int(y)} for x, y in zip(*digits(n, seed=n), strict=True)]
            for split, n in (("train", 7), ("test", 3))
        },
        "ptb-text-only/ptb_text_only": {
            {"valid": "validation"}.get(split, split): [{"sentence": line.strip()} for line in text.splitlines()]
            for split, text in TEXTS.items()
        },
    }
    fake_datasets(monkeypatch, lambda repository, **options: rows[repository])
    # The hashes of the files, which the hub's must have too.
    monkeypatch.setattr(find, "KNOWN", {**files[0].hashes, **files[1].hashes})
    found = [mnist(), ptb(tokenizer=text_folder / "gpt2-tokenizer")]
    assert is_the_mnist_of_the_fixture(found[0])
    assert [f.hashes for f in found] == [f.hashes for f in files]
    assert torch.equal(found[1].train, files[1].train)
    rows["ptb-text-only/ptb_text_only"]["test"] = [{"sentence": "another"}]
    with pytest.raises(DataError, match=r"the hub's ptb.test.txt is not the file that was published"):
        ptb()


def test_a_hub_that_fails_gives_the_error_for_missing_data(text_folder, monkeypatch):
    def fail(repository, **options):
        raise ConnectionError("no route\nto host")

    fake_datasets(monkeypatch, fail)
    with pytest.raises(DataError, match=r"mnist was not found: get .* \(the Hugging Face hub .*: no route to host\)"):
        mnist()
    monkeypatch.setattr(hub, "_online", lambda: False)
    with pytest.raises(DataError, match=r"gpt2-tokenizer was not found: .* cannot be reached from here"):
        ptb(text_folder / "ptb", check=False)


def test_the_vocabulary_comes_from_the_hub_if_from_nowhere_else(text_folder, monkeypatch):
    expected = ptb(text_folder, check=False)
    module = types.ModuleType("huggingface_hub")
    folder = text_folder / "gpt2-tokenizer"
    module.hf_hub_download = lambda repository, file, local_files_only: folder / file  # pyright: ignore
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(hub, "_online", lambda: False)
    found = ptb(text_folder / "ptb", check=False)
    assert torch.equal(found.train, expected.train)
    assert found.hashes == expected.hashes


def test_missing_tokenizers_name_the_extra(text_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"similitude\[hf\]"):
        ptb(text_folder, check=False)
