"""What training runs share: steps as CUDA graphs, their precision, and a head's constants for the log."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..nn import CONSTANTS


def captured(step: Callable[[], Tensor], tries: int = 3) -> Callable[[], Tensor]:
    """The step as a CUDA graph, since it is hundreds of launches of little work each.

    Capture needs some tries before, which train as well: they are the answers of the first calls.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tried = [step() for _ in range(tries)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def advance() -> Tensor:
        if tried:
            return tried.pop(0)
        graph.replay()
        return kept

    return advance


def precision(x: Tensor):
    """bfloat16 autocast where ``x`` is on a GPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if x.is_cuda else nullcontext()


def constants(head: nn.Module | None) -> dict[str, float]:
    """α, β, θ, if the head has them."""
    return {name: getattr(head, name).item() for name in CONSTANTS if hasattr(head, name)}
