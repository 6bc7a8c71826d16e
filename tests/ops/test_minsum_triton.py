"""The Triton kernels of min-sums against float64, on a GPU or, without one, in Triton's interpreter."""

import pytest
import torch

pytest.importorskip("triton")

from similitude.ops.minsum import PairSumGradients
from similitude.ops.reference import common_terms
from similitude.ops.triton import minsum as triton_minsum

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


def both_gradients(grad, a, b, kind="min"):
    """The kernels' gradient and the true one, by ``a`` and by ``b``."""
    return zip(triton_minsum.pair_sum_gradients(grad, a, b, kind), true_gradients(grad, a, b, kind), strict=True)


def assert_near(value, expected, tolerance=TOLERANCE):
    assert value.dtype == torch.float32
    assert value.shape == expected.shape
    assert (value - expected).norm() <= tolerance * expected.norm() + 1e-30


def assert_parity(a, b, kind, seed=1):
    assert_near(triton_minsum.pair_sum(a, b, kind), truth(a, b, kind))
    grad = torch.randn(*a.shape[:-1], b.shape[-2], generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    for value, expected in both_gradients(grad, a, b, kind):
        assert_near(value, expected, TOLERANCE if a.dtype == torch.float32 else 2e-5)


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
    for value, expected in both_gradients(grad, a, b):
        assert torch.equal(value, expected.float())


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (torch.float32, 1.0, 1.0 + 2.0**-23),
        (torch.float32, 1e-44, 2e-44),
        (torch.float32, 3e38, 3.1e38),
        (torch.bfloat16, 1.0, 1.0 + 2.0**-7),
        (torch.bfloat16, 2.0**-126, 3e38),
        # The interpreter's bfloat16 has no subnormals.
        pytest.param(torch.bfloat16, 1e-40, 2e-40, marks=pytest.mark.gpu),
        (torch.float16, 2.0**-24, 2.0**-23),
        (torch.float16, 65472.0, 65504.0),
    ],
)
def test_only_equal_measures_tie(dtype, low, high):
    a = torch.tensor([[low, high, low, 0.0, -low, high]], device=DEVICE, dtype=dtype)
    b = torch.tensor([[high, low, low, high, high, -0.0]], device=DEVICE, dtype=dtype)
    to_a, to_b = triton_minsum.pair_sum_gradients(torch.ones(1, 1, device=DEVICE), a, b, "min")
    assert to_a.tolist() == [[1, 0, 0.5, 0, 0, 0]]
    assert to_b.tolist() == [[0, 1, 0.5, 0, 0, 0]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_of_any_size_counts_alike(dtype, kind):
    a, b = measures(5, 12, 9, dtype)
    size = torch.tensor([1e36, 1.0, 1e-37, 0.0, 1e-20], device=DEVICE).unsqueeze(1)
    grad = torch.randn(5, 12, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    to_a, _ = triton_minsum.pair_sum_gradients(grad * size, a, b, kind)
    _, to_b = triton_minsum.pair_sum_gradients((grad * size).mT, b, a, kind)
    assert torch.equal(to_a, to_b)
    assert (to_a[3] == 0).all()
    expected, _ = true_gradients(grad, a, b, kind)
    for row in (0, 1, 2, 4):
        assert_near((to_a[row].double() / size[row].double()).float(), expected[row])


def test_softmin_of_what_is_absent_drowns_no_small_gradient():
    a, b = torch.tensor([[3.0, 3.0]], device=DEVICE), torch.tensor([[-1.0, 0.0], [4.0, -1.0]], device=DEVICE)
    grad = torch.tensor([[1.0, 1e-9]], device=DEVICE)
    for value, expected in both_gradients(grad, a, b, "softmin"):
        assert torch.allclose(value, expected.float(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_nan_stays_in_its_feature(dtype, kind):
    a, b = measures(3, 4, 5, dtype)
    grad = torch.ones(3, 4, device=DEVICE)
    clean = triton_minsum.pair_sum_gradients(grad, a, b, kind)
    a[1, 2] = float("nan")
    others = [0, 1, 3, 4]
    for value, expected in zip(triton_minsum.pair_sum_gradients(grad, a, b, kind), clean, strict=True):
        assert torch.equal(value[:, others], expected[:, others])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_objects_that_share_nothing_sum_to_exactly_0(dtype):
    a, b = measures(5, 7, 40, dtype)
    a[:, ::2], b[:, 1::2] = -1, -1
    for kind in KINDS:
        assert (triton_minsum.pair_sum(a, b, kind) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nan_is_not_hidden(dtype):
    a, b = measures(3, 4, 5, dtype)
    a[1, 2] = float("nan")
    assert triton_minsum.pair_sum(a, b, "min").isnan().sum(1).tolist() == [0, 4, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_nothing_gives_zeros(shape, kind):
    N, P, K = shape
    a, b = measures(N, P, K)
    grad = torch.ones(N, P, device=DEVICE)
    assert torch.equal(triton_minsum.pair_sum(a, b, kind), torch.zeros(N, P, device=DEVICE))
    to_a, to_b = triton_minsum.pair_sum_gradients(grad, a, b, kind)
    assert torch.equal(to_a, torch.zeros_like(a))
    assert torch.equal(to_b, torch.zeros_like(b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_bfloat16_gradient_is_taken_as_it_is(dtype):
    a, b = measures(9, 10, 12, dtype)
    grad = torch.randn(9, 10, device=DEVICE).bfloat16()
    for value, expected in both_gradients(grad, a, b):
        assert_near(value, expected)


def test_a_split_sum_is_the_whole_sum():
    a, b = measures(2, 3, 1100)
    assert triton_minsum._split(1, 1100, 8)[0] > 1
    assert_near(triton_minsum.pair_sum(a, b, "min"), truth(a, b, "min"))
    a, b = measures(2, 1100, 3)
    grad = torch.randn(2, 1100, device=DEVICE)
    for value, expected in both_gradients(grad, a, b):
        assert_near(value, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 50257, 1000), (300, 257, 1000), (1000, 1, 1), (257, 70, 2049)])
def test_large_sums_agree_and_repeat(shape, dtype, kind):
    a, b = measures(*shape, dtype=dtype)
    assert torch.equal(triton_minsum.pair_sum(a, b, kind), triton_minsum.pair_sum(a, b, kind))
    assert_parity(a, b, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(47000, 46000, 3), (2**22 + 5, 4, 513)])
def test_sizes_past_2_to_the_31(shape, dtype):
    N, P, K = shape
    a, b = torch.randn(N, K, device=DEVICE, dtype=dtype), torch.randn(P, K, device=DEVICE, dtype=dtype)
    out = triton_minsum.pair_sum(a, b, "min")
    last = slice(N - 8, N)
    assert_near(out[last], truth(a[last], b, "min"))
    assert_near(out[:8], truth(a[:8], b, "min"))
    grad = torch.randn(N, P, device=DEVICE)
    to_a, _ = triton_minsum.pair_sum_gradients(grad, a, b, "min")
    assert_near(to_a[last], true_gradients(grad[last], a[last], b, "min")[0], 2e-5)
