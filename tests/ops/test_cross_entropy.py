"""The loss without its logits against F.cross_entropy of the layer's output: values, gradients, memory, messages."""

import os
import subprocess
import sys

import pytest
import torch
from cases import make_inputs
from torch import nn

import similitude.functional as F
from similitude import FeatureBank, TverskyProjection
from similitude.form import Form
from similitude.ops import cross_entropy as op

OPTIONS = {
    "product": dict(),
    "min": dict(intersection="min", difference="subtractmatch"),
    "softmin": dict(intersection="softmin"),
    "set": dict(intersection="gmean", difference="subtractmatch", level="set"),
    "set min": dict(intersection="min", difference="subtractmatch", level="set"),
    "set ratio": dict(intersection="max", level="set", model="ratio"),
    "mean": dict(intersection="mean"),
    "mean of excess": dict(intersection="mean", difference="subtractmatch"),
    "ratio": dict(model="ratio"),
    "normalize": dict(normalize=True, intersection="max"),
}
LOSSES = {
    "mean": dict(),
    "sum": dict(reduction="sum"),
    "none": dict(reduction="none"),
    "smooth": dict(label_smoothing=0.2),
    "z": dict(z_loss=0.3),
    "everything": dict(label_smoothing=0.1, z_loss=0.02, reduction="sum"),
    "everything of each": dict(label_smoothing=0.1, z_loss=0.02, reduction="none"),
    "nothing but smooth": dict(label_smoothing=1.0),
}


@pytest.fixture
def chunks(monkeypatch):
    """Three rows to a chunk, and two to a part of it."""
    monkeypatch.setattr(op, "_chunk_rows", lambda a, b: 3)
    monkeypatch.setattr("similitude.ops.chunks.PART", {"cpu": 15})


def make(N=11, P=7, ignored=(1, 4, 10), ignore_index=-100, **shape):
    """x, prototypes, features, α, β, θ, bias, all wanting gradients; and targets."""
    inputs = make_inputs(N=N, P=P, **shape)
    bias = torch.randn(P, dtype=torch.float64).to(inputs[0].dtype).requires_grad_()
    target = torch.randint(P, inputs[0].shape[:-1])
    target.view(-1)[list(ignored)] = ignore_index
    return [*inputs, bias], target


def plain(inputs, target, ignore_index=-100, reduction="mean", label_smoothing=0.0, z_loss=0.0, **options):
    """Its definition: the layer, F.cross_entropy, and the squares."""
    x, *rest, bias = inputs
    logits = F.tversky_projection(x, *rest, **options)
    logits = (logits if bias is None else logits + bias).flatten(0, -2) if x.dim() > 1 else (logits + bias)[None]
    flat = target.flatten()
    loss = nn.functional.cross_entropy(
        logits, flat, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )
    if z_loss == 0:
        return loss.view(target.shape) if reduction == "none" else loss
    kept = flat != ignore_index
    square = torch.where(kept, logits.logsumexp(-1).square(), 0.0)
    if reduction == "none":
        return (loss + z_loss * square).view(target.shape)
    return loss + z_loss * (square.sum() / kept.sum() if reduction == "mean" else square.sum())


def ours(inputs, target, **settings):
    x, prototypes, features, alpha, beta, theta, bias = inputs
    return F.tversky_cross_entropy(x, target, prototypes, features, alpha, beta, theta, bias=bias, **settings)


def gradients(function, inputs, target, **settings):
    """The loss, and the gradients of a random weighting of it by all inputs that want one."""
    loss = function(inputs, target, **settings)
    weights = torch.randn(loss.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(loss)
    wanting = [i for i in inputs if i is not None and i.requires_grad]
    found = torch.autograd.grad(loss, wanting, weights, allow_unused=True)
    return loss.detach(), [torch.zeros_like(i) if g is None else g for g, i in zip(found, wanting)]


def assert_same(inputs, target, **settings):
    value, found = gradients(ours, inputs, target, **settings)
    truth, expected = gradients(plain, inputs, target, **settings)
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_loss_and_gradients_are_those_of_the_layer_and_cross_entropy(options, loss, chunks):
    assert_same(*make(), **options, **loss)


@pytest.mark.parametrize("reduction", op.REDUCTIONS)
@pytest.mark.parametrize("options", [OPTIONS["product"], OPTIONS["min"]], ids=["product", "min"])
@pytest.mark.parametrize("ignored", [(), range(11), [*range(10)]], ids=["none", "all", "all but one"])
def test_ignored_targets_count_as_in_torch(ignored, options, reduction, chunks):
    inputs, target = make(ignored=ignored)
    assert_same(inputs, target, reduction=reduction, **options)
    assert_same(inputs, target, reduction=reduction, z_loss=0.1, **options)
    if len(ignored) == 11 and reduction == "mean":
        assert ours(inputs, target).isnan()
    if reduction == "none":
        assert (ours(inputs, target, reduction="none")[list(ignored)] == 0).all()


def test_another_ignore_index_may_be_a_prototype(chunks):
    assert_same(*make(ignore_index=2), ignore_index=2)


@pytest.mark.parametrize("reduction", op.REDUCTIONS)
@pytest.mark.parametrize(
    "shape", [dict(N=0), dict(N=1), dict(P=1), dict(N=4, lead=(2, 3)), dict(N=0, lead=(2,)), dict(K=1)], ids=str
)
def test_leading_axes_are_any(shape, reduction, chunks):
    inputs, target = make(ignored=(), **shape)
    assert_same(inputs, target, reduction=reduction)
    assert ours(inputs, target, reduction=reduction).shape == (target.shape if reduction == "none" else ())


def test_a_single_input_has_a_single_target():
    inputs, target = make(N=1, ignored=())
    inputs[0] = inputs[0].detach()[0].requires_grad_()
    for reduction in op.REDUCTIONS:
        assert_same(inputs, target[0], reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize(
    "options", [OPTIONS["product"], OPTIONS["min"], OPTIONS["ratio"]], ids=["product", "min", "ratio"]
)
@pytest.mark.parametrize("wanted", range(7))
def test_one_gradient_alone_is_the_same(wanted, options, reduction, chunks):
    inputs, target = make()
    inputs = [i.detach().requires_grad_(k == wanted) for k, i in enumerate(inputs)]
    if options.get("model") == "ratio" and wanted == 5:
        pytest.skip("the ratio model has no θ")
    assert_same(inputs, target, reduction=reduction, **options)


@pytest.mark.parametrize("constant", [3, 4, 5])
@pytest.mark.parametrize("value", [0.0, 1e-12, -0.4])
def test_gradients_of_constants_need_no_constant_to_be_large(constant, value, chunks):
    inputs, target = make(dtype=torch.float32)
    with torch.no_grad():
        inputs[constant].fill_(value)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    for reduction in ("mean", "none"):
        truth = gradients(plain, exact, target, reduction=reduction, backend="reference")[1]
        found = gradients(ours, inputs, target, reduction=reduction)[1]
        torch.testing.assert_close([g.double() for g in found], truth, rtol=1e-5, atol=1e-5)


def test_constants_may_be_numbers_and_bias_absent(chunks):
    inputs, target = make()
    x, p, features = inputs[:3]
    loss = F.tversky_cross_entropy(x, target, p, features, 0.3, 0.7, 1.2)
    truth = nn.functional.cross_entropy(F.tversky_projection(x, p, features, 0.3, 0.7, 1.2), target)
    torch.testing.assert_close(loss, truth)
    torch.testing.assert_close(torch.autograd.grad(loss, inputs[:3]), torch.autograd.grad(truth, inputs[:3]))


def test_the_reference_backend_agrees():
    inputs, target = make()
    for loss in LOSSES.values():
        truth = gradients(ours, inputs, target, backend="reference", **loss)
        torch.testing.assert_close(gradients(ours, inputs, target, backend="torch", **loss), truth)


def test_a_prototype_ruled_out_by_the_bias_has_no_probability():
    inputs, target = make(ignored=())
    with torch.no_grad():
        inputs[6][3] = -torch.inf
    assert_same(inputs, torch.where(target == 3, 2, target))


def test_large_logits_neither_overflow_nor_lose_the_loss():
    inputs, target = make(dtype=torch.float32)
    with torch.no_grad():
        inputs[0].mul_(1e4)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    truth = plain(exact, target, reduction="none")
    torch.testing.assert_close(ours(inputs, target, reduction="none").double(), truth, rtol=1e-5, atol=1e-2)


def test_without_gradients_only_the_loss_is_made(monkeypatch, chunks):
    inputs, target = make()
    expected = ours(inputs, target).detach()
    seen = []
    real = op.loss_and_gradient_
    monkeypatch.setattr(op, "loss_and_gradient_", lambda *a: seen.append(a[5]) or real(*a))
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            loss = ours(inputs, target)
        assert not loss.requires_grad
        torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    torch.testing.assert_close(ours([i.detach() for i in inputs], target), expected, rtol=0, atol=0)
    assert set(seen) == {None}


def test_the_backward_can_run_twice_but_not_be_differentiated():
    inputs, target = make()
    loss = ours(inputs, target)
    first = torch.autograd.grad(loss, inputs, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(2 * loss, inputs, retain_graph=True), tuple(2 * g for g in first))
    with pytest.raises(RuntimeError, match=r"no second derivatives.*use .*cross_entropy of tversky_projection"):
        torch.autograd.grad(loss, inputs, create_graph=True)


# In roundings of the largest element: half precision is rounded once at the end, and gradients pass a rounded loss.
ROUNDINGS = {torch.float32: 32, torch.bfloat16: 1, torch.float16: 1}


@pytest.mark.parametrize("dtype", ROUNDINGS, ids=str)
@pytest.mark.parametrize("options", [OPTIONS["product"], OPTIONS["min"], OPTIONS["set"]], ids=["product", "min", "set"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_error_is_no_worse_than_the_layer_and_cross_entropy_in_the_same_dtype(options, dtype, reduction):
    inputs, target = make(N=40, P=24, K=64, D=16, dtype=dtype)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    truth, expected = gradients(plain, exact, target, reduction=reduction, **options)
    value, found = gradients(ours, inputs, target, reduction=reduction, **options)
    plain_value, plain_found = gradients(plain, inputs, target, reduction=reduction, **options)
    assert value.dtype == plain_value.dtype == dtype
    assert all(g.dtype == dtype for g in found)
    for t, o, p in zip([truth, *expected], [value, *found], [plain_value, *plain_found]):
        tolerance = ROUNDINGS[dtype] * torch.finfo(dtype).eps * t.abs().max()
        assert (o.double() - t).abs().max() <= (p.double() - t).abs().max() + tolerance


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_autocast_rounds_what_it_would_for_the_layer_and_keeps_the_loss(reduction, chunks):
    inputs, target = make(K=32, D=16, dtype=torch.float32)
    rounded = [i.detach().bfloat16().double().requires_grad_() for i in inputs[:3]]
    exact = [*rounded, *(i.detach().double().requires_grad_() for i in inputs[3:])]
    truth, expected = gradients(plain, exact, target, reduction=reduction)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert plain(inputs, target).dtype == torch.float32
        value, found = gradients(ours, inputs, target, reduction=reduction)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), truth, rtol=1e-5, atol=1e-5)
    for o, t in zip(found, expected):
        assert o.dtype == torch.float32
        assert (o - t).abs().max() <= torch.finfo(torch.bfloat16).eps * t.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_measures_are_added_up_in_float32(dtype, chunks):
    """As they come on a GPU; the many rows of b's gradient would be lost to rounding otherwise."""
    a, b, _, *scalars = make_inputs(N=300, P=7, D=6)
    target = torch.randint(7, (300,))
    inputs = [t.detach().to(dtype).relu().requires_grad_() for t in (a, b)]
    inputs += [s.detach().float().requires_grad_() for s in (*scalars, torch.randn(7))]
    exact = [t.detach().double().requires_grad_() for t in inputs]

    def run(a, b, alpha, beta, theta, bias):
        return op.cross_entropy(a, b, alpha, beta, theta, Form(), bias, target, -100, "mean", op.Loss(), P=7)

    loss, truth = run(*inputs), run(*exact)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), truth, rtol=1e-2, atol=1e-2)
    found, expected = torch.autograd.grad(loss, inputs), torch.autograd.grad(truth, exact)
    for o, t, given in zip(found, expected, inputs):
        assert o.dtype == given.dtype
        assert (o - t).abs().max() <= 4 * torch.finfo(dtype).eps * t.abs().max()


@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_compiles_whole(reduction):
    inputs, target = make()
    settings = dict(reduction=reduction, label_smoothing=0.1, z_loss=0.1)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        gradients(compiled, inputs, target, **settings), gradients(ours, inputs, target, **settings)
    )


def test_torch_func_and_the_meta_device_take_the_plain_way():
    inputs, target = make()
    found = torch.func.grad(lambda x: ours([x, *inputs[1:]], target))(inputs[0])
    torch.testing.assert_close(found, torch.autograd.grad(ours(inputs, target), inputs[0])[0])
    each = torch.func.vmap(lambda x, y: ours([x, *inputs[1:]], y))(inputs[0][:, None], target[:, None])
    torch.testing.assert_close(each.nan_to_num(), ours(inputs, target, reduction="none"))
    meta = [i.to("meta") for i in inputs]
    assert ours(meta, target.to("meta"), reduction="none").shape == target.shape


class Tied(nn.Module):
    """An embedding, a hidden layer and a head on one bank, the head's prototypes tied to the embedding."""

    def __init__(self, **options):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        bank = FeatureBank(num_features=9, dim=6)
        self.hidden = TverskyProjection(6, 6, features=bank)
        weight = self.embedding.weight
        assert isinstance(weight, nn.Parameter)
        self.head = TverskyProjection(6, 11, features=bank, prototypes=weight, **options)

    def forward(self, tokens):
        return self.hidden(self.embedding(tokens))


@pytest.mark.parametrize(
    "options", [dict(bias=True), OPTIONS["min"], OPTIONS["ratio"]], ids=["product", "min", "ratio"]
)
def test_a_head_trains_the_same_with_tied_prototypes_and_a_shared_bank(options, chunks):
    model = Tied(**options).double()
    tokens, target = torch.randint(11, (2, 5)), torch.randint(11, (2, 5))
    target[0, 0] = -100
    logits = model.head(model(tokens)).flatten(0, -2)
    plain_loss = nn.functional.cross_entropy(logits, target.flatten(), label_smoothing=0.1)
    plain_loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    loss = model.head.cross_entropy(model(tokens), target, label_smoothing=0.1)
    loss.backward()
    torch.testing.assert_close(loss, plain_loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, expected, rtol=1e-9, atol=1e-9)


MEASURE = """
import sys, torch
import similitude.functional as F

N, D, P, K = 2048, 32, 20000, 64
x, p, features = (torch.randn(rows, D, requires_grad=True) for rows in (N, P, K))
target = torch.randint(P, (N,))
options = dict(intersection=sys.argv[2])
(x @ features.mT).sum().backward()  # thread pools and library buffers
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
start = peak()
if sys.argv[1] == "plain":
    torch.nn.functional.cross_entropy(F.tversky_projection(x, p, features, **options), target).backward()
else:
    F.tversky_cross_entropy(x, target, p, features, reduction=sys.argv[1], **options).sum().backward()
print(peak() - start)
"""


def megabytes(*arguments) -> float:
    # Memory that is freed goes back at once, so that what is measured is what is in use.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-c", MEASURE, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_far_below_the_plain_way():
    """The table of logits alone has 156 MB."""
    used = {way: megabytes(*way) for way in (("mean", "product"), ("mean", "mean"), ("plain", "product"))}
    assert used["mean", "product"] < 150, used
    assert used["mean", "mean"] < 250, used
    assert used["plain", "product"] > 4 * used["mean", "product"], used


MESSAGES = {
    "shape": (
        dict(target=torch.zeros(4, dtype=torch.long)),
        r"without its last axis, \[3\]; got target \[4\] and x \[3, 5\]",
    ),
    "float": (
        dict(target=torch.zeros(3)),
        r"must be an int64 tensor.*got float32: convert indices with target.long\(\)",
    ),
    "list": (dict(target=[0, 1, 2]), "must be an int64 tensor.*got list"),
    "range": (dict(target=torch.tensor([0, 7, 1])), "from 0 to 6, one of 7 prototypes, or ignore_index=-100; got 7"),
    "negative": (dict(target=torch.tensor([0, -1, 1])), "from 0 to 6.*got -1"),
    "reduction": (dict(reduction="avg"), "reduction must be one of mean, sum, none; got 'avg'"),
    "label_smoothing": (dict(label_smoothing=1.5), "label_smoothing must be from 0 to 1; got 1.5"),
    "z_loss": (dict(z_loss=-1.0), "z_loss must be 0 or more; got -1.0"),
    "prototypes": (
        dict(prototypes=torch.randn(2, 7, 5)),
        r"prototypes must be \[P, D\], the same.*got shape \[2, 7, 5\]",
    ),
    "prototype": (dict(prototypes=torch.randn(5)), r"prototypes must be \[P, D\].*got shape \[5\]"),
    "bias": (dict(bias=torch.randn(6)), r"bias must be \[P\] = \[7\], a number for each prototype; got shape \[6\]"),
    "whole bias": (dict(bias=torch.ones(7, dtype=torch.long)), "bias must have a floating dtype; got int64"),
    "backend": (dict(backend="torhc"), "backend must be one of.*Did you mean 'torch'"),
    "width": (dict(x=torch.randn(3, 4)), "x and features must have the same width D"),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case):
    changed, message = MESSAGES[case]
    arguments = dict(
        x=torch.randn(3, 5), target=torch.tensor([0, 1, 2]), prototypes=torch.randn(7, 5), features=torch.randn(4, 5)
    )
    with pytest.raises((ValueError, TypeError), match=message):
        F.tversky_cross_entropy(**{**arguments, **changed})
