"""The kernels of product + ignorematch against the law: interpreted on a CPU, or as they are on a GPU."""

import pytest
import torch

pytest.importorskip("triton")
kernels = pytest.importorskip("similitude.ops.triton.separable")

from similitude.ops import reference  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = ("product", "ignorematch", "feature", "contrast")


def run(function, a, b, scalars, grad):
    inputs = [t.detach().requires_grad_() for t in (a, b, *scalars)]
    out = function(*inputs)
    return [out.detach(), *torch.autograd.grad(out, inputs, grad.to(out.dtype))]


def make(N, P, K, dtype, scalars=(0.3, 0.7, 1.2)):
    g = torch.Generator().manual_seed(0)
    a, b, grad = (torch.randn(shape, generator=g).to(DEVICE, dtype) for shape in ((N, K), (P, K), (N, P)))
    return a, b, [torch.tensor(s, device=DEVICE) for s in scalars], grad


def truth(a, b, scalars, grad):
    law = lambda *t: reference.pairwise(*t, *OPTIONS)  # noqa: E731
    return run(law, a.double(), b.double(), [s.double() for s in scalars], grad.double())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (33, 70, 24), (70, 600, 9), (2, 3, 130)], ids=str)
def test_error_is_no_worse_than_plain_torch_in_the_same_dtype(shape, dtype):
    a, b, scalars, grad = make(*shape, dtype)
    exact = truth(a, b, scalars, grad)
    plain = run(lambda *t: reference.pairwise(*t, *OPTIONS), a, b, scalars, grad)
    for e, p, o in zip(exact, plain, run(kernels.product_ignorematch, a, b, scalars, grad)):
        # Factors are rounded to the dtype before they are multiplied, and the answer once more.
        tolerance = {torch.float32: 128}.get(dtype, 2) * torch.finfo(dtype).eps * e.abs().max()
        assert (o.double() - e).abs().max() <= (p.double() - e).abs().max() + tolerance


@pytest.mark.parametrize(
    "scalars", [(0.0, 0.7, 1.2), (0.3, 0.0, 1.2), (0.3, 0.7, 0.0), (0.0, 0.0, 0.0), (1e-9, 0.7, -1.2)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_constants_need_no_constant_to_be_large(scalars, dtype):
    a, b, scalars, grad = make(40, 70, 24, dtype, scalars)
    exact, ours = truth(a, b, scalars, grad), run(kernels.product_ignorematch, a, b, scalars, grad)
    for e, o in zip(exact[3:], ours[3:]):
        assert o.item() == pytest.approx(e.item(), rel=2e-2, abs=0.5)


def vectors(dtype, N=9, P=10, K=12, D=16):
    g = torch.Generator().manual_seed(0)
    x, prototypes, features, grad = (
        torch.randn(shape, generator=g).to(DEVICE) for shape in ((N, D), (P, D), (K, D), (N, P))
    )
    scalars = [torch.tensor(s, device=DEVICE) for s in (0.3, 0.7, 1.2)]
    return [x.to(dtype), prototypes.to(dtype), features.to(dtype), *scalars], grad


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("more", [(0, 0), (6, 4)], ids=str)
@pytest.mark.parametrize("wide", [True, False])
def test_projection_is_the_measures_and_then_all_pairs(half, more, wide):
    inputs, grad = vectors(torch.float32 if wide else half)
    P, K = (size.shape[0] for size in inputs[1:3])

    def apart(x, prototypes, features, *scalars):
        x, prototypes, features = (t.to(half) for t in (x, prototypes, features))
        return kernels.product_ignorematch(x @ features.mT, prototypes @ features.mT, *scalars)

    def whole(*t):
        return kernels.projection(*t, half, (P + more[0], K + more[1]))[:, :P]

    expected = run(apart, inputs[0], inputs[1], inputs[2:], grad)
    ours = run(whole, inputs[0], inputs[1], inputs[2:], grad)
    assert [o.dtype for o in ours] == [half] + [i.dtype for i in inputs]
    for e, o in zip(expected, ours):
        # Another product may round measures otherwise, and the features' gradient is rounded once, not three times.
        assert (o.double() - e.double()).abs().max() <= 3 * torch.finfo(half).eps * e.abs().max()


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (0, 3), (4,)], ids=str)
def test_projection_makes_the_gradients_that_are_asked_for(learning):
    inputs, grad = vectors(torch.float32)
    every = [i.detach().requires_grad_() for i in inputs]
    some = [i.detach().requires_grad_(position in learning) for position, i in enumerate(inputs)]
    for t in (every, some):
        kernels.projection(*t, torch.bfloat16, (10, 12)).backward(grad.bfloat16())
    for position, (e, s) in enumerate(zip(every, some)):
        assert torch.equal(s.grad, e.grad) if position in learning else s.grad is None


def test_strides_do_not_matter():
    a, b, scalars, grad = make(9, 10, 16, torch.float16)
    plain = run(kernels.product_ignorematch, a, b, scalars, grad)
    turned = run(kernels.product_ignorematch, a.T.contiguous().T, b.T.contiguous().T, scalars, grad.T.contiguous().T)
    assert all(torch.equal(x, y) for x, y in zip(plain, turned))


def test_nothing_to_compare_gives_nothing():
    a, b, scalars, _ = make(0, 5, 8, torch.float16)
    assert kernels.product_ignorematch(a, b, *scalars).shape == (0, 5)


def test_constants_that_do_not_learn_get_no_gradient():
    a, b, scalars, grad = make(9, 10, 16, torch.float16)
    a.requires_grad_()
    out = kernels.product_ignorematch(a, b, *scalars)
    torch.testing.assert_close(
        torch.autograd.grad(out, a, grad)[0].double(), truth(a, b, scalars, grad)[1], rtol=1e-2, atol=1e-2
    )


def test_second_derivatives_are_refused():
    a, b, scalars, _ = make(9, 10, 16, torch.float16)
    a.requires_grad_()
    with pytest.raises(RuntimeError, match="use backend='torch'"):
        torch.autograd.grad(kernels.product_ignorematch(a, b, *scalars).sum(), a, create_graph=True)


@pytest.mark.gpu
def test_runs_are_equal_to_the_bit():
    a, b, scalars, grad = make(1000, 2000, 512, torch.bfloat16)
    first, second = (run(kernels.product_ignorematch, a, b, scalars, grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second))


@pytest.mark.gpu
def test_more_than_2_to_the_31_elements():
    """N×P past 2³¹: the last rows are what a small call makes of them."""
    N, P, K = 40_000, 56_000, 16
    a, b, scalars, _ = make(N, P, K, torch.bfloat16)
    whole = kernels.product_ignorematch(a, b, *scalars)
    assert torch.equal(whole[-8:], kernels.product_ignorematch(a[-8:], b, *scalars))
