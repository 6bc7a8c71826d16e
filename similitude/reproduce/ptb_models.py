"""The networks of the Penn Treebank: made from settings, their loss and the rates of their parts."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..nn import TverskyProjection
from ..optim import parameter_groups
from .data import hub
from .record import RunError

if TYPE_CHECKING:
    from .ptb import Config


class Trunk(nn.Module):
    """Tokens ``[n, length]`` to last hidden states. Its parameters include a bank that blocks share with the head."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.transformer: nn.Module = model.get_submodule("transformer")
        self.features: nn.Module | None = getattr(model.get_submodule("lm_head"), "features", None)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.transformer(tokens, use_cache=False).last_hidden_state


def loss_of(model: nn.Module, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Mean cross entropy of each next token."""
    head, hidden, target = model.get_submodule("lm_head"), hidden[:, :-1], tokens[:, 1:]
    if isinstance(head, TverskyProjection):
        return head.cross_entropy(hidden, target)
    # A matrix product with an odd vocabulary is slow on a GPU, so rows of zeros pad it.
    weight = head.get_parameter("weight")
    padded = nn.functional.pad(weight, (0, 0, 0, -len(weight) % 64))
    # A Tversky head accumulates in 32 bits, so a linear one is not measured with logits rounded to 16 bits.
    with nullcontext() if torch.is_grad_enabled() else torch.autocast(hidden.device.type, enabled=False):
        logits = nn.functional.linear(hidden.to(weight.dtype), padded)[..., : len(weight)]
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())


def make(config: Config, vocabulary: int) -> nn.Module:
    """The model of the settings, from scratch or from a pretrained GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from ..models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    torch.manual_seed(config.seed)
    drop: dict = dict(resid_pdrop=config.dropout, embd_pdrop=config.dropout, attn_pdrop=config.dropout)
    # The same function as GPT-2's "gelu_new", in one kernel instead of eight.
    drop["activation_function"] = "gelu_pytorch_tanh"
    ends: dict = dict(bos_token_id=vocabulary - 1, eos_token_id=vocabulary - 1)
    sizes: dict = dict(n_layer=config.layers, n_embd=config.width, n_head=config.heads, vocab_size=vocabulary)
    usual: dict = {**sizes, **ends, **drop, "tie_word_embeddings": config.tied, "n_positions": max(1024, config.length)}
    names = ("num_features", "intersection", "difference", "level", "leak")
    options: dict = {name: getattr(config, name) for name in names} | {
        "variant": config.network.removeprefix("tversky-")
    }
    if config.init == "scratch":
        if config.network == "baseline":
            return GPT2LMHeadModel(GPT2Config(**usual))
        presence = config.presence if config.network == "tversky-head" else 0.5
        return TverskyGPT2LMHeadModel(TverskyGPT2Config(**usual, **options, presence=presence))
    if config.made_up and config.source == type(config).source:
        # A smoke run needs no checkpoint.
        gpt2 = GPT2LMHeadModel(GPT2Config(**{**usual, "tie_word_embeddings": True}))
    else:
        try:
            gpt2 = hub.pretrained(GPT2LMHeadModel, config.source, **drop)
        except LookupError as error:
            raise RunError(f"no GPT-2 at {config.source!r}: {error}; name a folder with --set source=FOLDER.") from None
    if gpt2.config.n_positions < config.length or gpt2.config.vocab_size < vocabulary:
        has = f"{gpt2.config.n_positions} positions and {gpt2.config.vocab_size} tokens"
        raise RunError(f"{config.source} has {has}; length {config.length} and {vocabulary} tokens are asked for.")
    if config.network == "baseline":
        gpt2.config.tie_word_embeddings = config.tied
        embedding, rows = gpt2.transformer.wte.weight, gpt2.lm_head.weight
        gpt2.lm_head.weight = embedding if config.tied else nn.Parameter(rows.detach().clone())
        return gpt2
    return TverskyGPT2LMHeadModel.from_gpt2(gpt2, tie_word_embeddings=config.tied, **options)


def distinct(model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict with each tied tensor once."""
    kept: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape)
        if key not in seen or tensor.numel() == 0:
            kept[name] = tensor
            seen.add(key)
    return kept


def groups(model: nn.Module, config: Config) -> list[dict[str, Any]]:
    """Parameter groups: weight decay for matrices only, own rates for the bank and for α and β within blocks.

    The head's α and β keep the usual rate: at ten times that rate the head overfits.
    """
    out = parameter_groups(model, config.lr, config.weight_decay, config.bank_rate)
    own = [p for name, p in model.named_parameters() if ".mlp." in name and ("alpha" in name or "beta" in name)]
    if not own:
        return out
    taken = {id(p) for p in own}
    for group in out:
        group["params"] = [p for p in group["params"] if id(p) not in taken]
    return [*out, {"params": own, "lr": config.lr * config.difference_rate, "weight_decay": 0.0}]
