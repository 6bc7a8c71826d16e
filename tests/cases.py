"""The options, their combinations, and inputs to compare paths with."""

import itertools

import torch
from torch import Tensor

import similitude.functional as F

COMBINATIONS = [
    dict(intersection=i, difference=d, level=level, model=m, normalize=n)
    for i, d, level, m, n in itertools.product(F.INTERSECTIONS, F.DIFFERENCES, F.LEVELS, F.MODELS, (False, True))
]
SMOOTH = [c for c in COMBINATIONS if c["intersection"] not in ("min", "max") and c["difference"] == "ignorematch"]


def name(options: dict) -> str:
    return "-".join(str(v) for v in options.values())


def make_inputs(N=5, P=4, K=6, D=3, dtype=torch.float64, lead=(), seed=0, **like) -> list[Tensor]:
    """x, prototypes, features, α, β, θ, all wanting gradients."""
    g = torch.Generator().manual_seed(seed)
    shapes = [(*lead, N, D), (P, D), (K, D)]
    tensors = [torch.randn(shape, generator=g, dtype=torch.float64) for shape in shapes]
    tensors += [torch.tensor(v, dtype=torch.float64) for v in (0.3, 0.7, 1.2)]
    return [t.to(dtype=dtype, **like).requires_grad_() for t in tensors]


def value_and_gradients(inputs: list[Tensor], function=F.tversky_projection, **options) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of x, prototypes, features, α, β, θ of a random weighting of it."""
    out = function(*inputs, **options)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out)
    gradients = torch.autograd.grad(out, inputs, weights, allow_unused=True)
    return out.detach(), [torch.zeros_like(i) if g is None else g for g, i in zip(gradients, inputs)]
