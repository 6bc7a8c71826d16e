"""The models of the experiment on people's judgements, by name: lists of families, from which held-out cells choose."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..human import families, given, rivals
from ..human.families import Family, with_bias
from ..human.judgements import Judgements

SUBTRACT = {"difference": "subtractmatch"}
MIN = {"intersection": "min", **SUBTRACT}
LISTED = {"given-one": "one", "given-own": "common+distinctive", "given-common": "common"}
ALIKE = {f"weighted-{by.replace(' ', '-').lower()}": by for by in ("cosine", "dot", "city block", "Euclid")}
TVERSKY = ("tversky", "tversky-bias", "ignorematch", "symmetric", "direct")
RIVALS = {name.replace(" ", "-"): name for name in rivals.RIVALS}
WORDS = (
    "vectors-sides",
    "vectors",
    "vectors-ignorematch",
    "cosine-sides",
    "cosine-vectors",
    "sides",
    "bilinear-sides",
    "distance-sides",
    "network",
)
LEARNED = (*TVERSKY, *RIVALS)
NAMES = {
    "leuven": (*LISTED, *ALIKE),
    "usf": WORDS,
    "hyperlex": WORDS,
    "direction": ("counted",),
}
ORDER = [*LEARNED, *LISTED, *ALIKE, *WORDS, "counted"]


def choices(data: str, name: str, said: Judgements, known: np.ndarray | None) -> list[Family]:
    """The families of a model for judgements with known features or vectors."""
    if name in WORDS:
        return _of_vectors(name, _standard(known), (1e-4,) if data == "usf" else (1e-2, 3e-2))
    if name in LISTED or name in ALIKE:
        X, decays = torch.tensor(known, dtype=torch.float32), (1e-5, 1e-4, 1e-3, 1e-2)
        if name in ALIKE:
            return [given.alike(X, ALIKE[name], l2=decays)]
        return [given.listed(X, LISTED[name], l2=decays, symmetric=said.symmetric, **MIN)]
    same = said.symmetric or name == "symmetric"
    if name == "direct":
        return [families.direct(10 if data == "latent" else 12, l2=(1e-3,), symmetric=same, leak=0.1, **MIN)]
    if name not in TVERSKY:
        dims = {"recovery": (4, 8), "latent": (10,)}.get(data, (3, 4, 6))
        return rivals.RIVALS[RIVALS[name]](dims)
    form: dict[str, Any] = {} if name == "ignorematch" else SUBTRACT
    dims, decays = {"recovery": ((8,), (3e-4,)), "latent": ((6,), (3e-4, 1e-3))}.get(data, ((3, 4, 6), (3e-4, 1e-3)))
    wide = [
        families.tversky(24, d, l2=decays, intersection=common, symmetric=same, **form)
        for common in ("product", "min")
        for d in dims
    ]
    return [with_bias(family, "object") for family in wide] if name == "tversky-bias" else wide


def _of_vectors(name: str, V: torch.Tensor, l2: tuple[float, ...]) -> list[Family]:
    if name.startswith("vectors"):
        form: dict[str, Any] = {} if name == "vectors-ignorematch" else MIN
        return [given.vectors(V, 32, sides=name == "vectors-sides", l2=l2, **form)]
    made = {
        "cosine-sides": lambda: given.linear(V, cosine=True, l2=l2),
        "cosine-vectors": lambda: given.linear(V, cosine=True, sides=False, l2=l2),
        "sides": lambda: given.linear(V, l2=l2),
        "bilinear-sides": lambda: given.turned(V, l2=l2),
        "distance-sides": lambda: given.turned(V, way="metric", l2=l2),
        "network": lambda: given.network(V, l2=l2),
    }
    return [made[name]()]


def _standard(vectors: Any) -> torch.Tensor:
    V = torch.tensor(vectors, dtype=torch.float32)
    return (V - V.mean(0)) / V.std(0).clamp_min(1e-6) / math.sqrt(V.shape[1]) * 2
