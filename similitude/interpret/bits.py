"""Sets of features as bits, eight to a byte, which the processor compares by the word."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

# Number of ones of every two bytes, for numpy 1, which has no bitwise_count.
ONES = np.unpackbits(np.arange(2**16, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(1, dtype=np.uint8)
# Words that are compared at once: their bytes stay in a core's cache.
AT_ONCE = 2**15


def packed(has: Tensor) -> np.ndarray:
    """Rows of yes and no as words of 64 bits, ``[..., K]`` of bool -> ``[..., ⌈K / 64⌉]``, filled up with no."""
    found = np.packbits(has.cpu().numpy(), axis=-1)
    words = np.zeros((*found.shape[:-1], -(-found.shape[-1] // 8) * 8), dtype=np.uint8)
    words[..., : found.shape[-1]] = found
    return words.view(np.uint64)


def shared(rows: np.ndarray, row: np.ndarray) -> np.ndarray:
    """How many ones each of the rows ``[N, W]`` has in common with a row ``[W]``, ``[N]``."""
    counts = np.zeros(len(rows), dtype=np.int64)
    some = max(1, AT_ONCE // max(1, len(row)))
    for start in range(0, len(rows), some):
        both = rows[start : start + some] & row
        ones = np.bitwise_count(both) if hasattr(np, "bitwise_count") else ONES[both.view(np.uint16)]
        counts[start : start + some] = ones.sum(1, dtype=np.int64)
    return counts


def marks(tensors: Iterable[Tensor]) -> list[tuple[object, ...]]:
    """What shows whether tensors have changed: their place, PyTorch's count, and the sum of about eight rows.

    A change through ``.data`` is not counted, and tensors of inference mode have no count.
    """
    some = ((t, t.detach()[:: max(1, len(t) // 8)].double().sum().item()) for t in tensors)
    return [(t.data_ptr(), None if t.is_inference() else t._version, total) for t, total in some]
