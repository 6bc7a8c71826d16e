"""Files that appear whole or not at all, and folders that one process works in at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout


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


def write_bytes(path: Path, content: bytes) -> None:
    with whole(path) as half:
        half.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def locked(folder: Path) -> BaseFileLock:
    """Lock on the folder, held until it is released or the process ends; ``BlockingIOError`` if another has it.

    A process that locks a folder twice gets the same lock.
    """
    lock = FileLock(folder / ".lock", is_singleton=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(11, "another process works here", str(folder)) from None
    except NotImplementedError:  # a disk that knows no locks
        pass
    return lock
