"""The paper's figures, one function each, from plain arrays or our own layers; every one returns a matplotlib Figure.

A linear layer has the same views: its rows are its prototypes, and it has no features.
"""

from .canvas import parameters, save
from .plots import constants, convergence_bars, decision_boundaries, perplexity, training
from .sheets import evolution, prototypes, salience_strip, venn

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
