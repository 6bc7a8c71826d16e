"""FeatureBank, and its upkeep: which features are used on data, removal of those that no object has, and new ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from . import checks
from .contrast import Contrast
from .form import check_choice
from .initialize import INITS, fill_
from .ops.modes import wide

Through = Callable[[Any], Any]

# Measures that are in memory at once.
AT_ONCE = 2**24
SHOWN = 8


class FeatureBank(nn.Module):
    """Ω: K feature vectors of width D, learned; shared by all the layers that are given it.

    Called on objects ``[..., D]`` it returns their measures x · f_k, ``[..., K]``; an object has the features whose
    measure is positive.
    """

    def __init__(self, num_features: int, dim: int, *, init: str = "calibrated", device=None, dtype=None):
        super().__init__()
        checks.check_sizes(num_features=num_features, dim=dim)
        self.init = check_choice("init", init, INITS)
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"dtype must be a floating dtype; got {str(dtype).removeprefix('torch.')}.")
        self.weight = nn.Parameter(torch.empty(num_features, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        fill_(self.weight, self.init)

    @property
    def num_features(self) -> int:
        return self.weight.shape[0]

    @property
    def dim(self) -> int:
        return self.weight.shape[1]

    def forward(self, x: Tensor | None = None) -> Tensor:
        """Measures of objects; without them the features, which layers ask for here so that hooks see it."""
        if x is None:
            return self.weight
        checks.check_vectors("x", x)
        checks.check_width("x", x, self.weight)
        return nn.functional.linear(x, self.weight)

    def usage(self, objects, through=None, threshold: float = 0.99) -> Usage:
        """How often objects have each feature, and which are dead or duplicates; see bank.usage."""
        return usage(self, objects, through, threshold)

    def grow(self, new: int | Tensor, scale: float = 1.0) -> None:
        """Adds features, for all layers that share the bank; see bank.grow."""
        grow(self, new, scale)

    def extra_repr(self) -> str:
        return f"num_features={self.num_features}, dim={self.dim}"


@dataclass(frozen=True)
class Usage:
    """How the objects that were counted use each feature of a bank. Print it.

    objects: how many they are. presence: share of them that have the feature, ``[K]``. measure: mean measure of the
    feature in those that have it, ``[K]``, 0 where nobody does. duplicates: ``(feature, earlier feature, cosine)`` for
    each feature that points where an earlier one does.
    """

    objects: int
    presence: Tensor
    measure: Tensor
    duplicates: list[tuple[int, int, float]]
    threshold: float

    @property
    def dead(self) -> list[int]:
        """Features that nobody has."""
        return (self.presence == 0).nonzero()[:, 0].tolist()

    @property
    def ever_present(self) -> list[int]:
        """Features that everybody has: they tell nobody apart by having them."""
        return (self.presence == 1).nonzero()[:, 0].tolist()

    def __str__(self) -> str:
        shares = self.presence.quantile(torch.tensor([0, 0.25, 0.5, 0.75, 1], dtype=torch.float64)).tolist()
        copies = [f"{j} of {i}" for j, i, _ in self.duplicates]
        rows = (
            ("dead", self.dead),
            ("ever-present", self.ever_present),
            (f"duplicates (cosine > {self.threshold:g})", copies),
        )
        lines = [f"{len(self.presence)} features, {self.objects:,} objects"]
        lines += [f"{name}: {len(found)}{_listed(found)}" for name, found in rows]
        lines.append("present in (least, quartiles, most): " + " ".join(f"{share:.1%}" for share in shares))
        return "\n".join(lines)


@dataclass(frozen=True)
class Pruned:
    """What was removed from a bank. Print it.

    kept, removed: the features' numbers before; the k-th feature now was ``kept[k]``. folded: those of the removed that
    some prototype had, and whose constant share is now in the bias.
    """

    bank: str
    kept: list[int]
    removed: list[int]
    folded: list[int]

    def __str__(self) -> str:
        folded = f", {len(self.folded)} of them folded into the bias" if self.folded else ""
        before = len(self.kept) + len(self.removed)
        return f"{self.bank}: {before} -> {len(self.kept)}, {len(self.removed)} removed{folded}"


@torch.no_grad()
def usage(bank: FeatureBank, objects: Tensor | Iterable, through: Through | None = None, threshold=0.99) -> Usage:
    """How often each feature is present and how strong it is, and the dead and duplicate ones.

    objects: a tensor ``[..., D]``, or a loader: batches of such tensors, or tuples of which they are the first.
    through: what makes vectors of a batch, such as a backbone; a module is in ``eval()`` meanwhile.
    threshold: the cosine above which a feature duplicates an earlier one.
    """
    counts = _Counts(bank)
    with evaluating(through):
        for batch in _batches(objects):
            vectors = _first(batch, bank)
            counts.add(vectors if through is None else through(vectors))
    if not counts.objects:
        raise ValueError("there are no objects to count: the data has no rows, or its loader was used up before.")
    presence = counts.having.double() / counts.objects
    measure = counts.total / counts.having.clamp(min=1)
    return Usage(counts.objects, presence.cpu(), measure.cpu(), _duplicates(bank.weight, threshold), threshold)


@torch.no_grad()
def prune(
    model: nn.Module,
    data: Tensor | Iterable,
    through: Through | None = None,
    fold: bool = False,
    alone: bool = False,
) -> list[Pruned]:
    """Removes the features that nobody has when ``model`` runs on ``data``; its outputs there stay as they are.

    model: a Tversky layer, or a model with such layers, and with **all** those that share its banks. It is run in
    ``eval()`` on each batch, as ``model(x)`` or ``model(**batch)``, or on what ``through`` makes of the batch; a
    TverskySimilarity by itself on pairs ``(a, b)``, or on all objects of a tensor.
    A feature goes if, in each layer on its bank, no input and no prototype has it: for all options nothing is changed.
    fold: it may go too if only prototypes have it, which costs them −β·f(B−A), the same on all the data; that goes
    into the bias, which a layer gets where it has none. Not in the ratio model, where it is no constant.
    alone: says that nobody else uses the bank that was given to a single layer.

    A bank keeps one feature at least. Its ``weight`` is a new parameter then: make the optimiser anew, or it goes on
    with the old one, which nobody uses any more.
    """
    layers = _layers(model)
    if _is_layer(model) and not model.owns_features and not alone:
        raise ValueError(
            "this layer's bank was given to it, and other layers may need its features: prune the model that holds "
            "all of them, bank.prune(model, data), or say alone=True."
        )
    counts = {name: _Counts(layer.features) for name, layer in layers.items()}
    with evaluating(model), evaluating(through), _observed(layers, counts):
        for batch in _batches(data):
            _call(model, batch, through, next(iter(layers.values())).features)
    idle = [name for name, count in counts.items() if not count.objects]
    if idle:
        raise ValueError(f"{idle[0] or 'the layer'} was not used on the data, so nothing is known of its features.")

    # All is decided before anything is changed.
    plans: dict[nn.Parameter, _Plan] = {}
    for name, layer in layers.items():
        plan = plans.setdefault(_plain_weight(layer.features), _Plan(_bank_name(model, layer.features)))
        plan.users.append(layer)
        absent = counts[name].having == 0
        theirs = _prototype_measures(layer).amax(0) > 0 if _is_projection(layer) else ~absent
        foldable = fold and _is_projection(layer) and layer.model == "contrast"
        plan.unused &= absent if foldable else absent & ~theirs
        plan.prototypes_have |= theirs
    return [_carry_out(weight, plan) for weight, plan in plans.items()]


@torch.no_grad()
def grow(bank: FeatureBank, new: int | Tensor, scale: float = 1.0) -> None:
    """Adds features to a bank, for all the layers that share it, after those that it has.

    new: how many, with the bank's own starting values, or the vectors themselves, ``[n, D]``. Outputs change, since
    objects and prototypes have some of the new features; a small ``scale``, which multiplies them, changes outputs as
    little as is wished, and gradients reach them all the same. The ``weight`` is a new parameter then: make the
    optimiser anew, or it goes on with the old one, which nobody uses any more.
    """
    weight = _plain_weight(bank)
    checks.check_scalar("scale", scale)
    if not isinstance(new, Tensor):
        if not isinstance(new, int) or isinstance(new, bool) or new < 1:
            raise ValueError(f"new must be a whole number of 1 or more, or vectors [n, {bank.dim}]; got {new!r}.")
        new = fill_(torch.empty(new, bank.dim, device=weight.device, dtype=weight.dtype), bank.init)
    checks.check_vectors("new", new)
    if new.dim() != 2 or new.shape[1] != bank.dim or not len(new):
        raise ValueError(f"new must be vectors [n, {bank.dim}], of the bank's dim; got shape {list(new.shape)}.")
    bank.weight = nn.Parameter(torch.cat([weight, new.to(weight) * scale]), requires_grad=weight.requires_grad)


@dataclass
class _Counts:
    """What the objects seen so far have of a bank's features."""

    bank: FeatureBank
    objects: int = 0
    having: Tensor = field(init=False)  # [K]
    total: Tensor = field(init=False)  # [K], of positive measures

    def __post_init__(self):
        weight = self.bank.weight
        self.having = torch.zeros(len(weight), device=weight.device, dtype=torch.int64)
        self.total = torch.zeros(len(weight), device=weight.device, dtype=torch.float64)

    def add(self, objects: object) -> None:
        checks.check_vectors("objects", objects)
        assert isinstance(objects, Tensor)
        weight = self.bank.weight
        checks.check_width("objects", objects, weight)
        dtype = wide(torch.promote_types(objects.dtype, weight.dtype))
        weight = weight.to(dtype)
        for rows in objects.reshape(-1, objects.shape[-1]).split(max(1, AT_ONCE // len(weight))):
            if not rows.isfinite().all():
                raise ValueError("objects must be finite; some have NaN or infinite elements.")
            measures = (rows.to(weight) @ weight.mT).relu()
            self.objects += len(rows)
            self.having += measures.count_nonzero(0)
            self.total += measures.sum(0, dtype=torch.float64)


class _Plan:
    """Which features of a bank may go."""

    def __init__(self, name: str):
        self.name = name
        self.users: list[Any] = []
        self.unused: Any = True
        self.prototypes_have: Any = False


def _carry_out(weight: nn.Parameter, plan: _Plan) -> Pruned:
    removed, kept = plan.unused.nonzero()[:, 0], (~plan.unused).nonzero()[:, 0]
    if not len(kept):
        kept, removed = removed[:1], removed[1:]
    folded = removed[plan.prototypes_have[removed]]
    for layer in plan.users:
        if _is_projection(layer):
            _fold(layer, folded)
    new = nn.Parameter(weight[kept], requires_grad=weight.requires_grad)
    for layer in plan.users:
        layer.features.weight = new
    return Pruned(plan.name, kept.tolist(), removed.tolist(), folded.tolist())


def _fold(layer: Any, features: Tensor) -> None:
    """Puts −β times what prototypes have of the features into the bias."""
    had = _prototype_measures(layer)[:, features].relu().sum(-1, dtype=torch.float64)
    if not had.any():
        return
    if layer.bias is None:
        layer.bias = nn.Parameter(torch.zeros_like(layer.prototypes[:, 0]))
    layer.bias.sub_((layer.beta.double() * had).to(layer.bias.dtype))


def _prototype_measures(layer: Any) -> Tensor:
    """What each prototype has of each feature, ``[P, K]``."""
    dtype = wide(layer.prototypes.dtype)
    prototypes = layer.prototypes.to(dtype)
    if layer.normalize:
        prototypes = nn.functional.normalize(prototypes, dim=-1)
    return prototypes @ layer.features.weight.to(dtype).mT


def _plain_weight(bank: FeatureBank) -> nn.Parameter:
    weight = bank._parameters.get("weight")
    if weight is None:
        raise TypeError("the bank's features are computed from something else, so their number cannot be changed here.")
    return weight


def _is_layer(module: object) -> bool:
    """Whether it is a TverskyProjection or a TverskySimilarity; these stand above this file."""
    return isinstance(module, Contrast) and isinstance(getattr(module, "features", None), FeatureBank)


def _is_projection(layer: object) -> bool:
    return hasattr(layer, "prototypes")


def _layers(model: nn.Module) -> dict[str, Any]:
    layers = {name: m for name, m in model.named_modules() if _is_layer(m)}
    if not layers:
        raise ValueError(f"there is no Tversky layer in this {type(model).__name__}.")
    for layer in layers.values():
        _plain_weight(layer.features)
    return layers


def _bank_name(model: nn.Module, bank: FeatureBank) -> str:
    return next(name for name, module in model.named_modules() if module is bank)


@contextmanager
def _observed(layers: Mapping[str, Any], counts: Mapping[str, _Counts]) -> Iterator[None]:
    """Counts the objects of all calls of the layers, of each method that takes them."""
    wrapped = []
    try:
        for name, layer in layers.items():
            for method in ("forward", "pairwise", "cross_entropy"):
                if hasattr(layer, method):
                    own = layer.__dict__.get(method)
                    wrapped.append((layer, method, own))
                    layer.__dict__[method] = _counting(getattr(layer, method), layer, counts[name])
        yield
    finally:
        for layer, method, own in wrapped:
            if own is None:
                del layer.__dict__[method]
            else:
                layer.__dict__[method] = own


def _counting(call: Callable, layer: Any, counts: _Counts) -> Callable:
    sides = ("x",) if _is_projection(layer) else ("a", "b")

    @wraps(call)
    def counted(*args, **kwargs):
        for i, side in enumerate(sides):
            counts.add(args[i] if i < len(args) else kwargs[side])
        return call(*args, **kwargs)

    return counted


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """A module in eval mode, where dropout hides no features and batch norm does not learn from the look."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # Parents come before their children, whose mode may differ from theirs.
        for m, mode in modes:
            if m.training != mode:
                m.train(mode)


def _batches(data: Tensor | Iterable) -> Iterable:
    if isinstance(data, Tensor):
        return [data]
    if not isinstance(data, Iterable):
        raise TypeError(f"data must be a tensor [..., D] or an iterable of batches; got {type(data).__name__}.")
    return data


def _first(batch: object, bank: FeatureBank) -> Any:
    """The objects of a batch, which may have targets beside them, on the bank's device."""
    x = batch[0] if isinstance(batch, list | tuple) else batch
    if isinstance(x, Mapping):
        return {name: _first(value, bank) if isinstance(value, Tensor) else value for name, value in x.items()}
    return x.to(bank.weight.device) if isinstance(x, Tensor) else x


def _call(model: nn.Module, batch: object, through: Through | None, bank: FeatureBank) -> None:
    if _is_layer(model) and not _is_projection(model):
        pair = (batch, batch) if isinstance(batch, Tensor) else batch
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise TypeError("a TverskySimilarity is pruned on tensors of objects, or on pairs (a, b) of them.")
        model(*(side if through is None else through(side) for side in (_first(side, bank) for side in pair)))
        return
    x = _first(batch, bank)
    x = x if through is None else through(x)
    model(**x) if isinstance(x, Mapping) else model(x)


def _duplicates(weight: Tensor, threshold: float) -> list[tuple[int, int, float]]:
    unit = nn.functional.normalize(weight.to(wide(weight.dtype)), dim=-1)
    found = []
    for start in range(0, len(unit), step := max(1, AT_ONCE // len(unit))):
        cosines = (unit[start : start + step] @ unit.mT).tril(start - 1)  # each with those before it
        first = (cosines > threshold).int().argmax(-1)
        values = cosines.gather(-1, first[:, None])[:, 0]
        for row in (values > threshold).nonzero()[:, 0].tolist():
            found.append((start + row, int(first[row]), values[row].item()))
    return found


def _listed(found: list) -> str:
    if not found:
        return ""
    more = f", … {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f" ({', '.join(map(str, found[:SHOWN]))}{more})"
