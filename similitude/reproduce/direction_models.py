"""Models of a directed relation between words: a score of all pairs, ``[N, D]``, ``[M, D]`` -> ``[N, M]``."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..initialize import init_from_data
from ..nn import TverskySimilarity

# Scores are logits. Cosines and similarities of the ratio model are at most 1 and get a learned factor; others start at
# about this standard deviation.
FACTOR, SPREAD = 15.0, 2.0
# Pairs whose D or K numbers are in memory at once.
AT_ONCE = 2**19
# The form of each Tversky model, and how its bank starts: opposite directions cut at 0, or k-means with thresholds.
SUBTRACT = {"intersection": "min", "difference": "subtractmatch"}
TVERSKY: dict[str, dict[str, Any]] = {
    "ignorematch": {},
    "subtractmatch": SUBTRACT,
    "symmetric": SUBTRACT,
    "ratio": {**SUBTRACT, "model": "ratio"},
    "ratio-ignorematch": {"model": "ratio"},
    "k-means": {"presence": 0.1},
}
RIVALS = ("cosine", "cosine-map", "bilinear", "two-maps", "two-tower", "order", "mlp", "sides", "sides-mlp")
MODELS = (*RIVALS, *TVERSKY)
# Scores that need no sides: they are sides, contain them, or are not trained.
WITHOUT_SIDES = ("cosine", "two-tower", "mlp", "sides", "sides-mlp")


class Scorer(nn.Module):
    """A score of all pairs, to which the sides may add a number for each word of either side.

    Args:
        unit: Whether the base compares vectors that are scaled to one length first, √D; sides see lengths.
        dropout: Share of the inputs' numbers that training leaves out, the same for a word on both sides.
    """

    def __init__(self, base: nn.Module | None, sides: nn.Module | None, unit: bool = False, dropout: float = 0.0):
        super().__init__()
        self.base, self.sides, self.unit, self.dropout = base, sides, unit, dropout

    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        """Scores of ``a`` with ``b``, or of ``a`` with itself."""
        a = nn.functional.dropout(a, self.dropout, self.training)
        b = a if b is None else nn.functional.dropout(b, self.dropout, self.training)
        if self.base is None:
            return self.sides(a, b)  # pyright: ignore[reportOptionalCall]
        added = 0 if self.sides is None else self.sides(a, b)
        if self.unit:
            same, a = a is b, of_one_length(a)
            b = a if same else of_one_length(b)
        return self.base(a, b) + added

    def slow_parameters(self) -> list[nn.Parameter]:
        """Matrices of the base, whose rate is selected apart from that of sides, constants and factors."""
        return [] if self.base is None else [p for p in self.base.parameters() if p.dim() > 1]


class Sides(nn.Module):
    """A number for what is a kind, and one for what it is a kind of: with them alone no pair is compared."""

    def __init__(self, D: int, hidden: int = 0):
        super().__init__()
        self.first, self.second = (_tower(D, hidden, 1) if hidden else nn.Linear(D, 1) for _ in range(2))
        for side in (self.first, self.second) if not hidden else ():
            nn.init.zeros_(side.weight)  # pyright: ignore[reportArgumentType]

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.first(a) + self.second(b).mT


class Cosine(nn.Module):
    """The cosine, untrained; after one linear map; or after a map for each side. Maps start as the identity."""

    def __init__(self, D: int, maps: int):
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(D, D, bias=maps > 1) for _ in range(maps))
        for layer in self.maps:
            nn.init.eye_(layer.weight)  # pyright: ignore[reportArgumentType]
        self.factor = nn.Parameter(torch.tensor([math.log(FACTOR)]))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        if len(self.maps):
            a, b = self.maps[0](a), self.maps[-1](b)
        return self.factor.exp() * (nn.functional.normalize(a, dim=-1) @ nn.functional.normalize(b, dim=-1).mT)


class Bilinear(nn.Module):
    """a · M b, where M starts as a multiple of the identity."""

    def __init__(self, D: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(D) * SPREAD / math.sqrt(D))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ self.weight @ b.mT


class TwoTower(nn.Module):
    """The inner product of two perceptrons' outputs."""

    def __init__(self, D: int, hidden: int, width: int):
        super().__init__()
        self.first, self.second = _tower(D, hidden, width), _tower(D, hidden, width)
        self.factor = nn.Parameter(torch.tensor([math.log(SPREAD / math.sqrt(width))]))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.factor.exp() * (self.first(a) @ self.second(b).mT)


class Order(nn.Module):
    """Order embeddings (Vendrov et al. 2016): −‖max(0, f(b) − f(a))‖², with f linear; 0 where a has all that b has."""

    def __init__(self, D: int, width: int):
        super().__init__()
        self.map = nn.Linear(D, width)
        self.factor = nn.Parameter(torch.tensor([math.log(8 / width)]))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.map(a), self.map(b)
        return -self.factor.exp() * _in_parts(lambda x: (b - x[:, None]).relu().square().sum(-1), a, b)


class Joint(nn.Module):
    """A perceptron on both vectors, which may learn any score: the upper line of what is compared here."""

    def __init__(self, D: int, hidden: int):
        super().__init__()
        self.first, self.second = nn.Linear(D, hidden), nn.Linear(D, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.first(a), self.second(b)
        return _in_parts(lambda x: self.out((x[:, None] + b).relu())[..., 0], a, b)


class Tversky(nn.Module):
    """Similarity over a learned bank; with ``symmetric`` the mean of both directions, which is that of α = β."""

    def __init__(self, D: int, K: int, x: Tensor, symmetric: bool = False, **form: Any):
        super().__init__()
        self.compare, self.symmetric = TverskySimilarity(D, K, **form), symmetric
        ratio = form.get("model") == "ratio"
        init_from_data(self.compare, x, spread=None if ratio else SPREAD)
        self.factor = nn.Parameter(torch.tensor([math.log(FACTOR)])) if ratio else None

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        S = self.compare.pairwise(a, b)
        if self.symmetric:
            S = (S + (S if a is b else self.compare.pairwise(b, a)).mT) / 2
        return S if self.factor is None else self.factor.exp() * S


def make(name: str, sides: bool, D: int, K: int, x: Tensor, unit: bool = False, dropout: float = 0.0) -> Scorer:
    """A model that starts from the training words' vectors ``x``, if it is one that does."""
    if name in ("sides", "sides-mlp"):
        return Scorer(None, Sides(D, K // 2 if name == "sides-mlp" else 0), unit, dropout)
    makers = {
        "cosine": lambda: Cosine(D, 0),
        "cosine-map": lambda: Cosine(D, 1),
        "two-maps": lambda: Cosine(D, 2),
        "bilinear": lambda: Bilinear(D),
        "two-tower": lambda: TwoTower(D, K // 2, K // 4),
        "order": lambda: Order(D, K // 4),
        "mlp": lambda: Joint(D, K // 4),
    }
    seen = of_one_length(x) if unit else x
    base = Tversky(D, K, seen, name == "symmetric", **TVERSKY[name]) if name in TVERSKY else makers[name]()
    return Scorer(base, Sides(D) if sides else None, unit, dropout)


def of_one_length(x: Tensor) -> Tensor:
    return nn.functional.normalize(x, dim=-1) * math.sqrt(x.shape[-1])


def _tower(D: int, hidden: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(D, hidden), nn.ReLU(), nn.Linear(hidden, width))


def _in_parts(score: Any, a: Tensor, b: Tensor) -> Tensor:
    """Scores that need all numbers of each pair, by parts of ``a``."""
    return torch.cat([score(part) for part in a.split(max(1, AT_ONCE // b.numel()))])
