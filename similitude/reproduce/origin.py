"""Where a result comes from: versions, device and commit of this process, and the memory that it used."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("similitude", "torch", "numpy", "transformers", "triton")


def origin(device: str) -> dict[str, Any]:
    """Versions, device and commit of this process."""
    versions = {}
    for library in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[library] = metadata.version(library)
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    where = gpu or f"{platform.machine()}, {torch.get_num_threads()} threads"
    return {"versions": {"python": platform.python_version(), **versions}, "device": where, "commit": commit()}


def commit() -> str:
    """The commit, marked if files have changed since; SIMILITUDE_COMMIT overrides it where there is no git."""
    if named := os.environ.get("SIMILITUDE_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return run.stdout.strip() or "unknown"


def reset_peak(device: str) -> None:
    """Counts memory anew, because an earlier run of this process may have used more."""
    gc.collect()
    if device == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak that Linux counts


def peak_gib(device: str) -> float:
    """The most memory that this process has used, or its share of a GPU's."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**20
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    # macOS counts in bytes, others in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
