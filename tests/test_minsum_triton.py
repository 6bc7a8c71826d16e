"""The Triton kernels of min-sums against float64, on a GPU or, without one, in Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from similitude.ops import minsum_triton
from similitude.ops.minsum import PairSumGradients
from similitude.ops.reference import common_terms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1, 1, 1), (1, 9, 70), (33, 5, 40), (17, 131, 3), (130, 66, 9)]
KINDS = ["min", "softmin"]
# The output is float32 for every dtype, and 16-bit inputs are exact in it: what is left is the order of addition.
TOLERANCE = 3e-6


@pytest.fixture(autouse=True)
def poisoned():
    """Fresh memory full of NaN, so that what a kernel leaves unwritten is seen."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def measures(N, P, K, dtype=torch.float32, batch=(), seed=0):
    make = torch.Generator().manual_seed(seed)
    a, b = torch.randn(*batch, N, K, generator=make), torch.randn(*batch, P, K, generator=make)
    return a.to(DEVICE, dtype), b.to(DEVICE, dtype)


def truth(a, b, kind):
    return common_terms(a.double().unsqueeze(-2), b.double().unsqueeze(-3), kind).sum(-1)


def true_gradients(grad, a, b, kind):
    return PairSumGradients.apply(grad.double(), a.double(), b.double(), kind, False)


def assert_near(value, expected, tolerance=TOLERANCE):
    assert value.dtype == torch.float32
    assert value.shape == expected.shape
    assert (value - expected).norm() <= tolerance * expected.norm() + 1e-30


def assert_parity(a, b, kind, seed=1):
    assert_near(minsum_triton.pair_sum(a, b, kind), truth(a, b, kind))
    grad = torch.randn(*a.shape[:-1], b.shape[-2], generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    tolerance = 2e-5 if a.dtype == torch.bfloat16 else TOLERANCE
    for value, expected in zip(
        minsum_triton.pair_sum_gradients(grad, a, b, kind), true_gradients(grad, a, b, kind), strict=True
    ):
        assert_near(value, expected, tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_agree_with_float64(shape, dtype, kind):
    assert_parity(*measures(*shape, dtype=dtype), kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_axis_and_strides_make_no_difference(dtype, kind):
    a, b = measures(6, 14, 11, dtype, batch=(2,))
    assert_parity(a[:, ::2], b.mT.contiguous().mT[:, 1::3], kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_tie_is_shared_half_and_half(dtype):
    a, b = (x.mul(2).round().to(dtype) for x in measures(20, 30, 8))
    grad = torch.ones(20, 30, device=DEVICE)
    for value, expected in zip(
        minsum_triton.pair_sum_gradients(grad, a, b, "min"), true_gradients(grad, a, b, "min"), strict=True
    ):
        assert torch.equal(value, expected.float())


@pytest.mark.parametrize("gap", [2.0**-23, 1e-30])
def test_the_closest_of_measures_are_no_tie(gap):
    a = torch.tensor([[1.0, 1.0 + gap, 0.0, -1.0]], device=DEVICE) if gap > 1e-7 else torch.full((1, 4), 1e-30)
    b = torch.tensor([[1.0 + gap, 1.0, 1.0, 1.0]], device=DEVICE) if gap > 1e-7 else torch.full((1, 4), 2e-30)
    a, b = a.to(DEVICE), b.to(DEVICE)
    grad = torch.ones(1, 1, device=DEVICE)
    for value, expected in zip(
        minsum_triton.pair_sum_gradients(grad, a, b, "min"), true_gradients(grad, a, b, "min"), strict=True
    ):
        assert torch.equal(value, expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_objects_that_share_nothing_sum_to_exactly_0(dtype):
    a, b = measures(5, 7, 40, dtype)
    a[:, ::2], b[:, 1::2] = -1, -1
    for kind in KINDS:
        assert (minsum_triton.pair_sum(a, b, kind) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nan_is_not_hidden(dtype):
    a, b = measures(3, 4, 5, dtype)
    a[1, 2] = float("nan")
    assert minsum_triton.pair_sum(a, b, "min").isnan().sum(1).tolist() == [0, 4, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_nothing_gives_zeros(shape, kind):
    N, P, K = shape
    a, b = measures(N, P, K)
    grad = torch.ones(N, P, device=DEVICE)
    assert torch.equal(minsum_triton.pair_sum(a, b, kind), torch.zeros(N, P, device=DEVICE))
    to_a, to_b = minsum_triton.pair_sum_gradients(grad, a, b, kind)
    assert torch.equal(to_a, torch.zeros_like(a))
    assert torch.equal(to_b, torch.zeros_like(b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bfloat16_gradient_is_taken_as_it_is(dtype):
    a, b = measures(9, 10, 12, dtype)
    grad = torch.randn(9, 10, device=DEVICE).bfloat16()
    for value, expected in zip(
        minsum_triton.pair_sum_gradients(grad, a, b, "min"), true_gradients(grad, a, b, "min"), strict=True
    ):
        assert_near(value, expected)


def test_a_split_sum_is_the_whole_sum():
    a, b = measures(2, 3, 1100)
    assert minsum_triton._split(1, 1100, 8)[0] > 1
    assert_near(minsum_triton.pair_sum(a, b, "min"), truth(a, b, "min"))
    a, b = measures(2, 1100, 3)
    grad = torch.randn(2, 1100, device=DEVICE)
    for value, expected in zip(
        minsum_triton.pair_sum_gradients(grad, a, b, "min"), true_gradients(grad, a, b, "min"), strict=True
    ):
        assert_near(value, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 50257, 1000), (300, 257, 1000), (1000, 1, 1), (257, 70, 2049)])
def test_large_sums_agree_and_repeat(shape, dtype, kind):
    a, b = measures(*shape, dtype=dtype)
    assert torch.equal(minsum_triton.pair_sum(a, b, kind), minsum_triton.pair_sum(a, b, kind))
    assert_parity(a, b, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(47000, 46000, 3), (2**22 + 5, 4, 513)])
def test_sizes_past_2_to_the_31(shape, dtype):
    N, P, K = shape
    a, b = torch.randn(N, K, device=DEVICE, dtype=dtype), torch.randn(P, K, device=DEVICE, dtype=dtype)
    out = minsum_triton.pair_sum(a, b, "min")
    last = slice(N - 8, N)
    assert_near(out[last], truth(a[last], b, "min"))
    assert_near(out[:8], truth(a[:8], b, "min"))
    grad = torch.randn(N, P, device=DEVICE)
    to_a, _ = minsum_triton.pair_sum_gradients(grad, a, b, "min")
    assert_near(to_a[last], true_gradients(grad[last], a[last], b, "min")[0], 2e-5)
