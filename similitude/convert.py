"""Put Tversky layers into an existing model, and say what changed. All is planned first: an error changes nothing."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import nn

from ._text import as_html, columns
from .checks import short
from .form import check_choice
from .initialize import linear_spread
from .models.ties import resize_token_embeddings, tell_transformers
from .nn import TverskyProjection, TverskySimilarity

Pattern = str | re.Pattern[str] | type[nn.Module]
Maker = Callable[[nn.Module, str], nn.Module]
Rule = Mapping[str, Any] | Maker

STARTS = ("fresh", "weights")
# Device and dtype are not chosen here: a layer has those of what it replaces.
OPTIONS = ("start", *(n for n in inspect.signature(TverskyProjection).parameters if n not in ("device", "dtype")))
LINES, COLUMNS = 24, 100

# Its name in models that version 0.1.0 pickled.
_resize_token_embeddings = resize_token_embeddings


@dataclass(frozen=True)
class Row:
    """One replaced layer, with the number of parameters removed and added.

    A shared or tied parameter counts once, in its first row; it counts in no row if another part of the model keeps
    it. So the rows add up to the change of the whole model.

    Attributes:
        name: The layer's name in the model; several, separated by commas, if it occurs in several places.
        before: What it was.
        after: What it is now.
        parameters_before: Parameters that the model lost by it.
        parameters_after: Parameters that the model gained by it.
    """

    name: str
    before: str
    after: str
    parameters_before: int
    parameters_after: int


@dataclass(frozen=True, repr=False)
class Conversion:
    """What convert changed: a row for each layer, and the parameters of the whole model. Print it.

    Attributes:
        rows: The replaced layers.
        parameters_before: Parameters of the whole model before.
        parameters_after: Parameters of the whole model after.
        trainable: Those of them that train.
    """

    rows: tuple[Row, ...]
    parameters_before: int
    parameters_after: int
    trainable: int

    def __str__(self) -> str:
        rows = self.rows if len(self.rows) <= LINES else self.rows[: LINES - 1]
        lines = [("layer", "before", "after", "parameters", "after")]
        lines += [(r.name, r.before, r.after, f"{r.parameters_before:,}", f"{r.parameters_after:,}") for r in rows]
        if len(self.rows) > len(rows):
            lines.append((f"… {len(self.rows) - len(rows)} more in .rows", "", "", "", ""))
        lines.append(("whole model", "", "", f"{self.parameters_before:,}", f"{self.parameters_after:,}"))
        if self.trainable < self.parameters_after:
            lines.append(("of which train", "", "", "", f"{self.trainable:,}"))
        widths = [max(map(len, column)) for column in zip(*lines)]
        widths[1:3] = min(widths[1], 20), min(widths[2], 36)
        widths[0] = min(widths[0], COLUMNS - 2 * 4 - sum(widths[1:]))
        return columns([_cut(cells, widths) for cells in lines], left=3)

    __repr__ = __str__
    _repr_html_ = as_html


@dataclass(frozen=True)
class _Target:
    """A module to replace, with all its names in the model, and the options or the maker for it."""

    old: nn.Module
    names: list[str]
    pattern: Pattern
    options: dict[str, Any] | None
    maker: Maker | None

    @property
    def name(self) -> str:
        return self.names[0]


def convert(
    model: nn.Module,
    rules: Pattern | Mapping[Any, Rule],
    *,
    start: str = "fresh",
    prototypes: str | nn.Parameter | None = None,
    freeze: bool = False,
    **options: Any,
) -> Conversion:
    """A printable table of the layers of ``model`` that were replaced, in place, by Tversky layers.

    The new layer has the device, dtype and mode of the old one, but not its hooks. A module that occurs in several
    places is replaced by one layer in all of them.

    Args:
        model: The model to change.
        rules: Which layers: a name with ``*``, ``?``, ``[…]`` (``*`` matches dots too), a compiled regular expression
            for the whole name, or a class of modules. Or a mapping from several of these to options of their own, which
            override the common ones:
            ``{"*.mlp": dict(dim=768, num_prototypes=768), "lm_head": dict(start="weights")}``.
            Instead of options a rule may have a maker, ``maker(old_module, name) -> nn.Module``; convert puts in
            whatever it returns.
        start: ``fresh`` starts prototypes as a new layer does; ``weights`` takes the rows of the replaced weight (and
            its bias, with ``bias=True``).
        prototypes: Parameter to tie to: one of the model's by name, such as ``transformer.wte.weight``, or an
            nn.Parameter itself.
        freeze: Whether every parameter that the model had before stops training; what is put in trains.
        **options: Those of TverskyProjection. ``num_features`` gives each layer its own bank, ``features=bank`` gives
            all the same one. nn.Linear and transformers' Conv1D imply ``dim`` and ``num_prototypes``; other modules
            need both.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module; got {type(model).__name__}.")
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError("model must be of Python modules; got TorchScript: convert before it is scripted or traced.")
    targets = _targets(model, _rules(rules, {"start": start, "prototypes": prototypes, **options}))
    before = {id(p): p.numel() for p in model.parameters()}
    layers = _layers(model, targets)

    for target, layer in zip(targets, layers):
        _place(layer, *_home(model, target.old), before)
        layer.train(target.old.training)
        for name in target.names:
            model.set_submodule(name, layer)
    for parameter in model.parameters() if freeze else ():
        if id(parameter) in before:
            parameter.requires_grad_(False)
    _leave_fused_paths(model, layers)
    tell_transformers(model, layers)
    return _conversion(model, targets, layers, before)


def _rules(rules: object, common: dict[str, Any]) -> dict[Pattern, Rule]:
    """The full options, or the maker, for each pattern."""
    each: Iterable[tuple[Any, Any]] = rules.items() if isinstance(rules, Mapping) else [(rules, {})]
    checked = ((_pattern(pattern), rule) for pattern, rule in each)
    found = {pattern: _rule(pattern, rule, common) for pattern, rule in checked}
    if not found:
        raise ValueError("rules are empty; give a name pattern, a class of modules, or a mapping from these.")
    given = [name for name, value in common.items() if value is not None and value != "fresh"]
    if given and all(callable(rule) for rule in found.values()):
        raise ValueError(f"every rule has a maker, so that {', '.join(given)} would do nothing; leave it out.")
    for rule in found.values():
        if isinstance(rule, Mapping):
            _check_options(rule)
    return found


def _pattern(pattern: Any) -> Pattern:
    if isinstance(pattern, str | re.Pattern) or (isinstance(pattern, type) and issubclass(pattern, nn.Module)):
        return pattern
    expected = "a name pattern, a compiled regular expression, a class of modules, or a mapping from these"
    raise TypeError(f"rules must be {expected}; got {pattern!r}.")


def _rule(pattern: Pattern, rule: Any, common: dict[str, Any]) -> Rule:
    if isinstance(rule, Mapping):
        return {**common, **rule}
    if callable(rule):
        return cast(Maker, rule)
    expected = "a mapping of options, or a maker(old_module, name)"
    raise TypeError(f"the rule of {_shown(pattern)} must be {expected}; got {rule!r}.")


def _check_options(names: Iterable[Any]) -> None:
    for name in names:
        if name not in OPTIONS:
            near = difflib.get_close_matches(str(name), OPTIONS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"options are {', '.join(OPTIONS)}."
            raise TypeError(f"convert has no option {name!r}; {hint}")


def _targets(model: nn.Module, rules: dict[Pattern, Rule]) -> list[_Target]:
    """The modules that the rules choose, in the model's order; each is chosen once, and none inside another."""
    names: dict[nn.Module, list[str]] = defaultdict(list)
    for name, module in model.named_modules(remove_duplicate=False):
        names[module].append(name)
    chosen: dict[nn.Module, _Target] = {}
    for pattern, rule in rules.items():
        options, maker = (dict(rule), None) if isinstance(rule, Mapping) else (None, rule)
        found = [module for module in names if _matches(pattern, module, names[module])]
        if not found:
            raise ValueError(_no_match(pattern, names))
        for module in found:
            if module in chosen:
                both = f"{_shown(chosen[module].pattern)} and {_shown(pattern)}"
                raise ValueError(f"{names[module][0]!r} is chosen by two rules, {both}; let one of them choose it.")
            chosen[module] = _Target(module, names[module], pattern, options, maker)
    if model in chosen:
        itself = f"{_shown(chosen[model].pattern)} chooses the model itself, of class {type(model).__name__}"
        raise ValueError(f"{itself}, which cannot be replaced inside itself; make a TverskyProjection in its place.")
    for outer in model.modules():
        for inner in outer.modules():
            if inner in chosen:
                _check_nesting(chosen[inner], outer, chosen)
    return [chosen[module] for module in names if module in chosen]


def _check_nesting(target: _Target, outer: nn.Module, chosen: Mapping[nn.Module, _Target]) -> None:
    """One error if ``outer``, which is the target or holds it, is a Tversky layer or is replaced too."""
    same = outer is target.old
    if isinstance(outer, TverskyProjection | TverskySimilarity):
        where = "is already" if same else "is part of"
        raise ValueError(f"{target.name!r} {where} a {type(outer).__name__}; convert a fresh model.")
    if outer in chosen and not same:
        one, other = (f"{t.name!r}, chosen by {_shown(t.pattern)}," for t in (target, chosen[outer]))
        raise ValueError(f"{one} lies inside {other} and only one of them can be replaced.")


def _matches(pattern: Pattern, module: nn.Module, names: list[str]) -> bool:
    if isinstance(pattern, type):
        return isinstance(module, pattern)
    if isinstance(pattern, re.Pattern):
        return any(name and pattern.fullmatch(name) for name in names)
    return any(name and fnmatchcase(name, pattern) for name in names)


def _no_match(pattern: Pattern, names: Mapping[nn.Module, list[str]]) -> str:
    """The error for a pattern that chooses nothing, with the nearest names or the classes that there are."""
    if isinstance(pattern, type):
        kinds = Counter(type(module).__name__ for module in names if not list(module.children())).most_common(6)
        return f"no layer is of class {pattern.__name__}; the model has {', '.join(kind for kind, _ in kinds)}."
    every = [name for several in names.values() for name in several if name]
    if not every:
        return f"no layer matches {_shown(pattern)}: the model is one layer; give nn.Sequential(model) and '0'."
    near = _nearest(pattern if isinstance(pattern, str) else pattern.pattern, every)
    return f"no layer matches {_shown(pattern)}; nearest names: {', '.join(near[:3])}."


def _nearest(text: str, names: list[str]) -> list[str]:
    """Names that end as ``text`` says, or else those spelled most alike."""
    near = [name for name in names if fnmatchcase(name, f"*.{text}")]
    if near:
        return near
    # Layers that differ in their numbers only are equally near.
    form = partial(re.sub, r"\d+", "*")
    forms = difflib.get_close_matches(form(text), dict.fromkeys(map(form, names)), n=3, cutoff=0.4)
    return [name for nearest in forms for name in names if form(name) == nearest] or names


def _layers(model: nn.Module, targets: list[_Target]) -> list[nn.Module]:
    """A new layer for each target; the model is not changed."""
    replaced = {part for target in targets for part in target.old.modules()}
    staying = {id(p) for m in model.modules() if m not in replaced for p in m.parameters(recurse=False)}
    homes: dict[int, tuple[tuple, str]] = {id(p): ((p.device, p.dtype), "the model") for p in model.parameters()}
    layers = []
    for target in targets:
        layer = target.maker(target.old, target.name) if target.maker else _projection(model, target, staying)
        if not isinstance(layer, nn.Module):
            raise TypeError(f"the maker of {target.name!r} must return an nn.Module; got {type(layer).__name__}.")
        layers.append(layer)
        home = _home(model, target.old)
        for part, parameter in () if target.maker else layer.named_parameters():
            (device, dtype), owner = homes.setdefault(id(parameter), (home, repr(target.name)))
            if (device, dtype) != home:
                where = f"{dtype} on {device} in {owner} and {home[1]} on {home[0]} in {target.name!r}"
                raise ValueError(f"the {part} of {target.name!r} cannot be shared: it would be {where}.")
    return layers


def _projection(model: nn.Module, target: _Target, staying: set[int]) -> TverskyProjection:
    """The layer that replaces the target."""
    old, name, options = target.old, target.name, dict(target.options or {})
    if any(isinstance(model.get_submodule(n.rpartition(".")[0]), nn.MultiheadAttention) for n in target.names):
        why = "nn.MultiheadAttention reads its weight without calling it"
        raise ValueError(f"{name!r} cannot be converted: {why}; choose layers by name and leave it out.")
    shape = _shape(old)
    if shape is not None:
        options = {"num_prototypes": shape[0], "dim": shape[1], **options}
    elif not {"dim", "num_prototypes"} <= options.keys():
        if type(old).__module__.startswith("torch.ao."):
            raise ValueError(f"{name!r} is quantised, and no nn.Linear any more: convert first, then quantise.")
        chosen = f"{name!r}, chosen by {_shown(target.pattern)}, is of class {type(old).__name__}"
        able = "only nn.Linear and transformers' Conv1D convert by themselves"
        raise ValueError(f"{chosen}, and {able}: narrow the pattern, or give dim and num_prototypes, or a maker.")
    size = [options["num_prototypes"], options["dim"]]
    start, tied = check_choice("start", options.pop("start"), STARTS), options["prototypes"]
    if start == "weights":
        _check_weights(old, name, shape, size, tied)
    if isinstance(tied, str):
        options["prototypes"] = _named(model, tied, name, size, staying)
    device, dtype = _home(model, old)
    try:
        layer = TverskyProjection(**options, device=device, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name!r}: {error}") from None
    if start == "weights":
        _start_from(layer, old)
    return layer


def _check_weights(old: Any, name: str, shape: tuple[int, int] | None, size: list[int], tied: object) -> None:
    if tied is not None:
        raise ValueError(f"{name!r} cannot have both start='weights' and tied prototypes; give one of them.")
    if shape is None or list(shape) != size or not old.weight.is_floating_point():
        weight = "none" if shape is None else f"one of {list(shape)}, {short(old.weight.dtype)}"
        needed = f"a floating weight of [num_prototypes, dim] = {size}"
        raise ValueError(f"start='weights' needs {needed}; {name!r}, of class {type(old).__name__}, has {weight}.")


@torch.no_grad()
def _start_from(layer: TverskyProjection, old: Any) -> None:
    """The old weight's rows as prototypes, outputs of the old size, and its bias if the layer has one."""
    layer.prototypes.copy_(old.weight if isinstance(old, nn.Linear) else old.weight.T)
    layer.reset_constants(spread=linear_spread(layer.prototypes))
    if layer.bias is not None and old.bias is not None:
        layer.bias.copy_(old.bias)


def _named(model: nn.Module, name: str, layer: str, size: list[int], staying: set[int]) -> nn.Parameter:
    """The model's parameter of that name, which must have the size of the layer's prototypes."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name not in parameters:
        near = difflib.get_close_matches(name, parameters, n=3, cutoff=0.4) or list(parameters)[:3]
        raise ValueError(f"the model has no parameter {name!r} to tie prototypes to; nearest names: {', '.join(near)}.")
    if id(parameters[name]) not in staying:
        raise ValueError(f"prototypes={name!r} is in a layer that is replaced; start='weights' puts its values in.")
    if list(parameters[name].shape) != size:
        got = f"got {name!r} of shape {list(parameters[name].shape)}"
        raise ValueError(f"tied prototypes of {layer!r} must be [num_prototypes, dim] = {size}; {got}.")
    return parameters[name]


def _shape(module: Any) -> tuple[int, int] | None:
    """P and D of a linear layer."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features
    # A model has such layers only if the module that defines them is loaded.
    defined = sys.modules.get("transformers.pytorch_utils")
    return (module.nf, module.nx) if defined is not None and isinstance(module, defined.Conv1D) else None


def _home(model: nn.Module, old: nn.Module) -> tuple[torch.device | None, torch.dtype | None]:
    """Device and dtype of the replaced module, or of the model if that has no floating parameter."""
    first = next((p for p in chain(old.parameters(), model.parameters()) if p.is_floating_point()), None)
    return (None, None) if first is None else (first.device, first.dtype)


def _place(layer: nn.Module, device: torch.device | None, dtype: torch.dtype | None, known: Iterable[int]) -> None:
    """Moves the layer, except the parts whose parameters the model already has."""
    for part in layer.modules():
        if device is not None and not any(id(p) in known for p in part.parameters()):
            part.to(device=device, dtype=dtype)


def _leave_fused_paths(model: nn.Module, layers: list[nn.Module]) -> None:
    """Switches off the inference path of torch's encoder, which reads its layers' weights without calling them."""
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoderLayer) and not {part.linear1, part.linear2}.isdisjoint(layers):
            part.activation_relu_or_gelu = 0
        if isinstance(part, nn.TransformerEncoder) and not set(part.modules()).isdisjoint(layers):
            part.use_nested_tensor = False


def _conversion(
    model: nn.Module, targets: list[_Target], layers: list[nn.Module], before: dict[int, int]
) -> Conversion:
    after = {id(p): p.numel() for p in model.parameters()}
    counted: set[int] = set()

    def own(module: nn.Module, elsewhere: Iterable[int]) -> int:
        new = {id(p): p.numel() for p in module.parameters() if id(p) not in elsewhere and id(p) not in counted}
        counted.update(new)
        return sum(new.values())

    rows = tuple(
        Row(", ".join(t.names), _described(t.old), _described(layer), own(t.old, after), own(layer, before))
        for t, layer in zip(targets, layers)
    )
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return Conversion(rows, sum(before.values()), sum(after.values()), trainable)


def _described(module: nn.Module) -> str:
    if isinstance(module, TverskyProjection):
        shared, tied = "" if module.owns_features else " shared", "" if module.owns_prototypes else " tied"
        size = f"{module.in_features}→{module.out_features}"
        return f"Tversky {size}{tied} K={module.features.num_features}{shared}"
    shape = _shape(module)
    return type(module).__name__ + ("" if shape is None else f" {shape[1]}→{shape[0]}")


def _shown(pattern: Pattern) -> str:
    if isinstance(pattern, str):
        return repr(pattern)
    return pattern.__name__ if isinstance(pattern, type) else f"re.compile({pattern.pattern!r})"


def _cut(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    """The cells cut to their widths; names are cut at the front, since their ends tell layers apart."""
    return [
        text if len(text) <= w else "…" + text[1 - w :] if i == 0 else text[: w - 1] + "…"
        for i, (text, w) in enumerate(zip(cells, widths))
    ]
