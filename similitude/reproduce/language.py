"""A small language model whose tokens are read when it is trained, by banks that are fitted afterwards.

It is the part of the experiment on legible features that says what a network without legible features holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..interpret.legibility import Legibility, legibility
from ..interpret.reading import of_length, reading_bank
from ..nn import TverskyProjection
from ..optim import parameter_groups
from .data.attributed import Text, text
from .record import Record, RunError
from .results import Row, with_error

if TYPE_CHECKING:
    from .legibility import Config

# Width of states, number of blocks and of their heads, words in a window, windows that are read.
DIM, BLOCKS, HEADS, WINDOW, READ = 128, 2, 4, 64, 256
WARM_UP, CLIP = 50, 1.0
# Heads, and what tokens are read by. A head's own bank is cut at 0; the others have a presence.
LAYERS = ("linear", "default")
OWN, READING, RANDOM, TOKENS = "own bank", "reading bank", "random directions", "k-means of tokens"


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """The perplexity of a model from each seed and how legible its tokens are; a checkpoint follows each training."""
    if config.layer not in LAYERS:
        raise RunError(f"layer={config.layer} is no head of a language model; there are {', '.join(LAYERS)}.")
    data = text(config.made_up)
    record.hashes.update(data.hashes)
    _, _, state = record.load() or (0, {}, {})
    trained: list[dict[str, Any]] = state.get("trained", [])
    for i in range(len(trained), config.seeds):
        torch.manual_seed(config.seed + i)
        model = LanguageModel(data.counts, None if config.layer == "linear" else config.num_features).to(record.device)

        def tell(step: int, loss: float, before: int = i * config.steps) -> None:
            progress(before + step, config.seeds * config.steps, config.layer, loss=loss)

        loss = fit(model, data, config, config.seed + i, tell)
        score = perplexity(model, data.valid, config.batch)
        read = readings(model, data, config.num_features, config.presence, config.seed + i)
        # Tied tensors are saved once.
        size = sum(p.numel() for p in model.parameters())
        attributes = {
            bank: dict(zip(found.names, found.layer.mcc.tolist(), strict=True)) for bank, found in read.items()
        }
        banks = {bank: found.summary() for bank, found in read.items()}
        trained.append({"score": score, "loss": loss, "parameters": size, "banks": banks, "attributes": attributes})
        record.log(i + 1, score=score, loss=loss)
        record.save(i + 1, {}, {"trained": trained})
    return {
        "score": [one["score"] for one in trained],
        "loss": [one["loss"] for one in trained],
        "parameters": trained[0]["parameters"],
        "legibility": [one["banks"][READING] for one in trained],
        "banks": [one["banks"] for one in trained],
        "attributes": [one["attributes"] for one in trained],
    }


class LanguageModel(nn.Module):
    """Two blocks of a transformer on words, with a head on the words' own vectors: linear, or a Tversky layer.

    Args:
        counts: how often each word stands in the text; the head's bias starts at the logarithm of their shares.
        num_features: K of a Tversky head; None for a linear one.
    """

    def __init__(self, counts: Tensor, num_features: int | None = None):
        super().__init__()
        V = len(counts)
        self.words = nn.Embedding(V, DIM)
        self.places = nn.Embedding(WINDOW, DIM)
        nn.init.normal_(self.words.weight, std=1 / math.sqrt(3 * DIM))
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                DIM, HEADS, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(BLOCKS)
        )
        self.norm = nn.LayerNorm(DIM)
        tied = self.words.weight
        assert isinstance(tied, nn.Parameter)
        if num_features is None:
            self.head = nn.Linear(DIM, V)
            self.head.weight = tied
        else:
            self.head = TverskyProjection(DIM, V, num_features, prototypes=tied, bias=True)
        share = (counts + 1.0) / (counts + 1.0).sum()
        with torch.no_grad():
            assert self.head.bias is not None
            self.head.bias.copy_(share.log())

    def states(self, x: Tensor) -> Tensor:
        """What the head sees of each word, ``[B, T]`` -> ``[B, T, D]``."""
        h = self.words(x) + self.places.weight[: x.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.norm(h)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.states(x))


def windows(ids: Tensor, batch: int) -> Iterable[tuple[Tensor, Tensor]]:
    """Batches of windows and of the words that follow, ``[batch, T]`` each, once through the text."""
    length = (len(ids) - 1) // batch
    x, y = (part[: batch * length].view(batch, length) for part in (ids[:-1], ids[1:]))
    T = min(WINDOW, length)
    for start in range(0, length - T + 1, T):
        yield x[:, start : start + T], y[:, start : start + T]


def fit(model: LanguageModel, text: Text, config: Config, seed: int, tell: Callable[[int, float], object]) -> float:
    """Trains with AdamW, a linear rise and a cosine, and returns the mean loss of the last tenth of the steps."""
    steps = config.steps
    optimizer = torch.optim.AdamW(parameter_groups(model, config.lr, config.weight_decay), betas=(0.9, 0.98))
    rising = min(WARM_UP, steps)
    rate = lambda step: min(1, (step + 1) / rising) * (1 + math.cos(math.pi * step / steps)) / 2  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    generator = torch.Generator().manual_seed(seed)
    device = model.words.weight.device
    parts = list(windows(text.train, config.batch))
    order, losses = [], []
    model.train()
    for step in range(steps):
        order = order or torch.randperm(len(parts), generator=generator).tolist()
        x, y = (part.to(device) for part in parts[order.pop()])
        # Of a Tversky head the products are most of the work.
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise RunError(f"the loss of step {step + 1} is {losses[-1]}; try a lower lr than {config.lr}.")
        if (step + 1) % 25 == 0:
            tell(step + 1, losses[-1])
    model.eval()
    return float(np.mean(losses[-max(1, steps // 10) :]))


@torch.no_grad()
def perplexity(model: LanguageModel, ids: Tensor, batch: int) -> float:
    """Of words of another text, each with what stands before it in its window."""
    device, total, n = model.words.weight.device, 0.0, 0
    for x, y in windows(ids, batch):
        logits = model(x.to(device)).flatten(0, 1)
        total += nn.functional.cross_entropy(logits.double(), y.to(device).flatten(), reduction="sum").item()
        n += y.numel()
    return math.exp(total / n)


@torch.no_grad()
def readings(model: LanguageModel, text: Text, num_features: int, presence: float, seed: int) -> dict[str, Legibility]:
    """How legible tokens are by each bank: those fitted to states, or to the tokens themselves, and the head's own.

    Tokens are scaled to the states' mean length, so that a threshold means the same to both.
    """
    device = model.words.weight.device
    starts = torch.linspace(0, len(text.train) - WINDOW, min(READ, len(text.train) // WINDOW)).long()
    x = text.train[starts[:, None] + torch.arange(WINDOW)].to(device)
    states = torch.cat([model.states(part) for part in x.split(32)]).flatten(0, 1)
    tokens = of_length(model.words.weight[text.read.to(device)], states)
    banks = {
        READING: reading_bank(states, "k-means", presence, num_features, seed),
        RANDOM: reading_bank(states, "random", presence, num_features, seed),
        TOKENS: reading_bank(tokens, "k-means", presence, min(num_features, len(tokens)), seed),
    }
    if isinstance(model.head, TverskyProjection):
        banks[OWN] = model.head.features
    return {name: legibility(bank, tokens, (text.has, text.names), seed=seed) for name, bank in banks.items()}


def shown(rows: list[Row]) -> list[Any]:
    """A line for each bank that each head's tokens are read by."""
    from rich.table import Table

    out = Table("head", title="legible features: a language model read afterwards")
    for heading in ("perplexity", "bank", "MCC", "recovered, %", "shuffled, %", "1-probe", "AUC", "presence, %"):
        out.add_column(heading, justify="left" if heading == "bank" else "right")
    for row in sorted(rows, key=lambda row: (LAYERS.index(row.config["layer"]), row.name)):
        score = with_error(score for run in row.runs for score in run["result"]["score"])
        read = [banks for run in row.runs for banks in run["result"]["banks"]]
        for bank in (OWN, READING, TOKENS, RANDOM):
            found = [banks[bank] for banks in read if bank in banks]
            if found:
                out.add_row(row.config["layer"], score, bank, *_cells(found))
    return [out]


def _cells(found: list[dict[str, Any]]) -> list[str]:
    mean = lambda key: float(np.mean([one["layer"][key] for one in found]))  # noqa: E731
    shuffled = 100 * max(one["shuffled"]["recovered"] for one in found)
    presence = 100 * float(np.mean([one["presence"] for one in found]))
    recovered = with_error((100 * one["layer"]["recovered"] for one in found), ".0f")
    return [
        f"{mean('mcc'):.2f}",
        recovered,
        f"{shuffled:.0f}",
        *(f"{mean(key):.2f}" for key in ("probe", "auc")),
        f"{presence:.0f}",
    ]
