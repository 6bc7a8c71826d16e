"""Small images for the page: many in one sprite, as PNG."""

from __future__ import annotations

import math
import struct
import zlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Side of a thumbnail at most, in pixels.
SIDE = 64
# Share of a feature's weights that may be paler than the palest end of the colours.
CUT = 0.99
# Ends of the colours of signed weights: those below 0, 0 itself, those above.
BELOW, MIDDLE, ABOVE = (179, 88, 6), (247, 247, 247), (84, 39, 136)


class Sprite(NamedTuple):
    """Many images of one size in one PNG, row by row."""

    png: bytes
    width: int  # of one image
    height: int
    columns: int
    count: int

    def about(self) -> dict[str, int]:
        return {"width": self.width, "height": self.height, "columns": self.columns, "count": self.count}


def of_images(images: Tensor) -> Sprite:
    """Images ``[N, H, W]`` or ``[N, C, H, W]`` of 0 to 1, C one or three; other ranges are stretched to it."""
    x = images.detach().float().cpu()
    x = x[:, None] if x.dim() == 3 else x
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise ValueError(f"images must be [N, H, W] or [N, C, H, W] with one or three channels; got {list(x.shape)}.")
    low, high = (x.min().item(), x.max().item()) if x.numel() else (0.0, 1.0)
    if low < 0 or high > 1:
        x = (x - low) / max(high - low, 1e-12)
    return _sprite((_small(x) * 255).round().byte().permute(0, 2, 3, 1).numpy())


def of_parameters(images: Tensor) -> Sprite:
    """Learned images ``[N, ..., H, W]``: as weights where some are below 0, which no ink is."""
    return of_weights(images.flatten(1, -3).mean(1)) if bool((images < 0).any()) else of_images(images)


def of_weights(images: Tensor) -> Sprite:
    """Signed weights ``[N, H, W]``: white is 0, purple is above and orange below, each image by its own largest."""
    x = _small(images.detach().float().cpu()[:, None])[:, 0]
    limits = x.abs().flatten(1).quantile(CUT, dim=1).clamp(min=1e-12)
    share = (x / limits[:, None, None]).clamp(-1, 1)[..., None]
    below, middle, above = (torch.tensor(c, dtype=torch.float32) for c in (BELOW, MIDDLE, ABOVE))
    colours = middle + share.relu() * (above - middle) + (-share).relu() * (below - middle)
    return _sprite(colours.round().byte().numpy())


def _small(x: Tensor) -> Tensor:
    """Images ``[N, C, H, W]`` of no more than SIDE pixels a side."""
    height, width = x.shape[-2:]
    if max(height, width) <= SIDE:
        return x
    factor = SIDE / max(height, width)
    size = max(1, round(height * factor)), max(1, round(width * factor))
    return torch.nn.functional.interpolate(x, size=size, mode="area")


def _sprite(tiles: np.ndarray) -> Sprite:
    """A sprite of bytes, ``[N, H, W, C]``."""
    N, height, width, channels = tiles.shape
    columns = max(1, math.ceil(math.sqrt(N)))
    rows = max(1, -(-N // columns))
    whole = np.zeros((rows * columns, height, width, channels), np.uint8)
    whole[:N] = tiles
    whole = whole.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return Sprite(png(whole.reshape(rows * height, columns * width, channels)), width, height, columns, N)


def png(pixels: np.ndarray) -> bytes:
    """A PNG of bytes ``[H, W, C]``, grey or RGB. It needs no library, since the base install has none for images."""
    height, width, channels = pixels.shape
    # Each row begins with the number of its filter, 0 for none.
    raw = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * channels)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(raw.tobytes(), 9)), (b"IEND", b"")]
    sealed = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(sealed)
