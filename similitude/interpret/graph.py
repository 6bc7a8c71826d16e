"""The paper's graphs of semantic fields: tokens, the features that they have, and the fields that these fall into.

A field is a distinct intersection: the features that certain tokens have and no other token of the graph has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from .._text import as_html
from ..files import write_bytes
from ..page import json_part, one_file
from .figures.base import TOKEN, distinct_colours, printable, save
from .layout import force_layout
from .sets import FeatureSet, Universe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Field", "FieldGraph", "field_graph", "top_tokens"]

# Fields that are printed.
SHOWN = 20
FILES = resources.files(__name__.rpartition(".")[0]) / "page"


@dataclass(frozen=True)
class Field:
    """Features that certain tokens share and no other token of the graph has.

    Attributes:
        members, others: Tokens that have all of these features, and tokens that have none of them.
        features: The features' numbers.
        top: Tokens that show what the field means.
    """

    members: tuple[str, ...]
    others: tuple[str, ...]
    features: tuple[int, ...]
    top: tuple[str, ...] = ()

    @property
    def expression(self) -> str:
        """As in the paper: ``bad ∩ good − worse − better``."""
        return " − ".join([" ∩ ".join(self.members), *self.others])

    def __str__(self) -> str:
        n = len(self.features)
        return f"{self.expression}: {n} feature{'s' * (n != 1)}" + (f"; {', '.join(self.top)}" if self.top else "")

    __repr__ = __str__


@dataclass(frozen=True)
class FieldGraph:
    """Nodes in the order tokens, features, fields; edges join features to their tokens and to their field.

    Attributes:
        tokens: names of the tokens.
        fields: the fields, the largest first.
        features: index in Ω of each feature, ``[F]``.
        field_of: index of the field of each feature, ``[F]``.
        edges: indices of the two nodes of each edge, ``[E, 2]``.
        positions: place of each node, ``[nodes, 2]``, within the unit circle.
        feature_names: names of all K features, or None.
    """

    tokens: tuple[str, ...]
    fields: tuple[Field, ...]
    features: np.ndarray
    field_of: np.ndarray
    edges: np.ndarray
    positions: np.ndarray
    feature_names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens) + len(self.features) + len(self.fields)

    def __str__(self) -> str:
        """The largest fields, and those whose meaning top tokens show."""
        order = sorted(range(len(self.fields)), key=lambda f: not self.fields[f].top)
        lines = [f"{len(self.features)} features of {', '.join(self.tokens)} in {len(self.fields)} fields"]
        lines += [f"  {self.fields[f]}" for f in order[:SHOWN]]
        return "\n".join(printable(line) for line in lines) + (
            f"\n  … {len(order) - SHOWN} more in .fields" if len(order) > SHOWN else ""
        )

    __repr__ = __str__
    _repr_html_ = as_html

    def kinds(self) -> list[str]:
        """Of each node: "token", "feature" or "field"."""
        sizes = {"token": len(self.tokens), "feature": len(self.features), "field": len(self.fields)}
        return [kind for kind, size in sizes.items() for _ in range(size)]

    def labels(self) -> list[str]:
        """A name for each node, without characters that a file cannot hold."""
        names = [f"feature {k}" for k in self.features]
        if self.feature_names is not None:
            names = [self.feature_names[k] for k in self.features]
        return [printable(name) for name in (*self.tokens, *names, *(f.expression for f in self.fields))]

    def colours(self) -> list[str]:
        """A colour for each node: one for a field and its features; tokens are yellow."""
        own, distinct = [""] * len(self.fields), distinct_colours(len(self.fields))
        # Fields with top tokens get the most distinct colours, then the largest fields.
        for f, colour in zip(sorted(range(len(own)), key=lambda f: not self.fields[f].top), distinct, strict=True):
            own[f] = colour
        return [TOKEN] * len(self.tokens) + [own[f] for f in self.field_of] + own

    def tops(self) -> list[str]:
        """The top tokens of each node that is a field, as text; empty for other nodes."""
        return [""] * (len(self) - len(self.fields)) + [printable(", ".join(field.top)) for field in self.fields]

    def figure(self, title: str = "") -> Figure:
        """The graph as a matplotlib figure, with a box for each field that has top tokens."""
        from .figures.graph import draw

        return draw(self, title)

    def html(self, title: str = "Semantic fields") -> str:
        """The graph as a page to explore: drag, zoom, point, click. The page loads nothing from the network."""
        x, y = self.positions.round(4).T.tolist()
        names = ", ".join(map(printable, self.tokens))
        label = f"graph of {len(self.features)} features of {names} and the {len(self.fields)} fields that they form"
        nodes = {"names": self.labels(), "kinds": self.kinds(), "colours": self.colours(), "tops": self.tops()}
        content = {"title": printable(title), "label": label, **nodes, "x": x, "y": y, "edges": self.edges.tolist()}
        # The page's script writes names by textContent and fillText alone, so that none is read as markup.
        return one_file(FILES, "graph.html", printable(title), [json_part("graph", content)])

    def graphml(self) -> bytes:
        """The graph as GraphML, for other programs: name, kind, colour and place of each node."""
        root = ElementTree.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
        kinds = {"name": "string", "kind": "string", "colour": "string", "top": "string", "x": "double", "y": "double"}
        for key, kind in kinds.items():
            ElementTree.SubElement(root, "key", {"id": key, "for": "node", "attr.name": key, "attr.type": kind})
        graph = ElementTree.SubElement(root, "graph", id="fields", edgedefault="undirected")
        columns = (self.labels(), self.kinds(), self.colours(), self.tops(), *self.positions.T.tolist())
        for i, values in enumerate(zip(*columns, strict=True)):
            node = ElementTree.SubElement(graph, "node", id=f"n{i}")
            for key, value in zip(kinds, values, strict=True):
                if value != "":
                    ElementTree.SubElement(node, "data", key=key).text = str(value)
        for a, b in self.edges.tolist():
            ElementTree.SubElement(graph, "edge", source=f"n{a}", target=f"n{b}")
        return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)

    def save(self, path: str | Path, title: str = "") -> None:
        """Writes the graph whole or not at all, as .png, .svg, .html or .graphml by the ending of ``path``."""
        path = Path(path)
        kind = path.suffix.lower()
        if kind in (".png", ".svg"):
            save(self.figure(title), path)
        elif kind == ".html":
            write_bytes(path, self.html(title or "Semantic fields").encode())
        elif kind == ".graphml":
            write_bytes(path, self.graphml())
        else:
            raise ValueError(f"a graph is written as .png, .svg, .html or .graphml; got {path.name!r}.")


def field_graph(
    names: Sequence[str],
    measures: Universe | Tensor | np.ndarray,
    top: int = 1000,
    notes: Mapping | Callable[[Field], Sequence[str] | None] | None = None,
    feature_names: Sequence[str] | None = None,
    iterations: int = 200,
) -> FieldGraph:
    """A graph of tokens, their strongest features and the fields that these fall into, with a place for each.

    Args:
        names: names of the T tokens.
        measures: a Universe that has the tokens; or x · f_k of each token, ``[T, K]``; or whether it has each feature,
            ``[T, K]`` of bool.
        top: how many of a token's features are taken, the strongest of those it has; memberships are all taken.
        notes: top tokens of some fields: a mapping by the names that share a field,
            ``{("bad", "good"): ["great"], "worse": ["poor"]}``, or a function of a Field, as ``top_tokens`` returns.
        feature_names: names of all K features; by default those that a universe's bank has.
        iterations: steps of the layout.
    """
    names = tuple(map(str, names))
    if isinstance(measures, Universe):
        u = measures
        if feature_names is None and u.feature_names:
            feature_names = [u.feature_names.get(k, f"feature {k}") for k in range(len(u.features))]
        measures = torch.stack([u.measures(name) for name in names]) if names else u.features.new_empty(0, 1)
    has = members(names, measures, top)
    T, K = has.shape
    if feature_names is not None and len(feature_names) != K:
        raise ValueError(f"feature_names must have {K} names; got {len(feature_names)}.")
    features = np.flatnonzero(has.any(0))
    kinds, kind_of, sizes = np.unique(has[:, features], axis=1, return_inverse=True, return_counts=True)
    # The largest first; among equals, that of the earlier tokens.
    order = np.lexsort((*(~kinds)[::-1], -sizes))
    field_of = np.argsort(order)[kind_of.ravel()]
    fields = []
    for f, column in enumerate(kinds.T[order]):
        inside, outside = (tuple(n for n, c in zip(names, column, strict=True) if c == side) for side in (True, False))
        fields.append(Field(inside, outside, tuple(features[field_of == f].tolist())))
    fields = tuple(_noted(fields, names, notes))

    token, feature = np.nonzero(has[:, features])
    F = len(features)
    edges = np.concatenate(
        [np.stack([token, T + feature], axis=1), np.stack([T + F + field_of, T + np.arange(F)], axis=1)]
    )
    # A field holds its features together, and tokens pull at theirs weakly, or the largest token would swallow all.
    weights = np.where(edges[:, 0] < T, 0.05, 1.0)
    # Tokens and fields are drawn larger than features.
    masses = np.repeat([20.0, 1.0, 2.0], [T, F, len(fields)])
    start = _start(has, features, kinds.T[order], field_of)
    positions = force_layout(edges, start, weights, masses, iterations)
    named = None if feature_names is None else tuple(map(str, feature_names))
    return FieldGraph(names, fields, features, field_of, edges, positions, named)


def top_tokens(
    names: Universe | Sequence[str],
    vectors: Tensor | None = None,
    features: Tensor | None = None,
    top: int = 50,
    of: Iterable[str | Sequence[str]] | None = None,
) -> Callable[[Field], list[str] | None]:
    """A function for ``notes`` that returns the names that score highest in a field.

    Args:
        names: the vocabulary as a Universe, or its N names.
        vectors: vectors of the names, ``[N, D]``; not with a Universe.
        features: Ω, ``[K, D]``; not with a Universe.
        top: how many names.
        of: the fields of interest, by the names that share them; by default all.
    """
    if isinstance(names, Universe):
        u = names
    elif vectors is None or features is None:
        raise TypeError("top_tokens takes a Universe, or names with their vectors and the features.")
    else:
        u = Universe(features, names, vectors)
    wanted = None if of is None else {frozenset([key] if isinstance(key, str) else key) for key in of}

    def best(field: Field) -> list[str] | None:
        if wanted is not None and frozenset(field.members) not in wanted:
            return None
        mask = torch.zeros(len(u.features), dtype=torch.bool, device=u.features.device)
        mask[list(field.features)] = True
        return [name for name, _ in FeatureSet(u, mask, field.expression).rank(top)]

    return best


def members(names: Sequence[str], measures: Tensor | np.ndarray, top: int) -> np.ndarray:
    """Which features each token has in the graph, ``[T, K]`` of bool."""
    values = measures.detach().cpu() if isinstance(measures, Tensor) else torch.as_tensor(np.asarray(measures))
    if values.dim() != 2 or len(values) != len(names):
        raise ValueError(f"measures must be [{len(names)}, K], a row a name; got shape {list(values.shape)}.")
    if not names:
        raise ValueError("a graph needs one token or more; got none.")
    if len(set(names)) < len(names):
        twice = next(n for n in names if list(names).count(n) > 1)
        raise ValueError(f"names must be distinct; {twice!r} is there twice.")
    if values.dtype == torch.bool:
        has = values
    else:
        if not isinstance(top, int) or top < 1:
            raise ValueError(f"top must be a whole number of 1 or more; got {top!r}.")
        if values.isnan().any():
            raise ValueError("measures must be numbers; some are NaN.")
        strongest = values.argsort(dim=1, descending=True, stable=True)[:, :top]
        has = torch.zeros(values.shape, dtype=torch.bool).scatter_(1, strongest, True) & (values > 0)
    if not has.any():
        raise ValueError("no token has any feature: no measure is above 0.")
    return has.numpy()


def _noted(fields: list[Field], names: tuple[str, ...], notes: Any) -> list[Field]:
    """The fields with their top tokens from the notes."""
    if notes is None:
        return fields
    if callable(notes):
        found: list[Any] = [notes(field) for field in fields]
        return [replace(field, top=tuple(map(str, top or ()))) for field, top in zip(fields, found, strict=True)]
    left = {frozenset([key] if isinstance(key, str) else key): key for key in notes}
    out = []
    for field in fields:
        key = left.pop(frozenset(field.members), None)
        out.append(field if key is None else replace(field, top=tuple(map(str, notes[key]))))
    if left:
        key, given = next(iter(left.items()))
        unknown = sorted(key - set(names))
        why = f"{unknown[0]!r} is not in the graph" if unknown else "no feature is shared by just these"
        raise ValueError(f"no field of {given!r}: {why}.")
    return out


def _start(has: np.ndarray, features: np.ndarray, kinds: np.ndarray, field_of: np.ndarray) -> np.ndarray:
    """Starting places, all distinct: tokens on a circle, fields amid their tokens, features in spirals around them."""
    T, F = len(has), len(features)
    turn = 2 * np.pi * np.arange(T) / T
    tokens = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    fields = kinds @ tokens / kinds.sum(1, keepdims=True)
    around, far = 2.399963 * np.arange(F + len(kinds)), np.sqrt(np.arange(F + len(kinds)) + 1.0)
    spiral = (far / far.max())[:, None] * np.stack([np.cos(around), np.sin(around)], axis=1)
    return np.concatenate([tokens, fields[field_of] + 0.15 * spiral[:F], fields + 0.05 * spiral[F:]])
