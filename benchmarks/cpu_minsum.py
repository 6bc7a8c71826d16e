"""Min-sums at feature level on one core of a CPU, as ratios of processor time in one run."""

from collections.abc import Callable

import torch

import similitude.functional as F

from .cpu_small import _ratio, nine_products
from .measure import Run, forward_backward, inputs

LARGE, WIDE = (512, 768, 1000, 1024), (256, 2048, 555, 224)


def ratios() -> dict[str, tuple[float, float]]:
    """Time of each path to that of what it is compared with, and the most that it may be, by name."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: (_ratio(*runs()), bound) for name, (runs, bound) in CLAIMS.items()}
    finally:
        torch.set_num_threads(threads)


def step(size: tuple[int, int, int, int], intersection: str, compiled: bool = False) -> Run:
    tensors, grad = inputs(*size), torch.randn(size[0], size[2])

    def function(*t):
        return F.tversky_projection(*t, intersection=intersection, difference="subtractmatch")

    return forward_backward(torch.compile(function) if compiled else function, tensors, grad)


def to_products(size: tuple[int, int, int, int], intersection: str) -> Callable[[], tuple[Run, Run]]:
    return lambda: (step(size, intersection), nine_products(*size))


def compiled_to_eager(intersection: str) -> Callable[[], tuple[Run, Run]]:
    return lambda: (step(WIDE, intersection, compiled=True), step(WIDE, intersection))


CLAIMS: dict[str, tuple[Callable[[], tuple[Run, Run]], float]] = {
    f"min + subtractmatch {LARGE} to the nine bare products": (to_products(LARGE, "min"), 1.7),
    f"softmin + subtractmatch {LARGE} to the nine bare products": (to_products(LARGE, "softmin"), 4.0),
    f"min + subtractmatch {WIDE} to the nine bare products": (to_products(WIDE, "min"), 1.25),
    f"softmin + subtractmatch {WIDE} to the nine bare products": (to_products(WIDE, "softmin"), 2.0),
    f"min + subtractmatch {WIDE} compiled to eager": (compiled_to_eager("min"), 1.1),
    f"softmin + subtractmatch {WIDE} compiled to eager": (compiled_to_eager("softmin"), 1.1),
}


if __name__ == "__main__":
    for name, (found, bound) in ratios().items():
        print(f"{name:<80}{found:8.2f}{bound:8.2f}{'' if found <= bound else '  too slow'}")
