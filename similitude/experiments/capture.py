"""Training steps as CUDA graphs, for networks so small that a step is launches and little else."""

from collections.abc import Callable

import torch
from torch import Tensor


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
