"""Made-up data for smoke runs: no files, the same on every machine, quick to make, and learnable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .find import Labelled, sha256
from .text import Text
from .wordnet import Related

SIDE = 28
# The segments of a seven-segment display that each digit lights: top, upper left, upper right, middle, lower left,
# lower right, bottom.
SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
# Top, left, height, width of each segment.
STROKES = (
    (4, 8, 3, 12),
    (4, 8, 11, 3),
    (4, 17, 11, 3),
    (12, 8, 3, 12),
    (12, 8, 11, 3),
    (12, 17, 11, 3),
    (20, 8, 3, 12),
)


def synthetic_digits(n: int = 512, seed: int = 0) -> Labelled:
    """``n`` seven-segment digits to train with, ``[n, 28, 28]``, and n / 4 to test with, shifted and noisy."""
    generator = _generator(n, seed)
    shapes = torch.zeros(10, SIDE, SIDE)
    for digit, lit in enumerate(SEGMENTS):
        for on, (top, left, height, width) in zip(lit, STROKES, strict=True):
            if on == "1":
                shapes[digit, top : top + height, left : left + width] = 1

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = _balanced(count, 10, generator)
        moves = torch.randint(-2, 3, (count, 2), generator=generator)
        x = torch.stack([shapes[c].roll(tuple(m), (0, 1)) for c, m in zip(y.tolist(), moves.tolist(), strict=True)])
        x = x * (150 + 105 * torch.rand(count, 1, 1, generator=generator))
        return _bytes(x + 12 * torch.randn(x.shape, generator=generator)), y

    return _labelled(draw(n), draw(_quarter(n)), tuple("0123456789"), "synthetic_digits")


def synthetic_images(n: int = 256, classes: int = 10, size: int = 32, seed: int = 0) -> Labelled:
    """``n`` images of stripes to train with, ``[n, 3, size, size]``, and n / 4 to test with.

    The class sets the direction and colour of the stripes; their phase and the noise are random.
    """
    generator = _generator(n, seed)
    if classes < 1 or size < 1:
        raise ValueError(f"classes and size must be 1 or more; got classes={classes}, size={size}.")
    colours = torch.rand(classes, 3, 1, 1, generator=generator)
    angles = math.pi * torch.arange(classes).view(-1, 1, 1) / classes
    across = torch.linspace(0, 1, size)
    ramps = angles.cos() * across + angles.sin() * across[:, None]  # [classes, size, size]

    def draw(count: int) -> tuple[Tensor, Tensor]:
        y = _balanced(count, classes, generator)
        phase = torch.rand(count, 1, 1, generator=generator)
        stripes = (2 * math.pi * (3 * ramps[y] + phase)).sin()[:, None]  # [count, 1, size, size]
        x = 255 * (0.2 + 0.6 * colours[y] + 0.2 * stripes)
        return _bytes(x + 12 * torch.randn(x.shape, generator=generator)), y

    names = tuple(f"stripes {c}" for c in range(classes))
    return _labelled(draw(n), draw(_quarter(n)), names, "synthetic_images")


def synthetic_text(n: int = 4096, vocabulary: int = 64, seed: int = 0) -> Text:
    """``n`` tokens to train with, and n / 4 each to validate and to test with.

    Each token has one favourite successor, which follows it four times in five; the fifth time any token follows. The
    best possible perplexity is therefore far below ``vocabulary``.
    """
    generator = _generator(n, seed)
    if vocabulary < 2:
        raise ValueError(f"vocabulary must be 2 or more; got {vocabulary}.")
    # The favourites form one cycle through all tokens, so that no walk gets stuck among a few.
    order = torch.randperm(vocabulary, generator=generator)
    favourite = torch.empty_like(order)
    favourite[order] = order.roll(-1)
    follows = favourite.tolist()

    def walk(count: int) -> Tensor:
        strays = torch.rand(count, generator=generator).lt(0.2).tolist()
        anywhere = torch.randint(vocabulary, (count,), generator=generator).tolist()
        tokens = [anywhere[0]]
        for stray, token in zip(strays[1:], anywhere[1:], strict=True):
            tokens.append(token if stray else follows[tokens[-1]])
        return torch.tensor(tokens)

    splits = [walk(n), walk(_quarter(n)), walk(_quarter(n))]
    return Text(*splits, vocabulary=vocabulary, hashes={"synthetic_text": _hash(*splits)})


def synthetic_taxonomy(n: int = 240, dim: int = 16, seed: int = 0) -> Related:
    """``n`` words of a tree in which each word has the features of the word above it, and one of its own.

    Pairs are up to three steps apart. A word's vector is the mean of its features' directions, with noise.
    """
    generator = _generator(n, seed)
    above = [int(torch.randint(max(1, i // 4), (), generator=generator)) for i in range(n)]
    own = torch.randn(n, dim, generator=generator)
    x = own.clone()
    for i in range(1, n):
        x[i] = 0.8 * x[above[i]] + 0.6 * own[i]
    pairs = []
    for i in range(1, n):
        up = i
        for _ in range(3):
            if up == 0:
                break
            up = above[up]
            pairs.append((i, up))
    found = torch.tensor(pairs)
    return Related([f"word {i}" for i in range(n)], x, found, {"synthetic_taxonomy": _hash(x, found)})


def _generator(n: int, seed: int) -> torch.Generator:
    if n < 1:
        raise ValueError(f"n must be 1 or more; got {n}.")
    return torch.Generator().manual_seed(seed)


def _quarter(n: int) -> int:
    return -(-n // 4)


def _balanced(count: int, classes: int, generator: torch.Generator) -> Tensor:
    """Labels ``[count]`` in random order, with equally many of each class."""
    return torch.arange(count)[torch.randperm(count, generator=generator)] % classes


def _bytes(x: Tensor) -> Tensor:
    return x.round().clamp(0, 255).to(torch.uint8)


def _labelled(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: tuple[str, ...], name: str
) -> Labelled:
    return Labelled(*train, *test, classes=classes, hashes={name: _hash(*train, *test)})


def _hash(*tensors: Tensor) -> str:
    return sha256(b"".join(t.contiguous().numpy().tobytes() for t in tensors))
