"""Which code runs. One pure function, which the door, the loss, ``layer.plan`` and ``similitude doctor`` all ask."""

from typing import NamedTuple

import torch

from ..form import Form
from . import modes
from .cpu.build import AVAILABLE

# What each code is. Those of Triton run on a GPU, those of halves in bfloat16 and float16 alone.
CODES = {
    "reference": "Eq. 1-7 as they are written, by an N×P×K tensor (ops/reference.py)",
    "two products": "two matrix products (ops/separable.py)",
    "small": "small sizes: vectors to similarities in one function (ops/small.py)",
    "products": "matrix products with indicators (ops/pairwise.py)",
    "min-sums": "tiles of pairs by features, and products for the rest (ops/minsum.py)",
    "c++ min-sums": "the same in C++, built by the machine's compiler on first use (ops/cpu/minsum.py)",
    "triton whole": "halves: vectors to similarities in one function (ops/triton/separable.py)",
    "triton two products": "halves: two matrix products and fused passes (ops/triton/separable.py)",
    "triton pooled": "halves: matrix products and fused passes (ops/triton/pooled.py)",
    "triton min-sums": "tiles of pairs by features (ops/triton/minsum.py), and products for the rest",
}


# Up to so many operations calls cost more than passes over measures, on a CPU.
SMALL = 2**21
# Numbers of a bank whose products are worth the change of dtype.
LARGE_BANK = 2**16
# Objects of which inference looks up the features that they have, at most; and elements of a table, at least.
MOST, WORTH_A_SEARCH = 64, 2**18


class Plan(NamedTuple):
    """What serves all pairs of N objects and P prototypes over K features."""

    code: str
    num_prototypes: int  # P, padded where that is faster
    num_features: int  # K, likewise

    @property
    def kernels(self) -> bool:
        return self.code.startswith("triton")

    def __str__(self) -> str:
        return f"{self.code}: {CODES[self.code]}"


def plan(
    form: Form,
    N: int,
    P: int,
    K: int,
    dtype: torch.dtype,
    device: str,
    batched: bool = False,
    vectors: bool = True,
    eager: bool = True,
    thresholds: bool = False,
    has_triton: bool = modes.HAS_TRITON,
    has_compiler: bool = AVAILABLE,
) -> Plan:
    """The code that serves a form, sizes, dtype and device.

    Args:
        form: The options.
        N, P, K: Numbers of objects, prototypes and features.
        dtype: What measures are computed in: that of the vectors or, where autocast is on, autocast's.
        device: ``"cpu"``, ``"cuda"`` …
        batched: Whether each object has prototypes of its own.
        vectors: Whether vectors are compared, as by a layer; False if their measures are there already, which are
            halves only where kernels take halves.
        eager: Whether values can be looked at: not while tracing, nor inside torch.func.
        thresholds: Whether features have thresholds, which one kernel for all of it does not take.
        has_triton: Whether the package triton is installed.
        has_compiler: Whether there is a C++ compiler, and SIMILITUDE_CPU_KERNELS is not 0.
    """
    if form.backend == "reference":
        return Plan("reference", P, K)
    kernels, halves = _kernels(form, dtype, device, batched, vectors, has_triton)
    size = modes.padded_size(N, P, K) if halves and vectors else (P, K)
    whole = vectors and eager and not form.normalize and not thresholds
    if form.two_products and halves:
        return Plan("triton whole" if whole else "triton two products", *size)
    if form.two_products:
        small = vectors and eager and not batched and device == "cpu" and N * P * K <= SMALL
        return Plan("small" if small else "two products", *size)
    if form.splits:
        return Plan("triton pooled" if halves else "products", *size)
    if (form.intersection, form.difference) == ("gmean", "ignorematch"):
        return Plan("products", *size)
    if device == "cpu" and has_compiler and form.backend != "torch":
        return Plan("c++ min-sums", *size)
    return Plan("triton min-sums" if kernels else "min-sums", *size)


def _kernels(form: Form, dtype: torch.dtype, device: str, batched: bool, vectors: bool, has_triton: bool):
    """Whether kernels may run, and whether what is compared reaches the code in half precision."""
    kernels = device == "cuda" and has_triton and dtype != torch.float64 and form.backend != "torch"
    # The kernels of halves take no batches; what they do not take is widened.
    return kernels, dtype in modes.HALVES and not batched and (kernels or not vectors)


def in_bfloat16(form: Form, D: int, K: int, dtype: torch.dtype, device: str, thresholds: bool, eager: bool) -> bool:
    """Whether a CPU makes measures by products of bfloat16, added up in float32 and rounded once; all else is wider.

    Not with thresholds or lengths of 1: a measure would be rounded before the last step, and its sign with it.

    Args:
        form, K, dtype, device, thresholds, eager: As in ``plan``.
        D: Width of the vectors.
    """
    if device != "cpu" or dtype != torch.bfloat16 or not modes.HAS_BFLOAT16 or D * K < LARGE_BANK:
        return False
    return eager and not thresholds and not form.normalize and form.backend != "reference"


def looks_up(N: int, K: int, P: int, device: str, present: int = 0) -> bool:
    """Whether inference reads the rows of tables ``[K, P]`` that objects call for, and not the whole by a product.

    A product reads all of a table for one object as for eight, and then multiplies three numbers while a lookup adds
    one. Few or small rows are not worth the search for what is present.

    Args:
        N, K, P, device: As in ``plan``.
        present: How many features the objects have, all together; by default as few as can be.
    """
    return device == "cpu" and 0 < N <= MOST and P * K >= WORTH_A_SEARCH and 3 * present <= K * max(N, 8)
