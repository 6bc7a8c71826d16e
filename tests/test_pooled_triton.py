"""The kernels of set-level similarities against the law: interpreted on a CPU, or as they are on a GPU."""

import itertools

import pytest
import torch
from test_separable_triton import make, run

import similitude.functional as F
from similitude.ops import reference

kernels = pytest.importorskip("similitude.ops.pooled_triton")

OPTIONS = [
    *itertools.product(F.INTERSECTIONS, F.DIFFERENCES, ["set"], F.MODELS),
    *itertools.product(["product", "mean"], ["ignorematch"], ["feature"], F.MODELS),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, dtype):
    if options[0] == "softmin" and options[3] == "ratio":
        pytest.skip("the softmin may be negative, and the ratio then passes through a pole")
    a, b, scalars, grad = make(21, 40, 33, dtype)

    def law(a, b, alpha, beta, theta):
        return reference.pairwise(a, b, alpha, beta, theta, *options) + 0 * theta

    exact = run(law, a.double(), b.double(), [s.double() for s in scalars], grad.double())
    plain = run(law, a, b, scalars, grad)
    ours = run(lambda a, b, *s: kernels.similarity(a, b, s, *options), a, b, scalars, grad)
    for e, p, o in zip(exact, plain, ours):
        # The answer is rounded once, and so are the gradients that enter a product.
        tolerance = 2 * torch.finfo(dtype).eps * e.abs().max()
        assert (o.double() - e).abs().max() <= (p.double() - e).abs().max() + tolerance


@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_gradients_are_finite_for_empty_sets_and_ties(options):
    a, b, scalars, grad = make(4, 6, 8, torch.float16)
    a[:2], b[:2] = -1.0, -1.0
    a[2], b[2] = 1.0, 1.0
    for value in run(lambda a, b, *s: kernels.similarity(a, b, s, *options), a, b, scalars, grad):
        assert value.isfinite().all()
