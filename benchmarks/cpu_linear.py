"""What a Tversky head costs on a CPU beside the nn.Linear that it replaces: time and memory of a training step."""

import subprocess
import sys

import torch
from torch import nn

from similitude import TverskyProjection

from .cpu_large import _highest, _ratio

# N, D, P, K, and the most that time and memory may be of nn.Linear's.
HEADS = (((256, 2048, 555, 224), 2.5, 3.5), ((512, 768, 5000, 1024), 5.0, 4.5))


def ratios() -> dict[str, tuple[float, float]]:
    threads, found = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    try:
        for size, slowest, largest in HEADS:
            name = f"a head {size}, forward + backward, to nn.Linear{size[1:3]}"
            found[name] = (_ratio(step("tversky", *size), step("linear", *size), 9), slowest)
            megabytes = {kind: _in_a_process(kind, size) for kind in ("tversky", "linear")}
            found[f"{name}, memory"] = (megabytes["tversky"] / megabytes["linear"], largest)
    finally:
        torch.set_num_threads(threads)
    return found


def step(kind: str, N: int, D: int, P: int, K: int):
    """One forward and backward of the layer and of what it gets."""
    layer = TverskyProjection(D, P, K) if kind == "tversky" else nn.Linear(D, P)
    x, grad = torch.randn(N, D, requires_grad=True), torch.randn(N, P)
    tensors = [x, *layer.parameters()]
    return lambda: torch.autograd.grad(layer(x), tensors, grad)


def _in_a_process(kind: str, size: tuple[int, ...]) -> float:
    """Megabytes that a step takes in a process of its own, so that nothing serves again that was freed before."""
    code = f"from benchmarks import cpu_linear; print(cpu_linear.megabytes({kind!r}, {size}))"
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))


def megabytes(kind: str, size: tuple[int, ...]) -> float:
    """Most memory of the layer, its input and a step, beyond what the program takes."""
    torch.set_num_threads(1)
    small = step(kind, 2, 4, 3, 2)
    small()  # code is loaded by now
    before = _highest()
    step(kind, *size)()
    return (_highest() - before) / 1024


if __name__ == "__main__":
    for what, (measured, bound) in ratios().items():
        print(f"{what:<76}{measured:>8.2f}{bound:>8.2f}")
