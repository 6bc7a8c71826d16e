"""What a layer keeps in ``eval()`` under ``no_grad``, so that small batches need not pay for the prototypes' side."""

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from . import checks
from . import functional as F
from .form import Form
from .ops import vectors
from .ops.inference import Side
from .ops.modes import autocasts, eager, rounded, without_autocast
from .ops.reference import Scalars

# Elements of a tensor from which on a look at eight columns takes longer than what a small batch asks for.
LARGE = 2**18
# Multiplications from which on making a side takes longer than a call of Python in a compiled graph.
WORTH_A_CALL = 2**22

Look = Callable[[Sequence[Tensor]], Sequence[Tensor]]

# Layers that are alive, by the number that compiled graphs know them by.
_layers: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
_numbers = count()
_calls = count()


class Kept:
    """A value made of tensors, and the means to tell whether they are still what they were.

    Args:
        value: What is kept.
        tensors: What it was made of; changes that PyTorch counts show in their identity, place and version.
        key: What else it depends on.
        look: What of them is compared by value, since a change through ``.data`` leaves no other mark: parts of them
            that share their memory.
    """

    def __init__(self, value: Any, tensors: Sequence[Tensor], key: Hashable, look: Look):
        self.value: Any = value
        self.key: Hashable = key
        self.marks: list[tuple[Tensor, int, int]] = [(t, t.data_ptr(), t._version) for t in tensors]
        parts = [part.detach() for part in look(tensors)]
        numbers = [type(t) is Tensor and t.numel() == 1 for t in parts]
        self.numbers: list[tuple[Tensor, float]] = [(t, t.item()) for t, one in zip(parts, numbers) if one]
        self.parts: list[tuple[Tensor, Tensor]] = [(t, t.clone()) for t, one in zip(parts, numbers) if not one]

    def holds(self, tensors: Sequence[Tensor], key: Hashable) -> bool:
        if key != self.key or len(tensors) != len(self.marks):
            return False
        return all(t is kept for t, (kept, _, _) in zip(tensors, self.marks)) and self._unchanged()

    def _unchanged(self) -> bool:
        for tensor, place, version in self.marks:
            if tensor._version != version or tensor.data_ptr() != place:
                return False
        for part, number in self.numbers:
            if part.item() != number:
                return False
        return all(torch.equal(part, copy) for part, copy in self.parts)


class KeptSide(Kept):
    """The prototypes' side of a layer, with a quick way to tell that it serves an input.

    Hooks, parametrisations, replicas and programs that wrap the bank stand between a layer and its tensors; where there
    are none, tensors are looked at where the modules hold them. On the CPU, where calls cost more than arithmetic.

    Args:
        side: What is kept.
        layer: The layer that it is of.
        bank: The bank in it, if it is one and nothing around one.
        tensors, key: As in Kept; the key is the layer's form and ``place``.
    """

    def __init__(self, side: Side, layer: nn.Module, bank: nn.Module | None, tensors: Sequence[Tensor], key: tuple):
        super().__init__(side, tensors, key, some_columns)
        self.bank, self.own = bank, layer._parameters
        self.form, (device, self.dtype, cast) = key
        self.width: int = side.features.shape[1]
        self.homes: list[tuple[dict[str, Any], str, Tensor]] | None = None
        if bank is not None and device.type == "cpu" and cast is None:
            places = (layer._parameters, layer._buffers, bank._parameters, bank._buffers)
            found = [[(held, name, t) for held in places for name in held if held[name] is t][:1] for t in tensors]
            self.homes = [home for homes in found for home in homes] if all(found) else None

    def serves(self, layer: nn.Module, x: object) -> bool:
        """Whether ``value`` is what the layer would make for ``x``; False where that takes longer to tell."""
        bank, homes = self.bank, self.homes
        if homes is None or bank is None or type(x) is not Tensor or not x.is_cpu or x.dtype is not self.dtype:
            return False
        if layer._parameters is not self.own or layer._modules.get("features") is not bank:
            return False
        if bank._forward_hooks or bank._forward_pre_hooks or "forward" in bank.__dict__ or _has_any_global_hook():
            return False
        if layer.training or layer.__dict__["form"] is not self.form or not x.dim() or x.shape[-1] != self.width:
            return False
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not eager(x):
            return False
        for held, name, tensor in homes:
            if held.get(name) is not tensor:
                return False
        return self._unchanged()


def side_of(
    x: Tensor, prototypes: Tensor, weight: Tensor, threshold: Tensor | None, scalars: Scalars, form: Form
) -> Side:
    """The prototypes' side of a similarity with ``x``; scalars as tversky_projection takes them."""
    checks.check_vectors("x", x)
    if form.backend == "triton":
        checks.check_triton(prototypes)
    dtype = rounded(x)
    with without_autocast(x.device.type):
        return vectors.prepare(prototypes, weight, F.scalars(x, *scalars), form, dtype, threshold)


def place(x: object, prototypes: Tensor) -> tuple[Any, ...] | None:
    """Device, dtype and autocast's dtype of a similarity with ``x``; None where nothing may be kept for it.

    That is under any transform, while a CUDA graph is captured, and for tensors that do not go together, which
    tversky_projection refuses with the reason.
    """
    if not isinstance(x, Tensor) or not x.dim() or not x.is_floating_point() or not eager(x):
        return None
    if x.device != prototypes.device or prototypes.is_meta:
        return None
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return None
    if not autocasts(x):
        return (x.device, x.dtype, None) if x.dtype == prototypes.dtype else None
    # Autocast leaves float64 alone.
    if (x.dtype == torch.float64) != (prototypes.dtype == torch.float64):
        return None
    return x.device, x.dtype == torch.float64, torch.get_autocast_dtype(x.device.type)


def some_columns(tensors: Sequence[Tensor]) -> list[Tensor]:
    """About eight columns of every row, or of large tensors one element of every row, at other columns from row to row.

    They tell of most changes through ``.data``.
    """
    return [_some(x.detach()) for x in tensors]


def _some(x: Tensor) -> Tensor:
    step = max(1, x.shape[-1] // 8)
    if x.dim() > 1 and x.shape[-1] > 1 and x.numel() >= LARGE and x.is_contiguous():
        return x.view(-1)[:: x.shape[-1] - step]
    return x[..., ::step]


def numbered(layer: nn.Module) -> Tensor:
    """A number for the layer, new and of no other. As a tensor: each Python number would be a graph of its own."""
    number = next(_numbers)
    _layers[number] = layer
    return torch.tensor(number, device="cpu")


def call_number() -> int:
    """A number for a call in the graph that is being compiled: each run of the graph makes this call once."""
    return next(_calls)


# What torch.compiler.assume_constant_result does, which imports the whole compiler.
call_number._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def asked_for(layer: Any, x: Tensor, weight: Tensor, threshold: Tensor | None) -> bool:
    """Whether the graph that is being compiled shall ask for what the layer keeps.

    That is on the CPU, in ``eval()`` under ``no_grad``, with nothing between the layer and its tensors, where the side
    takes long to make. Elsewhere the compiler sees all of the arithmetic.
    """
    if torch.compiler.is_exporting() or torch.is_grad_enabled() or layer.training:
        return False
    if torch._C._are_functorch_transforms_active() or torch.is_autocast_enabled("cpu"):
        return False
    own, bank = layer._parameters, layer.features
    if own.get("prototypes") is None or bank._parameters.get("weight") is None or layer.form.backend == "triton":
        return False
    tensors = [x, own["prototypes"], weight] if threshold is None else [x, own["prototypes"], weight, threshold]
    if any(type(t) not in vectors.PLAIN or t.device.type != "cpu" or t.dtype != x.dtype for t in tensors):
        return False
    return x.dim() > 0 and weight.numel() * len(own["prototypes"]) >= WORTH_A_CALL


def project_in_graph(layer: Any, x: Tensor, weight: Tensor, threshold: Tensor | None) -> Tensor:
    """Similarities, by a node that looks for what the layer keeps when the graph runs. Tensors that it reads are its
    arguments, so that the compiler knows of them."""
    checks.check_all_pairs(x, layer.prototypes, weight)
    sources = [t for t in (layer.prototypes, weight, *layer.learned(), threshold) if t is not None]
    return project_kept(x, sources, layer.contrast(), layer._number, call_number(), *layer.form)


@torch.library.custom_op("similitude::project_kept", mutates_args=())
def project_kept(
    x: Tensor,
    sources: Sequence[Tensor],
    scalars: Sequence[Tensor],
    number: Tensor,
    call: int,
    intersection: str,
    difference: str,
    level: str,
    model: str,
    normalize: bool,
    backend: str,
    leak: float,
) -> Tensor:
    """``functional.tversky_projection``, on what the layer of this number keeps if the tensors are its own.

    Args:
        x: ``[..., D]``.
        sources: Prototypes, features, what is learned behind α, β, θ, and thresholds, if there are some.
        scalars: α, β, θ.
        number: Of the layer; see ``numbered``.
        call: Which call of the layer this is; see ``call_number``.
        intersection, difference, level, model, normalize, backend, leak: The form.
    """
    form = Form(intersection, difference, level, model, normalize, backend, leak)
    prototypes, weight, _, _, _, *rest = sources
    threshold = rest[0] if rest else None
    alpha, beta, theta = scalars
    layer: Any = _layers.get(int(number))
    where = place(x, prototypes)
    if where is None or not _owns(layer, sources, form):
        return F.tversky_projection(x, prototypes, weight, alpha, beta, theta, *form, threshold).contiguous()
    kept = layer._kept
    if kept is None or not kept.holds(sources, (form, where)):
        if not _unchanged_since(layer, call, sources):
            return F.tversky_projection(x, prototypes, weight, alpha, beta, theta, *form, threshold).contiguous()
        # The layer's own form, which ``serves`` compares by identity.
        side = side_of(x, prototypes, weight, threshold, (alpha, beta, theta), layer.form)
        kept = layer._kept = KeptSide(side, layer, layer.features, sources, (layer.form, where))
    return vectors.project_on(kept.value, x).contiguous()


@project_kept.register_fake  # pyright: ignore[reportFunctionMemberAccess]
def _(x, sources, scalars, number, call, *form):
    return x.new_empty(*x.shape[:-1], sources[0].shape[0])


def _owns(layer: Any, tensors: Sequence[Tensor], form: Form) -> bool:
    """Whether a layer would compare by these very tensors, in this form, and keep what it makes of them."""
    if layer is None or layer.training or layer.form != form or any(t.is_inference() for t in tensors):
        return False
    bank = layer.features
    held = {id(t) for m in (layer, bank) for found in (m._parameters, m._buffers) for t in found.values()}
    return all(id(t) in held for t in tensors)


def _unchanged_since(layer: Any, call: int, tensors: Sequence[Tensor]) -> bool:
    """Whether the last run of the graph that makes this call found the tensors at the same versions.

    A graph that changes a tensor in place counts a version when it starts, and not when it writes: what it kept before
    it writes would pass for what is there after.
    """
    versions = [(id(t), t._version) for t in tensors]
    seen = layer._seen.get(call)
    layer._seen[call] = versions
    return seen == versions
