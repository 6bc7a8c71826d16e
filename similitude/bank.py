"""FeatureBank, and its upkeep: prune removes features that nothing uses, grow adds new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.types import Device

from . import checks
from ._text import as_html
from .batches import batches, inputs_of
from .contrast import Contrast
from .form import check_choice
from .initialize import INITS, fill_
from .names import Named, Notes, name_feature, plain_weight
from .presence import FIXED, held, normal_threshold, upper_of, warn_of_holding
from .shares import measures
from .usage import Counts, Through, Usage, evaluating, is_projection, observed, usage

__all__ = ["FeatureBank", "Pruned", "Usage", "grow", "prune", "usage"]


class FeatureBank(nn.Module):
    """Ω: K learned feature vectors of width D; layers that are given one bank share it.

    Called on objects ``[..., D]`` it returns their measures x · f_k − t_k, ``[..., K]``; an object has the features
    whose measure is positive. Without thresholds, t_k = 0, every feature belongs to about half of all objects.

    Args:
        num_features: K.
        dim: D.
        init: Starting values, see TverskyProjection.
        presence: Fraction of objects that have a feature, which gives each feature a threshold. It starts where
            standard normal objects have that presence (``init_from_data``: those given), and then is learned.
        hold: Whether thresholds follow the training data instead, so that each feature keeps its presence: True, until
            ``fix()`` is called, or the number of forward passes in training, in the last tenth of which they are fixed.
            It sharpens sets, and leaves objects of few dimensions without features.
        device, dtype: Those of the weight; the dtype is a floating one.

    Example:
        >>> bank = FeatureBank(num_features=32, dim=8, presence=0.1)
        >>> bank(torch.randn(5, 8)).shape, bank.threshold.shape
        (torch.Size([5, 32]), torch.Size([32]))
    """

    init: str
    presence: float | None
    hold: bool | int
    weight: nn.Parameter
    threshold: Tensor | None
    passes: Tensor | None
    fixed: Tensor | None
    unheld: Tensor | None
    about: Tensor | None
    # Share of the last batch's objects without any feature, where a presence is held.
    featureless: Tensor | None = None
    warned: bool = False

    def __init__(
        self,
        num_features: int,
        dim: int,
        *,
        init: str = "calibrated",
        presence: float | None = None,
        hold: bool | int = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        checks.check_sizes(num_features=num_features, dim=dim)
        self.init = check_choice("init", init, INITS)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"dtype must be a floating dtype; got {repr(dtype).removeprefix('torch.')}.")
        self.presence = None if presence is None else checks.check_presence(presence)
        self.hold = checks.check_hold(hold, presence)
        self.weight = nn.Parameter(torch.empty(num_features, dim, device=device, dtype=dtype))
        self.register_parameter("threshold", None)
        self.register_buffer("passes", None)
        if presence is not None and hold:
            del self.threshold
            self.register_buffer("threshold", torch.empty(num_features, device=device, dtype=dtype))
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64, device=device))
        elif presence is not None:
            self.threshold = nn.Parameter(torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Starting values again, without names."""
        fill_(self.weight, self.init)
        self.note(Notes())
        self.reset_thresholds()

    @torch.no_grad()
    def reset_thresholds(self) -> None:
        """Thresholds for standard normal objects again."""
        if self.threshold is not None and self.presence is not None:
            self.threshold.copy_(normal_threshold(self.weight, self.presence))
        if self.passes is not None:
            self.passes.zero_()

    @torch.no_grad()
    def start_thresholds(self, objects: Tensor, framed: int = 0) -> None:
        """Thresholds that ``presence`` of the objects ``[N, D]`` exceed; the last ``framed`` features are cut at 0."""
        assert self.threshold is not None
        assert self.presence is not None
        own = self.num_features - framed
        found = upper_of(objects, self.weight[:own], self.presence).to(self.threshold)
        self.threshold[:own] = found if self.fixed is None else torch.where(self.fixed, self.threshold, found)[:own]
        self.threshold[own:].zero_()
        self.note(replace(self.notes, framed=set(range(own, self.num_features))))
        if self.passes is not None:
            self.passes.fill_(1)

    @property
    def num_features(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor | None = None, seen: Tensor | None = None) -> Any:
        """Measures of objects; without them the features and, if there are some, the thresholds."""
        # Layers ask for them here, so that hooks see it, and show the objects that they are about to measure, ``seen``.
        weight, threshold = self.weight, self.threshold
        # Not without gradients: layers keep, in eval mode, what is made of the parameter itself.
        fixed = self.fixed if torch.is_grad_enabled() else None
        if fixed is not None:
            weight = torch.where(fixed[:, None], weight.detach(), weight)
        if x is None and threshold is None:
            return weight
        if x is None and seen is not None and self.hold and self.training:
            threshold = held(self, seen, self.weight)
        if fixed is not None and threshold is not None:
            threshold = torch.where(fixed, threshold.detach(), threshold)
        if x is None:
            return weight, threshold
        checks.check_vectors("x", x)
        checks.check_width("x", x, weight)
        checks.check_alike(x=x, features=weight)
        return nn.functional.linear(x, weight, None if threshold is None else -threshold)

    def cut(self, seen: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The features ``[K, D]`` and their thresholds ``[K]``, or None; ``seen`` as in ``forward``."""
        return cut(self, seen)

    def fix(self) -> None:
        """Ends the holding of a presence: thresholds stay as they are from now on, also in what is loaded from here."""
        self.hold = False
        if self.passes is not None:
            self.passes.fill_(FIXED)

    def train(self, mode: bool = True) -> FeatureBank:
        if not mode and self.training and self.hold:
            warn_of_holding(self)
        return super().train(mode)

    def name(
        self,
        name: str,
        positives: Tensor | None = None,
        negatives: Tensor | None = None,
        *,
        feature: int | None = None,
        presence: float | None = None,
        background: Tensor | None = None,
    ) -> Named:
        """Names a feature: one that was learned, or one that is made from examples and fixed. Print what it returns.

        One from examples replaces ``feature``, by default the unnamed one whose direction is most like its own.
        Make a new optimizer, by ``parameter_groups``: momentum and weight decay of an old one would still move it.

        Args:
            name: What to call it, wherever features are shown.
            positives: Objects that have it, ``[n, D]``, 10 or more; of length 1, if layers have ``normalize=True``.
            negatives: Objects that do not, ``[m, D]``, better many times as many.
            feature, presence: Its index; fraction of all objects that have it, by default that of the examples.
            background: Objects of unknown kind, ``[N, D]``, such as training data: fewer examples then do as well.
        """
        return name_feature(self, name, positives, negatives, feature, presence, background)

    def unname(self, feature: int | str) -> None:
        """Takes the name of a feature away, given by its index or name; a fixed one trains again."""
        self.note(self.notes.without(feature))

    @property
    def names(self) -> dict[int, str]:
        """Names of the features that have one, by their index; see ``name``."""
        return dict(self.notes.names)

    def note(self, notes: Notes) -> None:
        """Takes notes, and what follows from them: which features do not train, whose thresholds are not held."""
        self.notes = notes
        for mask, members in (("fixed", notes.fixed), ("unheld", notes.fixed | notes.framed)):
            chosen = None
            if members:
                chosen = torch.zeros(self.num_features, dtype=torch.bool, device=self.weight.device)
                chosen[sorted(members)] = True
            self.register_buffer(mask, chosen, persistent=False)
        self.register_buffer("about", notes.tensor().to(self.weight.device) if notes else None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Names go with the features that are loaded. A state may have no part for this bank: safetensors saves a shared
        # one under one of its names.
        saved, (_, _, missing, _, errors) = state_dict.get(prefix + "about"), args
        loads = saved is not None or prefix + "weight" in state_dict
        if loads:
            self.about = None if saved is None else torch.empty_like(saved, device=self.weight.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
        try:
            if loads:
                self.note(Notes() if saved is None else Notes.of(saved, self.num_features))
            elif prefix + "about" in missing:
                missing.remove(prefix + "about")
        except ValueError as error:
            errors.append(f"{prefix}about: {error}")

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # A running average of buffers, as AveragedModel makes it, leaves no text in bytes.
        if self.about is not None and not self.about.is_meta:
            destination[prefix + "about"] = self.notes.tensor().to(self.about.device)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Banks pickled by version 0.1.0 have none of these.
        super().__setstate__({"presence": None, "hold": False, "notes": Notes(), **state})
        if "threshold" not in self._buffers:
            self._parameters.setdefault("threshold", None)
        for name in ("passes", "fixed", "unheld", "about"):
            self._buffers.setdefault(name, None)

    def usage(self, objects: Tensor | Iterable[Any], through: Through | None = None, threshold: float = 0.99) -> Usage:
        """How many of the objects have each feature, and which features are dead or duplicates; see bank.usage."""
        return usage(self, objects, through, threshold)

    def grow(self, new: int | Tensor, scale: float = 1.0) -> None:
        """Adds features for all layers that share the bank; see bank.grow."""
        grow(self, new, scale)

    def extra_repr(self) -> str:
        presence = "" if self.presence is None else f", presence={self.presence}"
        return f"num_features={self.num_features}, dim={self.dim}{presence}{f', hold={self.hold}' if self.hold else ''}"


def bank_of(module: nn.Module) -> FeatureBank:
    """The bank itself, where a program has put a module around it, as PEFT does to adapt its weight."""
    return next(m for m in module.modules() if isinstance(m, FeatureBank))


def cut(bank: nn.Module, seen: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Features and thresholds of a bank, or of a module around it, which answers in its place."""
    found = bank(None, seen)
    return found if isinstance(found, tuple) else (found, None)


@dataclass(frozen=True)
class Pruned:
    """What was removed from a bank. Print it.

    Attributes:
        bank: The bank's name in the model.
        kept: Old indices of the features that stay; feature k was ``kept[k]``.
        removed: Old indices of the features that went.
        folded: Those of the removed features that some prototype had; their constant share of the output is now in the
            bias.
    """

    bank: str
    kept: list[int]
    removed: list[int]
    folded: list[int]

    def __str__(self) -> str:
        folded = f", {len(self.folded)} of them folded into the bias" if self.folded else ""
        before = len(self.kept) + len(self.removed)
        return f"{self.bank}: {before} -> {len(self.kept)}, {len(self.removed)} removed{folded}"

    __repr__ = __str__
    _repr_html_ = as_html


@torch.no_grad()
def prune(
    model: nn.Module,
    data: Tensor | Iterable[Any],
    through: Through | None = None,
    fold: bool = False,
    alone: bool = False,
) -> list[Pruned]:
    """What was removed from each bank: the features that nothing has when ``model`` runs on ``data``.

    A feature is removed if, in each layer on its bank, no input and no prototype has it; outputs on ``data`` stay the
    same for all options. A bank keeps at least one feature. Its ``weight`` is a new parameter afterwards: make a new
    optimizer, since the old one would go on with the old parameter, which nothing uses.

    Args:
        model: A Tversky layer, or a model with such layers and with **all** those that share their banks. It runs in
            ``eval()`` on each batch, as ``model(x)`` or ``model(**batch)``; a TverskySimilarity by itself runs on pairs
            ``(a, b)``, or on all pairs of objects in a tensor.
        data: A tensor, or an iterable of batches: tensors, tuples whose first item is the input, or mappings.
        through: Function from a batch to what the model takes, such as a backbone; a module runs in ``eval()``.
        fold: Whether features that only prototypes have are removed too. Their share of the output, −β·f(B−A), is the
            same on all the data, and goes into the bias, which a layer gets if it has none. In the ratio model that
            share is no constant, and such features stay.
        alone: Whether nothing else uses the bank that was given to a single layer.
    """
    layers = _layers(model)
    if _is_layer(model) and not (model.owns_features or alone):
        raise ValueError(
            "this layer's bank was given to it, and other layers may need its features: prune the model that holds "
            "all of them, bank.prune(model, data), or say alone=True."
        )
    counts = {name: Counts(layer.features, layer.normalize) for name, layer in layers.items()}
    with evaluating(model), evaluating(through), observed(layers, counts):
        for batch in batches(data, name="data"):
            _call(model, batch, through, next(iter(layers.values())).features)
    idle = [name for name, count in counts.items() if not count.objects]
    if idle:
        raise ValueError(f"{idle[0] or 'the layer'} was not used on the data, so nothing is known of its features.")

    # All is decided before anything is changed.
    plans = _plans(model, layers, counts, fold)
    return [_carry_out(weight, plan) for weight, plan in plans.items()]


@torch.no_grad()
def grow(bank: FeatureBank, new: int | Tensor, scale: float = 1.0) -> None:
    """Adds features to a bank, after those that it has, for all the layers that share it.

    Outputs change, since objects and prototypes have some of the new features. The ``weight`` is a new parameter
    afterwards: make a new optimizer, since the old one would go on with the old parameter, which nothing uses.

    Args:
        bank: The feature bank.
        new: How many features, with the bank's own starting values, or their vectors, ``[n, D]``.
        scale: Factor of the new vectors. A small one changes outputs little, and still lets gradients reach them. Their
            thresholds, if the bank has any, start as those of a new bank: for objects around the origin. Data that lies
            elsewhere may have new features always or never; set ``bank.threshold`` to what few of its objects exceed.
    """
    weight = plain_weight(bank)
    checks.check_scalar("scale", scale)
    if not isinstance(new, Tensor):
        if not isinstance(new, int) or isinstance(new, bool) or new < 1:
            raise ValueError(f"new must be a whole number of 1 or more, or vectors [n, {bank.dim}]; got {new!r}.")
        new = fill_(torch.empty(new, bank.dim, device=weight.device, dtype=weight.dtype), bank.init)
    checks.check_vectors("new", new)
    if new.dim() != 2 or new.shape[1] != bank.dim or not len(new):
        raise ValueError(f"new must be vectors [n, {bank.dim}], of the bank's dim; got shape {list(new.shape)}.")
    new = new.to(weight) * scale
    if bank.threshold is not None:
        assert bank.presence is not None
        of_new = normal_threshold(new, bank.presence)
        bank.threshold = _rows(bank.threshold, lambda t: torch.cat([t, of_new.to(t)]))
    bank.weight = nn.Parameter(torch.cat([weight, new]), requires_grad=weight.requires_grad)
    bank.note(bank.notes)


def _rows(threshold: Tensor | None, chosen: Callable[[Tensor], Tensor]) -> Any:
    """Other thresholds, as a parameter if the old ones are."""
    if not isinstance(threshold, nn.Parameter):
        return None if threshold is None else chosen(threshold)
    return nn.Parameter(chosen(threshold), requires_grad=threshold.requires_grad)


class _Plan:
    """Which features of a bank may be removed."""

    def __init__(self, name: str):
        self.name = name
        self.users: list[Any] = []
        self.unused: Any = True
        self.prototypes_have: Any = False


def _plans(
    model: nn.Module, layers: Mapping[str, Any], counts: Mapping[str, Counts], fold: bool
) -> dict[nn.Parameter, _Plan]:
    """A plan for each bank, by its weight."""
    plans: dict[nn.Parameter, _Plan] = {}
    for name, layer in layers.items():
        plan = plans.setdefault(
            plain_weight(layer.features), _Plan(next(n for n, m in model.named_modules() if m is layer.features))
        )
        plan.users.append(layer)
        absent = counts[name].having == 0
        theirs = measures(layer, layer.prototypes, of_prototypes=True).amax(0) > 0 if is_projection(layer) else ~absent
        foldable = fold and is_projection(layer) and layer.model == "contrast"
        plan.unused &= absent if foldable else absent & ~theirs
        plan.prototypes_have |= theirs
    return plans


def _carry_out(weight: nn.Parameter, plan: _Plan) -> Pruned:
    removed, kept = plan.unused.nonzero()[:, 0], (~plan.unused).nonzero()[:, 0]
    if not len(kept):
        kept, removed = removed[:1], removed[1:]
    folded = removed[plan.prototypes_have[removed]]
    for layer in plan.users:
        if is_projection(layer):
            _fold(layer, folded)
    new, bank = nn.Parameter(weight[kept], requires_grad=weight.requires_grad), plan.users[0].features
    threshold = _rows(bank.threshold, lambda t: t[kept])
    notes = bank.notes.kept(kept.tolist())
    for layer in plan.users:
        layer.features.weight, layer.features.threshold = new, threshold
        layer.features.note(notes)
    return Pruned(plan.name, kept.tolist(), removed.tolist(), folded.tolist())


def _fold(layer: Any, features: Tensor) -> None:
    """Adds −β times the prototypes' measures of the features to the bias."""
    had = measures(layer, layer.prototypes, of_prototypes=True)[:, features].relu().sum(-1, dtype=torch.float64)
    if not had.any():
        return
    if layer.bias is None:
        layer.bias = nn.Parameter(torch.zeros_like(layer.prototypes[:, 0]))
    layer.bias.sub_((layer.beta.double() * had).to(layer.bias.dtype))


def _is_layer(module: object) -> bool:
    """Whether it is a TverskyProjection or a TverskySimilarity, whose file imports this one."""
    return isinstance(module, Contrast) and isinstance(getattr(module, "features", None), FeatureBank)


def _layers(model: nn.Module) -> dict[str, Any]:
    layers: dict[str, Any] = {name: m for name, m in model.named_modules() if _is_layer(m)}
    if not layers:
        raise ValueError(f"there is no Tversky layer in this {type(model).__name__}.")
    for layer in layers.values():
        plain_weight(layer.features)
    return layers


def _call(model: nn.Module, batch: object, through: Through | None, bank: FeatureBank) -> None:
    if _is_layer(model) and not is_projection(model):
        pair = (batch, batch) if isinstance(batch, Tensor) else batch
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError("a TverskySimilarity is pruned on tensors of objects, or on pairs (a, b) of them.")
        sides = (inputs_of(side, bank.weight.device) for side in pair)
        model(*(side if through is None else through(side) for side in sides))
        return
    x = inputs_of(batch, bank.weight.device)
    x = x if through is None else through(x)
    model(**x) if isinstance(x, Mapping) else model(x)
