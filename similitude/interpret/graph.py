"""The paper's graphs of semantic fields: tokens, the features that they have, and the fields that these fall into.

A field is a distinct intersection: the features that certain tokens have and no other token of the graph.
"""

from __future__ import annotations

import colorsys
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .figures.base import save, write
from .layout import force_layout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKEN = "#f0e442"
# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow of tokens.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
# XML knows no control characters, and UTF-8 no halves of surrogate pairs.
UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Field:
    """Features that all of ``members`` have and none of ``others``; ``top`` are tokens that show what it means."""

    members: tuple[str, ...]
    others: tuple[str, ...]
    features: tuple[int, ...]
    top: tuple[str, ...] = ()

    @property
    def expression(self) -> str:
        """As in the paper: ``bad ∩ good − worse − better``."""
        return " − ".join([" ∩ ".join(self.members), *self.others])


@dataclass(frozen=True)
class FieldGraph:
    """Nodes in the order tokens, features, fields; edges join features to their tokens and to their field.

    fields: the largest first. features: which of Ω, ``[F]``; field_of: the field of each, ``[F]``.
    edges: ``[E, 2]`` numbers of nodes. positions: ``[nodes, 2]``, within the unit circle.
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

    def kinds(self) -> list[str]:
        sizes = {"token": len(self.tokens), "feature": len(self.features), "field": len(self.fields)}
        return [kind for kind, size in sizes.items() for _ in range(size)]

    def labels(self) -> list[str]:
        """What to call each node; nothing in it that a file could not hold."""
        names = [f"feature {k}" for k in self.features]
        if self.feature_names is not None:
            names = [self.feature_names[k] for k in self.features]
        return [printable(name) for name in (*self.tokens, *names, *(f.expression for f in self.fields))]

    def colours(self) -> list[str]:
        """One colour a field, for it and its features; tokens are yellow."""
        own, distinct = [""] * len(self.fields), field_colours(len(self.fields))
        # The colours that are told apart best go to the fields of interest, then to the largest.
        for f, colour in zip(sorted(range(len(own)), key=lambda f: not self.fields[f].top), distinct, strict=True):
            own[f] = colour
        return [TOKEN] * len(self.tokens) + [own[f] for f in self.field_of] + own

    def figure(self, title: str = "") -> Figure:
        """The graph as a matplotlib figure, with a box for each field that has top tokens."""
        from .figures.graph import draw

        return draw(self, title)

    def html(self, title: str = "Semantic fields") -> str:
        """The graph as a page to explore, which asks the network for nothing."""
        from .page import page

        return page(self, title)

    def graphml(self) -> bytes:
        """The graph as GraphML, for other programs: name, kind, colour and place of each node."""
        from xml.etree import ElementTree as tree

        root = tree.Element("graphml", xmlns="http://graphml.graphdrawing.org/xmlns")
        kinds = {"name": "string", "kind": "string", "colour": "string", "top": "string", "x": "double", "y": "double"}
        for key, kind in kinds.items():
            tree.SubElement(root, "key", {"id": key, "for": "node", "attr.name": key, "attr.type": kind})
        graph = tree.SubElement(root, "graph", id="fields", edgedefault="undirected")
        tops = [""] * (len(self) - len(self.fields)) + [printable(", ".join(f.top)) for f in self.fields]
        columns = (self.labels(), self.kinds(), self.colours(), tops, *self.positions.T.tolist())
        for i, values in enumerate(zip(*columns, strict=True)):
            node = tree.SubElement(graph, "node", id=f"n{i}")
            for key, value in zip(kinds, values, strict=True):
                if value != "":
                    tree.SubElement(node, "data", key=key).text = str(value)
        for a, b in self.edges.tolist():
            tree.SubElement(graph, "edge", source=f"n{a}", target=f"n{b}")
        return tree.tostring(root, encoding="utf-8", xml_declaration=True)

    def save(self, path: str | Path, title: str = "") -> None:
        """Writes .png, .svg, .html or .graphml, as the name ends; the file appears whole or not at all."""
        path = Path(path)
        kind = path.suffix.lower()
        if kind in (".png", ".svg"):
            save(self.figure(title), path)
        elif kind == ".html":
            write(path, self.html(title or "Semantic fields").encode())
        elif kind == ".graphml":
            write(path, self.graphml())
        else:
            raise ValueError(f"a graph is written as .png, .svg, .html or .graphml; got {path.name!r}.")


def field_graph(
    names: Sequence[str],
    measures: Tensor | np.ndarray,
    top: int = 1000,
    notes: Mapping | Callable[[Field], Sequence[str] | None] | None = None,
    feature_names: Sequence[str] | None = None,
    iterations: int = 200,
) -> FieldGraph:
    """Tokens, their strongest features and the distinct fields these fall into, with a place for each.

    measures: x · f_k of each token, ``[T, K]``, of which the ``top`` largest above 0 are taken, or memberships,
    ``[T, K]`` of bool, which are taken all. notes: top tokens of the fields of interest, by the names that share a
    field (``{("bad", "good"): ["great", …], "worse": […]}``), or a function of a Field such as ``top_tokens`` gives.
    """
    names = tuple(map(str, names))
    has = members(names, measures, top)
    T, K = has.shape
    if feature_names is not None and len(feature_names) != K:
        raise ValueError(f"feature_names must have {K} names; got {len(feature_names)}.")
    features = np.flatnonzero(has.any(0))
    kinds, kind_of, sizes = np.unique(has[:, features], axis=1, return_inverse=True, return_counts=True)
    # The largest first; of equals, that of the earlier tokens.
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
    # A field holds its features together, and tokens only lean to theirs: else the largest token swallows all.
    weights = np.where(edges[:, 0] < T, 0.05, 1.0)
    # They are drawn larger than features too.
    masses = np.repeat([20.0, 1.0, 2.0], [T, F, len(fields)])
    start = _start(has, features, kinds.T[order], field_of)
    positions = force_layout(edges, start, weights, masses, iterations)
    named = None if feature_names is None else tuple(map(str, feature_names))
    return FieldGraph(names, fields, features, field_of, edges, positions, named)


def top_tokens(
    names: Sequence[str],
    vectors: Tensor,
    features: Tensor,
    top: int = 50,
    of: Iterable[str | Sequence[str]] | None = None,
) -> Callable[[Field], list[str] | None]:
    """A function for ``notes``: the names whose vectors score highest in a field F, by the paper's s = Σ_{f∈F} f·x.

    names, vectors ``[N, D]``: the vocabulary. features: Ω, ``[K, D]``. of: the fields of interest, by the names that
    share them; by default all.
    """
    wanted = None if of is None else {frozenset([key] if isinstance(key, str) else key) for key in of}

    def best(field: Field) -> list[str] | None:
        if wanted is not None and frozenset(field.members) not in wanted:
            return None
        scores = vectors.detach() @ features.detach()[list(field.features)].sum(0)
        return [names[int(i)] for i in scores.argsort(descending=True, stable=True)[:top]]

    return best


def members(names: Sequence[str], measures: Tensor | np.ndarray, top: int) -> np.ndarray:
    """Which features each token is taken to have, ``[T, K]`` of bool."""
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
    """The fields, with top tokens for those that have notes."""
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
    """Tokens on a circle, fields amid their tokens, features in a spiral around their field: never two in one place."""
    T, F = len(has), len(features)
    turn = 2 * np.pi * np.arange(T) / T
    tokens = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    fields = kinds @ tokens / kinds.sum(1, keepdims=True)
    around, far = 2.399963 * np.arange(F + len(kinds)), np.sqrt(np.arange(F + len(kinds)) + 1.0)
    spiral = (far / far.max())[:, None] * np.stack([np.cos(around), np.sin(around)], axis=1)
    return np.concatenate([tokens, fields[field_of] + 0.15 * spiral[:F], fields + 0.05 * spiral[F:]])


def field_colours(n: int) -> list[str]:
    """n distinct colours: those that colour-blind readers tell apart first, for the largest fields."""
    out: list[str] = list(PALETTE[:n])
    for i in range(n - len(out)):
        # Steps of the golden ratio never come back to a hue; lightness tells neighbours apart too.
        red, green, blue = colorsys.hls_to_rgb((0.05 + 0.618034 * i) % 1, (0.35, 0.6, 0.48)[i % 3], 0.45)
        out.append(f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}")
    return out


def printable(name: str) -> str:
    """The name with control characters as their pictures (␀ for \\0), and what has none as �."""
    return UNWRITABLE.sub(lambda m: chr(0x2400 + ord(m[0])) if ord(m[0]) < 32 else "\ufffd", name)
