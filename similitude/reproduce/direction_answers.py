"""Why a Tversky model gives an answer: what both words have, what one lacks, with features named after WordNet."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..interpret import matching

# Answers that are explained, and features of each kind that are shown.
SHOWN, TOP = 6, 3
# A name is for so many words or more, with which a feature correlates so much or more; other features are called after
# two of so many frequent words.
NAMED, LIKE, FREQUENT = 20, 0.2, 5000


@torch.no_grad()
def answers(
    compare: Any, S: Tensor, true: Tensor, x: Tensor, words: list[str], names: list[str]
) -> list[dict[str, Any]]:
    """The first right answers, in the order of the words: those of the most frequent words whose best answer is right.

    Args:
        compare: A TverskySimilarity of the contrast model.
        S: Scores ``[N, N]`` of all words with all.
        true: Which are right, bool ``[N, N]``.
        x: The words' vectors as they are compared, ``[N, D]``.
        names: What features are called.
    """
    best = S.clone().fill_diagonal_(-torch.inf).argmax(1)
    right = true[torch.arange(len(S), device=S.device), best] & (best != torch.arange(len(S), device=S.device))
    out = []
    for a in right.nonzero()[:SHOWN, 0].tolist():
        b = int(best[a])
        pair = compare.explain(x[a], x[b])
        parts = {"both": pair.common, "only the first": pair.a_only, "only the second": pair.b_only}
        found = {name: strongest(shares, names) for name, shares in parts.items()}
        sums = {name: shares.sum().item() for name, shares in parts.items()}
        out.append({"word": words[a], "answer": words[b], "score": S[a, b].item(), "sums": sums, "features": found})
    return out


def strongest(shares: Tensor, names: list[str]) -> list[list[Any]]:
    """Name and share of the features that add or take most."""
    order = shares.abs().argsort(descending=True)[:TOP].tolist()
    return [[names[k], shares[k].item()] for k in order if shares[k] != 0]


@torch.no_grad()
def called(bank: nn.Module, x: Tensor, pairs: Tensor, words: list[str], of: str) -> tuple[list[str], float]:
    """What each feature is called, and the share of those that are named after something that words are a kind of.

    A feature gets the name of the word whose kinds have it and others lack it; without one that is like it, those of
    two words that have it most, out of the most frequent. ``of`` is "a kind of" or "a part of".
    """
    measures = bank(x)
    above, counts = pairs[:, 1].unique(return_counts=True)
    above = above[counts >= NAMED]
    top = measures[:FREQUENT].topk(2, dim=0).indices.T.tolist()
    names = [", ".join(words[i] for i in rows) for rows in top]
    if not len(above):
        return names, 0.0
    column = torch.full((len(x),), -1, device=x.device)
    column[above] = torch.arange(len(above), device=x.device)
    has = x.new_zeros(len(x), len(above))
    known = pairs[column[pairs[:, 1]] >= 0]
    has[known[:, 0], column[known[:, 1]]] = 1
    value, best = matching.mcc(measures > 0, has).max(1)
    named = [i for i in range(len(names)) if value[i] >= LIKE]
    for i in named:
        names[i] = f"{of} {words[int(above[best[i]])]}"
    return names, len(named) / len(names)
