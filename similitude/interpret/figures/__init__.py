"""The paper's figures, one function each: they take plain arrays or layers and return a matplotlib Figure.

A linear layer is shown with its rows as prototypes, and without features.
"""

from .base import parameters, save
from .images import evolution, prototypes, salience_strip, venn
from .planes import constants, convergence_bars, decision_boundaries, perplexity, training

__all__ = [
    "constants",
    "convergence_bars",
    "decision_boundaries",
    "evolution",
    "parameters",
    "perplexity",
    "prototypes",
    "salience_strip",
    "save",
    "training",
    "venn",
]
