"""TverskyGPT-2: a GPT-2 of transformers with a Tversky head and, in one variant, Tversky MLPs.

Importing this file registers it with AutoConfig and AutoModelForCausalLM.
"""

from __future__ import annotations

import copy
import difflib
import math
from contextlib import nullcontext
from dataclasses import fields
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from .. import checks
from ..initialize import SEED, SHARE, SPREAD, TILT, lean_, linear_spread
from ..names import Notes
from ..nn import FeatureBank, TverskyProjection
from .hf import TverskyOptions, TverskyPreTrained, is_missing, load

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationMixin,
        GPT2Config,
        GPT2LMHeadModel,
        GPT2Model,
        GPT2PreTrainedModel,
    )
    from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
    from transformers.utils.generic import can_return_tuple
except ImportError as error:
    raise ImportError(f"similitude.models.gpt2 needs transformers: pip install 'similitude[hf]' ({error}).") from error

__all__ = ["TverskyGPT2Config", "TverskyGPT2LMHeadModel"]

VARIANTS = ("head", "all-1layer")
# Presence of a new head, and the part of the common measure that α's difference takes away if it is above a half.
PRESENCE, LEANING_SHARE = 0.75, 0.01
# A new head has that presence if all of these have their defaults.
LEANING = ("variant", "intersection", "difference", "level", "model", "normalize", "alpha", "beta", "theta", "init")
SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")


class TverskyGPT2Config(TverskyOptions, GPT2Config):
    """GPT2Config and the options of the Tversky layers.

    Args:
        variant: "head", or "all-1layer", in which each block's MLP is also one projection, on the head's feature bank.
        num_features: size of the bank.
        tie_word_embeddings: whether the head's prototypes are the token embedding.
        presence: fraction of features that hidden states have at the start. Below 0.5 the bank has thresholds, as a
            FeatureBank's ``presence`` gives it. From 0.5 on features lean towards the mean of hidden states, and
            prototypes have them as often; that is for new "head" models only. None is 0.75 with calibrated product +
            ignorematch at feature level, where we measured a gain, and 0.5 otherwise.
        hold: whether thresholds keep that presence, as in FeatureBank.
        bias: whether the head has a bias for each token. With ``hold`` it needs one, for the tokens' frequencies.
        kwargs: the other options are those of GPT2Config and of TverskyProjection; ``init`` applies to the bank and
            to prototypes that are not the token embedding.
    """

    model_type = "tversky_gpt2"

    variant: str = "head"
    num_features: int = 2048
    bias: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if not isinstance(self.bias, bool):
            raise ValueError(f"bias must be True or False; got {self.bias!r}.")
        checks.check_choice("variant", self.variant, VARIANTS)
        if self.presence is not None and checks.check_presence(self.presence) > 0.5:
            for name, needed in (("init", "calibrated"), ("variant", "head")):
                if getattr(self, name) != needed:
                    got = f"{name}={getattr(self, name)!r}"
                    raise ValueError(f"presence={self.presence} needs {name}={needed!r}; got {got}.")
        # A layer on meta takes no memory, and checks its options.
        bank = FeatureBank(self.num_features, 1, device="meta", init=self.init, **self.thresholds())
        self.settle(TverskyProjection(1, 1, features=bank, **self.layer_options()))

    def thresholds(self) -> dict[str, Any]:
        """Options of a bank with thresholds, where there are some."""
        cut = self.presence is not None and self.presence < 0.5
        return {"presence": self.presence if cut else None, "hold": self.hold}


class TverskyGPT2PreTrainedModel(TverskyPreTrained, GPT2PreTrainedModel):
    """GPT2PreTrainedModel whose Tversky layers get their starting values."""

    config_class: Any = TverskyGPT2Config

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # With custom code transformers skips modules without parameters of their own: GPT-2's attention and MLP, whose
        # output weights would stay √(2·n_layer) times too large.
        super()._initialize_weights(module)


class TverskyMLP(nn.Module):
    """One projection instead of a block's c_fc, gelu and c_proj, followed by GPT-2's dropout."""

    def __init__(self, config: TverskyGPT2Config, features: FeatureBank):
        super().__init__()
        dim = config.n_embd
        # As in GPT-2, a block adds less to the residual stream the more blocks there are.
        spread = SPREAD / math.sqrt(2 * config.n_layer)
        self.projection: TverskyProjection = TverskyProjection(
            dim, dim, features=features, spread=spread, **config.layer_options()
        )
        # The bank is a child of the head alone. So it has one name in every state dict, and a block has no parameters
        # of other modules, as FSDP needs.
        del self.projection.features
        self.projection.__dict__["features"] = features
        self.dropout: nn.Module = nn.Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(self.projection(hidden_states))


class TverskyGPT2Model(TverskyGPT2PreTrainedModel, GPT2Model):
    """GPT-2 up to its last hidden states; in "all-1layer" its MLPs use the given bank."""

    def __init__(self, config: TverskyGPT2Config, features: FeatureBank):
        super().__init__(config)
        if checks.check_choice("variant", config.variant, VARIANTS) == "all-1layer":
            for block in self.h:
                block.mlp = TverskyMLP(config, features)


class TverskyGPT2LMHeadModel(TverskyGPT2PreTrainedModel, GenerationMixin):
    """A GPT-2 whose logits are similarities of the hidden state to a prototype per token, used like GPT2LMHeadModel.

    ``from_gpt2("gpt2", num_features=8192)`` starts from a pretrained GPT-2. Do not use Trainer's
    ``label_smoothing_factor``, which does not shift labels for models outside of transformers.

    Args:
        config: a TverskyGPT2Config.
    """

    # Whether features are still to be turned to the start's presence.
    leans = False
    _tied_weights_keys = {"lm_head.prototypes": "transformer.wte.weight"}  # noqa: RUF012

    def __init__(self, config: TverskyGPT2Config):
        if not isinstance(config, TverskyGPT2Config):
            given = type(config).__name__
            raise TypeError(f"config must be a TverskyGPT2Config; got {given}: for a GPT-2 that exists use from_gpt2.")
        super().__init__(config)
        # Tells Trainer that labels are shifted, so that it does not count a row's first token as a target.
        self.loss_type: str = "ForCausalLM"
        leans = all(getattr(config, name) == getattr(TverskyGPT2Config, name) for name in LEANING)
        presence = config.presence or (PRESENCE if leans else 0.5)
        features = FeatureBank(config.num_features, config.n_embd, init=config.init, **config.thresholds())
        if config.feature_notes:
            features.note(Notes.of(config.feature_notes, config.num_features))
        self.transformer: TverskyGPT2Model = TverskyGPT2Model(config, features)
        self.lm_head: TverskyProjection = TverskyProjection(
            config.n_embd,
            config.vocab_size,
            features=features,
            alpha_share=SHARE if presence <= 0.5 else LEANING_SHARE,
            prototypes=nn.Module.get_parameter(self.transformer, "wte.weight") if config.tie_word_embeddings else None,
            bias=config.bias,
            **config.layer_options(),
        )
        if config.tie_word_embeddings and features.weight.is_meta:
            # transformers ties after loading. Tied before, neither name counts as missing where both are.
            self.lm_head.prototypes = nn.Parameter(torch.empty_like(self.lm_head.prototypes))
        self.presence = presence
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            # transformers comes to the whole model last. Pretrained hidden states are kept as they are.
            prototypes = self.transformer.wte.weight if self.config.tie_word_embeddings else self.lm_head.prototypes
            new = (prototypes, self.lm_head.features.weight, self.transformer.ln_f.bias)
            self.leans = self.presence > 0.5 and all(map(is_missing, new))

    def tie_weights(self, *args: Any, **kwargs: Any) -> None:
        super().tie_weights(*args, **kwargs)
        if self.leans:
            self.leans = False
            self._lean(self.presence)

    @torch.no_grad()
    def _lean(self, presence: float) -> None:
        """Turns features to the diagonal, which a layer norm removes, and shifts hidden states and prototypes along it.

        Both then have ``presence`` of the features, and similarities are concave in the angle; see
        docs/initialisation/derivation.md.
        """
        lean_(self.lm_head.features.weight, presence)
        self.transformer.ln_f.bias.fill_(TILT)
        # All prototypes get the same part along the diagonal, so that they have equally many features.
        prototypes = self.lm_head.prototypes
        prototypes.add_(TILT * prototypes.std() - prototypes.mean(-1, keepdim=True))
        generator = torch.Generator().manual_seed(SEED)
        normal = torch.randn(512, self.config.n_embd, generator=generator, device="cpu", dtype=torch.float32)
        self.lm_head.reset_constants(nn.functional.layer_norm(normal, normal.shape[1:]) + TILT)

    def _share_bank(self) -> None:
        """Gives the blocks the head's bank, which nn.DataParallel and PEFT put another module in place of."""
        bank = self.lm_head.features
        for block in self.transformer.h:
            if isinstance(block.mlp, TverskyMLP) and block.mlp.projection.features is not bank:
                block.mlp.projection.__dict__["features"] = bank

    def as_projection(self) -> TverskyProjection:
        """The head, for views of features."""
        return self.lm_head

    @classmethod
    def from_gpt2(cls, pretrained: str | PathLike[str] | GPT2LMHeadModel, **options: Any) -> TverskyGPT2LMHeadModel:
        """A TverskyGPT-2 with the weights of a GPT-2.

        The head's prototypes are the token embedding or, with ``tie_word_embeddings=False``, start as the GPT-2's head.
        In "all-1layer" the weights of the MLPs are dropped.

        Args:
            pretrained: a name on the hub, a folder, or a GPT2LMHeadModel. For a revision or a token of the hub, load
                by GPT2LMHeadModel.from_pretrained and pass the model.
            options: options of TverskyGPT2Config that differ from the GPT-2's config.

        Raises:
            ValueError: the checkpoint lacks tensors or has others; the error names them.
        """
        names = [field.name for field in fields(TverskyGPT2Config)]
        for name in options.keys() - names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"from_gpt2 takes the options of TverskyGPT2Config; got {name!r}.{hint}")
        gpt2 = load(GPT2LMHeadModel, pretrained) if isinstance(pretrained, str | PathLike) else pretrained
        if not isinstance(gpt2, GPT2LMHeadModel):
            raise TypeError(f"from_gpt2 takes a name, a folder or a GPT2LMHeadModel; got {type(gpt2).__name__}.")
        inherited = {name: value for name, value in gpt2.config.to_dict().items() if name in names}
        config = TverskyGPT2Config(**{**inherited, "architectures": None, "dtype": gpt2.dtype, **options})
        if config.presence is not None and config.presence > 0.5:
            raise ValueError(
                f"presence={config.presence} is for new models; from_gpt2 keeps the hidden states of the GPT-2."
            )
        config.presence = config.presence or 0.5
        for name in SIZES:
            if getattr(config, name) != getattr(gpt2.config, name):
                here, there = getattr(config, name), getattr(gpt2.config, name)
                raise ValueError(f"from_gpt2 keeps the GPT-2's sizes; got {name}={here} and a GPT-2 of {name}={there}.")
        model = cls(config).train(gpt2.training)
        nn.Module.to(model, device=gpt2.device, dtype=config.dtype)  # pyright: ignore[reportArgumentType]
        trunk = gpt2.transformer.state_dict()
        if config.variant == "all-1layer":
            trunk = {name: value for name, value in trunk.items() if ".mlp." not in name}
        model.transformer.load_state_dict(trunk, strict=config.variant == "head")
        if not config.tie_word_embeddings:
            with torch.no_grad():
                model.lm_head.prototypes.copy_(gpt2.lm_head.weight)
        model.lm_head.reset_constants(spread=linear_spread(gpt2.lm_head.weight))
        model.generation_config = copy.deepcopy(gpt2.generation_config)
        return model

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        skip_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithCrossAttentions:
        """Loss and logits, like GPT2LMHeadModel's forward; the arguments not listed here are its own.

        Args:
            labels: the tokens, shifted here, and -100 where there is no loss. The loss is computed without logits.
            skip_logits: whether ``logits`` is None, and the N×P table is never made; by default so in training with
                labels. In eval mode Trainer's metrics need logits beside the loss.
            logits_to_keep: number of last positions with logits (0 for all), or the positions in a 1-D tensor.
            num_items_in_batch: divisor of the loss instead of its number of targets. Trainer passes it, so that
                accumulated gradients equal those of one large batch.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        self._share_bank()
        outputs = self.transformer(
            input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            encoder_hidden_states=encoder_hidden_states,
            encoder_attention_mask=encoder_attention_mask,
            use_cache=use_cache,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        loss = logits = None
        if labels is not None:
            loss = self._loss(hidden, labels, shift_labels, num_items_in_batch)
        if skip_logits is None:
            skip_logits = self.training and labels is not None
        if not skip_logits:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = self.lm_head(hidden[:, kept])
        return CausalLMOutputWithCrossAttentions(
            loss=loss,  # pyright: ignore[reportArgumentType]
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    def _loss(
        self, hidden: Tensor, labels: Tensor, shift_labels: Tensor | None, num_items: Tensor | int | None
    ) -> Tensor:
        """Cross entropy of the next tokens in 32 bits, computed without logits."""
        if shift_labels is None:
            hidden, shift_labels = hidden[:, :-1], labels[:, 1:]
        target = shift_labels.to(hidden.device)
        # A layer returns the dtype of its input, except under autocast, where losses keep 32 bits.
        halves = hidden.dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(hidden.device.type, hidden.dtype) if halves else nullcontext():
            if num_items is None:
                return self.lm_head.cross_entropy(hidden, target)
            total = self.lm_head.cross_entropy(hidden, target, reduction="sum")
        return total / (num_items.to(total.device) if isinstance(num_items, Tensor) else num_items)

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """The resized token embedding; untied prototypes of the head are resized with it, and so is its bias."""
        embedding, prototypes = self.transformer.wte, self.lm_head.prototypes
        old = self.lm_head.bias
        if prototypes is not embedding.weight:
            rows = nn.Embedding(1, 1)
            rows.weight = prototypes
            self._get_resized_embeddings(rows, new_num_tokens, pad_to_multiple_of, mean_resizing)
        resized = self._get_resized_embeddings(embedding, new_num_tokens, pad_to_multiple_of, mean_resizing)
        if old is not None and len(old) != len(resized.weight):
            # A new token is as frequent as the mean one.
            new = old.detach().mean().repeat(len(resized.weight))
            new[: len(old)] = old.detach()[: len(new)]
            self.lm_head.bias = nn.Parameter(new, old.requires_grad)
        return resized


AutoConfig.register("tversky_gpt2", TverskyGPT2Config, exist_ok=True)
AutoModelForCausalLM.register(TverskyGPT2Config, TverskyGPT2LMHeadModel, exist_ok=True)
