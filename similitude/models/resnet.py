"""TverskyResNet: transformers' ResNet with a Tversky projection instead of its last linear layer.

Importing this file registers it with AutoConfig and AutoModelForImageClassification.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from torch import Tensor, nn
from torch.types import Device

from ..form import check_choice
from ..names import Notes
from ..nn import TverskyProjection
from .hf import LAYER, TverskyOptions, TverskyPreTrained, load

try:
    from transformers import (
        AutoConfig,
        AutoModelForImageClassification,
        ResNetConfig,
        ResNetForImageClassification,
        ResNetModel,
        ResNetPreTrainedModel,
    )
    from transformers.modeling_outputs import ImageClassifierOutputWithNoAttention
except ImportError as error:
    raise ImportError(
        f"similitude.models.resnet needs transformers: pip install 'similitude[hf]' ({error})."
    ) from error

__all__ = ["TverskyResNetConfig", "TverskyResNetForImageClassification"]

OPTIONS = ("head_dropout", "bias", "presence", "hold", *LAYER, "id2label", "label2id", "problem_type")
NOT_INHERITED = ("model_type", "architectures", "transformers_version", "dtype")


class TverskyResNetConfig(TverskyOptions, ResNetConfig):
    """ResNetConfig and the options of the Tversky head.

    Args:
        num_features: size of the bank; the paper has 20 for the 10 classes of MNIST and 224 for the 555 of NABirds.
        head_dropout: dropout of the backbone's output, before the head.
        frozen: whether the head alone trains, see TverskyResNetForImageClassification.
        bias: whether the head has a bias for each label.
        presence, hold: those of a FeatureBank with thresholds. Set them by ``init_from_data(model.classifier, …)`` on
            vectors that reach the head, which a ReLU has made.
        kwargs: the other options are those of ResNetConfig and of TverskyProjection.
    """

    model_type = "tversky_resnet"

    num_features: int = 224
    head_dropout: float = 0.1
    frozen: bool = False
    bias: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("frozen", "bias"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False; got {getattr(self, name)!r}.")
        if not isinstance(self.head_dropout, int | float) or not 0 <= self.head_dropout < 1:
            raise ValueError(f"head_dropout must be a number from 0 to below 1; got {self.head_dropout!r}.")
        if not self.num_labels:
            raise ValueError(f"num_labels must be 1 or more, a prototype for each label; got {self.num_labels!r}.")
        # A layer on meta takes no memory, and checks its options.
        self.settle(self.make_head(device="meta"))

    def make_head(self, device: Device = None) -> TverskyProjection:
        """A new head from the last stage's width to the labels."""
        assert self.hidden_sizes
        assert self.num_labels
        options = {**self.layer_options(), "bias": self.bias, "device": device}
        options |= {"presence": self.presence, "hold": self.hold}
        head = TverskyProjection(self.hidden_sizes[-1], self.num_labels, self.num_features, **options)
        if self.feature_notes:
            head.features.note(Notes.of(self.feature_notes, self.num_features))
        return head


class TverskyResNetForImageClassification(TverskyPreTrained, ResNetPreTrainedModel):
    """A ResNet whose logits are similarities to a prototype per label, used like ResNetForImageClassification.

    With ``config.frozen`` only the head trains. The backbone has no gradients and stays in ``eval()``, so that its
    batch norms keep their statistics. ``freeze`` changes this later.

    Args:
        config: a TverskyResNetConfig.
    """

    config: TverskyResNetConfig  # pyright: ignore[reportIncompatibleVariableOverride]
    config_class: Any = TverskyResNetConfig
    resnet: ResNetModel
    dropout: nn.Module
    classifier: TverskyProjection
    frozen: bool

    def __init__(self, config: TverskyResNetConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.resnet = ResNetModel(config)
        self.dropout = nn.Dropout(config.head_dropout)
        self.classifier = config.make_head()
        self.post_init()
        self.freeze(config.frozen)

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> ImageClassifierOutputWithNoAttention | tuple[Any, ...]:
        """Logits ``[N, num_labels]`` of images ``[N, C, H, W]`` and, for labels ``[N]``, the mean cross entropy."""
        outputs = self.resnet(pixel_values, output_hidden_states=output_hidden_states, return_dict=True)
        logits = self.classifier(self.dropout(outputs.pooler_output.flatten(1)))
        loss = None if labels is None else self.loss_function(labels, logits, self.config)
        out = ImageClassifierOutputWithNoAttention(loss=loss, logits=logits, hidden_states=outputs.hidden_states)
        return out if (self.config.return_dict if return_dict is None else return_dict) else out.to_tuple()

    def as_projection(self) -> TverskyProjection:
        """The head, for views of features."""
        return self.classifier

    def freeze(self, frozen: bool = True) -> TverskyResNetForImageClassification:
        """Freezes the backbone, or lets it train if ``frozen`` is False, and returns the model."""
        self.frozen = self.config.frozen = frozen
        self.resnet.requires_grad_(not frozen)
        return self.train(self.training)

    def train(self, mode: bool = True) -> TverskyResNetForImageClassification:
        super().train(mode)
        if self.frozen:
            self.resnet.eval()
        return self

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, with a one-sentence error for damaged weights and for other shapes."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        # Loading has replaced frozen parameters by others that train.
        model.freeze(model.config.frozen)
        return loaded

    @classmethod
    def from_resnet(
        cls,
        pretrained: str | PathLike[str] | ResNetForImageClassification | ResNetModel,
        *,
        num_labels: int | None = None,
        num_features: int = 224,
        frozen: bool = False,
        **options: Any,
    ) -> TverskyResNetForImageClassification:
        """A TverskyResNet with a new head on the backbone of a ResNet, on its device, in its dtype and mode.

        Args:
            pretrained: a name on the hub such as "microsoft/resnet-50", a folder, or a model, which is copied. For a
                revision or a token of the hub, load by ResNetForImageClassification.from_pretrained and pass the model.
            num_labels: number of labels; by default the ResNet's, with their names. ``id2label`` gives other names.
            num_features: size of the bank.
            frozen: whether the head alone trains.
            options: further options of TverskyResNetConfig for the head.

        Raises:
            ValueError: the checkpoint lacks tensors of the backbone or has others; the error names them.
        """
        for name in options:
            check_choice("option", name, ("num_labels", "num_features", "frozen", *OPTIONS))
        model = pretrained
        if isinstance(pretrained, str | PathLike):
            model = load(ResNetForImageClassification, pretrained, spare=("classifier.",))
        backbone = model.resnet if isinstance(model, ResNetForImageClassification) else model
        if not isinstance(backbone, ResNetModel):
            raise TypeError(f"from_resnet takes a name, a folder or a ResNet; got {type(model).__name__}.")
        settings = {name: value for name, value in backbone.config.to_dict().items() if name not in NOT_INHERITED}
        names = options.get("id2label")
        if names is not None:
            if num_labels not in (None, len(names)):
                raise ValueError(f"num_labels={num_labels} contradicts id2label of {len(names)} names; leave it out.")
            settings["label2id"] = {name: label for label, name in names.items()}
        elif num_labels not in (None, backbone.config.num_labels):
            settings |= {"id2label": None, "label2id": None, "num_labels": num_labels}
        config = TverskyResNetConfig(**{**settings, "num_features": num_features, "frozen": frozen, **options})
        tversky = cls(config).train(backbone.training)
        nn.Module.to(tversky, device=backbone.device, dtype=backbone.dtype)  # pyright: ignore[reportArgumentType]
        tversky.resnet.load_state_dict(backbone.state_dict())
        return tversky


AutoConfig.register(TverskyResNetConfig.model_type, TverskyResNetConfig, exist_ok=True)
AutoModelForImageClassification.register(TverskyResNetConfig, TverskyResNetForImageClassification, exist_ok=True)
