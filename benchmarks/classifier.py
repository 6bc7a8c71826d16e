"""An epoch of TverskyClassifier beside one of nn.Linear in a plain loop, on scikit-learn's digits.

Both have the same batches, the same optimiser and one thread; times are those of the process, so that others on the
machine count little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from similitude.tabular import STARTS

# Epochs of a timed run, its rows in a batch, and the most that an epoch of ours may be of the plain loop's.
EPOCHS, BATCH, BOUND = 20, 128, 3.0


def ratio(rounds: int = 9, start: str = "random") -> float:
    """Median over paired rounds of an epoch's time to that of nn.Linear; what a fit does once is not in it."""
    from sklearn.datasets import load_digits

    from similitude.estimator import TverskyClassifier

    digits: Any = load_digits()
    X, y = digits.data.astype("float32"), digits.target
    steps = EPOCHS * math.ceil(len(X) / BATCH)
    x, targets = torch.from_numpy((X - X.mean(0)) / (X.std(0) + 1e-9)), torch.from_numpy(y)

    def fit(epochs: int) -> None:
        options = {"start": start, "batch_size": BATCH, "max_iter": epochs * steps // EPOCHS}
        TverskyClassifier(random_state=0, **options).fit(X, y)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fit(1)
        plain(x, targets, 10)
        found = []
        for _ in range(rounds):
            once, twice = seconds(lambda: fit(EPOCHS)), seconds(lambda: fit(2 * EPOCHS))
            found.append((twice - once) / seconds(lambda: plain(x, targets, steps)))
    finally:
        torch.set_num_threads(threads)
    return median(found)


def plain(x: torch.Tensor, targets: torch.Tensor, steps: int) -> None:
    """Steps of AdamW on nn.Linear, as a tutorial has them."""
    layer = nn.Linear(x.shape[1], 10)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.03, weight_decay=1.0, fused=True)
    left: list[torch.Tensor] = []
    for _ in range(steps):
        left = left or list(torch.randperm(len(x)).tensor_split(math.ceil(len(x) / BATCH)))
        rows = left.pop()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(layer(x[rows]), targets[rows], label_smoothing=0.02)
        loss.backward()
        optimizer.step()


def seconds(run: Callable[[], object]) -> float:
    """CPU time of the process for one run."""
    before = time.process_time()
    run()
    return time.process_time() - before


def ratios() -> dict[str, tuple[float, float]]:
    return {"an epoch of TverskyClassifier on digits to nn.Linear's in a plain loop": (ratio(), BOUND)}


if __name__ == "__main__":
    for start in STARTS:
        found = ratio(start=start)
        mark = "" if found <= BOUND else "  too slow"
        print(f"an epoch of TverskyClassifier, start {start}, to nn.Linear's: {found:.2f} of {BOUND:.1f}{mark}")
