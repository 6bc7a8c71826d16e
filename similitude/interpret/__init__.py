"""Reading a Tversky network: what its layers see in an input, and why they answer as they do."""

from .attributes import digit_attributes, word_forms
from .legibility import legibility

__all__ = ["digit_attributes", "legibility", "word_forms"]
