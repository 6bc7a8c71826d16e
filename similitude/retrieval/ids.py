"""Ids of documents, all whole numbers or all texts, in a few bytes each, and the rows that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
from torch import Tensor

Id = str | int
WHOLE = 2**63


class Ids:
    """The ids of rows 0, 1, …, each there once.

    Attributes:
        numbers: the ids, or of texts their ends in ``letters``, ``[n]`` of int64.
        letters: the texts one after another in UTF-8, or None of numbers.
    """

    def __init__(self, numbers: np.ndarray, letters: np.ndarray | None = None):
        self.numbers, self.letters = numbers, letters
        self._order: np.ndarray | None = None
        self._keys: np.ndarray | None = None

    @classmethod
    def of(cls, given: Iterable[Any], n: int) -> Ids:
        """The ids given for n documents, or one sentence."""
        ids: list[Any] = given.tolist() if isinstance(given, np.ndarray | Tensor) else list(given)
        if len(ids) != n:
            raise ValueError(f"ids must be {n}, one for each vector; got {len(ids)}.")
        ids = [i.item() if isinstance(i, np.generic) else i for i in ids]
        kinds = {type(i) for i in ids}
        if not kinds <= {int} and not kinds <= {str}:
            wrong = next((i for i in ids if type(i) not in (int, str)), None)
            got = "both" if wrong is None else repr(wrong)
            raise TypeError(f"ids must be whole numbers or texts, and all of one kind; got {got}.")
        if kinds == {str}:
            letters = [i.encode("utf-8", "surrogatepass") for i in ids]
            ends = np.cumsum([len(i) for i in letters], dtype=np.int64)
            found = cls(ends, np.frombuffer(bytearray().join(letters), dtype=np.uint8))
        else:
            far = next((i for i in ids if not -WHOLE <= i < WHOLE), None)
            if far is not None:
                raise ValueError(f"an id that is a number must fit in 64 bits; got {far}.")
            found = cls(np.array(ids, dtype=np.int64))
        found.check_unique()
        return found

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: int) -> Id:
        if self.letters is None:
            return int(self.numbers[row])
        start = int(self.numbers[row - 1]) if row else 0
        return self.letters[start : int(self.numbers[row])].tobytes().decode("utf-8", "surrogatepass")

    def row_of(self, wanted: Any) -> int | None:
        """The row of an id, or None."""
        wanted = wanted.item() if isinstance(wanted, np.generic) else wanted
        if type(wanted) is not (int if self.letters is None else str):
            return None
        keys, order = self._sorted()
        key = _key(wanted) if isinstance(wanted, str) else wanted
        if not -WHOLE <= key < WHOLE:
            return None
        place = int(np.searchsorted(keys, key))
        while place < len(keys) and keys[place] == key:
            row = int(order[place])
            if self[row] == wanted:
                return row
            place += 1
        return None

    def and_of(self, other: Ids) -> Ids:
        """These ids with others behind them, or one sentence if they are of another kind or an id is there twice."""
        if not len(self):
            return other
        if not len(other):
            return self
        if (self.letters is None) != (other.letters is None):
            kind = "whole numbers" if self.letters is None else "texts"
            raise TypeError(f"ids must be {kind}, as those in the index are; got {other[0]!r}.")
        if self.letters is None or other.letters is None:
            both = Ids(np.concatenate([self.numbers, other.numbers]))
        else:
            ends = np.concatenate([self.numbers, other.numbers + self.numbers[-1]])
            both = Ids(ends, np.concatenate([self.letters, other.letters]))
        both.check_unique()
        return both

    def kept(self, keep: np.ndarray) -> Ids:
        """The ids of the rows that are marked, ``[n]`` of bool."""
        if self.letters is None:
            return Ids(self.numbers[keep])
        lengths = np.diff(self.numbers, prepend=0)
        return Ids(np.cumsum(lengths[keep]), self.letters[np.repeat(keep, lengths)])

    def check_unique(self) -> None:
        keys, order = self._sorted()
        again = np.flatnonzero(keys[1:] == keys[:-1])
        seen: set[Id] = set()
        # Texts with one key may differ; there are next to none.
        for row in np.union1d(order[again], order[again + 1]).tolist():
            if self[row] in seen:
                raise ValueError(f"ids must be unique; {self[row]!r} is there twice.")
            seen.add(self[row])

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Keys in order, and the rows that they are of."""
        if self._keys is None or self._order is None:
            n = len(self)
            keys = (
                self.numbers
                if self.letters is None
                else np.fromiter((_key(str(self[i])) for i in range(n)), np.int64, n)
            )
            self._order = np.argsort(keys, kind="stable").astype(np.int32 if n < 2**31 else np.int64)
            self._keys = keys[self._order]
        return self._keys, self._order


def _key(text: str) -> int:
    """64 bits of a text, so that texts can be looked up as numbers."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
