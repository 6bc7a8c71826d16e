"""Who is timed: ours by backend, the law, the law compiled, and the linear layers that a Tversky layer stands for."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import similitude.functional as F
from similitude.ops.pairwise import has_kernels

from .measure import inputs

PRODUCT = dict(intersection="product", difference="ignorematch")
MIN_SUM = dict(intersection="min", difference="subtractmatch")
SET = dict(intersection="min", difference="subtractmatch", level="set")

# Named shapes, (N, D, P, K).
SHAPES = {
    "mnist-head": (64, 36, 10, 20),
    "resnet-head": (1024, 2048, 555, 224),
    "gpt2-mlp": (8192, 768, 768, 8192),
    "gpt2-head": (4096, 768, 50257, 8192),
    "min-sum": (2048, 768, 8192, 2048),
}
# Elements of the law's N×P×K tensor, of which it makes a dozen, that a machine has memory for.
LAW = {"cpu": 2**27, "cuda": 2**30}
# What a CPU takes less than a minute for, in the operations of the products.
PATIENCE = 2e12


class Contender(NamedTuple):
    name: str
    function: Callable[..., Tensor]
    tensors: list[Tensor]


def contenders(shape: tuple[int, int, int, int], options: dict, device: str) -> list[Contender]:
    """All that can run at this size on this device, under bfloat16 autocast on a GPU."""
    N, D, P, K = shape
    if device == "cpu" and 8 * N * P * K + 6 * (N + P) * D * K > PATIENCE:
        return []
    if device == "cpu" and options.get("intersection") == "min" and options.get("level") != "set" and N * P * K > 2**32:
        return []
    tensors = inputs(*shape, device=device)

    def ours(backend):
        return lambda *t: F.tversky_projection(*t, backend=backend, **options)

    found = [Contender("ours", ours("auto"), tensors)]
    if has_kernels(tensors[0]):
        found.append(Contender("ours, torch", ours("torch"), tensors))
    if LAW[device] >= N * P * K:
        found.append(Contender("reference", ours("reference"), tensors))
        found.append(Contender("reference, compiled", torch.compile(ours("reference")), tensors))
    aligned = -(-P // 64) * 64
    measures = torch.randn(N, K, device=device, requires_grad=True)
    for name, linear, x in (
        ("nn.Linear(D, P)", nn.Linear(D, P, device=device), tensors[0]),
        ("nn.Linear(K, P aligned)", nn.Linear(K, aligned, device=device), measures),
    ):
        assert linear.bias is not None
        found.append(Contender(name, nn.functional.linear, [x, linear.weight, linear.bias]))
    return found


def autocast(function: Callable[..., Tensor], device: str) -> Callable[..., Tensor]:
    if device == "cpu":
        return function

    def run(*tensors):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return function(*tensors)

    return run


def parity(device: str) -> str | None:
    """None if every path gives the law's answers at a small size, or what is wrong."""
    for options in (PRODUCT, MIN_SUM, SET):
        tensors = inputs(65, 32, 70, 96, device)
        rounded = [t.bfloat16() for t in tensors[:3]] + tensors[3:] if device == "cuda" else tensors
        wide = [t.detach().double().requires_grad_() for t in rounded]
        truth = F.tversky_projection(*wide, backend="reference", **options)  # pyright: ignore
        grad = torch.randn(truth.shape, dtype=torch.float64, device=device)
        exact = [truth, *torch.autograd.grad(truth, wide, grad)]
        out = autocast(lambda *t, o=options: F.tversky_projection(*t, **o), device)(*tensors)
        found = [out, *torch.autograd.grad(out, tensors, grad.to(out.dtype))]
        # Measures are rounded to bfloat16 on a GPU, and which of two is less may change with it.
        tolerance = 0.1 if device == "cuda" else 1e-4
        for what, e, f in zip(("S", "x", "prototypes", "features", "alpha", "beta", "theta"), exact, found):
            error = ((f.double() - e).norm() / e.norm()).item()
            if not error <= tolerance:
                return f"{options}: the error of {what} is {error:.2g}, more than {tolerance}"
    return None
