"""The whole door on a GPU: every combination of options, in every dtype, against the law in float64."""

import pytest
import torch
from cases import COMBINATIONS, make_inputs, name, value_and_gradients
from test_parity import _plain

import similitude.functional as F
from similitude import TverskyProjection

pytestmark = pytest.mark.gpu
# Roundings of the largest element of the answer, over plain torch's own error. In half precision measures are rounded
# once, factors of products once more.
ROUNDINGS = {torch.float64: 64, torch.float32: 64, torch.bfloat16: 2, torch.float16: 2}


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, dtype):
    inputs = make_inputs(N=33, P=71, K=100, D=16, dtype=dtype, device="cuda")
    exact = [i.detach().double().requires_grad_() for i in inputs]
    truth, gradients = value_and_gradients(exact, backend="reference", **options)
    value, ours = value_and_gradients(inputs, **options)
    again, same = value_and_gradients(inputs, **options)
    plain_value, plain = value_and_gradients(inputs, function=_plain, **options)
    assert torch.equal(value, again)
    assert all(torch.equal(x, y) for x, y in zip(ours, same)), "a second run differs"
    for t, o, p in zip([truth, *gradients], [value, *ours], [plain_value, *plain]):
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * t.abs().max()
        assert (o.double() - t).abs().max() <= (p.double() - t).abs().max() + tolerance


@pytest.mark.parametrize(
    "shape", [dict(P=50257, K=1000), dict(N=1, P=50257, K=1000), dict(N=3, K=1001), dict(N=4096, P=777, K=333)], ids=str
)
@pytest.mark.parametrize("options", [dict(), dict(intersection="min", difference="subtractmatch")], ids=str)
def test_odd_sizes(shape, options):
    inputs = make_inputs(D=32, dtype=torch.bfloat16, device="cuda", **shape)
    wide = [i.detach().float().requires_grad_() for i in inputs]
    truth, gradients = value_and_gradients(wide, backend="torch", **options)
    value, ours = value_and_gradients(inputs, **options)
    for t, o in zip([truth, *gradients], [value, *ours]):
        torch.testing.assert_close(o.float(), t.float(), rtol=2e-2, atol=2e-2 * t.abs().max().item())


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
