"""What training runs share: steps as CUDA graphs, their precision, a head's constants for the log, and counting."""

import gc
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from ..contrast import CONSTANTS


def captured(step: Callable[[], Tensor], tries: int) -> Callable[[], Tensor]:
    """The step as a CUDA graph, since it is hundreds of launches of little work each.

    Capture needs some tries before, which train as well: they are the answers of the first calls. No more of them than
    there are steps.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tried = [step() for _ in range(tries)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Graphs of an earlier run, freed during a capture, would break it.
    gc.collect()
    with torch.cuda.graph(graph):
        kept = step()

    def advance() -> Tensor:
        if tried:
            return tried.pop(0)
        graph.replay()
        return kept

    return advance


def in_turn(steps: Sequence[Callable[[], Tensor]]) -> Tensor:
    """What the steps give, ``[len(steps)]``."""
    return torch.stack([step() for step in steps])


def side_by_side(steps: Sequence[Callable[[], Tensor]]) -> Tensor:
    """What the steps give, each on a CUDA stream of its own: in a captured graph they run at the same time."""
    main, streams, results = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in steps], []
    for step, stream in zip(steps, streams):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(step())
    for stream in streams:
        main.wait_stream(stream)
    return torch.stack(results)


def graphed(module: nn.Module, sample: Tensor) -> nn.Module:
    """The module, whose forward and backward are CUDA graphs from now on while it trains, for inputs like ``sample``.

    Equivalent to: ``module`` under ``precision``. Random numbers are drawn here: seed after.
    """
    # Each call writes its input over the sample, which may be a view of the data.
    sample = sample.clone()
    # Capture needs some tries before, which batch norms would count.
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gc.collect()
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        torch.cuda.make_graphed_callables(module, (sample,), allow_unused_input=True)
    for buffer, value in kept:
        buffer.copy_(value)
    # Gradients are added up on the stream of the capture, which autograd waits for, and warns of.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return module


def precision(x: Tensor):
    """bfloat16 autocast where ``x`` is on a GPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if x.is_cuda else nullcontext()


def counted(report: Callable[..., None], total: int, what: str) -> Callable[..., None]:
    """A function that is told how many more are done, one if nothing is said, and reports all so far."""
    done = 0

    def tell(more: int = 1) -> None:
        nonlocal done
        done += more
        report(done, total, what)

    return tell


def constants(head: nn.Module | None) -> dict[str, float]:
    """α, β, θ, if the head has them."""
    return {name: getattr(head, name).item() for name in CONSTANTS if hasattr(head, name)}
