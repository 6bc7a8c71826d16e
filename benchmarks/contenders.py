"""Who is timed: ours by backend, the law, the law compiled, and the linear layers that a Tversky layer stands for."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import similitude.functional as F
from similitude.ops import reference
from similitude.ops.modes import has_kernels

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
    """None if every path gives the law's answers at a small size, or what is wrong.

    The rule of the tests: the error against float64 is no more than that of the law itself in the same dtype, and a
    little; which of two measures is less changes with their rounding.
    """
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    for options in (PRODUCT, MIN_SUM, SET):
        tensors = [t.detach().to(dtype if t.dim() > 1 else torch.float32) for t in inputs(65, 32, 70, 96, device)]
        grad = torch.randn(65, 70, generator=torch.Generator().manual_seed(1)).to(device)
        settings = (options["intersection"], options["difference"], options.get("level", "feature"), "contrast")

        def law(x, prototypes, features, *scalars, settings=settings):
            return reference.pairwise(x @ features.mT, prototypes @ features.mT, *scalars, *settings)

        exact = _all_of(law, [t.double() for t in tensors], grad)
        plain = _all_of(law, tensors, grad)
        ours = _all_of(lambda *t, o=options: F.tversky_projection(*t, **o), tensors, grad)
        for what, e, p, o in zip(("S", "x", "prototypes", "features", "alpha", "beta", "theta"), exact, plain, ours):
            most = ((p.double() - e).norm() + 0.01 * e.norm()).item()
            error = (o.double() - e).norm().item()
            if not error <= most:
                return f"{settings}: the error of {what} is {error:.3g}, and {most:.3g} is allowed"
    return None


def _all_of(function: Callable[..., Tensor], tensors: list[Tensor], grad: Tensor) -> list[Tensor]:
    """The function's value and all its gradients."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(out.dtype))]
