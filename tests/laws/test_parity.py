"""Every fast path against the law: values and all gradients."""

import math

import pytest
import torch
from cases import COMBINATIONS, SMOOTH, make_inputs, name, value_and_gradients

import similitude.functional as F
from similitude.ops import plan


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
@pytest.mark.parametrize(
    "shape", [dict(), dict(N=1), dict(P=1), dict(K=1), dict(D=1), dict(N=0), dict(N=3, lead=(2, 2))], ids=str
)
def test_torch_path_equals_reference(options, shape):
    inputs = make_inputs(**shape)
    truth, gradients = value_and_gradients(inputs, backend="reference", **options)
    value, ours = value_and_gradients(inputs, backend="torch", **options)
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_gradcheck(options):
    inputs = make_inputs(N=3, P=2, K=4, D=3, seed=3)
    assert _margin(inputs, options["normalize"]) > 1e-3, "the inputs are too near a tie to difference"
    assert torch.autograd.gradcheck(lambda *i: F.tversky_projection(*i, **options), inputs, atol=1e-6)


@pytest.mark.parametrize("options", SMOOTH, ids=name)
def test_gradgradcheck(options):
    inputs = make_inputs(N=2, P=2, K=3, D=2, seed=3)
    assert _margin(inputs, options["normalize"]) > 1e-3, "the inputs are too near a tie to difference"
    assert torch.autograd.gradgradcheck(lambda *i: F.tversky_projection(*i, **options), inputs, atol=1e-6)


PRODUCTS = [c for c in COMBINATIONS if list(c.values())[:2] == ["product", "ignorematch"] and c["model"] == "contrast"]


@pytest.mark.parametrize("options", PRODUCTS, ids=name)
def test_products_of_any_size_are_held_to_the_same(options, monkeypatch):
    """The sizes of tests are small, for which there is a function of its own."""
    monkeypatch.setattr(plan, "SMALL", 0)
    for shape in (dict(), dict(N=1), dict(P=1), dict(K=1), dict(D=1), dict(N=0), dict(N=3, lead=(2, 2))):
        test_torch_path_equals_reference(options, shape)
    test_gradcheck(options)
    test_gradgradcheck(options)
    for edge in EDGES:
        test_gradients_are_finite_and_equal_at_the_edges(options, edge)
    for dtype in ROUNDINGS:
        test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, dtype)


@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_second_derivatives_know_that_one_input_is_made_of_another(small, monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 2**21 * small)
    x, _, features, *scalars = make_inputs(N=3, P=3, K=4, D=3, seed=3)

    def twice(backend):
        prototypes = x.tanh()
        S = F.tversky_projection(x, prototypes, features, *scalars, backend=backend)
        first = torch.autograd.grad(S.square().sum(), [x, features], create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), [x, features, *scalars])

    torch.testing.assert_close(twice("auto"), twice("reference"), rtol=1e-9, atol=1e-9)


def _margin(inputs, normalize) -> float:
    """The least distance of a measure, or of two measures of one feature or their sums, from a change of side."""
    x, p, features = inputs[:3]
    if normalize:
        x, p = torch.nn.functional.normalize(x, dim=-1), torch.nn.functional.normalize(p, dim=-1)
    a, b = x @ features.mT, p @ features.mT
    gaps = (a[:, None] - b[None]).abs()
    u, v = a.relu() @ (b > 0).to(a).mT, (a > 0).to(a) @ b.relu().mT
    sums = (u - v).abs()[u > 0]
    return min(t.min().item() for t in (a.abs(), b.abs(), gaps, sums))


def draw(*shape, generator=torch.Generator().manual_seed(0)):  # noqa: B008
    return torch.randn(*shape, generator=generator)


EDGES = {
    "zero inputs": (torch.zeros(3, 2), draw(2, 2), draw(4, 2)),
    "zero prototypes": (draw(3, 2), torch.zeros(2, 2), draw(4, 2)),
    "zero features": (draw(3, 2), draw(2, 2), torch.zeros(4, 2)),
    "everything zero": (torch.zeros(3, 2), torch.zeros(2, 2), torch.zeros(4, 2)),
    "nothing shared": (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), torch.eye(2)),
    "empty sets": (-torch.ones(2, 2), -torch.ones(3, 2), torch.eye(2)),
    "features nobody has": (torch.ones(2, 2), torch.ones(3, 2), torch.tensor([[1.0, 1.0], [-1.0, -1.0], [-2.0, 0.0]])),
    "one feature": (draw(3, 2), draw(2, 2), draw(1, 2)),
    "ties": (torch.eye(3), torch.eye(3), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 2.0, 2.0]])),
    "tiny": (1e-9 * draw(2, 2), 1e-9 * draw(3, 2), draw(4, 2)),
    "large": (1e4 * draw(2, 2), 1e4 * draw(3, 2), draw(3, 2)),
}


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
@pytest.mark.parametrize("edge", EDGES)
def test_gradients_are_finite_and_equal_at_the_edges(options, edge):
    scalars = [torch.tensor(v, dtype=torch.float64) for v in (0.3, 0.7, 1.2)]
    inputs = [t.double().requires_grad_() for t in (*EDGES[edge], *scalars)]
    truth, gradients = value_and_gradients(inputs, backend="reference", **options)
    value, ours = value_and_gradients(inputs, backend="torch", **options)
    assert all(t.isfinite().all() for t in (truth, *gradients, value, *ours))
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    for i, o, t in zip(inputs, ours, gradients):
        # Slopes by what is tiny are large, and rounding with them: compared is what a change of the input's size does.
        size = i.abs().max().item() or 1.0
        torch.testing.assert_close(o * size, t * size, rtol=1e-9, atol=1e-9 * max(1.0, (t * size).abs().max().item()))


@pytest.mark.parametrize("constant", ["alpha", "beta", "theta"])
@pytest.mark.parametrize("value", [0.0, 1e-12, 1e-6, 1e-3, -0.4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_gradients_of_constants_need_no_constant_to_be_large(constant, value, dtype, small, monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 2**21 * small)
    inputs = make_inputs(N=50, P=40, K=30, dtype=dtype)
    index = 3 + ["alpha", "beta", "theta"].index(constant)
    with torch.no_grad():
        inputs[index].fill_(value)
    truth = value_and_gradients([i.detach().double().requires_grad_() for i in inputs], backend="reference")[1]
    ours = value_and_gradients(inputs)[1]
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close([g.double() for g in ours], truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("wanted", range(6))
@pytest.mark.parametrize("small", [True, False], ids=["small", "large"])
def test_one_gradient_alone_is_the_same(wanted, small, monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 2**21 * small)
    inputs = make_inputs()
    truth = value_and_gradients(inputs, backend="reference")[1][wanted]
    inputs = [i.detach().requires_grad_(k == wanted) for k, i in enumerate(inputs)]
    out = F.tversky_projection(*inputs)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(torch.autograd.grad(out, inputs[wanted], weights)[0], truth, rtol=1e-9, atol=1e-9)


# The tolerance, in roundings of the largest element of the answer. Half precision is kept in 32 bits inside and rounded
# once, at the end; in float32 sums over features are taken in another order, and differences of such sums.
ROUNDINGS = {torch.float32: 32, torch.bfloat16: 1, torch.float16: 1}


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, dtype):
    inputs = make_inputs(N=32, P=24, K=64, D=16, dtype=dtype)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    truth, gradients = value_and_gradients(exact, backend="reference", **options)
    value, ours = value_and_gradients(inputs, **options)
    plain_value, plain = value_and_gradients(inputs, function=_plain, **options)
    assert value.dtype == dtype
    assert all(g.dtype == dtype for g in ours)
    for t, o, p in zip([truth, *gradients], [value, *ours], [plain_value, *plain]):
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * t.abs().max()
        assert (o.double() - t).abs().max() <= (p.double() - t).abs().max() + tolerance


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_measures_in_bfloat16_have_no_larger_error_either(options, monkeypatch):
    monkeypatch.setattr(plan, "SMALL", 0)
    monkeypatch.setattr(plan, "LARGE_BANK", 0)
    monkeypatch.setattr(plan.modes, "HAS_BFLOAT16", True)
    test_error_is_no_worse_than_plain_torch_in_the_same_dtype(options, torch.bfloat16)


def _plain(x, p, features, alpha, beta, theta, normalize, **options):
    """The law in the inputs' own dtype throughout."""
    from similitude.ops import reference

    if normalize:
        x, p = torch.nn.functional.normalize(x, dim=-1), torch.nn.functional.normalize(p, dim=-1)
    order = ("intersection", "difference", "level", "model")
    return reference.pairwise(x @ features.mT, p @ features.mT, alpha, beta, theta, *(options[o] for o in order))


@pytest.mark.parametrize("way", ["as a user", "plain torch", "plain torch, long way"])
def test_large_tiled_sums_equal_the_reference(way, monkeypatch):
    """More than one tile in both directions, and blocks of prototypes in the backward."""
    from similitude.ops import minsum
    from similitude.ops.cpu import minsum as cpu_minsum

    monkeypatch.setattr(minsum, "TILE", {"cpu": 2000})
    if way == "plain torch, long way":
        monkeypatch.setattr(cpu_minsum, "LEAST", math.inf)
    inputs = make_inputs(N=37, P=523, K=19, D=5)
    for kind in ("min", "softmin"):
        options = dict(intersection=kind, difference="subtractmatch")
        truth, gradients = value_and_gradients(inputs, backend="reference", **options)
        value, ours = value_and_gradients(inputs, backend="auto" if way == "as a user" else "torch", **options)
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)
