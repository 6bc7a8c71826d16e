"""The whole door on a GPU: every combination of options, in every dtype, against the law in float64."""

import copy

import pytest
import torch
from cases import COMBINATIONS, make_inputs, name, value_and_gradients
from laws.test_parity import _plain

import similitude.functional as F
from similitude import TverskyProjection
from similitude.form import Form
from similitude.ops import pairwise
from similitude.reproduce.loop import graphed

pytestmark = pytest.mark.gpu
# Roundings of the largest element of the answer, over plain torch's own error. In half precision the gradient of a sum
# is rounded once more before it enters a product.
ROUNDINGS = {torch.float64: 128, torch.float32: 128, torch.bfloat16: 4, torch.float16: 8}


def check(inputs, options, plain_function=_plain):
    """The parity rule, and that a second run is equal to the bit."""
    dtype = inputs[0].dtype
    exact = [i.detach().double().requires_grad_() for i in inputs]
    truth, gradients = value_and_gradients(exact, backend="torch", **options)
    value, ours = value_and_gradients(inputs, **options)
    again, same = value_and_gradients(inputs, **options)
    assert torch.equal(value, again)
    assert all(torch.equal(x, y) for x, y in zip(ours, same)), "a second run differs"
    plain_value, plain = value_and_gradients(inputs, function=plain_function, **options)
    for t, o, p in zip([truth, *gradients], [value, *ours], [plain_value, *plain]):
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * t.abs().max()
        if t.dim() == 0:
            # A sum of all pairs, with random signs: its own size says nothing of its rounding.
            tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * truth.norm()
        assert (o.double() - t).abs().max() <= (p.double() - t).abs().max() + tolerance


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, dtype):
    if options["intersection"] == "softmin" and options["model"] == "ratio":
        pytest.skip("the softmin may be negative, and the ratio then passes through a pole")
    check(make_inputs(N=33, P=71, K=100, D=16, dtype=dtype, device="cuda"), options)


SIZES = [dict(P=50257, K=1000), dict(N=1, P=50257, K=1000), dict(N=3, K=1001), dict(N=1024, P=777, K=333)]
OPTIONS = [("product", "ignorematch", "feature"), ("min", "subtractmatch", "feature"), ("min", "subtractmatch", "set")]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_odd_sizes(size, options):
    """Against float64 on the same measures, rounded to the dtype: which of two is less changes with their rounding."""
    inputs = make_inputs(D=32, dtype=torch.bfloat16, device="cuda", **size)

    def exact(x, prototypes, features, *scalars):
        measures = (x @ features.mT).double(), (prototypes @ features.mT).double()
        return pairwise.similarity(*measures, *(s.double() for s in scalars), Form.of(*options))

    truth, gradients = value_and_gradients(inputs, function=exact)
    value, ours = value_and_gradients(inputs, **dict(zip(("intersection", "difference", "level"), options)))
    assert (value - truth).norm() <= 0.01 * truth.norm()
    for o, t in zip(ours, gradients):
        # Scalars are sums of all pairs with random signs, whose size says nothing of their rounding.
        scale = t.norm() if t.dim() else truth.norm()
        assert (o.double() - t).norm() <= 0.02 * scale


def test_strided_inputs():
    inputs = make_inputs(N=40, P=24, K=32, D=16, dtype=torch.bfloat16, device="cuda")
    turned = [i.detach().mT.contiguous().mT.requires_grad_() if i.dim() == 2 else i for i in inputs]
    value, ours = value_and_gradients(inputs)
    other, gradients = value_and_gradients(turned)
    torch.testing.assert_close(value, other)
    torch.testing.assert_close(ours, gradients)


def test_named_backend_runs():
    inputs = make_inputs(dtype=torch.bfloat16, device="cuda")
    assert torch.equal(F.tversky_projection(*inputs, backend="triton"), F.tversky_projection(*inputs))
    with pytest.raises(RuntimeError, match="no float64"):
        F.tversky_projection(*make_inputs(device="cuda"), backend="triton")


@pytest.mark.parametrize(
    "options",
    [dict(), dict(intersection="min", difference="subtractmatch"), dict(level="set", intersection="min")],
    ids=str,
)
def test_compiles_whole_under_autocast(options):
    layer = TverskyProjection(32, 40, 64, device="cuda", **options)
    x = torch.randn(16, 32, device="cuda")

    def gradients(f):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = f(x)
        return [out.float(), *torch.autograd.grad(out.float().square().mean(), list(layer.parameters()))]

    plain, compiled = gradients(layer), gradients(torch.compile(layer, fullgraph=True))
    for p, c in zip(plain, compiled):
        torch.testing.assert_close(c, p, rtol=3e-2, atol=3e-2 * p.abs().max().item())


def test_a_graphed_module_gives_what_it_gave_and_leaves_the_data_as_they_were():
    data = torch.randn(8, 32, device="cuda")
    kept = data.clone()
    layer = TverskyProjection(32, 40, 64, device="cuda")
    plain = copy.deepcopy(layer)
    network = graphed(layer, data[:4])
    for module in (plain, network):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = module(data[4:])
        out.float().square().mean().backward()
    assert torch.equal(data, kept)
    for ours, theirs in zip(layer.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
