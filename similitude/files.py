"""Files that appear whole or not at all and are checked when read, and folders that one process works in at a time."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

# Digests of the files beside it, as sha256sum writes them: ``sha256sum -c SHA256SUMS`` checks them too.
SUMS = "SHA256SUMS"
# Bytes of text that are read at most; a device such as /dev/zero has no end.
LONGEST = 2**28


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Path to write to, which replaces ``path`` at the end of the block and vanishes if the block fails.

    A link is followed, not replaced. What a killed process leaves behind is named ``.NAME.PID.half``.
    """
    path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(2, "No such folder", str(path.parent))
    half = path.with_name(f".{path.name}.{os.getpid()}.half")
    try:
        yield half
        with open(half, "rb") as file:
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def make_folder(folder: Path) -> list[Path]:
    """The folders that were made so that this one is there, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Removes the folders as long as they are empty."""
    with suppress(OSError):
        for folder in folders:
            folder.rmdir()


def check_place(folder: Path, mark: str, key: str, names: Iterable[str]) -> None:
    """Raises ``OSError`` unless a command can write to the folder and takes nothing of others from it.

    Args:
        folder: a folder that is not there yet, is empty, or is the command's own.
        mark: a JSON file that the command leaves behind.
        key: what is in that file and in no other's.
        names: patterns of all that the command writes; what a stop leaves has its lock and these alone.
    """
    near = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not near.is_dir():
        raise FileExistsError(f"cannot write to {folder}: {'it' if near == folder else near} is a file.")
    if not os.access(near, os.W_OK):
        raise PermissionError(f"cannot write to {folder}: permission denied; give another --out.")
    there = sorted(path.name for path in folder.iterdir()) if near == folder else []
    others = [name for name in there if not any(fnmatch(name, own) for own in (".lock", "*.half", *names))]
    if not there or (".lock" in there and not others):
        return
    with suppress(OSError, ValueError):
        found = read_json(folder / mark)
        if isinstance(found, dict) and key in found:
            return
    raise FileExistsError(
        f"cannot write to {folder}: another program wrote its {(others or there)[0]}; give another --out."
    )


def clear_halves(folder: Path, name: str = "*") -> None:
    """Removes what killed processes left of files of this name."""
    for half in (path for path in folder.glob("*.half") if fnmatch(path.name, f"{name}.half")):
        shutil.rmtree(half) if half.is_dir() else half.unlink()


def write_bytes(path: Path, content: bytes) -> None:
    with whole(path) as half:
        half.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file; ``ValueError`` if it is none, or has no end."""
    with open(path, "rb") as file:
        content = file.read(LONGEST + 1)
    if len(content) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text: {error.reason} at byte {error.start}") from None


def check_readable(path: Path) -> None:
    """Raises the ``OSError`` of a file that cannot be opened; safetensors says of any that it is not there."""
    open(path, "rb").close()


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ``ValueError`` if it is none, or nests too deeply to be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def read_json(path: Path) -> Any:
    """The value of a JSON file; ``ValueError`` if it is none."""
    return parse_json(read_text(path))


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Writes the digests of these files of the folder to SHA256SUMS, to be read by ``changed``."""
    write_text(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(names)))


def changed(folder: Path, names: Iterable[str]) -> list[str]:
    """Which of the files, and of those in SHA256SUMS, are not as it has them; none without a SHA256SUMS."""
    path = folder / SUMS
    if not path.exists():
        return []
    lines = [line.partition("  ") for line in path.read_bytes().decode(errors="backslashreplace").splitlines()]
    known = {name: digest for digest, _, name in lines}
    there = {name: sha256(folder / name) for name in (*names, *known) if (folder / name).is_file()}
    return sorted(name for name in known | there if known.get(name) != there.get(name))


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a run's folder, each with its steps, the newest last."""
    found = [(re.fullmatch(r"checkpoint-([0-9]+)", path.name), path) for path in folder.iterdir()]
    return sorted((int(name[1]), path) for name, path in found if name)


def locked(folder: Path) -> BaseFileLock:
    """Lock on the folder, held until it is released or the process ends; ``BlockingIOError`` if another has it.

    A process that locks a folder twice gets the same lock.
    """
    path = folder / ".lock"
    if path.is_symlink():
        # Some versions of filelock would empty the file that it leads to.
        raise OSError(errno.ELOOP, f"its .lock is a link to {path.readlink()}")
    lock = FileLock(path, is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(11, "another process works here", str(folder)) from None
    except NotImplementedError:  # a disk that knows no locks
        pass
    return lock
