"""GPT-2 and TverskyGPT-2 on the Penn Treebank: perplexity per BPE token, selected on validation, reported on test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from .. import checks
from ..form import Form
from . import Experiment
from .data import find, made_up
from .data.text import ptb
from .loop import check_finite, graphed, logged, precision, resumed, train_epochs
from .ptb_models import Trunk, distinct, groups, loss_of, make
from .record import Record, RunError, paper
from .results import FAILS, HOLDS, OPEN, Claim, Row, by_row, recipe_title
from .settings import Count, Dropout, Seed, Size, Weight, check

NETWORKS = ("baseline", "tversky-head", "tversky-all-1layer")


@dataclass(frozen=True)
class Config:
    """The paper's models and epochs. It prints no optimizer: the ``paper`` recipe has the Trainer's defaults.

    Args:
        network: "baseline" is GPT-2; the others have a Tversky head, or that and Tversky projections in all blocks.
        init: "finetuned" starts from the checkpoint that ``source`` names, by name or folder.
        tied: Whether the prototypes of the head are the token embeddings.
        presence: TverskyGPT2Config's, for tversky-head from scratch only.
        lr: The peak after ``warmup`` steps, from where ``schedule`` takes it to 0.
        bank_rate: Multiplies the learning rate of the feature bank.
        difference_rate: Multiplies the learning rate of α and β within blocks.
        made_up: Number of made-up tokens, for a smoke run; 0 for the treebank.
    """

    network: Literal["baseline", "tversky-head", "tversky-all-1layer"] = "tversky-all-1layer"
    init: Literal["scratch", "finetuned"] = "scratch"
    source: str = "gpt2"
    tied: bool = True
    num_features: Count = 8192
    presence: float = 0.5
    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "set"
    epochs: Count = 50
    batch: Count = 16
    length: Count = 512
    lr: Weight = 5e-5
    bank_rate: Weight = 1.0
    difference_rate: Weight = 1.0
    leak: float = 0.0
    weight_decay: Weight = 0.0
    warmup: Size = 0
    schedule: Literal["linear", "cosine"] = "linear"
    dropout: Dropout = 0.1
    clip: Weight = 1.0
    layers: Count = 12
    width: Count = 768
    heads: Count = 12
    checkpoint_every: Count = 5
    seed: Seed = 0
    made_up: Size = 0

    def __post_init__(self) -> None:
        check(self)
        if self.length < 2 or self.width % self.heads:
            raise ValueError("length must be 2 or more, and width a multiple of heads.")
        Form.of(self.intersection, self.difference, self.level, leak=self.leak)
        checks.check_presence(self.presence)


RECIPES = {
    "paper": Config(),
    # Settings that suit the linear baseline; each network gets its own best of several rates. The bank does not train:
    # the higher its rate, the worse all-1layer was.
    "tuned": Config(
        presence=0.75,
        level="feature",
        epochs=8,
        lr=1e-3,
        warmup=100,
        schedule="cosine",
        weight_decay=0.1,
        bank_rate=0.0,
        difference_rate=10.0,
    ),
}

# Each network with the K and the reductions of the paper's best validation; rows that need OpenAI's weights come last.
_BEST = """
    init=scratch network=baseline tied=True
    init=scratch network=baseline tied=False
    init=scratch network=tversky-head tied=True num_features=4096 intersection=product difference=subtractmatch
    init=scratch network=tversky-head tied=False num_features=4096 intersection=product difference=subtractmatch
    init=scratch network=tversky-all-1layer tied=True num_features=8192 intersection=min difference=ignorematch
    init=scratch network=tversky-all-1layer tied=False num_features=4096 intersection=product difference=ignorematch
    init=finetuned network=baseline tied=True
    init=finetuned network=baseline tied=False
    init=finetuned network=tversky-head tied=True num_features=32768 intersection=product difference=ignorematch
    init=finetuned network=tversky-head tied=False num_features=16384 intersection=product difference=ignorematch
"""
_RATES = {
    "baseline": ("6e-4", "1e-3", "1.5e-3", "2e-3"),
    "tversky-head": ("7e-4", "1e-3", "1.5e-3"),
    "tversky-all-1layer": ("7e-4", "1e-3", "1.5e-3"),
}
ROWS: dict[str, Any] = {
    "paper": [line.split() for line in _BEST.strip().splitlines()],
    "tuned": [[f"network={network}", f"lr={lr}"] for network, rates in _RATES.items() for lr in rates],
}
SMOKE = Config(
    num_features=16,
    epochs=2,
    batch=4,
    length=16,
    layers=2,
    width=16,
    heads=2,
    checkpoint_every=1,
    made_up=2000,
    lr=1e-3,
)


def run(config: Config, record: Record, progress: Callable[..., object]) -> dict[str, Any]:
    """Validation and test perplexity of the epoch with the best validation perplexity, and the curve."""
    text = made_up.synthetic_text(config.made_up) if config.made_up else ptb()
    record.hashes.update(text.hashes)
    if config.init == "finetuned":
        record.hashes["model"] = find.fingerprint(config.source)
    tokens = {name: getattr(text, name).to(record.device) for name in ("train", "valid", "test")}
    if len(tokens["train"]) < config.length * (config.batch + 1):
        raise RunError(f"{len(tokens['train'])} tokens are too few for a batch of {config.batch} × {config.length}.")
    if min(len(tokens["valid"]), len(tokens["test"])) < config.length:
        raise RunError(f"the validation and test parts need {config.length} tokens or more; try a shorter length.")
    model = make(config, text.vocabulary).to(record.device)
    optimizer = torch.optim.AdamW(groups(model, config), config.lr, fused=record.device == "cuda")
    steps = len(blocks(config, tokens["train"], 0)) // config.batch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step, steps * config.epochs))
    kept: dict = {"curve": [], "best": {"valid": math.inf}, "speeds": []}
    selected: dict[str, Tensor] = {}

    def resume(tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        model.load_state_dict(tensors, strict=False)
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        kept.update({name: state[name] for name in kept})
        selected.update(record.load_best())

    done = resumed(record, resume, distinct(model))
    trunk: nn.Module = Trunk(model.train())
    if record.device == "cuda":
        trunk = graphed(trunk, blocks(config, tokens["train"], 0)[: config.batch])

    def train(epoch: int, tell: Callable[..., None]) -> float:
        say = lambda step, steps, loss: tell(step, steps, f"epoch {epoch}", loss=loss, valid=kept["best"]["valid"])  # noqa: E731
        loss, speed = one_epoch(config, model, trunk, optimizer, schedule, tokens["train"], say)
        kept["speeds"].append(speed)
        return loss

    def evaluate(epoch: int, loss: float) -> dict[str, float]:
        valid = perplexity(config, model, tokens["valid"])
        check_finite("the validation perplexity", valid, epoch, config)
        kept["curve"].append([epoch, loss, valid])
        if valid < kept["best"]["valid"]:
            kept["best"] = {"epoch": epoch, "valid": valid, "test": perplexity(config, model, tokens["test"])}
            selected.update({name: tensor.detach().clone() for name, tensor in distinct(model).items()})
        constants = logged(getattr(model, "lm_head", None))
        return {"loss": loss, "valid": valid, "tokens_per_second": kept["speeds"][-1], **constants}

    def keep() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
        return distinct(model), states | kept, selected

    train_epochs(config, record, progress, done, train, evaluate, keep, config.checkpoint_every, measure_all=True)
    parameters = sum(p.numel() for p in model.parameters())
    speed = float(np.median(kept["speeds"]))
    return {**kept["best"], "parameters": parameters, "tokens_per_second": speed, "curve": kept["curve"]}


def rate(config: Config, step: int, steps: int) -> float:
    """Share of the peak rate at a step."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    left = 1 - (step - config.warmup) / max(1, steps - config.warmup)
    return max(0.0, left) if config.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * max(0.0, left))


def blocks(config: Config, tokens: Tensor, offset: int) -> Tensor:
    """The text from an offset on, in pieces ``[n, length]``."""
    n = (len(tokens) - config.length) // config.length
    return tokens[offset : offset + n * config.length].view(n, config.length)


def one_epoch(
    config: Config, model: nn.Module, trunk: nn.Module, optimizer: Any, schedule: Any, tokens: Tensor, say: Any
) -> tuple[float, float]:
    """Trains on the text once, and returns the mean loss and tokens a second."""
    model.train()
    pieces = blocks(config, tokens, int(torch.randint(config.length, ())))
    order = torch.randperm(len(pieces)).to(tokens.device)
    losses, start, steps = [], time.perf_counter(), len(pieces) // config.batch
    for step in range(steps):
        batch = pieces[order[step * config.batch : (step + 1) * config.batch]]
        with precision(tokens):
            loss = loss_of(model, trunk(batch), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 20 == 19 or step + 1 == steps:
            say(step + 1, steps, loss.item())
    mean = torch.stack(losses).mean().item()
    return mean, steps * config.batch * config.length / (time.perf_counter() - start)


@torch.no_grad()
def perplexity(config: Config, model: nn.Module, tokens: Tensor) -> float:
    """exp of the mean loss over all tokens but the first of each piece; the last piece may be shorter."""
    model.eval()
    total, count, whole = 0.0, 0, len(tokens) // config.length * config.length
    batches = list(tokens[:whole].view(-1, config.length).split(config.batch))
    for batch in batches + ([tokens[None, whole:]] if len(tokens) > whole + 1 else []):
        with precision(tokens):
            loss = loss_of(model, Trunk(model)(batch), batch)
        predicted = batch.shape[0] * (batch.shape[1] - 1)
        total, count = total + loss.item() * predicted, count + predicted
    return math.exp(min(total / count, 700))


def named(config: dict[str, Any]) -> str:
    return f"{config['network']}, {config['init']}, {'tied' if config['tied'] else 'untied'}"


def summary(content: dict[str, Any]) -> list[Any]:
    r, c = content["result"], content["config"]
    return [
        f"{named(c)}{' on made-up text' if c['made_up'] else ''}: {r['parameters']:,} parameters, "
        f"test perplexity {r['test']:.2f}, validation {r['valid']:.2f} after epoch {r['epoch']} of {c['epochs']}"
    ]


# Settings that tell the rows of the paper's tables apart; the tuned recipe's rows differ by their rate too.
ROW = {"network", "init", "source", "tied", "num_features", "intersection", "difference", "level"}


def tables(runs: list[dict[str, Any]]) -> list[Any]:
    """The paper's tables with ours beside them, and each row of the tuned recipe.

    Of several rows for one line of the paper's tables, the one with the best validation perplexity is shown.
    """
    groups = by_row(runs)
    tested = {recipe: _comparable(groups, recipe) for recipe in RECIPES}
    titles = {"scratch": "from scratch", "finetuned": "from OpenAI's weights"}
    out = [_test_table(tested, init, title) for init, title in titles.items()]
    out += _validation_table(tested["paper"])
    return out + _tuned_table([row for row in groups if row.recipe == "tuned"])


def _comparable(groups: list[Row], recipe: str) -> list[Row]:
    """The recipe's rows that differ from it by settings of the paper's tables alone, or by the rate if it is tuned."""
    names = ROW | ({"lr"} if recipe == "tuned" else set())
    return [row for row in groups if row.recipe == recipe and row.settings.keys() <= names]


def _kind(config: dict) -> tuple[str, str, bool]:
    return config["network"], config["init"], config["tied"]


def best(groups: list[Row], kind: tuple[str, str, bool]) -> Row | None:
    """The row of a network, its start and ties with the best validation perplexity."""
    own = [row for row in groups if _kind(row.config) == kind]
    return min(own, key=lambda row: row.mean("valid"), default=None)


def _test_table(tested: dict[str, list[Row]], init: str, title: str):
    from rich.table import Table

    table = Table("network", "tied", title=f"test perplexity on the Penn Treebank, {title}")
    for heading in ("K", "parameters", "paper", "ours, paper's recipe", "ours, tuned"):
        table.add_column(heading, justify="right")
    lines = {(r["model"], r["tied_prototypes"]): r for r in paper("ptb_test_perplexity") if r["init"] == init}
    others = [(network, tied) for network in NETWORKS for tied in "YN"] if init == "scratch" else []
    for network, tied in dict.fromkeys([*lines, *others]):
        found = [best(groups, (network, init, tied == "Y")) for groups in tested.values()]
        table.add_row(*_test_cells(network, tied, lines.get((network, tied), {}), found))
    return table


def _test_cells(network: str, tied: str, line: dict[str, str], found: list[Row | None]) -> list[str]:
    """A line of the paper's table, or of none of its lines, beside the row that was found for each recipe."""
    ours = next((row for row in found if row), None)
    theirs, K, count = (line.get(name, "") for name in ("perplexity", "num_features", "params"))
    if ours:
        K = K if line else str(ours.config["num_features"])
        count = count or ours.runs[0]["result"]["parameters"]
    parameters = f"{int(count) / 1e6:.1f} M" if count else "–"
    cells = [row.cell("test", theirs=theirs) + _other_size(row, K) if row else "not run" for row in found]
    return [_short(network), "yes" if tied == "Y" else "no", K or "–", parameters, theirs or "–", *cells]


def _validation_table(groups: list[Row]) -> list:
    """The lines of the paper's table on the validation part whose settings were run."""
    from rich.table import Table

    lines = paper("ptb_validation_perplexity")
    table = Table(
        "network", "tied", title=f"validation perplexity, the paper's recipe; ours of its {len(lines)} settings"
    )
    for heading in ("K", "reductions", "paper", "ours"):
        table.add_column(heading, justify="right" if heading != "reductions" else "left")
    for row in sorted(groups, key=lambda row: NETWORKS.index(row.config["network"])):
        c = row.config
        names = () if c["network"] == "baseline" else ("num_features", "intersection", "difference")
        known = {"model": c["network"], "init": c["init"], "tied_prototypes": "Y" if c["tied"] else "N"}
        known |= {name: str(c[name]) for name in names}
        line = next((line for line in lines if known.items() <= line.items()), None)
        if line and c["level"] == "set":
            what = (str(c["num_features"]), f"{c['intersection']} + {c['difference']}") if names else ("–", "–")
            theirs = line["perplexity"]
            cells = (*what, theirs, row.cell("valid", theirs=theirs))
            table.add_row(_short(c["network"]), "yes" if c["tied"] else "no", *cells)
    return [table] if table.row_count else []


def _tuned_table(groups: list[Row]) -> list:
    from rich.table import Table

    table = Table("network", "tied", title="the tuned recipe, by learning rate and K")
    for heading in ("K", "lr", "parameters", "validation", "test", "seeds"):
        table.add_column(heading, justify="right")
    for row in sorted(groups, key=lambda row: (NETWORKS.index(row.config["network"]), row.mean("valid"))):
        c = row.config
        others = "".join(f", {key} {value}" for key, value in row.settings.items() if key not in ROW | {"lr"})
        parameters = f"{row.runs[0]['result']['parameters'] / 1e6:.1f} M"
        cells = parameters, f"{row.mean('valid'):.2f}{row.star}", row.cell("test"), str(len(row.runs))
        K = "–" if c["network"] == "baseline" else str(c["num_features"])
        table.add_row(_short(c["network"]) + others, "yes" if c["tied"] else "no", K, f"{c['lr']:g}", *cells)
    return [table] if table.row_count else []


def _other_size(row: Row, K: str) -> str:
    """The size of the row's bank if it is not the line's."""
    c = row.config
    return "" if c["network"] == "baseline" or str(c["num_features"]) == K else f" (K {c['num_features']})"


def _short(network: str) -> str:
    """The name without its common start, so that tables fit 80 columns."""
    return network.removeprefix("tversky-")


def claims(runs: list[dict[str, Any]]) -> list[Claim]:
    groups = by_row(runs)
    all_1layer, head = "tversky-all-1layer", "tversky-head"
    against = ((all_1layer, "scratch", True), (all_1layer, "scratch", False), (head, "finetuned", False))
    return [_claim(groups, *kind) for kind in against]


def _claim(groups: list[Row], network: str, init: str, tied: bool) -> Claim:
    """Whether a network has less perplexity than our best baseline of its kind, whatever the baseline's recipe."""
    lines = {(r["model"], r["init"], r["tied_prototypes"] == "Y"): r for r in paper("ptb_test_perplexity")}
    kinds = [(name, init, tied) for name in ("baseline", network)]
    theirs, sizes = ([float(lines[kind][name]) for kind in kinds] for name in ("perplexity", "params"))
    start = "from scratch" if init == "scratch" else "from OpenAI's weights"
    says = (
        f"GPT-2 {start}, {'tied' if tied else 'untied'}: against the linear baseline, {network} has "
        f"{_change(*theirs)} % perplexity and {_change(*sizes)} % parameters."
    )
    pairs = {name: [best(_comparable(groups, name), kind) for kind in kinds] for name in RECIPES}
    found = {name: [row for row in pair if row] for name, pair in pairs.items() if all(pair)}
    ours = (f"{recipe_title(name)}: {' → '.join(map(_starred, pair))}" for name, pair in found.items())
    return Claim(says, _verdict(found), " → ".join(f"{value:.2f}" for value in theirs), "; ".join(ours) or "not run")


def _verdict(found: dict[str, list[Row]]) -> str:
    if not found:
        return OPEN
    baseline, own = (min(pair[i].mean("test") for pair in found.values()) for i in (0, 1))
    return HOLDS if own < baseline else FAILS


def _change(before: float, after: float) -> str:
    """+1.2 for 1.2 % more, with a true minus sign."""
    return f"{100 * (after / before - 1):+.1f}".replace("-", "−")


def _starred(row: Row) -> str:
    """The test perplexity, with a star that Markdown shows."""
    return row.cell("test").replace("*", r"\*")


EXPERIMENT = Experiment(
    "ptb", "Penn Treebank", Config, RECIPES, SMOKE, run, summary, tables, claims, rows=ROWS, figures="ptb.of_ptb"
)
