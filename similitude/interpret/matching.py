"""How well single features match attributes, and how well the features of two seeds match one another.

n objects, k or K features, J attributes; sets are bool, attributes 0 and 1 in the dtype of the measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# Shares of the objects at which a 1-sparse probe may cut a feature, besides the feature's own threshold.
SHARES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6)
# Objects that have a feature most, for its purity.
TOP = 20
# Measures that are in memory at once.
AT_ONCE = 2**24


class Bank(NamedTuple):
    """K features and their thresholds: an object has those with x · f_k > t_k."""

    weight: Tensor  # [K, D]
    threshold: Tensor  # [K]

    def measures(self, vectors: Tensor) -> Tensor:
        return vectors @ self.weight.mT - self.threshold

    def only(self, features: Tensor) -> Bank:
        return Bank(self.weight[features], self.threshold[features])

    def parts(self, rows: int) -> Iterator[Bank]:
        """Fewer features at once, so that their measures of so many rows fit in memory."""
        size = max(1, AT_ONCE // rows)
        for start in range(0, len(self.weight), size):
            yield Bank(self.weight[start : start + size], self.threshold[start : start + size])


def presence(bank: Bank, vectors: Tensor) -> tuple[Tensor, float]:
    """Share of the objects that have each feature, and share of the objects that have none."""
    shares, none = [], torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
    for part in bank.parts(len(vectors)):
        members = part.measures(vectors) > 0
        shares.append(members.to(vectors.dtype).mean(0))
        none &= ~members.any(-1)
    return torch.cat(shares), none.double().mean().item()


def at_presence(weight: Tensor, presence: Tensor, vectors: Tensor) -> Bank:
    """Features with the thresholds at which they have the presence given for each, ``[K]``."""
    thresholds = []
    for part, share in Bank(weight, presence).parts(len(vectors)):
        highest = (vectors @ part.mT).sort(dim=0, descending=True).values
        above = (share * len(vectors)).round().long()
        thresholds.append(between(highest, above))
    return Bank(weight, torch.cat(thresholds))


def between(highest: Tensor, above: Tensor) -> Tensor:
    """Thresholds ``[k]`` that the first ``above`` of values in descending order, ``[n, k]``, exceed."""
    n = len(highest)
    last = highest.gather(0, (above - 1).clamp(0, n - 1)[None])[0]
    following = highest.gather(0, above.clamp(0, n - 1)[None])[0]
    middle = (last + following) / 2
    return torch.where(above >= n, last - 1, torch.where(above <= 0, following + 1, middle))


def mcc(members: Tensor, has: Tensor) -> Tensor:
    """Correlation of sets with attributes, ``[n, k]`` of bool and ``[n, J]`` -> ``[k, J]``; 0 for all and for none."""
    members = members.to(has.dtype)
    k, J = members.mean(0), has.mean(0)
    both = members.mT @ has / len(has) - k[:, None] * J
    spread = ((k * (1 - k))[:, None] * (J * (1 - J))).sqrt()
    return torch.where(spread > 1e-6, both / spread.clamp(min=1e-6), 0.0)


def auc(measures: Tensor, highest: Tensor, has: Tensor) -> Tensor:
    """Area under the curve of each feature and attribute, ``[n, k]``, ``[n, J]`` -> ``[k, J]``; ties count half."""
    n, lowest, values = len(measures), highest.flip(0).mT.contiguous(), measures.mT.contiguous()
    below = torch.searchsorted(lowest, values) + torch.searchsorted(lowest, values, right=True)  # [k, n]
    rank = below.to(has.dtype) / (2 * n)  # from 0 to 1
    having = has.sum(0)
    return (rank @ has * n - having * having / 2) / (having * (n - having))


def best_cut(measures: Tensor, highest: Tensor, has: Tensor) -> tuple[Tensor, Tensor]:
    """The best MCC of each feature with each attribute, by its own set or cut at SHARES, and where, ``[k, J]`` each."""
    k = measures.shape[1]
    best = mcc(measures > 0, has)
    cuts = torch.zeros_like(best)
    for share in SHARES:
        cut = between(highest, torch.full((k,), round(share * len(measures)), device=measures.device))
        found = mcc(measures > cut, has)
        better = found > best
        best, cuts = torch.where(better, found, best), torch.where(better, cut[:, None], cuts)
    return best, cuts


def purity(measures: Tensor, labels: Tensor) -> Tensor:
    """Share of the commonest class among the objects that have each feature most, ``[k]``; NaN for dead features."""
    top = min(TOP, len(measures))
    values, rows = measures.topk(top, dim=0)
    found = nn.functional.one_hot(labels[rows], int(labels.max()) + 1).sum(0).amax(-1) / top
    return found.masked_fill(values[0] <= 0, torch.nan)


def impurity(measures: Tensor, has: Tensor) -> Tensor:
    """Share of the objects that have each feature and lack its attribute, ``[n, k]``, ``[n, k]`` -> ``[k]``, or NaN."""
    members = (measures > 0).double()
    return (members * (1 - has.double())).sum(0) / members.sum(0)


def pixel_neighbours(weight: Tensor, shape: tuple[int, int]) -> float:
    """Mean correlation of neighbouring pixels within features that are pictures, ``[K, H·W]``; 0 for noise."""
    pictures = weight.detach().reshape(-1, *shape).double()
    pictures = pictures - pictures.mean((1, 2), keepdim=True)
    spread = pictures.square().mean((1, 2)).clamp(min=1e-12)
    beside = (pictures[:, :, 1:] * pictures[:, :, :-1]).mean((1, 2))
    below = (pictures[:, 1:] * pictures[:, :-1]).mean((1, 2))
    return ((beside + below) / 2 / spread).mean().item()


def stability(bank: Bank, vectors: Tensor, second: Bank, others: Tensor) -> float:
    """Mean correlation of positive measures with those of a second bank, features matched one to one."""
    if len(vectors) != len(others):
        raise ValueError(f"both seeds must see the same objects; got {len(vectors)} vectors and {len(others)}.")
    n, size = len(vectors), max(1, AT_ONCE // (len(bank.weight) + len(second.weight)))
    sums = [torch.zeros(len(b.weight), dtype=torch.float64, device=vectors.device) for b in (bank, second)]
    squares = [torch.zeros_like(total) for total in sums]
    both = torch.zeros(len(sums[0]), len(sums[1]), dtype=torch.float64, device=vectors.device)
    for start in range(0, n, size):
        a, b = (each.measures(rows[start : start + size]).relu() for each, rows in ((bank, vectors), (second, others)))
        both += (a.mT @ b).double()
        for i, positive in enumerate((a, b)):
            sums[i] += positive.sum(0, dtype=torch.float64)
            squares[i] += positive.square().sum(0, dtype=torch.float64)
    deviations = [(square / n - (total / n).square()).clamp(min=0).sqrt() for total, square in zip(sums, squares)]
    live = [deviation > 1e-6 * (deviation.max() + 1e-30) for deviation in deviations]
    if not (live[0].any() and live[1].any()):
        return 0.0
    covariance = both / n - sums[0][:, None] / n * (sums[1] / n)
    correlation = covariance[live[0]][:, live[1]] / deviations[0][live[0], None] / deviations[1][live[1]]
    return one_to_one(correlation.cpu().numpy())


def one_to_one(gains: np.ndarray) -> float:
    """The largest mean gain of a matching in which each row, or each column if these are fewer, has its own partner."""
    if len(gains) > gains.shape[1]:
        gains = gains.T
    partner = matched(-gains)
    return float(gains[np.arange(len(gains)), partner].mean())


def matched(costs: np.ndarray) -> np.ndarray:
    """For each row its own column, so that the sum of costs ``[n, m]`` is least; n ≤ m.

    The Hungarian method: rows enter one after the other, each along the cheapest path that frees a column.
    """
    n, m = costs.shape
    of_row, of_column = np.zeros(n), np.zeros(m)  # potentials
    row_of = np.full(m, -1)
    for entering in range(n):
        distance, before = np.full(m, np.inf), np.full(m, -1)
        visited = np.zeros(m, dtype=bool)
        row, column, so_far = entering, -1, 0.0
        while row >= 0:
            reduced = so_far + costs[row] - of_row[row] - of_column
            nearer = ~visited & (reduced < distance)
            distance[nearer], before[nearer] = reduced[nearer], column
            column = int(np.where(visited, np.inf, distance).argmin())
            so_far = distance[column]
            visited[column] = True
            row = row_of[column]
        # Potentials move so that all edges of the paths found have no reduced cost.
        of_row[entering] += so_far
        for c in np.flatnonzero(visited):
            if row_of[c] >= 0:
                of_row[row_of[c]] += so_far - distance[c]
            of_column[c] -= so_far - distance[c]
        while column >= 0:
            previous = before[column]
            row_of[column] = entering if previous < 0 else row_of[previous]
            column = previous
    partner = np.empty(n, dtype=np.int64)
    partner[row_of[row_of >= 0]] = np.flatnonzero(row_of >= 0)
    return partner
