"""TverskyGPT-2: GPT-2 whose head, and in one variant whose MLPs, compare with prototypes; a transformers model.

Importing this file makes it known to AutoConfig and AutoModelForCausalLM.
"""

from __future__ import annotations

import copy
import difflib
import math
from contextlib import nullcontext
from dataclasses import fields
from os import PathLike

import torch
from torch import Tensor, nn

from .. import checks
from ..initialize import SEED, SHARE, SPREAD, TILT, lean_, linear_spread
from ..nn import FeatureBank, TverskyProjection
from .hf import TverskyOptions, fill_missing, load, load_checked

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

VARIANTS = ("head", "all-1layer")
# Share of the features that hidden states and prototypes of a new head have, and the part of what is common that α's
# difference takes where that is above a half.
PRESENCE, LEANING_SHARE = 0.75, 0.01
# By default only where all of these are as they are by default.
LEANING = ("variant", "intersection", "difference", "level", "model", "normalize", "alpha", "beta", "theta", "init")
SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner")


class TverskyGPT2Config(TverskyOptions, GPT2Config):
    """GPT2Config, and what its Tversky layers are.

    variant: "head", or "all-1layer", where each block's MLP is one projection too, all on the head's feature bank.
    tie_word_embeddings: whether the head's prototypes are the token embedding.
    presence: the share of features that hidden states and prototypes have in a new "head" model, 0.5 or more; None is
    0.75 for what it was measured with, calibrated product + ignorematch at feature level, and else 0.5.
    The others are TverskyProjection's; ``init`` is of the bank and of prototypes that are not the token embedding.
    """

    model_type = "tversky_gpt2"

    variant: str = "head"
    num_features: int = 2048
    presence: float | None = None

    def __post_init__(self, **kwargs):
        super().__post_init__(**kwargs)
        checks.check_choice("variant", self.variant, VARIANTS)
        if self.presence is not None and checks.check_presence(self.presence) != 0.5:
            for name, needed in (("init", "calibrated"), ("variant", "head")):
                if getattr(self, name) != needed:
                    got = f"{name}={getattr(self, name)!r}"
                    raise ValueError(f"presence={self.presence} needs {name}={needed!r}; got {got}.")
        # A layer without memory makes all its checks.
        layer = TverskyProjection(1, 1, self.num_features, device="meta", **self.layer_options())
        self.settle(layer)


class TverskyGPT2PreTrainedModel(GPT2PreTrainedModel):
    """Starting values of Tversky layers within transformers' machinery."""

    config_class = TverskyGPT2Config

    def _init_weights(self, module: nn.Module) -> None:
        """Starting values of what no checkpoint has brought."""
        super()._init_weights(module)
        fill_missing(module)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # For models from outside of transformers it passes over modules without parameters of their own: GPT-2's
        # attention and MLP, whose output weights it would leave √(2·n_layer) times too large.
        super()._initialize_weights(module)


class TverskyMLP(nn.Module):
    """One projection in the place of a block's c_fc, gelu and c_proj, with GPT-2's dropout after it."""

    def __init__(self, config: TverskyGPT2Config, features: FeatureBank):
        super().__init__()
        dim = config.n_embd
        # What is added to the residual stream is smaller the more blocks there are, as in GPT-2.
        spread = SPREAD / math.sqrt(2 * config.n_layer)
        self.projection = TverskyProjection(dim, dim, features=features, spread=spread, **config.layer_options())
        # The bank is the head's child alone: one name in every state, and a block has no parameters but its own, which
        # FSDP, sharding block by block, needs.
        del self.projection.features
        self.projection.__dict__["features"] = features
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(self.projection(hidden_states))


class TverskyGPT2Model(TverskyGPT2PreTrainedModel, GPT2Model):
    """GPT-2 up to its last hidden states; in "all-1layer" on the bank that it is given."""

    def __init__(self, config: TverskyGPT2Config, features: FeatureBank):
        super().__init__(config)
        if checks.check_choice("variant", config.variant, VARIANTS) == "all-1layer":
            for block in self.h:
                block.mlp = TverskyMLP(config, features)


class TverskyGPT2LMHeadModel(TverskyGPT2PreTrainedModel, GenerationMixin):
    """GPT-2 whose next token is the prototype most similar to its last hidden state, used like GPT2LMHeadModel.

    ``from_gpt2("gpt2", num_features=8192)`` starts from a pretrained GPT-2. Do not use Trainer's
    ``label_smoothing_factor``: it shifts no labels for a model from outside of transformers.
    """

    _tied_weights_keys = {"lm_head.prototypes": "transformer.wte.weight"}  # noqa: RUF012

    def __init__(self, config: TverskyGPT2Config):
        if not isinstance(config, TverskyGPT2Config):
            given = type(config).__name__
            raise TypeError(f"config must be a TverskyGPT2Config; got {given}: for a GPT-2 that exists use from_gpt2.")
        super().__init__(config)
        # By this name Trainer knows that labels are shifted, and counts a row's targets without its first token.
        self.loss_type = "ForCausalLM"
        leans = all(getattr(config, name) == getattr(TverskyGPT2Config, name) for name in LEANING)
        presence = config.presence or (PRESENCE if leans else 0.5)
        features = FeatureBank(config.num_features, config.n_embd, init=config.init)
        self.transformer = TverskyGPT2Model(config, features)
        self.lm_head = TverskyProjection(
            config.n_embd,
            config.vocab_size,
            features=features,
            alpha_share=SHARE if presence == 0.5 else LEANING_SHARE,
            prototypes=nn.Module.get_parameter(self.transformer, "wte.weight") if config.tie_word_embeddings else None,
            **config.layer_options(),
        )
        self.post_init()
        # Weights that are going to be loaded are on the meta device.
        if presence != 0.5 and not features.weight.is_meta:
            self._lean(presence)

    @torch.no_grad()
    def _lean(self, presence: float) -> None:
        """Features turned to the diagonal, which no layer norm sees; hidden states and prototypes put beside it.

        They then have ``presence`` of the features, and similarities are concave in the angle, docs/initialisation.md.
        """
        lean_(self.lm_head.features.weight, presence)
        self.transformer.ln_f.bias.fill_(TILT)
        # What prototypes have along the diagonal is the same for all, so that each has as many features.
        prototypes = self.lm_head.prototypes
        prototypes.add_(TILT * prototypes.std() - prototypes.mean(-1, keepdim=True))
        generator = torch.Generator().manual_seed(SEED)
        normal = torch.randn(512, self.config.n_embd, generator=generator, device="cpu", dtype=torch.float32)
        self.lm_head.reset_constants(nn.functional.layer_norm(normal, normal.shape[1:]) + TILT)

    def as_projection(self) -> TverskyProjection:
        """The head, for views of features."""
        return self.lm_head

    @classmethod
    def from_gpt2(cls, pretrained: str | PathLike | GPT2LMHeadModel, **options) -> TverskyGPT2LMHeadModel:
        """A TverskyGPT-2 with the weights of a GPT-2: a name on the hub, a folder, or a GPT2LMHeadModel.

        options: what is to be other than in the GPT-2's config, such as ``variant`` or ``num_features``. Prototypes of
        the head are tied to the token embedding, or, with ``tie_word_embeddings=False``, start as the GPT-2's head. In
        "all-1layer" the weights of the MLPs are dropped. To load by a revision or with a token of the hub, do so by
        GPT2LMHeadModel.from_pretrained and pass that.
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
        if config.presence not in (None, 0.5):
            raise ValueError(f"presence={config.presence} is for new models; from_gpt2 has hidden states as they are.")
        config.presence = 0.5
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

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *args, ignore_mismatched_sizes=False, **kwargs):
        """As in transformers, with one sentence for weights that are damaged or of another size."""
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs["ignore_mismatched_sizes"] = ignore_mismatched_sizes
        model, info = load_checked(super().from_pretrained, pretrained_model_name_or_path, *args, **kwargs)
        return (model, info) if wants_info else model

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values=None,
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
        **kwargs,
    ) -> CausalLMOutputWithCrossAttentions:
        """Loss and logits, as GPT2LMHeadModel's forward gives them.

        labels: the tokens, shifted here, or -100 where there is no loss. The loss is made without logits.
        skip_logits: by default, whether labels are given in training mode: then ``logits`` is None, and the N×P table
        is never made. In eval mode logits come along with the loss, as Trainer's metrics need them.
        logits_to_keep: logits of the last so many positions (0: all), or of the positions in a 1-D tensor.
        num_items_in_batch: what the loss is divided by, in the place of its number of targets; Trainer passes it, so
        that accumulated gradients are those of one large batch.
        """
        shift_labels = kwargs.pop("shift_labels", None)
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
        """Cross entropy of the next tokens, in 32 bits, without logits."""
        if shift_labels is None:
            hidden, shift_labels = hidden[:, :-1], labels[:, 1:]
        target = shift_labels.to(hidden.device)
        # A layer answers in the dtype of its input, except under autocast, where losses keep 32 bits.
        halves = hidden.dtype in (torch.bfloat16, torch.float16)
        with torch.autocast(hidden.device.type, hidden.dtype) if halves else nullcontext():
            if num_items is None:
                return self.lm_head.cross_entropy(hidden, target)
            total = self.lm_head.cross_entropy(hidden, target, reduction="sum")
        return total / (num_items.to(total.device) if isinstance(num_items, Tensor) else num_items)

    def _resize_token_embeddings(self, new_num_tokens, pad_to_multiple_of=None, mean_resizing=True) -> nn.Embedding:
        """The token embedding, resized, and with it the head's prototypes where they are not the same tensor."""
        embedding, prototypes = self.transformer.wte, self.lm_head.prototypes
        if prototypes is not embedding.weight:
            rows = nn.Embedding(1, 1)
            rows.weight = prototypes
            self._get_resized_embeddings(rows, new_num_tokens, pad_to_multiple_of, mean_resizing)
        return self._get_resized_embeddings(embedding, new_num_tokens, pad_to_multiple_of, mean_resizing)


AutoConfig.register("tversky_gpt2", TverskyGPT2Config, exist_ok=True)
AutoModelForCausalLM.register(TverskyGPT2Config, TverskyGPT2LMHeadModel, exist_ok=True)
