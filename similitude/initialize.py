"""Starting values of feature banks and prototypes."""

import math

import torch
from torch import Tensor, nn

INITS = ("unit", "uniform", "normal", "orthogonal")


@torch.no_grad()
def fill_(weight: Tensor, init: str = "unit") -> Tensor:
    """``weight``, ``[rows, D]``, filled in place.

    ``unit``: U(±√(3/D)), rows of about unit length and of every direction. The paper's three: ``uniform`` U[0, 1),
    ``normal`` N(0, 1), ``orthogonal`` orthonormal rows or, where there are more rows than D, columns.
    """
    match init:
        case "unit":
            bound = math.sqrt(3 / weight.shape[-1])
            return weight.uniform_(-bound, bound)
        case "uniform":
            return weight.uniform_(0, 1)
        case "normal":
            return weight.normal_(0, 1)
        case "orthogonal":
            # The QR decomposition behind it has no half precision.
            wide = torch.promote_types(weight.dtype, torch.float32)
            return weight.copy_(nn.init.orthogonal_(torch.empty_like(weight, dtype=wide)))
    raise ValueError(f"no starting values named {init!r}")
