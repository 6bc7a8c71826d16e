"""GPT-2 and TverskyGPT-2 on the Penn Treebank: perplexity per BPE token, picked on validation and reported on test."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from .. import checks
from ..form import Form
from ..nn import TverskyProjection
from ..optim import parameter_groups
from .data import find, hub, made_up
from .data.text import ptb
from .loop import constants, graphed, precision
from .record import Record, RunError

MODELS = ("baseline", "tversky-head", "tversky-all-1layer")


NOTE = """
GPT-2 small, and Tversky variants of it, on the Penn Treebank; perplexity per BPE token. The paper prints no optimiser.
Rows that start from OpenAI's weights need them: `--set init=finetuned --set source=FOLDER`.

**What does not hold:** with the Trainer's defaults our linear baselines end at a third of the paper's perplexity, and
all that is Tversky ends behind them, if far ahead of the paper's own: a head by a tenth or less, all-1layer, which the
paper has ahead, by a quarter untied and by two thirds tied, where it still learns when its epochs end. Under the tuned
recipe, 8 epochs instead of 50 at the best of three or four rates, one seed, a Tversky head is level with linear, a
little ahead on both parts, and all-1layer, with 35 % fewer parameters, is a tenth behind. The best rates of linear and
of all-1layer are the lowest that were tried.

Runs with a star are of before a mend: the ends of the validation and test parts were not read and, but for two runs of
the tuned recipe, the first 8,192 tokens of 1,174,722 of the training text were written over with copies of others. With
the training text whole a linear head came out 0.4 % lower on the test part and 0.3 % higher on the validation part, a
Tversky head 0.5 and 0.8 % lower.
"""


@dataclass(frozen=True)
class Config:
    """The paper's models and epochs. It prints no optimiser: the ``paper`` recipe has the Trainer's defaults.

    source: a GPT-2 checkpoint, by name or folder, for ``init="finetuned"``. lr is the peak after ``warmup`` steps, from
    where it falls to 0 as ``schedule`` says; bank_rate, difference_rate: the feature bank's share of it, and that of α
    and β within blocks. presence: TverskyGPT2Config's, of tversky-head from scratch alone. text: made-up tokens instead
    of the treebank's, for a smoke run.
    """

    model: str = "tversky-all-1layer"
    init: str = "scratch"
    source: str = "gpt2"
    tied: bool = True
    num_features: int = 8192
    presence: float = 0.5
    intersection: str = "product"
    difference: str = "ignorematch"
    level: str = "set"
    epochs: int = 50
    batch: int = 16
    length: int = 512
    lr: float = 5e-5
    bank_rate: float = 1.0
    difference_rate: float = 1.0
    leak: float = 0.0
    weight_decay: float = 0.0
    warmup: int = 0
    schedule: str = "linear"
    dropout: float = 0.1
    clip: float = 1.0
    layers: int = 12
    width: int = 768
    heads: int = 12
    checkpoint_every: int = 5
    seed: int = 0
    text: int = 0

    def __post_init__(self):
        for name, choices in (
            ("model", MODELS),
            ("init", ("scratch", "finetuned")),
            ("schedule", ("linear", "cosine")),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {getattr(self, name)!r}.")
        if min(self.num_features, self.epochs, self.batch, self.length, self.checkpoint_every) < 1:
            raise ValueError("num_features, epochs, batch, length and checkpoint_every must be 1 or more.")
        if self.width % max(1, self.heads) or min(self.layers, self.width, self.heads, self.length - 1) < 1:
            raise ValueError("length must be 2 or more, layers and heads 1 or more, and width a multiple of heads.")
        Form.of(self.intersection, self.difference, self.level, leak=self.leak)
        checks.check_presence(self.presence)


RECIPES = {
    "paper": Config(),
    # What serves the linear baseline well; each model is given its own best rate of several. The bank stays
    # as it starts: the more of the rate it got, the worse all-1layer was.
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

# Each model at the K and the reductions that are the paper's best on validation; those that need OpenAI's weights last.
_BEST = """
    init=scratch model=baseline tied=True
    init=scratch model=baseline tied=False
    init=scratch model=tversky-head tied=True num_features=4096 intersection=product difference=subtractmatch
    init=scratch model=tversky-head tied=False num_features=4096 intersection=product difference=subtractmatch
    init=scratch model=tversky-all-1layer tied=True num_features=8192 intersection=min difference=ignorematch
    init=scratch model=tversky-all-1layer tied=False num_features=4096 intersection=product difference=ignorematch
    init=finetuned model=baseline tied=True
    init=finetuned model=baseline tied=False
    init=finetuned model=tversky-head tied=True num_features=32768 intersection=product difference=ignorematch
    init=finetuned model=tversky-head tied=False num_features=16384 intersection=product difference=ignorematch
"""
_RATES = {
    "baseline": ("6e-4", "1e-3", "1.5e-3", "2e-3"),
    "tversky-head": ("7e-4", "1e-3", "1.5e-3"),
    "tversky-all-1layer": ("7e-4", "1e-3", "1.5e-3"),
}
ROWS = {
    "paper": [line.split() for line in _BEST.strip().splitlines()],
    "tuned": [[f"model={model}", f"lr={lr}"] for model, rates in _RATES.items() for lr in rates],
}
SMOKE = Config(
    num_features=16, epochs=2, batch=4, length=16, layers=2, width=16, heads=2, checkpoint_every=1, text=2000, lr=1e-3
)


def run(config: Config, record: Record, report: Callable[..., None]) -> dict:
    """Test perplexity at the epoch with the best validation perplexity. A stopped run goes on after a checkpoint."""
    text = made_up.synthetic_text(config.text) if config.text else ptb()
    record.hashes.update(text.hashes)
    if config.init == "finetuned":
        record.hashes["model"] = find.fingerprint(config.source)
    parts = {name: getattr(text, name).to(record.device) for name in ("train", "valid", "test")}
    if len(parts["train"]) < config.length * (config.batch + 1):
        raise RunError(f"{len(parts['train'])} tokens are too few for a batch of {config.batch} × {config.length}.")
    if min(len(parts["valid"]), len(parts["test"])) < config.length:
        raise RunError(f"the validation and test parts need {config.length} tokens or more; try a shorter length.")
    model = make(config, text.vocabulary).to(record.device)
    optimizer = torch.optim.AdamW(groups(model, config), config.lr, fused=record.device == "cuda")
    steps = len(blocks(config, parts["train"], 0)) // config.batch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(config, step, steps * config.epochs))
    done, tensors, state = record.load(distinct(model)) or (0, {}, {})
    if done:
        model.load_state_dict(tensors, strict=False)
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
    curve: list[list[float]] = state.get("curve", [])
    best: dict = state.get("best", {"valid": math.inf})
    best_tensors = record.load_best() if done else {}
    speeds: list[float] = state.get("speeds", [])
    model.train()
    trunk: nn.Module = Trunk(model)
    if record.device == "cuda":
        trunk = graphed(trunk, blocks(config, parts["train"], 0)[: config.batch])
    for epoch in range(done + 1, config.epochs + 1):
        tell = lambda step, loss, e=epoch, v=best["valid"]: report(  # noqa: E731
            (e - 1) * steps + step, config.epochs * steps, f"epoch {e}", loss=loss, valid=v
        )
        loss, speed = train(config, model, trunk, optimizer, schedule, parts["train"], epoch, tell)
        speeds.append(speed)
        valid = perplexity(config, model, parts["valid"])
        if not math.isfinite(valid):
            raise RunError(f"the validation loss of epoch {epoch} is not finite; try a lower lr than {config.lr}.")
        curve.append([epoch, loss, valid])
        if valid < best["valid"]:
            best = {"epoch": epoch, "valid": valid, "test": perplexity(config, model, parts["test"])}
            best_tensors = {name: tensor.detach().clone() for name, tensor in distinct(model).items()}
        record.log(epoch, loss=loss, valid=valid, tokens_per_second=speed, **constants(getattr(model, "lm_head", None)))
        if epoch % config.checkpoint_every == 0 or epoch == config.epochs:
            so_far = {
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "curve": curve,
                "best": best,
                "speeds": speeds,
            }
            record.save(epoch, distinct(model), so_far, best_tensors)
    parameters = sum(p.numel() for p in model.parameters())
    return {**best, "parameters": parameters, "tokens_per_second": float(np.median(speeds)), "curve": curve}


class Trunk(nn.Module):
    """Tokens ``[n, length]`` to last hidden states. A bank that blocks share with the head is its parameter as well."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.transformer = model.get_submodule("transformer")
        self.features = getattr(model.get_submodule("lm_head"), "features", None)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.transformer(tokens, use_cache=False).last_hidden_state


def loss_of(model: nn.Module, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of each next token."""
    head, hidden, target = model.get_submodule("lm_head"), hidden[:, :-1], tokens[:, 1:]
    if isinstance(head, TverskyProjection):
        return head.cross_entropy(hidden, target)
    # Products with an odd vocabulary are slow on a GPU: zeros fill it up.
    weight = head.get_parameter("weight")
    padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % 64))
    # A Tversky head adds up in 32 bits: what is measured of a linear one is not to be rounded to 16 either.
    with nullcontext() if torch.is_grad_enabled() else torch.autocast(hidden.device.type, enabled=False):
        logits = nn.functional.linear(hidden.to(weight.dtype), padded)[..., : len(weight)]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def make(config: Config, vocabulary: int) -> nn.Module:
    """The model that the settings name, started from scratch or from a pretrained GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from ..models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    torch.manual_seed(config.seed)
    drop: dict = dict(resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.dropout)
    # GPT-2's own function in one kernel, where "gelu_new" takes eight.
    drop["activation_function"] = "gelu_pytorch_tanh"
    ends: dict = dict(bos_token_id=vocabulary - 1, eos_token_id=vocabulary - 1)
    sizes: dict = dict(n_layer=config.layers, n_embd=config.width, n_head=config.heads, vocab_size=vocabulary)
    usual: dict = {**sizes, **ends, **drop, "tie_word_embeddings": config.tied, "n_positions": max(1024, config.length)}
    names = ("num_features", "intersection", "difference", "level", "leak")
    options: dict = {name: getattr(config, name) for name in names} | {"variant": config.model.removeprefix("tversky-")}
    if config.init == "scratch":
        if config.model == "baseline":
            return GPT2LMHeadModel(GPT2Config(**usual))
        presence = config.presence if config.model == "tversky-head" else 0.5
        return TverskyGPT2LMHeadModel(TverskyGPT2Config(**usual, **options, presence=presence))
    if config.text and config.source == Config.source:
        # Made-up text has a made-up checkpoint.
        gpt2 = GPT2LMHeadModel(GPT2Config(**{**usual, "tie_word_embeddings": True}))
    else:
        try:
            gpt2 = hub.pretrained(GPT2LMHeadModel, config.source, **drop)
        except LookupError as error:
            raise RunError(
                f"no GPT-2 at {config.source!r}: {error}; give --set init=finetuned --set source=FOLDER."
            ) from None
    if gpt2.config.n_positions < config.length or gpt2.config.vocab_size < vocabulary:
        has = f"{gpt2.config.n_positions} positions and {gpt2.config.vocab_size} tokens"
        raise RunError(f"{config.source} has {has}; length {config.length} and {vocabulary} tokens are asked for.")
    if config.model == "baseline":
        gpt2.config.tie_word_embeddings = config.tied
        embedding, rows = gpt2.transformer.wte.weight, gpt2.lm_head.weight
        gpt2.lm_head.weight = embedding if config.tied else nn.Parameter(rows.detach().clone())
        return gpt2
    return TverskyGPT2LMHeadModel.from_gpt2(gpt2, tie_word_embeddings=config.tied, **options)


def distinct(model: nn.Module) -> dict[str, Tensor]:
    """The model's state, with what is tied stored once."""
    kept: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in seen or tensor.numel() == 0:
            kept[name] = tensor
            seen.add(key)
    return kept


def groups(model: nn.Module, config: Config) -> list[dict]:
    """Weight decay for matrices alone; the bank, and α and β within blocks, at rates of their own.

    The head's α and β are at the usual rate: at ten times it the head overfits.
    """
    out = parameter_groups(model, config.lr, config.weight_decay, config.bank_rate)
    own = [p for name, p in model.named_parameters() if ".mlp." in name and ("alpha" in name or "beta" in name)]
    if not own:
        return out
    taken = {id(p) for p in own}
    for group in out:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    return [*out, {"params": own, "lr": config.lr * config.difference_rate, "weight_decay": 0.0}]


def rate(config: Config, step: int, steps: int) -> float:
    """Share of the peak rate at a step."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    left = 1 - (step - config.warmup) / max(1, steps - config.warmup)
    return max(0.0, left) if config.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * max(0.0, left))


def blocks(config: Config, tokens: Tensor, offset: int) -> Tensor:
    """The text cut into pieces of ``length``, ``[n, length]``, from an offset on."""
    n = (len(tokens) - config.length) // config.length
    return tokens[offset : offset + n * config.length].view(n, config.length)


def train(config: Config, model, trunk, optimizer, schedule, tokens: Tensor, epoch: int, tell) -> tuple[float, float]:
    """One epoch: its mean loss and tokens a second. What is random depends on seed and epoch alone."""
    model.train()
    torch.manual_seed(config.seed * 100_003 + epoch)
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
            tell(step + 1, loss.item())
    mean = torch.stack(losses).mean().item()
    if not math.isfinite(mean):
        raise RunError(f"the loss of epoch {epoch} is {mean}; try a lower lr than {config.lr}.")
    return mean, steps * config.batch * config.length / (time.perf_counter() - start)


@torch.no_grad()
def perplexity(config: Config, model: nn.Module, tokens: Tensor) -> float:
    """exp of the mean loss over all tokens but the first of each piece; the last piece is what is left."""
    model.eval()
    total, count, whole = 0.0, 0, len(tokens) // config.length * config.length
    batches = list(tokens[:whole].view(-1, config.length).split(config.batch))
    for batch in batches + ([tokens[None, whole:]] if len(tokens) > whole + 1 else []):
        with precision(tokens):
            loss = loss_of(model, Trunk(model)(batch), batch)
        predicted = batch.shape[0] * (batch.shape[1] - 1)
        total, count = total + loss.item() * predicted, count + predicted
    return math.exp(min(total / count, 700))


def summary(whole: dict) -> list:
    r, c = whole["result"], whole["config"]
    what = f"{c['model']}, {c['init']}, {'tied' if c['tied'] else 'untied'}{' on made-up text' if c['text'] else ''}"
    return [
        f"{what}: {r['parameters']:,} parameters, "
        f"test perplexity {r['test']:.2f}, validation {r['valid']:.2f} after epoch {r['epoch']} of {c['epochs']}"
    ]


def compare(results: list[dict]) -> list:
    from .tables_ptb import compare

    return compare(results)
