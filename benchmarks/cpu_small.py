"""Small layers, few inputs and bfloat16 on one core of a CPU, as ratios of processor time in one run."""

import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import similitude.functional as F
from similitude import TverskyProjection

from .measure import Run, forward_backward, inputs

ROUNDS = 11
# Seconds of a measurement: the clock is read around many calls of what is quick.
LONG_ENOUGH = 0.02
HEAD = (768, 5000, 1024)


def ratios() -> dict[str, tuple[float, float]]:
    """Time of each path to that of what it is compared with, and the most that it may be, by name."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {}
        for name, (runs, learns, bound) in CLAIMS.items():
            with torch.set_grad_enabled(learns):
                found[name] = _ratio(*runs()), bound
        return found
    finally:
        torch.set_num_threads(threads)


def _ratio(ours: Run, other: Run) -> float:
    """Median of the ratios of rounds, in each of which both take their turn."""
    times = _calls(ours), _calls(other)
    return statistics.median(_clock(ours, times[0]) / _clock(other, times[1]) for _ in range(ROUNDS))


def _calls(run: Run) -> int:
    _clock(run, 3)
    return max(1, round(LONG_ENOUGH / _clock(run, 3)))


def _clock(run: Run, calls: int) -> float:
    """Seconds of processor time that a call takes."""
    start = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - start) / calls


def step_to_products() -> tuple[Run, Run]:
    N, D, P, K = shape = (64, 36, 10, 20)
    tensors, grad = inputs(*shape), torch.randn(N, P)
    return forward_backward(F.tversky_projection, tensors, grad), nine_products(N, D, P, K)


def nine_products(N: int, D: int, P: int, K: int) -> Run:
    """The products of a forward and a backward with nothing around them: A, B, S and their two gradients each."""
    sizes = [(N, D, K), (P, D, K), (N, K, P)]
    sizes = [order for a, b, c in sizes for order in ((a, b, c), (a, c, b), (b, a, c))]
    factors = [(torch.randn(a, b), torch.randn(b, c)) for a, b, c in sizes]
    return lambda: [a @ b for a, b in factors]


def halves_to_linear() -> tuple[Run, Run]:
    N, D, P, K = 256, 2048, 555, 224
    tensors = [t.detach().bfloat16().requires_grad_() for t in inputs(N, D, P, K)]
    grad, weight = torch.randn(N, P).bfloat16(), torch.randn(P, D).bfloat16().requires_grad_()
    bias = torch.randn(P).bfloat16().requires_grad_()
    return (
        forward_backward(F.tversky_projection, tensors, grad),
        forward_backward(nn.functional.linear, [tensors[0], weight, bias], grad),
    )


def one_input(D: int, P: int, K: int, **options) -> Callable[[], tuple[Run, Run]]:
    def runs():
        layer, linear = TverskyProjection(D, P, K, **options).eval(), nn.Linear(D, P)
        # In turn, since what one input has is in the cache from its last time.
        ours, other = (itertools.cycle(torch.randn(16, 1, D).unbind()) for _ in range(2))
        return lambda: layer(next(ours)), lambda: linear(next(other))

    return runs


def compiled_to_eager() -> tuple[Run, Run]:
    layer, x = TverskyProjection(2048, 555, 224).eval(), torch.randn(256, 2048)
    compiled = torch.compile(layer)
    # A graph keeps the prototypes' side from its second call on.
    for run in (compiled, compiled, layer):
        run(x)
    return lambda: compiled(x), lambda: layer(x)


MIN_SUM = dict(intersection="min", difference="subtractmatch")
# What, its two runs, whether they have gradients, and the most that the ratio may be.
CLAIMS: dict[str, tuple[Callable[[], tuple[Run, Run]], bool, float]] = {
    "forward + backward (64, 36, 10, 20) to the nine bare products": (step_to_products, True, 7.0),
    "forward + backward in bfloat16 (256, 2048, 555, 224) to nn.Linear": (halves_to_linear, True, 3.0),
    "compiled in eval (256, 2048, 555, 224) to eager": (compiled_to_eager, False, 1.1),
    "one input in eval (36, 10, 20) to nn.Linear": (one_input(36, 10, 20), False, 4.5),
    "one input in eval (768, 5000, 1024) to nn.Linear": (one_input(*HEAD), False, 3.0),
    "… with a tenth of the features present": (one_input(*HEAD, presence=0.1), False, 1.0),
    "… ratio model": (one_input(*HEAD, model="ratio"), False, 4.5),
    "… min + subtractmatch, set level": (one_input(*HEAD, **MIN_SUM, level="set"), False, 4.5),
    "… min + subtractmatch, feature level": (one_input(*HEAD, **MIN_SUM), False, 4.5),
}


if __name__ == "__main__":
    for name, (found, bound) in ratios().items():
        print(f"{name:<70}{found:8.2f}{bound:8.2f}{'' if found <= bound else '  too slow'}")
