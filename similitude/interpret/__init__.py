"""Reading a Tversky network: what its layers see in an input, and why they answer as they do."""

from typing import TYPE_CHECKING

from .. import _starting

if TYPE_CHECKING or not _starting.is_program():
    from .attributes import digit_attributes, word_forms
    from .legibility import legibility
else:
    # An expression is checked before torch is imported.
    __getattr__ = _starting.on_demand(
        __name__, attributes=("digit_attributes", "word_forms"), legibility=("legibility",)
    )

__all__ = ["digit_attributes", "legibility", "word_forms"]
