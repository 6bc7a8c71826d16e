"""What transformers is told of layers that ``convert`` puts into its models: tied tensors, a vocabulary's resizing."""

from __future__ import annotations

import sys
from collections import defaultdict
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import nn

from ..nn import TverskyProjection


def tell_transformers(model: nn.Module, layers: list[nn.Module]) -> None:
    """Updates the lists of tied tensors that transformers' models keep, and their way to resize a vocabulary."""
    defined = sys.modules.get("transformers.modeling_utils")
    if defined is None:
        return
    made = {id(tensor) for layer in layers for tensor in chain(layer.parameters(), layer.buffers())}
    for part in model.modules():
        if isinstance(part, defined.PreTrainedModel) and not set(part.modules()).isdisjoint(layers):
            _declare_ties(part, made)
            if _head(part) in layers:
                cast(Any, part).resize_token_embeddings = partial(resize_token_embeddings, part)


def _declare_ties(part: Any, made: set[int]) -> None:
    """transformers ties the tensors that are listed, and refuses to save others that are shared.

    Listed ties between tensors that convert made, or that are gone, are dropped; shared tensors that it made are added.
    """
    tensors = dict(chain(part.named_parameters(remove_duplicate=False), part.named_buffers(remove_duplicate=False)))
    names: dict[int, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        names[id(tensor)].append(name)
    ours = {alias: several[0] for i, several in names.items() if i in made for alias in several[1:]}
    theirs = {name for name, tensor in tensors.items() if id(tensor) not in made}
    ties, possible = (
        {k: v for k, v in (getattr(part, listed, None) or {}).items() if k in theirs and v in tensors}
        for listed in ("all_tied_weights_keys", "_tied_weights_keys")
    )
    part.all_tied_weights_keys, part._tied_weights_keys = ties | ours, possible | ties | ours


def _head(model: Any) -> TverskyProjection | None:
    try:
        head = model.get_output_embeddings()
    except AttributeError:
        return None
    return head if isinstance(head, TverskyProjection) else None


def resize_token_embeddings(model: Any, *args: Any, **kwargs: Any) -> nn.Embedding:
    """The token embeddings, resized by transformers, and a converted head with them.

    New prototypes start at the mean of the old ones. transformers itself would look for the weight of the head.
    """
    head = _head(model)
    if head is None:
        return type(model).resize_token_embeddings(model, *args, **kwargs)
    before = model.get_input_embeddings().num_embeddings
    model.get_output_embeddings = lambda: None
    try:
        embeddings = type(model).resize_token_embeddings(model, *args, **kwargs)
    finally:
        del model.get_output_embeddings
    P = embeddings.num_embeddings
    for rows in (head.prototypes, head.bias):
        if rows is not None and len(rows) == before:
            more = rows.data.mean(0, keepdim=True).expand(max(0, P - len(rows)), *rows.shape[1:])
            rows.data = torch.cat([rows.data[:P], more])
    return embeddings
