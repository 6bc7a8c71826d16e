"""What ``similitude doctor`` says: what is installed, which data and devices there are, and which backends work."""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import torch

from . import __version__
from .extras import advice, extra_of
from .form import BACKENDS, DIFFERENCES, INTERSECTIONS, Form
from .functional import tversky_projection
from .ops.plan import plan

LIBRARIES = (
    *("numpy", "safetensors", "filelock", "transformers", "accelerate", "tokenizers", "scikit-learn", "matplotlib"),
    *("pillow", "mlxtend", "typer", "rich", "starlette", "uvicorn", "onnx", "onnxscript", "onnxruntime", "triton"),
)


class BrokenBackend(Exception):
    """A backend that this machine should run gives a wrong answer or none."""


def report() -> Iterator[str]:
    """The lines of the report; raises ``BrokenBackend`` after the last one if a backend is broken.

    Each section is a function of its own.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    yield from versions()
    yield from data()
    yield from devices()
    yield from codes(device)
    yield from backends(device)


def versions() -> Iterator[str]:
    yield f"similitude: {__version__}"
    yield f"python: {platform.python_version()} ({platform.system()} {platform.machine()})"
    yield f"torch: {torch.__version__} ({torch_build()})"
    for library in LIBRARIES:
        try:
            yield f"{library}: {metadata.version(library)}"
        except metadata.PackageNotFoundError:
            # Triton comes with torch's builds for CUDA, and no extra brings it.
            how = f", it comes with: {advice(library)}" if extra_of(library) else ""
            yield f"{library}: not installed{how}"


def data() -> Iterator[str]:
    """Which data of the experiments is in the folder that SIMILITUDE_DATA names, and whether it was published so."""
    from .reproduce.data.find import SOURCES, DataError, state

    root = os.environ.get("SIMILITUDE_DATA")
    if not root:
        yield "data: SIMILITUDE_DATA is not set; docs/guides/data.md says what the experiments need"
        return
    if not Path(root).expanduser().is_dir():
        yield f"data: SIMILITUDE_DATA={root} is not there; set it to the folder of your data"
        return
    yield f"data in SIMILITUDE_DATA={root}"
    for name in SOURCES:
        try:
            yield f"  {name}: {state(name)}"
        except DataError as error:
            yield f"  {name}: no, {error}"


def torch_build() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"


def devices() -> Iterator[str]:
    yield "devices"
    yield f"  cpu: {torch.get_num_threads()} threads"
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        yield f"  cuda:{i}: {gpu.name}, {gpu.total_memory / 2**30:.1f} GiB"
    if torch.backends.mps.is_available():
        yield "  mps: yes"


def codes(device: torch.device) -> Iterator[str]:
    """Which code runs for each form at feature level, in float32 and in bfloat16."""
    yield f"code that runs on {device}, in float32 and in bfloat16"
    for intersection, difference in itertools.product(INTERSECTIONS, DIFFERENCES):
        form = Form.of(intersection, difference)
        found = [plan(form, 64, 16, 64, dtype, device.type).code for dtype in (torch.float32, torch.bfloat16)]
        yield f"  {intersection} + {difference}: {', '.join(found)}"


def backends(device: torch.device) -> Iterator[str]:
    yield f"backends, on {device}"
    healthy = True
    for backend in BACKENDS:
        right, answer = check_backend(backend, device)
        healthy = healthy and right
        yield f"  {backend}: {answer}"
    if not healthy:
        raise BrokenBackend("a backend is broken: please report it with the lines above.")


def check_backend(backend: str, device: torch.device) -> tuple[bool, str]:
    """Whether the backend is fine, and a word on it. Only the default must be able to run here."""
    try:
        got, expected = try_projection(backend, device), try_projection("reference", device)
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        return backend != "auto", f"no, {why}"
    error = (got - expected).abs().max().item()
    # The comparison is False for NaN.
    if error <= 1e-4:
        return True, "yes"
    return False, f"WRONG, {error:.2g} away from the reference"


def try_projection(backend: str, device: torch.device) -> torch.Tensor:
    """A small projection's output and gradient, in one vector."""
    generator = torch.Generator().manual_seed(0)
    x, prototypes, features = (torch.randn(rows, 16, generator=generator).to(device) / 4 for rows in (5, 3, 32))
    x.requires_grad_()
    out = tversky_projection(x, prototypes, features, backend=backend)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    return torch.cat([out.detach().flatten(), gradient.flatten()])
