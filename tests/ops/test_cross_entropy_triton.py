"""The Triton kernel of cross entropy against float64, on a GPU or, without one, in Triton's interpreter."""

import pytest
import torch
from cases import make_inputs

pytest.importorskip("triton")

import similitude.functional as F
from similitude.ops import cross_entropy
from similitude.ops.triton import cross_entropy as triton_cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def make(n, P, dtype=torch.float32, scale=5.0, stride=None):
    table = torch.full((n, stride or P), float("nan"), dtype=dtype, device=DEVICE)
    logits = table[:, :P]
    logits.copy_(scale * torch.randn(n, P))
    return logits, torch.randint(P, (n,), device=DEVICE)


def assert_parity(logits, target, bias=None, weight=None, smoothing=0.0, z_loss=0.0, dtype=None):
    dtype = dtype or logits.dtype
    exact_bias, exact_weight = (None if t is None else t.double() for t in (bias, weight))
    loss = cross_entropy.Loss(smoothing, z_loss, kernels=False)
    truth, slope, _ = cross_entropy.loss_and_gradient_(
        logits.double(), target, exact_bias, exact_weight, loss, torch.float64, logits.shape[1]
    )
    settings = (target, bias, weight, smoothing, z_loss)
    alone, none, _ = triton_cross_entropy.loss_and_gradient_(logits, *settings, None)
    losses, found, _ = triton_cross_entropy.loss_and_gradient_(logits, *settings, dtype)
    assert slope is not None
    assert found is not None
    assert none is None
    assert losses.dtype == torch.float32
    assert (found.dtype, found.stride(1)) == (dtype, 1)
    assert (found.data_ptr() == logits.data_ptr()) == (dtype == logits.dtype)
    torch.testing.assert_close(alone, losses, rtol=0, atol=0)
    torch.testing.assert_close(losses.double(), truth, rtol=2e-6, atol=2e-6)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), slope, rtol=eps + 1e-5, atol=eps * 1e-3 + 1e-7)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 4096), (3, 5001), (2, 9000)], ids=str)
def test_losses_and_gradients(shape, dtype):
    n, P = shape
    assert_parity(*make(n, P, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 4100), (5, 4096)], ids=str)
def test_sides_and_inner_products_of_rows(shape, dtype):
    a = torch.randn(shape, device=DEVICE).relu().to(dtype)
    gain, weight = torch.tensor(1.7, device=DEVICE), torch.tensor(-0.4, device=DEVICE)
    side = triton_cross_entropy.side(a, gain, weight)
    truth = 1.7 * a.double() - 0.4 * (a.double().sign() - 1)
    eps = torch.finfo(dtype).eps
    assert side.dtype == dtype
    torch.testing.assert_close(side.double(), truth, rtol=eps, atol=1e-6)
    other = torch.randn(shape[0], shape[1] + 3, device=DEVICE)[:, :-3]
    found = triton_cross_entropy.inner(a, other)
    torch.testing.assert_close(found.double(), (a.double() * other.double()).sum(-1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.01])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("with_weight", [False, True])
def test_every_term(smoothing, z_loss, with_bias, with_weight):
    logits, target = make(4, 4100)
    bias = torch.randn(4100, device=DEVICE) if with_bias else None
    weight = torch.randn(4, device=DEVICE) if with_weight else None
    assert_parity(logits, target, bias, weight, smoothing, z_loss)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_gradient_may_have_another_dtype_and_rows_that_are_aligned(dtype):
    logits, target = make(3, 5001)
    assert_parity(logits, target, dtype=dtype)
    _, found, _ = triton_cross_entropy.loss_and_gradient_(logits, target, None, None, 0.0, 0.0, dtype)
    assert found is not None
    assert found.stride(0) % 16 == 0


def test_rows_may_lie_apart_and_what_is_between_stays():
    logits, target = make(3, 70, stride=96)
    assert_parity(logits, target)
    assert logits.isfinite().all()
    assert logits.as_strided((3, 96), (96, 1))[:, 70:].isnan().all()


def test_large_logits_and_none_at_all():
    logits, target = make(3, 70, scale=1e4)
    assert_parity(logits, target)
    logits, target = make(3, 70)
    bias = torch.zeros(70, device=DEVICE)
    bias[::2] = -torch.inf
    bias[target] = 0.0
    assert_parity(logits, target, bias)
    losses, found, _ = triton_cross_entropy.loss_and_gradient_(*make(0, 70), None, None, 0.0, 0.0, torch.float32)
    assert found is not None
    assert (losses.shape, found.shape) == ((0,), (0, 70))


def test_a_target_that_is_no_prototype_reads_nothing_and_gives_nan():
    logits, _ = make(2, 70)
    target = torch.tensor([70, 3], device=DEVICE)
    losses, found, _ = triton_cross_entropy.loss_and_gradient_(logits, target, None, None, 0.0, 0.0, torch.float32)
    assert found is not None
    assert losses.isnan().tolist() == [True, False]
    assert found.isnan().all(-1).tolist() == [True, False]


@pytest.mark.parametrize("reduction", cross_entropy.REDUCTIONS)
def test_the_whole_loss_is_the_same_with_it(reduction, monkeypatch):
    inputs = make_inputs(N=9, P=300, dtype=torch.float32, device=DEVICE)
    target = torch.randint(300, (9,), device=DEVICE)
    target[2] = -100

    def run(backend):
        x, prototypes, features, alpha, beta, theta = inputs
        loss = F.tversky_cross_entropy(
            x, target, prototypes, features, alpha, beta, theta, reduction=reduction, z_loss=0.1, backend=backend
        )
        return loss, torch.autograd.grad(loss.sum(), inputs)

    expected = run("torch")
    calls = []
    real = triton_cross_entropy.loss_and_gradient_
    monkeypatch.setattr(triton_cross_entropy, "loss_and_gradient_", lambda *a: calls.append(1) or real(*a))
    monkeypatch.setattr(cross_entropy, "has_kernels", lambda x: x.dtype == torch.float32)
    torch.testing.assert_close(run("auto"), expected, rtol=1e-4, atol=1e-4)
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_columns_past_the_last_do_not_count_and_rows_are_multiplied_with_their_gradients(dtype):
    logits, target = make(5, 70)
    bias = torch.randn(70, device=logits.device)
    wide = torch.nn.functional.pad(logits, (0, 10), value=50.0)
    truth, slope, inner = cross_entropy.loss_and_gradient_(
        logits.clone(), target, bias, None, cross_entropy.Loss(kernels=False), torch.float32, 70
    )
    losses, found, product = triton_cross_entropy.loss_and_gradient_(wide, target, bias, None, 0.0, 0.0, dtype, 70)
    torch.testing.assert_close(losses, truth.float(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:, :70].float(), slope.float(), rtol=1e-2, atol=1e-2)
    assert found[:, 70:].abs().max() == 0
    torch.testing.assert_close(product.double(), inner.double(), rtol=1e-4, atol=1e-4)
