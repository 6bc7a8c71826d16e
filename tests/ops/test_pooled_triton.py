"""The kernels of set-level similarities against the law: interpreted on a CPU, or as they are on a GPU."""

import itertools

import pytest
import torch
from ops.test_separable_triton import DEVICE, make, run

import similitude.functional as F
from similitude.form import Form
from similitude.ops import cross_entropy, reference

kernels = pytest.importorskip("similitude.ops.triton.pooled")

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


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_the_loss_in_chunks_is_that_of_the_law(options, wanted, monkeypatch):
    """Logits and sums of gradients are in 32 bits, so that only their products' factors are rounded."""
    if options == ("product", "ignorematch", options[2], "contrast"):
        pytest.skip("has chunks of its own")
    if options[0] == "softmin" and options[3] == "ratio":
        pytest.skip("the softmin may be negative, and the ratio then passes through a pole")
    monkeypatch.setattr(cross_entropy, "CHUNK", {DEVICE: 8 * 40})
    a, b, scalars, _ = make(21, 40, 33, torch.bfloat16)
    a, b, target = a.relu(), b.relu(), torch.arange(21, device=a.device) % 38
    used = []
    monkeypatch.setattr(kernels, "Chunks", lambda *given, real=kernels.Chunks: used.append(1) or real(*given))

    def loss(a, b, *scalars):
        # "none" walks over the chunks once more in its backward.
        how = (Form.of(*options), None, target, 3, "none" if all(wanted) else "sum", cross_entropy.Loss())
        return cross_entropy.cross_entropy(a, b, *scalars, *how, P=38)

    def law(a, b, *scalars):
        logits = reference.pairwise(a, b, *scalars, *options)[:, :38]
        return torch.nn.functional.cross_entropy(logits, target, ignore_index=3, reduction="sum")

    found = []
    for function, dtype in ((loss, torch.bfloat16), (law, torch.float64)):
        wide = torch.promote_types(dtype, torch.float32)
        inputs = [x.to(dtype).requires_grad_(w) for x, w in zip((a, b), wanted)]
        inputs += [s.to(wide).detach().requires_grad_() for s in scalars]
        value = function(*inputs).sum()
        learned = [x for x in inputs if x.requires_grad]
        slopes = torch.autograd.grad(value, learned, allow_unused=True, materialize_grads=True)
        # Gradients of measures that are 0 are nobody's.
        slopes = [g * (x > 0) if x.dim() else g for g, x in zip(slopes, learned)]
        found.append([value, *slopes])
    assert used
    for ours, exact in zip(*found, strict=True):
        # Slopes are rounded where they enter products with measures, and there alone.
        assert (ours.double() - exact).abs().max() <= (0.01 if exact.dim() else 1e-4) * exact.abs().max() + 1e-6
