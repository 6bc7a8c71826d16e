"""The Tversky layer of what a caller has, and the vectors that reach it: one rule for all that explain or start one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batches import batches, inputs_of
from .checks import check_vectors, check_width
from .contrast import Contrast
from .pooling import ClassPooling

if TYPE_CHECKING:
    from .nn import TverskyProjection, TverskySimilarity

# Inputs that go through a network at once.
ROWS = 1000


def projection(model: Any, layer: str | None = None) -> TverskyProjection:
    """A model's Tversky layer: the one named, the one that the model answers with, or its only one."""
    if layer is None and hasattr(model, "as_projection"):
        return model.as_projection()
    if not isinstance(model, nn.Module):
        return _fitted(model).layer_
    layers: dict[str, Any] = {n: m for n, m in model.named_modules() if _is_layer(m) and hasattr(m, "prototypes")}
    if layer is None and len(layers) == 1:
        return next(iter(layers.values()))
    if not layers:
        hint = ": a TverskySimilarity has no prototypes" if _is_layer(model) else ""
        raise ValueError(f"there is no TverskyProjection in this {type(model).__name__}{hint}.")
    if layer not in layers:
        given = "this model has several Tversky layers" if layer is None else f"no Tversky layer is named {layer!r}"
        raise ValueError(f"{given}; name one of them with layer=: {', '.join(layers)}.")
    return layers[layer]


def comparison(model: Any, layer: str | None = None) -> TverskyProjection | TverskySimilarity:
    """A TverskySimilarity itself, and of other models their projection: what compares two objects."""
    return model if _is_layer(model) and not hasattr(model, "prototypes") else projection(model, layer)


@torch.no_grad()
def seen(model: Any, inputs: Any, layer: str | None = None) -> tuple[Any, Tensor]:
    """A model's Tversky layer, and the vectors ``[N, D]`` that reach it when the model gets the inputs in ``eval()``.

    Args:
        model: a Tversky layer, a DataDomain network, a fitted TverskyClassifier or a Pipeline that ends in one, or any
            module with a TverskyProjection in it, such as a converted one.
        inputs: what the model takes: a tensor of N inputs, rows for a classifier, keyword arguments as a mapping, or
            a loader of batches of these, or of tuples that begin with them.
        layer: name of the layer where the model has several; by default a model's own head, if it names one.
    """
    chosen = comparison(model, layer)
    if not isinstance(model, nn.Module):
        return chosen, _fitted(model).objects(_transformed(model, inputs))
    vectors_of = None
    if chosen is model:
        vectors_of = nn.Identity()
    elif hasattr(model, "as_projection"):
        vectors_of = getattr(model, "encode", None)
    return chosen, _reaching(model, chosen, chosen.features.weight, inputs, vectors_of)


@torch.no_grad()
def seen_by_any(model: Any, inputs: Any, layer: str | None = None) -> tuple[Any, Tensor]:
    """As ``seen``; of a model without a Tversky layer the vectors reach an nn.Linear, one that is named or its head."""
    if not isinstance(model, nn.Module) or hasattr(model, "as_projection"):
        return seen(model, inputs, layer)
    if any(_is_layer(m) for m in model.modules()) and (layer is None or _is_layer(model.get_submodule(layer))):
        return seen(model, inputs, layer)
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if layer in linear:
        chosen = linear[layer]
    elif layer is None and (len(linear) == 1 or isinstance(head, nn.Linear)):
        chosen = head if isinstance(head, nn.Linear) else next(iter(linear.values()))
    else:
        given = "this model has no Tversky layer" if layer is None else f"no layer is named {layer!r}"
        raise ValueError(f"{given}; name an nn.Linear with layer=: {', '.join(linear) or 'it has none'}.")
    return chosen, _reaching(model, chosen, chosen.weight, inputs, nn.Identity() if chosen is model else None)


def _reaching(model: nn.Module, chosen: nn.Module, weight: Tensor, inputs: Any, vectors_of: Any) -> Tensor:
    """The vectors that reach a module of the model, whose weight is ``[..., D]``."""
    found: list[Tensor] = []
    hook = chosen.register_forward_pre_hook(
        lambda _, given, named: found.append(_rows([*given, *named.values()][0], weight)), with_kwargs=True
    )
    batch = None
    try:
        with evaluating(model):
            for batch in batches(inputs, ROWS):
                x = inputs_of(batch, weight.device)
                if vectors_of is not None:
                    found.append(_rows(vectors_of(x), weight))
                else:
                    model(**x) if isinstance(x, Mapping) else model(x)
    finally:
        hook.remove()
    if batch is None:
        raise ValueError("there are no inputs: the loader is empty, or was used up before.")
    if not found:
        raise ValueError("the layer was not called on the inputs: some have none, or a fused loss went around it.")
    return torch.cat(found)


def one(model: Any, x: Any, layer: str | None = None, name: str = "x") -> Tensor:
    """The vector ``[D]`` that reaches the layer for one input; a layer's own input is that vector."""
    chosen = comparison(model, layer)
    if chosen is model:
        return x
    # A row of a table is a Series or a frame of one row.
    row = x.to_frame().T if hasattr(x, "to_frame") else x
    whole = isinstance(row, Mapping) or hasattr(row, "columns")
    vectors = seen(model, row if whole else row[None], layer)[1]
    if len(vectors) != 1:
        raise ValueError(
            f"{name} must be one input that reaches the layer as one vector; got {len(vectors)} vectors: take one of "
            "layer, vectors = similitude.interpret.salience.seen(model, inputs), and the layer."
        )
    return vectors[0]


@torch.no_grad()
def check_head(model: Any, x: Any, layer: str | None = None) -> None:
    """Raises where a model answers otherwise than its only Tversky layer, whose classes are then not the model's.

    A layer that is named is taken as it is.
    """
    if layer is not None or not isinstance(model, nn.Module) or _is_layer(model) or hasattr(model, "as_projection"):
        return
    # In training the layer's held thresholds would follow the input.
    with evaluating(model):
        answer = model(**x) if isinstance(x, Mapping) else model(x[None])
        if not isinstance(answer, Tensor):
            return
        classes = pooling(model)(projection(model)(one(model, x)))
    if answer.shape[-1] != len(classes):
        raise ValueError(
            f"the layer tells {len(classes)} classes apart and the model answers with {answer.shape[-1]} numbers: the "
            "layer is not the model's head. explain(model, x) says what it answers."
        )
    first = int(answer.argmax()) % len(classes)
    # One input and a batch of one are rounded differently, so classes that are level may change places.
    if classes[first] < classes.max() - 1e-3 * classes.abs().max():
        raise ValueError(
            f"the layer answers {int(classes.argmax())} and the model {first}, so what follows the layer decides: "
            "explain(model, x) says what the layer answers."
        )


def class_names(model: Any) -> list[str] | None:
    """Names of a fitted classifier's classes."""
    classes = getattr(model, "classes_", None)
    return None if classes is None else list(map(str, classes))


def naming(model: Any, given: Sequence[str] | None) -> Sequence[str] | None:
    """The names given, or those that a fitted classifier's features have by its columns."""
    return given if given is not None or isinstance(model, nn.Module) else _fitted(model).feature_names()


def pooling(model: Any) -> ClassPooling:
    """The model's ClassPooling; without one, or with several, one in which each prototype is a class."""
    if not isinstance(model, nn.Module):
        return _fitted(model).pooling_
    found = [m for m in model.modules() if isinstance(m, ClassPooling)]
    return found[0] if len(found) == 1 else ClassPooling()


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """A context with a module in eval mode, where dropout hides no features and batch norm does not learn."""
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


def _is_layer(module: object) -> bool:
    return isinstance(module, Contrast) and not hasattr(module, "as_projection")


def _fitted(model: Any) -> Any:
    """The fitted classifier, also at the end of a Pipeline."""
    found = model[-1] if hasattr(model, "named_steps") else model
    if not (hasattr(found, "layer_") and hasattr(found, "objects")):
        raise TypeError(
            "model must be a TverskyProjection or TverskySimilarity, a module that has one, or a fitted classifier; "
            f"got {type(found).__name__}."
        )
    return found


def _transformed(model: Any, rows: Any) -> Any:
    """Rows as the last step of a Pipeline gets them."""
    return model[:-1].transform(rows) if hasattr(model, "named_steps") and len(model.steps) > 1 else rows


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    check_vectors("inputs", x)
    check_width("inputs", x, weight)
    return x.reshape(-1, x.shape[-1])
