"""Tversky neural networks for PyTorch: layers that compare by what is shared and what is not."""

from typing import TYPE_CHECKING

from . import _moved as _moved
from . import _registered as _registered
from . import _starting as _starting  # before the imports that take a while

if TYPE_CHECKING or not _starting.is_program():
    from . import functional
    from .convert import convert
    from .initialize import init_from_data, init_from_linear
    from .nn import FeatureBank, TverskyProjection, TverskySimilarity
    from .optim import parameter_groups
else:
    # The program's help and its errors of usage need no torch, which takes seconds to import.
    __getattr__ = _starting.on_demand(
        __name__,
        functional=("functional",),
        convert=("convert",),
        initialize=("init_from_data", "init_from_linear"),
        nn=("FeatureBank", "TverskyProjection", "TverskySimilarity"),
        optim=("parameter_groups",),
    )

__version__ = "0.2.0"
__all__ = [
    "FeatureBank",
    "TverskyProjection",
    "TverskySimilarity",
    "convert",
    "functional",
    "init_from_data",
    "init_from_linear",
    "parameter_groups",
]
