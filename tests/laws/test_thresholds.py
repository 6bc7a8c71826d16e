"""Thresholds are the paper's equations on longer vectors: [x, 1], [p, 0] and [f_k, −t_k]."""

import pytest
import torch
from cases import COMBINATIONS, name
from torch.nn.functional import cross_entropy, normalize, pad

import similitude.functional as F
from similitude.ops import reference

CONSTANTS = (0.4, 0.7, 1.3)


def made(N=5, P=4, K=7, D=3, seed=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    x, p, f = (torch.randn(n, D, generator=g, dtype=torch.float64) for n in (N, P, K))
    t = torch.rand(K, generator=g, dtype=torch.float64) - 0.3
    return [v.to(dtype).requires_grad_() for v in (x, p, f, t)]


def longer(x, features, threshold, normalized, constant=1.0):
    """Measures of the longer vectors, by the product that the paper has."""
    x = normalize(x, dim=-1) if normalized else x
    return pad(x, (0, 1), value=constant) @ torch.cat([features, -threshold[:, None]], dim=1).mT


def form(options):
    return [options[k] for k in ("intersection", "difference", "level", "model")]


def gradients(out, inputs):
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(out)
    return torch.autograd.grad((out * weights).sum(), inputs)


@pytest.mark.parametrize("backend", ["auto", "torch", "reference"])
@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_a_projection_is_that_of_longer_vectors(options, backend):
    inputs = x, p, f, t = made()
    normalized = options["normalize"]
    law = reference.pairwise(longer(x, f, t, normalized), longer(p, f, t, normalized, 0.0), *CONSTANTS, *form(options))
    ours = F.tversky_projection(x, p, f, *CONSTANTS, **options, backend=backend, threshold=t)
    torch.testing.assert_close(ours, law, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(ours, inputs), gradients(law, inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_a_similarity_has_the_constant_on_both_sides(options):
    inputs = a, b, f, t = made(N=4, P=4)
    normalized = options["normalize"]
    law = reference.similarity(longer(a, f, t, normalized), longer(b, f, t, normalized), *CONSTANTS, *form(options))
    ours = F.tversky_similarity(a, b, f, *CONSTANTS, **options, threshold=t)
    torch.testing.assert_close(ours, law, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(ours, inputs), gradients(law, inputs), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_the_loss_is_that_of_longer_vectors(options):
    inputs = x, p, f, t = made()
    target, normalized = torch.tensor([0, 3, 1, 2, 0]), options["normalize"]
    S = reference.pairwise(longer(x, f, t, normalized), longer(p, f, t, normalized, 0.0), *CONSTANTS, *form(options))
    law = cross_entropy(S, target)
    ours = F.tversky_cross_entropy(x, target, p, f, *CONSTANTS, **options, threshold=t)
    torch.testing.assert_close(ours, law, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradients(ours, inputs), gradients(law, inputs), rtol=1e-9, atol=1e-9)


def test_parts_are_those_of_longer_vectors():
    a, b, f, t = made(N=4, P=4)
    A, B = longer(a, f, t, False), longer(b, f, t, False)
    torch.testing.assert_close(F.salience(a, f, threshold=t), reference.salience(A))
    torch.testing.assert_close(F.common(a, b, f, threshold=t), reference.common(A, B, "product", "feature"))
    only = reference.distinctive(A, B, "ignorematch", "feature")
    torch.testing.assert_close(F.distinctive(a, b, f, threshold=t), only)


@pytest.mark.parametrize("leak", [0.0, 0.1])
@pytest.mark.parametrize("batched", [False, True])
def test_thresholds_of_zero_change_nothing(leak, batched):
    x, p, f, _ = made()
    p = p.expand(2, *p.shape) if batched else p
    x = x.expand(2, *x.shape) if batched else x
    options = dict(alpha=0.4, beta=0.7, theta=1.3, leak=leak)
    plain = F.tversky_projection(x, p, f, **options)
    cut = F.tversky_projection(x, p, f, **options, threshold=torch.zeros(len(f), dtype=f.dtype))
    torch.testing.assert_close(cut, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(cut, [x, f]), gradients(plain, [x, f]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", COMBINATIONS[::5], ids=name)
def test_gradcheck(options):
    inputs = x, p, f, t = made(N=3, P=2, K=4)
    A, B = longer(x, f, t, options["normalize"]), longer(p, f, t, options["normalize"], 0.0)
    assert min(A.abs().min(), B.abs().min(), (A[:, None] - B).abs().min()) > 1e-3, "too near a tie to difference"
    call = lambda *v: F.tversky_projection(*v[:3], *CONSTANTS, **options, threshold=v[3])  # noqa: E731
    assert torch.autograd.gradcheck(call, inputs, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_halves_are_measured_in_32_bits(dtype):
    x, p, f, t = (v.detach() for v in made(N=64, K=33, D=16, dtype=dtype))
    wide = [v.double() for v in (x, p, f)]
    law = F.tversky_projection(*wide, threshold=t.double())
    ours = F.tversky_projection(x, p, f, threshold=t)
    assert ours.dtype == dtype
    error = (ours.double() - law).abs().max() / law.abs().max()
    assert error <= torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("threshold", "told"),
    [
        (torch.zeros(6), r"threshold must be \[K\] = \[7\].*got shape \[6\]"),
        (torch.zeros(7, dtype=torch.int64), "threshold must have a floating dtype; got int64"),
        ([0.0] * 7, "threshold must be a tensor; got list"),
    ],
)
def test_wrong_thresholds_are_refused(threshold, told):
    x, p, f, _ = made(dtype=torch.float32)
    with pytest.raises((TypeError, ValueError), match=told):
        F.tversky_projection(x, p, f, threshold=threshold)
