"""Fit a family to judgements: all fits (folds × weight decays × restarts) train together as one batched program.

Each fit keeps the parameters that did best on its held-out cells. These cells choose a fold's weight decay, and
the predictions of its restarts are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .families import SHRUNK, Family, Pairs, Params, Start
from .judgements import Array, Judgements

# Shares are kept this far from 0 and 1, and the intercept starts this far from certainty.
EDGE = 1e-4
# Steps between two looks at the held-out cells.
LOOK = 25
# Numbers in a tensor of all fits' measures above which a step takes a part of the cells.
MOST = 2**26
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Told:
    """Judgements as tensors, with what all fits share."""

    kind: str
    value: Tensor
    weight: Tensor
    question: Tensor
    questions: int
    rater: Tensor | None
    raters: int
    symmetric: bool
    middle: float
    spread: float
    levels: Tensor | None

    @classmethod
    def of(cls, said: Judgements, ordinal: bool = False) -> Told:
        value, weight = torch.tensor(said.value), torch.tensor(said.answers / said.answers.mean())
        middle, spread, levels = 0.0, 1.0, None
        kind = said.kind
        if kind == "rating" and said.scale is not None and not ordinal:
            # Ratings between two ends are shares of their scale.
            kind, middle, spread = "same", said.scale[0], said.scale[1] - said.scale[0]
            value = (value - middle) / spread
        elif kind == "rating":
            middle = float(np.average(said.value, weights=said.answers))
            spread = float(said.value.std()) or 1.0
            if ordinal:
                levels, value = torch.unique(value, return_inverse=True)
            else:
                value = (value - middle) / spread
        if said.kind == "choice":  # the share of its question's answers
            value, weight = value / torch.tensor(said.answers), torch.tensor(said.answers / said.answers.mean())
        question = torch.tensor(np.unique(said.question, return_inverse=True)[1])
        rater = None if said.rater is None or kind == "choice" else torch.tensor(said.rater)
        raters = 0 if rater is None else int(rater.max()) + 1
        numbers = (kind, value.float(), weight.float(), question, int(question.max()) + 1, rater, raters)
        return cls(*numbers, said.symmetric, middle, spread, levels)


@dataclass(frozen=True)
class Fitted:
    """What a fit found: of each fold the weight decay chosen, predictions of all cells, parameters of its restarts."""

    params: Params  # [folds, restarts, ...]
    held: Array  # loss on held-out cells, [folds]
    each: Array  # the same of each restart, [folds, restarts]
    l2: Array  # chosen weight decay, [folds]
    seconds: float = 0.0


def intercept(told: Told, train: Tensor) -> Tensor:
    """Where each fit's intercept starts: at the mean of what it is trained on, ``[R]``; 0 for choices."""
    if told.kind == "choice":
        return torch.zeros(len(train))
    mean = (train * told.weight * told.value).sum(1) / (train * told.weight).sum(1)
    if told.kind == "same":
        return torch.logit(mean.clamp(EDGE, 1 - EDGE))
    return torch.zeros(len(train)) if told.levels is not None else mean


def link_start(told: Told, make: Start) -> Params:
    """Parameters of the link: a floor of shares, scales of raters, steps between the levels of ordinal ratings."""
    if told.levels is not None:
        share = torch.bincount(told.value.long(), minlength=len(told.levels)).cumsum(0)[:-1] / len(told.value)
        logit = torch.logit(share.clamp(EDGE, 1 - EDGE))
        gaps = logit.diff().clamp_min(1e-3).expm1().log()
        return {"first_level": logit[0].expand(make.fits).clone(), "gaps": gaps.expand(make.fits, -1).clone()}
    p = {"floor": make.full(-4.0)} if told.kind == "same" else {}
    if told.raters:
        p |= {"rater_shift": make.full(0, told.raters), "rater_scale": make.full(0, told.raters)}
    return p


def expected(p: Params, S: Tensor, told: Told, rater: Tensor | None = None) -> Tensor:
    """What S says people answer: shares, ratings in their own unit, or S itself for choices. ``[R, M]``"""
    if told.kind == "choice":
        return S
    if told.levels is not None:
        above = torch.sigmoid(S.unsqueeze(-1) - _levels(p).unsqueeze(1))
        return told.levels[0] + (above * told.levels.diff()).sum(-1)
    S = _on_scale(p, S, told, rater)
    return (_share(p, S) if told.kind == "same" else S) * told.spread + told.middle


def losses(p: Params, S: Tensor, told: Told, cells: Tensor) -> Tensor:
    """Loss of each cell by its likelihood, ``[R, M]``: binomial, softmax over the question, Gaussian or ordinal."""
    value, weight = told.value[cells], told.weight[cells]
    if told.kind == "same":
        rater = None if told.rater is None else told.rater[cells]
        q = _share(p, _on_scale(p, S, told, rater)).clamp(EDGE, 1 - EDGE)
        return -weight * (value * q.log() + (1 - value) * (1 - q).log())
    if told.kind == "choice":
        return -weight * value * log_choice(S, told.question[cells], told.questions)
    if told.levels is not None:
        below = torch.sigmoid(_levels(p).unsqueeze(1) - S.unsqueeze(-1))
        edges = torch.cat([torch.zeros_like(below[..., :1]), below, torch.ones_like(below[..., :1])], -1)
        chosen = value.long().expand(len(S), -1).unsqueeze(-1)
        share = edges.diff(dim=-1).gather(-1, chosen).squeeze(-1)
        return -weight * share.clamp_min(EDGE**2).log()
    S = _on_scale(p, S, told, None if told.rater is None else told.rater[cells])
    return weight * (value - S).square() / 2


def _on_scale(p: Params, S: Tensor, told: Told, rater: Tensor | None) -> Tensor:
    """S in the rater's own way to use the scale; in the usual way where nobody says who rated."""
    if not told.raters or rater is None:
        return S
    return p["rater_shift"][:, rater] + p["rater_scale"][:, rater].exp() * S


def _share(p: Params, S: Tensor) -> Tensor:
    floor = torch.sigmoid(p["floor"]).unsqueeze(-1)
    return floor + (1 - floor) * torch.sigmoid(S)


def log_choice(S: Tensor, question: Tensor, questions: int) -> Tensor:
    """Logarithm of each cell's share of its question: softmax over the cells of a question."""
    where = question.expand_as(S)
    most = S.new_full((len(S), questions), -math.inf).scatter_reduce(1, where, S.detach(), "amax")
    total = S.new_zeros(len(S), questions).scatter_add(1, where, (S - most.gather(1, where)).exp())
    return S - most.gather(1, where) - total.clamp_min(1e-30).log().gather(1, where)


def _levels(p: Params) -> Tensor:
    return torch.cat([p["first_level"].unsqueeze(-1), p["gaps"].exp().log1p()], -1).cumsum(-1)


def scores(family: Family, p: Params, said: Judgements, cells: Tensor | None = None) -> Tensor:
    """S of the cells, ``[R, M]``; the mean of both directions where the order was not asked."""
    first, second = (torch.as_tensor(t) for t in (said.first, said.second))
    if cells is not None:
        first, second = first[cells], second[cells]
    return pair_scores(family, p, first, second, len(said.objects), said.symmetric)


def pair_scores(family: Family, p: Params, first: Tensor, second: Tensor, objects: int, symmetric: bool) -> Tensor:
    if objects**2 <= 4 * len(first) and family.name.split(" + ")[0] != "constant":
        table = family.score(p, Pairs())
        table = (table + table.mT) / 2 if symmetric else table
        return table.flatten(1)[:, first * objects + second]
    S = family.score(p, Pairs(first, second))
    return (S + family.score(p, Pairs(second, first))) / 2 if symmetric else S


def fit(
    family: Family,
    said: Judgements,
    train: Array,
    held: Array,
    *,
    restarts: int = 3,
    l2: tuple[float, ...] | None = None,
    steps: int = 300,
    lr: float = 0.05,
    seed: int = 0,
    ordinal: bool = False,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Fitted:
    """The family, fitted to each row of ``train`` and stopped early by ``held``.

    Both are masks or weights of cells: ``[folds, M]``, or ``[folds, restarts, M]`` where each restart has its own. A
    step takes all cells, or about ``batch`` of them.
    """
    told = Told.of(said, ordinal)
    decays = family.l2 if l2 is None else l2
    folds = len(train)
    R = folds * len(decays) * restarts
    T, V = (_masks(mask, folds, len(decays), restarts) for mask in (train, held))
    make = Start(R, len(said.objects), torch.Generator().manual_seed(seed), intercept(told, T))
    p = {name: t.requires_grad_() for name, t in (family.start(make) | link_start(told, make)).items()}
    T, V = T / (T * told.weight).sum(1, keepdim=True), V / (V * told.weight).sum(1, keepdim=True)
    decay = torch.tensor(decays).repeat_interleave(restarts).repeat(folds)
    lr = lr * family.rate
    optimizer = torch.optim.Adam(list(p.values()), lr=lr)
    # A rise that ends at step 0 is a division by zero there, as a tenth of 10 steps would.
    rise = 0.1 if steps > 10 else 0.05
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=steps, pct_start=rise)
    best, kept = torch.full((R,), math.inf), {name: t.detach().clone() for name, t in p.items()}
    everything = torch.arange(len(said))
    parts, stops = _parts(told, everything, R * 32, batch), [everything]
    whole = len(parts) == 1
    if not whole:
        parts = _parts(told, torch.nonzero((T > 0).any(0)).flatten(), R * 32, batch)
        stops = _parts(told, torch.nonzero((V > 0).any(0)).flatten(), R * 32)
    pick = np.random.default_rng(seed)
    for step in range(steps):
        cells = everything if whole else parts[int(pick.integers(len(parts)))]
        loss = losses(p, scores(family, p, said, None if whole else cells), told, cells)
        if step % LOOK == 0:
            now = (loss.detach() * V).sum(1) if whole else _held(family, p, said, told, V, stops)
            best, kept = _better(best, kept, p, now)
        total = ((loss * T[:, cells]).sum(1) * len(parts)).sum()
        total = total + sum((decay * t.square().flatten(1).sum(1)).sum() for name, t in p.items() if name in SHRUNK)
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    best, kept = _better(best, kept, p, _held(family, p, said, told, V, stops))
    each = best.view(folds, len(decays), restarts)
    chosen = each.mean(2).argmin(1)
    at = torch.arange(folds)
    params = {name: t.view(folds, len(decays), restarts, *t.shape[1:])[at, chosen] for name, t in kept.items()}
    l2s = np.array(decays)[chosen.numpy()]
    return Fitted(params, each.mean(2).amin(1).numpy(), each[at, chosen].numpy(), l2s)


def predict(family: Family, fitted: Fitted, said: Judgements, told: Told, fold: int = 0) -> Array:
    """What the fold's restarts expect people to answer to the cells, averaged; log-shares for choices. ``[M]``"""
    p = {name: t[fold] for name, t in fitted.params.items()}
    with torch.no_grad():
        S = scores(family, p, said)
        if told.kind == "choice":
            shares = log_choice(S, told.question, told.questions).exp()
            return shares.mean(0).double().numpy()
        return expected(p, S, told, told.rater).mean(0).double().numpy()


def _masks(mask: Array, folds: int, decays: int, restarts: int) -> Tensor:
    """A mask for each fit, ``[folds · decays · restarts, M]``."""
    each = torch.tensor(mask).float()
    each = each.unsqueeze(1) if each.dim() == 2 else each
    return each.unsqueeze(1).expand(folds, decays, restarts, -1).reshape(folds * decays * restarts, -1)


def _held(family: Family, p: Params, said: Judgements, told: Told, V: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """Loss of each fit on the cells that stop it."""
    with torch.no_grad():
        return torch.stack(
            [(losses(p, scores(family, p, said, part), told, part) * V[:, part]).sum(1) for part in parts]
        ).sum(0)


def _better(best: Tensor, kept: Params, p: Params, loss: Tensor) -> tuple[Tensor, Params]:
    """The lower losses so far, and the parameters that had them."""
    lower = loss < best - 1e-6
    now = {name: t.detach() for name, t in p.items()}
    kept = {name: torch.where(lower.view(-1, *[1] * (t.dim() - 1)), now[name], t) for name, t in kept.items()}
    return torch.where(lower, loss, best), kept


def _parts(told: Told, cells: Tensor, width: int, batch: int | None = None) -> list[Tensor]:
    """The cells in one part, or in as many as keep a step's tensors small; a question's cells stay together."""
    count = max(math.ceil(len(cells) * width / MOST), math.ceil(len(cells) / batch) if batch else 1)
    if count == 1:
        return [cells]
    group = torch.randperm(told.questions, generator=torch.Generator().manual_seed(0))[told.question[cells]] % count
    return [part for g in range(count) if len(part := cells[group == g])]
