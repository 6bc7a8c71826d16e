"""Training that experiments share: epochs with checkpoints, steps as CUDA graphs, precision, and progress."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ..contrast import CONSTANTS
from .record import Record, RunError

# Seconds after which the next epoch's end is a checkpoint, so that a stop costs no more than that and an epoch.
LONG = 120


def resumed(record: Record, load: Callable[..., object], names: Iterable[str] | None = None) -> int:
    """Epochs of the newest checkpoint, whose tensors and state go to ``load``; 0 without a checkpoint."""
    found = record.load(names)
    if not found:
        return 0
    done, tensors, state = found
    load(tensors, state)
    return done


def train_epochs(
    config: Any,
    record: Record,
    progress: Callable[..., object],
    done: int,
    train: Callable[..., float | list[float]],
    measure: Callable[[int, Any], Mapping[str, float]],
    keep: Callable[[], tuple[Any, ...]],
    every: int,
    measure_all: bool = False,
) -> None:
    """Trains from epoch ``done + 1`` to the last, and saves a checkpoint after every so many epochs and the last.

    Epochs that take long have more checkpoints, which are not measured: the curve does not depend on speed.
    What is random depends on seed and epoch alone, so that a resumed run equals an unbroken one.

    Args:
        train: ``train(epoch, tell)`` trains on all data once and returns the loss, or one loss a network. It calls
            ``tell(step, steps, what, **values)``, with steps counted within the epoch.
        measure: ``measure(epoch, loss)`` returns what the log says of the epoch.
        keep: Returns the arguments of ``Record.save``: tensors, state and the selected model, if any.
        every: Epochs between checkpoints.
        measure_all: Measures after each epoch; otherwise only before a checkpoint.
    """
    saved = time.monotonic()
    for epoch in range(done + 1, config.epochs + 1):

        def tell(step: int, steps: int, what: str = "", before: int = epoch - 1, **values: float) -> None:
            progress(before * steps + step, config.epochs * steps, what, **values)

        torch.manual_seed(config.seed * 100_003 + epoch)
        loss = train(epoch, tell)
        for value in loss if isinstance(loss, list) else [loss]:
            check_finite("the loss", value, epoch, config)
        due = epoch % every == 0 or epoch == config.epochs
        if due or measure_all:
            record.log(epoch, **measure(epoch, loss))
        if due or time.monotonic() - saved >= LONG:
            record.save(epoch, *keep())
            saved = time.monotonic()


def check_finite(what: str, value: float, epoch: int, config: Any) -> None:
    if not math.isfinite(value):
        raise RunError(f"{what} of epoch {epoch} is {value}; try a lower lr than {config.lr}.")


def captured(step: Callable[[], Tensor], tries: int) -> Callable[[], Tensor]:
    """The step as a CUDA graph, because a step launches hundreds of small kernels.

    A capture needs ``tries`` warm-up steps. They train too, and the first calls return their losses, so ``tries`` must
    not exceed the number of steps.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        tried = [step() for _ in range(tries)]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Freeing a graph of an earlier run during the capture would break it.
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
    """Results of the steps, ``[len(steps)]``."""
    return torch.stack([step() for step in steps])


def side_by_side(steps: Sequence[Callable[[], Tensor]]) -> Tensor:
    """Results of the steps, each on its own CUDA stream; in a captured graph they run at the same time."""
    main, streams, results = torch.cuda.current_stream(), [torch.cuda.Stream() for _ in steps], []
    for step, stream in zip(steps, streams):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            results.append(step())
    for stream in streams:
        main.wait_stream(stream)
    return torch.stack(results)


def graphed(module: nn.Module, sample: Tensor) -> nn.Module:
    """The module with its training forward and backward replaced by CUDA graphs, for inputs like ``sample``.

    Equivalent to: ``module`` under ``precision``. The capture draws random numbers: seed afterwards.
    """
    # Each call copies its input into the sample, which may be a view of the data.
    sample = sample.clone()
    # The warm-up before a capture changes the statistics of batch norms.
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    gc.collect()
    # Autograd waits for the stream of the capture, on which gradients accumulate, but warns.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        torch.cuda.make_graphed_callables(module, (sample,), allow_unused_input=True)
    for buffer, value in kept:
        buffer.copy_(value)
    return module


def precision(x: Tensor) -> AbstractContextManager[Any]:
    """bfloat16 autocast if ``x`` is on a GPU."""
    return torch.autocast("cuda", dtype=torch.bfloat16) if x.is_cuda else nullcontext()


def counted(progress: Callable[..., object], total: int, what: str) -> Callable[..., None]:
    """A function that adds to a count, 1 by default, and reports the count as progress."""
    done = 0

    def tell(more: int = 1) -> None:
        nonlocal done
        done += more
        progress(done, total, what)

    return tell


def logged(head: nn.Module | None) -> dict[str, float]:
    """α, β, θ of the head for the log, if it has them."""
    return {name: getattr(head, name).item() for name in CONSTANTS if hasattr(head, name)}
