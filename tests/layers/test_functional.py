"""Shapes, dtypes, transforms and messages of the functional door."""

from importlib.util import find_spec

import pytest
import torch
from cases import make_inputs, value_and_gradients
from torch import nn

import similitude.functional as F

PATHS = [
    dict(),
    dict(intersection="min", difference="subtractmatch"),
    dict(intersection="softmin"),
    dict(intersection="max", level="set", model="ratio", normalize=True),
]


def path_name(options: dict) -> str:
    return "-".join(map(str, options.values())) or "product"


def close(a, b) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture
def parts():
    x, p, features = make_inputs()[:3]
    return x.detach(), p.detach(), features.detach()


@pytest.mark.parametrize("options", PATHS, ids=path_name)
@pytest.mark.parametrize("lead", [(), (5,), (2, 3), (2, 1, 3), (2, 1, 3, 2)], ids=str)
def test_projection_takes_inputs_of_any_leading_shape(parts, lead, options):
    _, p, features = parts
    x = torch.randn(*lead, 3, dtype=torch.float64)
    out = F.tversky_projection(x, p, features, **options)
    assert out.shape == (*lead, 4)
    each = [F.tversky_similarity(x, p[i], features, backend="reference", **options) for i in range(4)]
    close(out, torch.stack(each, -1))


@pytest.mark.parametrize("options", PATHS, ids=path_name)
@pytest.mark.parametrize(
    ("a", "b"), [((2, 5), (2, 4)), ((5,), (2, 4)), ((2, 1, 5), (3, 4)), ((3, 5), (1, 4)), ((0, 5), (0, 4))], ids=str
)
def test_prototypes_may_be_batched(parts, a, b, options):
    features = parts[2]
    x, p = torch.randn(*a, 3, dtype=torch.float64), torch.randn(*b, 3, dtype=torch.float64)
    out = F.tversky_projection(x, p, features, **options)
    expected = F.tversky_similarity(x.unsqueeze(-2), p.unsqueeze(-3), features, backend="reference", **options)
    assert out.shape == expected.shape
    close(out, expected)


@pytest.mark.parametrize("options", PATHS, ids=path_name)
@pytest.mark.parametrize(
    ("a", "b"),
    [((), ()), ((4,), ()), ((), (4,)), ((4,), (4,)), ((4, 1), (5,)), ((4, 1, 2), (5, 1)), ((2, 1, 3, 1), (2, 4, 1, 5))],
    ids=str,
)
def test_similarity_broadcasts(parts, a, b, options):
    features = parts[2]
    x = torch.randn(*a, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(*b, 3, dtype=torch.float64, requires_grad=True)
    out = F.tversky_similarity(x, y, features, **options)
    expected = F.tversky_similarity(x, y, features, backend="reference", **options)
    assert out.shape == torch.broadcast_shapes(a, b)
    close(out, expected)
    weights = torch.randn_like(out)
    close(torch.autograd.grad(out, (x, y), weights), torch.autograd.grad(expected, (x, y), weights))


@pytest.mark.parametrize("function", [F.common, F.distinctive])
def test_measures_broadcast(parts, function):
    x, p, features = parts
    table = function(x[:, None], p, features)
    assert table.shape == (5, 4)
    close(table, torch.stack([torch.stack([function(i, j, features) for j in p]) for i in x]))


@pytest.mark.parametrize("options", PATHS, ids=path_name)
def test_strided_and_expanded_inputs_give_the_same(parts, options):
    x, p, features = parts
    plain = F.tversky_projection(x, p, features, **options)
    wide = [torch.stack([t, t], -1).flatten(-2)[..., ::2] for t in (x, p, features)]
    assert not wide[0].is_contiguous()
    close(F.tversky_projection(*wide, **options), plain)
    turned = [t.T.contiguous().T for t in (x, p, features)]
    close(F.tversky_projection(*turned, **options), plain)
    expanded = x[:1].expand(7, -1)
    close(F.tversky_projection(expanded, p, features, **options), plain[:1].expand(7, -1))


def test_output_may_be_written_to_before_the_backward(parts):
    x = parts[0].clone().requires_grad_()
    plain = F.tversky_projection(x, *parts[1:]).relu().sum()
    inplace = F.tversky_projection(x, *parts[1:]).relu_().sum()
    close(torch.autograd.grad(inplace, x), torch.autograd.grad(plain, x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_dtype_in_is_dtype_out(dtype):
    x, p, features, *_ = make_inputs(dtype=dtype)
    assert F.tversky_projection(x, p, features).dtype == dtype
    assert F.tversky_similarity(x[:4], p, features).dtype == dtype
    for value in (F.salience(x, features), F.common(x[:4], p, features), F.distinctive(x[:4], p, features)):
        assert value.dtype == dtype


@pytest.mark.parametrize("options", PATHS, ids=path_name)
def test_autocast_gives_its_dtype_and_the_gradients_of_rounded_inputs(options):
    inputs = make_inputs(N=16, K=32, D=8, dtype=torch.float32)
    rounded = [i.detach().bfloat16().float().requires_grad_() for i in inputs[:3]] + inputs[3:]
    truth, gradients = value_and_gradients(rounded, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = F.tversky_projection(*inputs, **options)
        assert out.dtype == torch.bfloat16
        value, ours = value_and_gradients(inputs, **options)
    torch.testing.assert_close(value.float(), truth, rtol=1e-2, atol=1e-2 * truth.abs().max().item())
    for o, t in zip(ours, gradients):
        assert o.dtype == torch.float32
        torch.testing.assert_close(o, t, rtol=2e-2, atol=2e-2 * max(t.abs().max().item(), 1e-3))


def test_autocast_leaves_float64_alone(parts):
    plain = F.tversky_projection(*parts)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(F.tversky_projection(*parts), plain)


@pytest.mark.parametrize("options", PATHS, ids=path_name)
def test_compiles_whole(options):
    inputs = make_inputs()
    compiled = torch.compile(F.tversky_projection, fullgraph=True)
    truth = value_and_gradients(inputs, **options)
    ours = value_and_gradients(inputs, function=compiled, **options)
    close(ours[0], truth[0])
    close(ours[1], truth[1])


@pytest.mark.parametrize("options", PATHS, ids=path_name)
def test_exports(options):
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.p, self.features = (nn.Parameter(t.detach()) for t in make_inputs()[1:3])

        def forward(self, x):
            return F.tversky_projection(x, self.p, self.features, **options)

    head, x = Head(), torch.randn(5, 3, dtype=torch.float64)
    program = torch.export.export(head, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    other = torch.randn(9, 3, dtype=torch.float64)
    close(program.module()(other), head(other))


@pytest.mark.parametrize("options", PATHS, ids=path_name)
def test_vmap_and_grad(options):
    x, p, features, _, beta, theta = (i.detach() for i in make_inputs())

    def loss(alpha, p, x):
        return F.tversky_projection(x, p, features, alpha, beta, theta, **options).square().sum()

    alphas, ps = torch.rand(3, dtype=torch.float64), torch.randn(3, *p.shape, dtype=torch.float64)
    mapped = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)), in_dims=(0, 0, None))(alphas, ps, x)
    for i in range(3):
        one = [t.clone().requires_grad_() for t in (alphas[i], ps[i], x)]
        expected = torch.autograd.grad(loss(*one), one)
        close([m[i] for m in mapped], list(expected))


def test_meta_tensors_give_shapes():
    x, p, features = (
        torch.empty(7, 5, device="meta"),
        torch.empty(50257, 5, device="meta"),
        torch.empty(64, 5, device="meta"),
    )
    for options in PATHS:
        assert F.tversky_projection(x, p, features, **options).shape == (7, 50257)


MESSAGES = {
    "wrong intersection": (
        lambda x, p, f: F.tversky_projection(x, p, f, intersection="prodct"),
        ValueError,
        "intersection must be one of product, min, max, mean, gmean, softmin; got 'prodct'. Did you mean 'product'?",
    ),
    "wrong difference": (
        lambda x, p, f: F.tversky_similarity(x, x, f, difference="ignore"),
        ValueError,
        "difference must be one of ignorematch, subtractmatch; got 'ignore'. Did you mean 'ignorematch'?",
    ),
    "wrong level": (
        lambda x, p, f: F.common(x, x, f, level="sets"),
        ValueError,
        "level must be one of feature, set; got 'sets'. Did you mean 'set'?",
    ),
    "wrong model": (
        lambda x, p, f: F.tversky_projection(x, p, f, model=None),
        ValueError,
        "model must be one of contrast, ratio; got None.",
    ),
    "wrong backend": (
        lambda x, p, f: F.tversky_projection(x, p, f, backend="cuda"),
        ValueError,
        "backend must be one of auto, reference, torch, triton; got 'cuda'.",
    ),
    "a backend that cannot run": (
        lambda x, p, f: F.tversky_projection(x, p, f, backend="triton"),
        RuntimeError,
        "backend='triton' needs tensors on a CUDA device; got cpu; use backend='auto'."
        if find_spec("triton")
        else "backend='triton' needs the package triton, which does not import here; use backend='auto'.",
    ),
    "wrong width": (
        lambda x, p, f: F.tversky_projection(x[:, :2], p, f),
        ValueError,
        "x and features must have the same width D; got x [5, 2] and features [6, 3].",
    ),
    "wrong width of prototypes": (
        lambda x, p, f: F.tversky_projection(x, p[:, :2], f),
        ValueError,
        "prototypes and features must have the same width D; got prototypes [4, 2] and features [6, 3].",
    ),
    "integer tensor": (
        lambda x, p, f: F.tversky_projection(x.long(), p, f),
        TypeError,
        "x must have a floating dtype; got int64: convert it with x.float().",
    ),
    "not a tensor": (
        lambda x, p, f: F.salience([1.0], f),
        TypeError,
        "objects must be a tensor; got list.",
    ),
    "two dtypes": (
        lambda x, p, f: F.tversky_projection(x, p.float(), f),
        ValueError,
        "x, prototypes, features must have one dtype and one device; "
        "x is float64 on cpu, prototypes is float32 on cpu, features is float64 on cpu.",
    ),
    "a vector of alphas": (
        lambda x, p, f: F.tversky_projection(x, p, f, alpha=torch.rand(3)),
        ValueError,
        "alpha must be one number, a float or a floating tensor of one element; "
        "got a tensor of shape [3] and dtype float32.",
    ),
    "a word for beta": (
        lambda x, p, f: F.tversky_projection(x, p, f, beta="half"),
        ValueError,
        "beta must be one number, a float or a floating tensor of one element; got 'half'.",
    ),
    "infinite theta": (
        lambda x, p, f: F.tversky_projection(x, p, f, theta=float("inf")),
        ValueError,
        "theta must be a finite number; got inf.",
    ),
    "pairs that do not broadcast": (
        lambda x, p, f: F.tversky_similarity(x, p, f),
        ValueError,
        "a and b must broadcast in all axes but the last; got a [5, 3] and b [4, 3]. "
        "For all pairs use tversky_projection or TverskySimilarity.pairwise.",
    ),
    "batches that do not broadcast": (
        lambda x, p, f: F.tversky_projection(x.expand(2, 5, 3), p.expand(3, 4, 3), f),
        ValueError,
        "x [..., N, D] and prototypes [..., P, D] must broadcast in all axes but the last two; "
        "got x [2, 5, 3] and prototypes [3, 4, 3].",
    ),
    "one prototype without its axis": (
        lambda x, p, f: F.tversky_projection(x, p[0], f),
        ValueError,
        "prototypes must be [P, D] or [..., P, D]; got shape [3]: for one prototype use prototypes[None].",
    ),
    "a bank of three axes": (
        lambda x, p, f: F.tversky_projection(x, p, f[None]),
        ValueError,
        "features must be [K, D]; got shape [1, 6, 3].",
    ),
    "a number as an object": (
        lambda x, p, f: F.salience(torch.tensor(1.0), f),
        ValueError,
        "objects must have at least one axis, [..., D]; got a tensor with no axes.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_gets_one_clear_sentence(parts, case):
    call, kind, message = MESSAGES[case]
    with pytest.raises(kind) as error:
        call(*parts)
    assert str(error.value) == message


def test_tensors_without_data_are_compared():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, p, features = torch.randn(3, 6), torch.randn(4, 6), torch.randn(5, 6)
        assert F.tversky_projection(x, p, features, torch.ones(1)).shape == (3, 4)
