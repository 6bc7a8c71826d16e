"""Times of functions that are run turn about, so that a busy machine slows all of them alike."""

import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def inputs(N: int, D: int, P: int, K: int, device="cpu", dtype=torch.float32) -> list[Tensor]:
    """x, prototypes, features, α, β, θ of unit scale, all wanting gradients."""
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(rows, D, generator=g) / D**0.25 for rows in (N, P, K)]
    tensors += [torch.tensor(v) for v in (0.5, 0.5, 1.0)]
    return [t.to(device=device, dtype=dtype).requires_grad_() for t in tensors]


def forward_backward(function: Callable[..., Tensor], tensors: Sequence[Tensor], grad: Tensor) -> Callable[[], object]:
    """One run of the function and of all its gradients."""
    return lambda: torch.autograd.grad(function(*tensors), tensors, grad)


def milliseconds(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """The times of each function, in the order of running, after one run that does not count."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def median(times: list[float]) -> float:
    return statistics.median(times)


def machine() -> str:
    """One line on where the figures come from."""
    return f"{processor()}, torch {torch.__version__}, Python {platform.python_version()}, commit {commit()}"


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def commit() -> str:
    """The commit, with a mark if there are changes on top of it."""
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True)
    return run.stdout.strip() or "unknown"
