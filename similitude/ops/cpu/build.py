"""The kernels as a library: built once by the machine's compiler, kept in the user's cache, loaded by ctypes.

The C++ needs neither torch's headers nor Python's: it compiles in two seconds, and serves any version of both. A build
is a file of its own until it is whole, so that processes may build at once.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("minsum.cpp")
# The caller sees to it that all numbers are finite. No other liberty is taken with arithmetic.
FLAGS = ["-O3", "-std=c++17", "-shared", "-fPIC", "-pthread", "-fno-exceptions", "-fno-rtti"]
FLAGS += ["-ffinite-math-only", "-fno-signed-zeros", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += ["-Wl,--as-needed"] if sys.platform == "linux" else []
# By what torch found this machine to have. -march=native would crash on a lesser machine with the same home.
VECTORS = {
    "AVX512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mavx2", "-mfma"],
    "AVX2": ["-mavx2", "-mfma"],
}
OFF = "SIMILITUDE_CPU_KERNELS"
# Seconds that a compiler has; two are enough for most.
PATIENCE = 120


def compiler() -> list[str]:
    """The command of a C++ compiler: that of CXX, or the system's; empty if there is none."""
    named = os.environ.get("CXX", "").split() or ["c++"]
    return named if shutil.which(named[0]) else []


def available() -> bool:
    """Whether kernels can be asked for: they are not switched off, and a compiler is there. They may fail to build."""
    return os.name == "posix" and os.environ.get(OFF) != "0" and bool(compiler())


AVAILABLE = available()


@cache
def library() -> ctypes.CDLL | None:
    """The kernels; None, and a warning, where they cannot be built."""
    try:
        path = folder() / f"minsum-{digest()}.so"
        with suppress(OSError, AttributeError):
            return load(path)
        return load(build(path))
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error) or type(error).__name__).splitlines()
        why = next((line for line in said if "error" in line), said[0]).strip()
        if isinstance(error, subprocess.TimeoutExpired):
            why = f"no answer in {PATIENCE} seconds"
        warnings.warn(
            f"similitude computes min-sums in plain torch, which is slower: their kernels could not be built by "
            f"{' '.join(compiler() or ['c++'])} ({why}); {OFF}=0 asks for none.",
            stacklevel=2,
        )
        return None


def folder() -> Path:
    """The folder of the user's cache that has the kernels, made if it is not there."""
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "similitude" / "kernels"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid != os.getuid() or path.stat().st_mode & 0o022:
        raise OSError(f"{path} belongs to someone else, or others may write to it")
    return path


def command() -> list[str]:
    return [*compiler(), *FLAGS, *VECTORS.get(torch.backends.cpu.get_cpu_capability(), [])]


def digest() -> str:
    """Of all that decides what the library is."""
    parts = "\0".join([sys.platform, platform.machine(), *command()])
    return hashlib.sha256(SOURCE.read_bytes() + parts.encode()).hexdigest()[:16]


def build(path: Path) -> Path:
    """Compiles the source to ``path``, which appears whole."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="building-") as place:
        made = Path(place) / path.name
        # The compiler's own temporary files stay in the user's cache too.
        subprocess.run(
            [*command(), str(SOURCE), "-o", str(made)],
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            env={**os.environ, "TMPDIR": place, "LC_ALL": "C"},
        )
        made.replace(path)
    return path


def load(path: Path) -> ctypes.CDLL:
    found = ctypes.CDLL(str(path))
    found.pair_sum.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 4 + [ctypes.c_long] * 6
    found.pair_sum_gradients.argtypes = [ctypes.c_int] * 2 + [ctypes.c_void_p] * 6 + [ctypes.c_long] * 5
    found.pair_sum.restype = found.pair_sum_gradients.restype = ctypes.c_int
    return found
