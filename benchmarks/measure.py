"""Times and peak memory of functions. Contenders are run turn about, so that a busy machine slows all of them alike."""

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from similitude.reproduce.origin import commit

Run = Callable[[], object]


class Times(NamedTuple):
    """Milliseconds: the median, and a fifth from either end."""

    median: float
    p20: float
    p80: float


def inputs(N: int, D: int, P: int, K: int, device="cpu") -> list[Tensor]:
    """x, prototypes, features, α, β, θ, all wanting gradients; measures have a spread of about 1."""
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(rows, D, generator=g) / D**0.25 for rows in (N, P, K)]
    tensors += [torch.tensor([v]) for v in (0.5, 0.5, 1.0)]
    return [t.to(device).requires_grad_() for t in tensors]


def forward_backward(function: Callable[..., Tensor], tensors: Sequence[Tensor], grad: Tensor) -> Run:
    """One run of the function and of all its gradients."""
    return lambda: torch.autograd.grad(function(*tensors), tensors, grad)


def milliseconds(functions: dict[str, Run], repeats: int, device: str = "cpu") -> dict[str, Times]:
    """The times of each function, after two runs that do not count."""
    clock = _gpu_clock if device == "cuda" else _cpu_clock
    for function in functions.values():
        function()
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            times[name].append(clock(function))
    return {name: summary(t) for name, t in times.items()}


def summary(times: list[float]) -> Times:
    ordered = sorted(times)
    fifth = len(ordered) // 5
    return Times(statistics.median(ordered), ordered[fifth], ordered[-1 - fifth])


def _cpu_clock(function: Run) -> float:
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


def _gpu_clock(function: Run) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def captured(function: Run) -> Run:
    """The function as a CUDA graph: the GPU's own time, whatever the host takes to launch its kernels."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = function()

    def replay():
        graph.replay()
        return kept

    return replay


def peak_gib(function: Run, device: str, tensors: Sequence[Tensor]) -> float:
    """Peak memory of one run: inputs, parameters, and what it adds at its height (on a CPU where Linux tells)."""
    own = sum(t.nbytes for t in tensors) / 2**30
    function()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return own + (torch.cuda.max_memory_allocated() - before) / 2**30
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return float("nan")
    before = _resident()
    function()
    return own + max(0.0, _resident() - before)


def _resident() -> float:
    """The most memory that was resident since the mark was reset, in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def processor(device: str = "cpu") -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {torch.get_num_threads()} threads"


def machine(device: str = "cpu") -> str:
    """One line on where the figures come from."""
    return f"{processor(device)}, torch {torch.__version__}, Python {platform.python_version()}, commit {commit()}"
