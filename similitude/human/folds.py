"""What is held out of judgements, and how well the rest predicts it."""

from __future__ import annotations

import math

import numpy as np

from .judgements import Array, Judgements

FOLDS = ("cells", "pairs", "directions", "objects", "raters")
# Share of the pairs that stop a fit where objects are held out.
STOPS = 0.15


def split(
    said: Judgements, by: str = "pairs", k: int = 10, repeats: int = 1, seed: int = 0, restarts: int = 1
) -> tuple[Array, Array, Array]:
    """Masks of cells for the test, ``[repeats · k, M]``, and of training and early stopping, ``[.., restarts, M]``.

    Cells of an object with itself are trained on and never tested; a question of choices is one cell. The cells that
    stop a fit are those of another fold, of a different one for each restart, so that restarts together learn from
    all that is not tested; where objects or directions are held out, a share of the other pairs drawn for each.

    Args:
        said: The judgements.
        by: cells; pairs (both directions of a pair); directions (one direction of each pair is seen); objects (pairs
            with an object that nobody judged); raters.
        k: Folds of each repeat.
        repeats: How often all is split anew.
        seed: Seed of the folds.
        restarts: Fits to each fold.
    """
    group = _groups(said, by)
    groups = int(group.max()) + 1
    count = len(said.objects) if by == "objects" else groups
    if count < 3 or (by == "raters" and said.rater is None):
        raise ValueError(
            f"folds by {by} need at least 3 of them; there are {0 if said.rater is None and by == 'raters' else count}."
        )
    if not k >= 3:
        raise ValueError(f"k={k} is too few; at least 3 folds are expected, one for the test and one to stop by.")
    k = min(k, count)
    random = np.random.default_rng(seed)
    self_pair = said.first == said.second
    tests, trains, stops = [], [], []
    for _ in range(repeats):
        if by == "directions":
            for test in _halves(said, random):
                stop = ~test & ~self_pair & (random.random((restarts, len(said))) < 0.125)
                tests, trains, stops = [*tests, test & ~self_pair], [*trains, ~test & ~stop], [*stops, stop]
            continue
        fold = random.permutation(count) % k
        for f in range(k):
            if by == "objects":
                test = (fold[said.first] == f) | (fold[said.second] == f)
                stop = ~test & (random.random((restarts, groups)) < STOPS)[:, group]
            else:
                other = (f + 1 + np.arange(restarts) % (k - 1)) % k
                test, stop = fold[group] == f, fold[group] == other[:, None]
            stop = stop & ~self_pair
            train = ~(test | stop) | (self_pair if by != "objects" else False)
            tests, trains, stops = [*tests, test & ~self_pair], [*trains, train], [*stops, stop]
    masks = np.array(tests), np.array(trains), np.array(stops)
    for mask, what in zip(masks, ("tested", "trained on", "kept to stop by"), strict=True):
        if not mask.any(-1).all():
            raise ValueError(
                f"some fold has no judgement that is {what}; fewer folds than {k}, or more judgements, are expected."
            )
    return masks


def holdout(said: Judgements, share: float, seed: int) -> tuple[Array, Array]:
    """Masks for one fit, ``[1, M]``: what is trained on, and the share of pairs or questions that stops it early."""
    group = _groups(said, "cells" if said.kind == "choice" else "pairs")
    random = np.random.default_rng(seed)
    count = int(group.max()) + 1
    out = np.zeros(count, dtype=bool)
    out[random.permutation(count)[: max(round(share * count), 1)]] = share > 0
    held = out[group]
    if not held.any() or held.all():
        held = np.ones(len(said), dtype=bool)
        return held[None], held[None]
    return ~held[None], held[None]


def _groups(said: Judgements, by: str) -> Array:
    """The group of each cell, from 0 on; a group is held out whole."""
    if by not in FOLDS:
        raise ValueError(f"folds={by!r} is none of {', '.join(FOLDS)}.")
    if by == "raters" and said.rater is not None:
        return np.unique(said.rater, return_inverse=True)[1]
    if said.kind == "choice":
        return np.unique(said.question, return_inverse=True)[1]
    if by == "cells":
        return np.arange(len(said))
    low, high = np.minimum(said.first, said.second), np.maximum(said.first, said.second)
    return np.unique(low * len(said.objects) + high, return_inverse=True)[1]


def _halves(said: Judgements, random: np.random.Generator) -> tuple[Array, Array]:
    """Two masks that part the two directions of each pair."""
    N = len(said.objects)
    flip = np.triu(random.random((N, N)) < 0.5, 1)
    flip = flip | ~(flip.T | np.triu(np.ones((N, N), dtype=bool)))
    half = flip[said.first, said.second]
    return half, ~half & (said.first != said.second)


def measures(said: Judgements, predicted: Array, test: Array) -> dict[str, float]:
    """How well ``predicted``, ``[folds, M]``, tells what the folds of one repeat hold out.

    R², deviance explained, r, and r of the differences between both directions of a pair.
    """
    errors = _errors(said, predicted, test)
    out = {"R2": 1 - errors["square"].sum() / errors["square0"].sum()}
    if said.kind != "rating":
        out["deviance"] = 1 - errors["deviance"].sum() / errors["deviance0"].sum()
    times = test.sum(0)
    seen = times > 0
    mean = (predicted * test).sum(0)[seen] / times[seen]
    out["r"] = correlation(mean, _shares(said)[seen])
    if not said.symmetric:
        N = len(said.objects)
        table, guess = np.full((2, N, N), math.nan)
        table[said.first[seen], said.second[seen]] = _shares(said)[seen]
        guess[said.first[seen], said.second[seen]] = mean
        up = np.triu_indices(N, 1)
        said_more, guess_more = (table - table.T)[up], (guess - guess.T)[up]
        both = ~np.isnan(said_more)
        if both.sum() > 2:
            out["asymmetry r"] = correlation(said_more[both], guess_more[both])
    return {name: float(value) for name, value in out.items()}


def by_fold(said: Judgements, predicted: Array, test: Array) -> Array:
    """R² of each fold."""
    errors = _errors(said, predicted, test)
    return 1 - errors["square"] / np.maximum(errors["square0"], 1e-300)


def standard_error(values: Array, k: int) -> float:
    """Standard error of a mean over folds whose training parts overlap (Nadeau and Bengio 2003)."""
    if len(values) < 2:
        return math.nan
    return float(values.std(ddof=1) * math.sqrt(1 / len(values) + 1 / max(k - 1, 1)))


def ceiling(said: Judgements) -> dict[str, float]:
    """The highest R² and asymmetry r that the noise of counting allows; empty where nobody counted answers."""
    if said.kind != "same" or not said.counted:
        return {}
    off = said.first != said.second
    p, n = said.value[off], np.maximum(said.answers[off], 2)
    noise = p * (1 - p) / (n - 1)
    out = {"R2": max(1 - noise.mean() / max(p.var(), 1e-300), 0.0)}
    table, doubt = said.table(), said.table(said.value * (1 - said.value) / np.maximum(said.answers - 1, 1))
    up = np.triu_indices(len(table), 1)
    difference, noise = (table - table.T)[up], (doubt + doubt.T)[up]
    both = ~np.isnan(difference)
    if both.sum() > 2 and not said.symmetric:
        whole = (difference[both] ** 2).mean()
        out["asymmetry r"] = math.sqrt(max(1 - noise[both].mean() / whole, 0.0)) if whole > 0 else 0.0
    return {name: float(value) for name, value in out.items()}


def correlation(a: Array, b: Array) -> float:
    """Pearson's r; 0 where one side does not vary."""
    if len(a) < 3 or a.std() < 1e-6 or b.std() < 1e-6:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def _shares(said: Judgements) -> Array:
    return said.value / said.answers if said.kind == "choice" else said.value


def _errors(said: Judgements, predicted: Array, test: Array) -> dict[str, Array]:
    """Sums over each fold's test cells, of the prediction and of the others' mean (of a choice: of equal shares)."""
    value = _shares(said)
    off = ~test & (said.first != said.second)
    off = np.where(off.any(1, keepdims=True), off, ~test)
    mean = np.broadcast_to(((value * off).sum(1) / off.sum(1))[:, None], predicted.shape)
    if said.kind == "choice":
        cells = np.bincount(np.unique(said.question, return_inverse=True)[1])
        mean = np.broadcast_to((1 / cells)[np.unique(said.question, return_inverse=True)[1]], predicted.shape)
    out = {}
    for name, guess in (("", predicted), ("0", mean)):
        out["square" + name] = ((value - guess) ** 2 * test).sum(1)
        if said.kind == "rating":
            continue
        q = guess.clip(1e-4, 1 - 1e-4) if said.kind == "same" else guess.clip(1e-12, 1)
        ce = value * np.log(np.maximum(value, 1e-12) / q)
        if said.kind == "same":
            ce = ce + (1 - value) * np.log(np.maximum(1 - value, 1e-12) / (1 - q))
        out["deviance" + name] = (said.answers * ce * test).sum(1)
    return out
