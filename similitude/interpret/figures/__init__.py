"""The paper's figures, one function each, from plain arrays or our own layers; every one returns a matplotlib Figure.

A linear layer has the same views: its rows are its prototypes, and it has no features.
"""

from .base import parameters, save
from .images import evolution, prototypes, salience_strip, venn
from .planes import decision_boundaries

__all__ = [
    "decision_boundaries",
    "evolution",
    "parameters",
    "prototypes",
    "salience_strip",
    "save",
    "venn",
]
