"""Places for the nodes of a graph by forces: the same on every run, in seconds for thousands of nodes."""

from __future__ import annotations

import numpy as np

# Radius of the ring of nodes that would end in one place, times the root of their number.
RING = 2e-3


def force_layout(
    edges: np.ndarray,
    start: np.ndarray,
    weights: np.ndarray | None = None,
    masses: np.ndarray | None = None,
    iterations: int = 200,
) -> np.ndarray:
    """Places of n nodes, ``[n, 2]``, centred, the farthest at distance 1; the same on every run.

    The forces are Fruchterman and Reingold's. Nodes repel each other by 1/d times their masses, edges attract by d²
    times their weights, and all nodes fall gently to the middle. Steps get shorter from turn to turn. The repulsion is
    a convolution of the nodes' density, computed by FFT on a mesh, without an n×n table.

    Args:
        edges: indices of the two nodes of each edge, ``[E, 2]``.
        start: starting places, ``[n, 2]``.
        weights: weight of each edge, ``[E]``; by default 1.
        masses: mass of each node, ``[n]``; by default 1.
        iterations: number of steps.
    """
    edges, at = np.asarray(edges, dtype=np.int64).reshape(-1, 2), np.array(start, dtype=np.float64)
    n = len(at)
    if at.shape != (n, 2) or not np.isfinite(at).all():
        raise ValueError(f"start must be finite places [n, 2]; got shape {list(at.shape)}.")
    if edges.size and not (edges.min() >= 0 and edges.max() < n):
        raise ValueError(f"edges must be from 0 to {n - 1}; got {edges.min()} to {edges.max()}.")
    if n < 2:
        return np.zeros((n, 2))
    mass = np.ones(n) if masses is None else np.asarray(masses, dtype=np.float64)
    pull = np.ones(len(edges)) if weights is None else np.asarray(weights, dtype=np.float64)
    cells = _cells(n)
    kernel = _kernel(cells)
    radius = np.sqrt(mass.sum())
    at = (at - at.mean(0)) * (radius / (np.abs(at - at.mean(0)).max() or 1.0))
    one, other = edges.T
    for turn in range(iterations):
        # The fall keeps nodes without edges from flying off.
        force = mass[:, None] * (_push(at, mass, cells, kernel) - 0.3 * at)
        along = at[one] - at[other]
        along *= (pull * np.hypot(along[:, 0], along[:, 1]))[:, None]
        for axis in (0, 1):
            force[:, axis] -= np.bincount(one, along[:, axis], n) - np.bincount(other, along[:, axis], n)
        # Long steps untangle at first; short ones let the nodes come to rest.
        limit = 0.1 * radius * (1 - turn / iterations) ** 2
        at += force * np.minimum(1.0, limit / np.maximum(np.hypot(force[:, 0], force[:, 1]), 1e-12))[:, None]
    at -= at.mean(0)
    at = _beside(at / (np.hypot(at[:, 0], at[:, 1]).max() or 1.0))
    return at / (np.hypot(at[:, 0], at[:, 1]).max() or 1.0)


def _beside(at: np.ndarray) -> np.ndarray:
    """Nodes with the same edges may end in one place, since the mesh does not push within a cell: they get a ring."""
    _, spot, count = np.unique(at.round(4), axis=0, return_inverse=True, return_counts=True)
    spot = spot.ravel()
    order = np.argsort(spot, kind="stable")
    turn = np.empty(len(at))
    turn[order] = np.arange(len(at)) - np.repeat(np.cumsum(count) - count, count)
    angle = 2 * np.pi * turn / count[spot]
    ring = np.where(count > 1, RING * np.sqrt(count), 0.0)[spot]
    return at + ring[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _cells(n: int) -> int:
    """Cells along a side of the mesh: a power of two with about ten cells per node, so that few nodes share one."""
    return int(2 ** np.clip(np.ceil(np.log2(10 * n) / 2), 4, 9))


def _kernel(cells: int) -> list[np.ndarray]:
    """Real Fourier transforms of x/|d|² and y/|d|² over all distances d in cells; 0 at distance 0."""
    # Distances from 0 to cells, then from -cells up to 0, as the transform wraps around.
    line = np.fft.fftfreq(2 * cells, 1 / (2 * cells))
    x, y = line[:, None], line[None, :]
    square = x**2 + y**2
    square[0, 0] = 1.0
    return [np.fft.rfft2(along / square) for along in (x, y)]


def _push(at: np.ndarray, mass: np.ndarray, cells: int, kernel: list[np.ndarray]) -> np.ndarray:
    """The repulsion of a unit mass at each node, ``[n, 2]``; each node is spread over the four cells around it."""
    low = at.min(0)
    size = max((at - low).max(), 1e-9) / (cells - 1.001)
    place = (at - low) / size
    corner = place.astype(np.int64)
    part = place - corner
    shares = [
        ((corner[:, 0] + i) * cells + corner[:, 1] + j, np.abs(1 - i - part[:, 0]) * np.abs(1 - j - part[:, 1]))
        for i in (0, 1)
        for j in (0, 1)
    ]
    density = np.zeros(cells * cells)
    for cell, share in shares:
        density += np.bincount(cell, mass * share, density.size)
    # The transform is twice as wide as the mesh. Of its rows one half is empty before, and is not needed after.
    rows = np.fft.rfft(density.reshape(cells, cells), 2 * cells, axis=1)
    spectrum = np.fft.fft(rows, 2 * cells, axis=0)
    felt = np.empty((len(at), 2))
    for axis, along in enumerate(kernel):
        field = np.fft.irfft(np.fft.ifft(spectrum * along, axis=0)[:cells], axis=1)[:, :cells].ravel()
        felt[:, axis] = sum(share * field[cell] for cell, share in shares) / size
    return felt
