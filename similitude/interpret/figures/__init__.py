"""The paper's figures, one function each: they take plain arrays or layers and return a matplotlib Figure.

A linear layer is shown with its rows as prototypes, and without features.
"""

from .base import on_any_ground, parameters, save
from .images import evolution, prototypes, salience_strip, sheet, venn
from .planes import decision_boundaries

__all__ = [
    "decision_boundaries",
    "evolution",
    "on_any_ground",
    "parameters",
    "prototypes",
    "salience_strip",
    "save",
    "sheet",
    "venn",
]
