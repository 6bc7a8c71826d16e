"""The C++ kernels of min-sums, and plain torch's own short ways on a CPU, against the law."""

import functools
import itertools
import math
import os
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import COMBINATIONS, SMOOTH, make_inputs, name, value_and_gradients
from torch.utils._python_dispatch import TorchDispatchMode

import similitude.functional as F
from similitude.ops import minsum
from similitude.ops.cpu import build
from similitude.ops.cpu import minsum as cpu_minsum
from similitude.ops.minsum import PairSum, PairSumGradients
from similitude.ops.reference import common_terms

KINDS = ["min", "softmin"]
DTYPES = [torch.float32, torch.float64]
# One row, odd numbers, more rows than a block, fewer and more features than a vector, several panels.
SHAPES = [(1, 1, 1), (1, 9, 70), (33, 5, 40), (17, 131, 3), (130, 66, 9), (6, 7, 300)]
MIN_SUMS = [
    options
    for options in COMBINATIONS
    if options["level"] == "feature"
    and (options["difference"] == "subtractmatch" or options["intersection"] in ("min", "max", "softmin"))
]
kernels = pytest.mark.skipif(not build.AVAILABLE, reason="no C++ compiler, or SIMILITUDE_CPU_KERNELS=0")


@pytest.fixture(params=[pytest.param("kernels", marks=kernels), "plain"])
def way(request, monkeypatch):
    """Both ways, at any size."""
    monkeypatch.setattr(cpu_minsum, "LEAST", 1)
    return request.param


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(cpu_minsum, "LEAST", 1)


def measures(N, P, K, dtype=torch.float32, batch=(), scale=1.0):
    """Measures with ties: between positive ones, and at 0."""
    make = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*batch, rows, K, generator=make, dtype=torch.float64) for rows in (N, P))
    a[..., 0], b[..., 0] = 0.5, 0.5
    a[..., -1:, -1], b[..., -1:, -1] = 0.0, 0.0
    return (a * scale).to(dtype), (b * scale).to(dtype)


def some_grad(a, b):
    return torch.randn(*a.shape[:-1], b.shape[-2], generator=torch.Generator().manual_seed(1), dtype=a.dtype)


def true(grad, a, b, kind):
    a, b = (x.detach().double().requires_grad_() for x in (a, b))
    out = common_terms(a.unsqueeze(-2), b.unsqueeze(-3), kind).sum(-1)
    return out.detach(), *torch.autograd.grad(out, (a, b), grad.double())


def computed(grad, a, b, kind, way):
    if way == "plain":
        return PairSum.forward(a, b, kind, False), *PairSumGradients.forward(grad, a, b, kind, False)
    out, gradients = cpu_minsum.pair_sum(a, b, kind), cpu_minsum.pair_sum_gradients(grad, a, b, kind)
    assert out is not None
    assert gradients is not None
    return out, *gradients


def assert_near(found, truth, dtype):
    for value, expected in zip(found, truth, strict=True):
        assert value.dtype == dtype
        assert value.shape == expected.shape
        assert value.is_contiguous()
        error = (value.double() - expected).abs().max()
        assert error <= 16 * torch.finfo(dtype).eps * expected.abs().max() + 1e-30


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)], ids=str)
def test_values_and_gradients_are_the_laws(way, kind, shape, dtype, batch):
    a, b = measures(*shape, dtype, batch)
    grad = some_grad(a, b)
    assert_near(computed(grad, a, b, kind, way), true(grad, a, b, kind), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-9, 3.0, 10.0, 50.0])
def test_softmin_of_measures_of_any_size(way, scale, dtype):
    """From those whose exponentials are 1 to those for which float32 has none."""
    a, b = measures(9, 11, 70, dtype, scale=scale)
    grad = some_grad(a, b)
    assert_near(computed(grad, a, b, "softmin", way), true(grad, a, b, "softmin"), dtype)


def test_measures_and_gradients_beyond_the_kernels_range_go_by_plain_torch(any_size):
    a, b = measures(9, 11, 70)
    big = a.clone()
    big[0, 0] = 700.0
    assert cpu_minsum.pair_sum(big, b, "softmin") is None
    for wrong in (math.nan, math.inf, -math.inf):
        a_wrong, grad = a.clone(), some_grad(a, b)
        a_wrong[3, 4] = grad[3, 4] = wrong
        assert cpu_minsum.pair_sum(a_wrong, b, "min") is None
        assert cpu_minsum.pair_sum(b, a_wrong, "min") is None
        assert cpu_minsum.pair_sum_gradients(grad, a, b, "min") is None
        plain = PairSum.forward(a_wrong, b, "min", False)
        torch.testing.assert_close(minsum.min_sum(a_wrong, b), plain, equal_nan=True)


@kernels
@pytest.mark.parametrize("options", MIN_SUMS, ids=name)
def test_every_form_is_the_reference(any_size, options):
    inputs = make_inputs(N=9, P=7, K=19)
    truth, gradients = value_and_gradients(inputs, backend="reference", **options)
    value, ours = value_and_gradients(inputs, **options)
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)


@kernels
@pytest.mark.parametrize("options", [dict(leak=0.1), dict(threshold=True), dict(lead=(2, 3))], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_leak_thresholds_and_batches_are_the_reference(any_size, kind, options):
    lead, leak = options.get("lead", ()), options.get("leak", 0.0)
    inputs = make_inputs(N=9, P=7, K=19, lead=lead)
    options = dict(intersection=kind, difference="subtractmatch", leak=leak) | (
        dict(threshold=torch.linspace(-1, 1, 19, dtype=torch.float64)) if "threshold" in options else {}
    )
    truth, gradients = value_and_gradients(inputs, backend="reference", **options)
    value, ours = value_and_gradients(inputs, **options)
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_and_second_derivatives(any_size, kind):
    inputs = make_inputs(N=3, P=2, K=4, D=3, seed=3)
    options = dict(intersection=kind, difference="subtractmatch")
    assert torch.autograd.gradcheck(lambda *i: F.tversky_projection(*i, **options), inputs, atol=1e-6)
    if options["intersection"] == "softmin":
        options = next(o for o in SMOOTH if o["intersection"] == "softmin" and o["level"] == "feature")
        assert torch.autograd.gradgradcheck(lambda *i: F.tversky_projection(*i, **options), inputs, atol=1e-6)


@kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_as_small_as_plain_torchs_over_many_rows(kind, dtype):
    inputs = make_inputs(N=4000, P=5, K=24, D=16, dtype=dtype)
    exact = [i.detach().double().requires_grad_() for i in inputs]
    options = dict(intersection=kind, difference="subtractmatch")
    truth, gradients = value_and_gradients(exact, backend="torch", **options)
    value, ours = value_and_gradients(inputs, **options)
    plain_value, plain = value_and_gradients(inputs, backend="torch", **options)
    for t, o, p in zip([truth, *gradients], [value, *ours], [plain_value, *plain], strict=True):
        tolerance = (32 if dtype == torch.float32 else 1) * torch.finfo(dtype).eps * t.abs().max()
        assert (o.double() - t).abs().max() <= (p.double() - t).abs().max() + tolerance


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_strides_signs_and_views_do_not_matter(any_size, kind):
    a, b = measures(9, 11, 32)
    grad = some_grad(a, b)
    expected = computed(grad, a, b, kind, "kernels")
    strided = torch.empty(32, 18)[:, ::2].T.copy_(a)
    negative = torch._neg_view(-grad)
    torch.testing.assert_close(computed(negative, strided, b, kind, "kernels"), expected, rtol=0, atol=0)
    wide = a.expand(2, 9, 32), b.expand(2, 11, 32)
    out, *_ = computed(grad.expand(2, 9, 11), *wide, kind, "kernels")
    torch.testing.assert_close(out[1], expected[0], rtol=0, atol=0)


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_what_no_object_shares_is_exactly_0(any_size, kind):
    a, b = torch.rand(70, 40), torch.rand(90, 40)
    a[:, ::2], b[:, 1::2] = -1.0, 0.0
    out, to_a, to_b = computed(torch.randn(70, 90), a, b, kind, "kernels")
    assert not out.any()
    assert not to_a.any() or kind == "min"
    assert (to_a[:, ::2] == 0).all()
    assert (to_b[:, 1::2] == 0).all()


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_results_do_not_depend_on_the_number_of_threads(any_size, kind):
    a, b = measures(150, 140, 200)
    grad = some_grad(a, b)
    before, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 7):
            torch.set_num_threads(count)
            found.append(computed(grad, a, b, kind, "kernels"))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


@kernels
def test_threads_may_call_at_once(any_size):
    a, b = measures(150, 140, 200)
    grad = some_grad(a, b)
    expected, wrong = computed(grad, a, b, "softmin", "kernels"), []

    def work():
        for _ in range(5):
            found = computed(grad, a, b, "softmin", "kernels")
            wrong.extend(1 for x, y in zip(expected, found, strict=True) if not torch.equal(x, y))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@kernels
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_computes_the_same(any_size):
    code = """
import os, sys, torch
from similitude.ops import minsum
a, b = torch.rand(200, 64), torch.rand(300, 64)
torch.set_num_threads(2)
expected = minsum.min_sum(a, b)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(minsum.min_sum(a, b), expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@kernels
def test_a_dispatch_mode_sees_plain_torch(any_size):
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    a, b = measures(9, 11, 32)
    with Mode():
        minsum.min_sum(a, b)
    assert any("minimum" in name for name in seen)


@kernels
@pytest.mark.parametrize("kind", KINDS)
def test_functorch_is_the_same(any_size, kind):
    inputs = make_inputs(N=9, P=7, K=19)[:3]

    def total(*t):
        return F.tversky_projection(*t, intersection=kind, difference="subtractmatch").square().sum()

    expected = torch.autograd.grad(total(*inputs), inputs)
    torch.testing.assert_close(torch.func.grad(total, argnums=(0, 1, 2))(*inputs), expected)
    rows = torch.func.vmap(lambda x: F.tversky_projection(x, *inputs[1:], intersection=kind))(inputs[0])
    torch.testing.assert_close(rows, F.tversky_projection(*inputs, intersection=kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_backend_torch_and_the_switch_ask_for_no_kernels(any_size, kind, monkeypatch):
    asked = []
    monkeypatch.setattr(build, "library", lambda: asked.append(1))
    value_and_gradients(make_inputs(), intersection=kind, backend="torch")
    assert not asked
    monkeypatch.setattr(build, "AVAILABLE", False)
    minsum.common_sum(*measures(9, 11, 70), kind)
    assert not asked
    monkeypatch.setattr(build, "AVAILABLE", True)
    minsum.common_sum(*measures(9, 11, 70), kind)
    assert asked


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """Asks for the kernels as a new process with an empty cache does: the library, or None, and what is warned of."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def ask():
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = build.library.__wrapped__()
        return found, "\n".join(str(w.message) for w in said)

    return ask


@kernels
def test_a_build_leaves_one_file_in_the_users_cache_and_is_found_again(fresh, tmp_path):
    found, said = fresh()
    assert (found is not None, said) == (True, "")
    (made,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert made.parent == tmp_path / "cache" / "similitude" / "kernels"
    when = made.stat().st_mtime_ns
    assert fresh()[0] is not None
    assert made.stat().st_mtime_ns == when


@kernels
def test_a_broken_library_is_built_again(fresh):
    path = build.folder() / f"minsum-{build.digest()}.so"
    path.write_bytes(b"what a full disk left")
    found, said = fresh()
    assert (found is not None, said) == (True, "")
    assert path.stat().st_size > 1000


@pytest.mark.slow
@kernels
def test_several_may_build_at_once(fresh, tmp_path):
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: build.library.__wrapped__(), range(3)))
    assert all(found)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@kernels
@pytest.mark.parametrize("vectors", ["DEFAULT", "AVX2"])
def test_lesser_processors_have_kernels_of_their_own(any_size, vectors, fresh, monkeypatch):
    if vectors != "DEFAULT" and torch.backends.cpu.get_cpu_capability() not in build.VECTORS:
        pytest.skip("this processor has no AVX2")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: vectors)
    library, _ = fresh()
    monkeypatch.setattr(build, "library", lambda: library)
    assert build.command()[len(build.compiler() + build.FLAGS) :] == build.VECTORS.get(vectors, [])
    for kind, dtype in itertools.product(KINDS, DTYPES):
        a, b = measures(70, 81, 90, dtype)
        grad = some_grad(a, b)
        assert_near(computed(grad, a, b, kind, "kernels"), true(grad, a, b, kind), dtype)


def test_where_the_kernels_cannot_be_built_plain_torch_answers_and_one_sentence_says_why(
    any_size, fresh, tmp_path, monkeypatch
):
    compiler = tmp_path / "broken-c++"
    half = 'for last; do :; done; echo half > "$last"'
    compiler.write_text(f"#!/bin/sh\n{half}\necho 'file.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    found, said = fresh()
    assert found is None
    assert said == (
        "similitude computes min-sums in plain torch, which is slower: their kernels could not be built by "
        f"{compiler} (file.cpp:1: error: no such thing); SIMILITUDE_CPU_KERNELS=0 asks for none."
    )
    assert not list((tmp_path / "cache" / "similitude" / "kernels").iterdir())
    monkeypatch.setattr(build, "library", lambda: found)
    monkeypatch.setattr(build, "AVAILABLE", True)
    a, b = measures(9, 11, 70)
    torch.testing.assert_close(minsum.min_sum(a, b), PairSum.forward(a, b, "min", False), rtol=0, atol=0)


@kernels
def test_a_cache_that_cannot_be_written_is_one_sentence(fresh, tmp_path):
    (tmp_path / "cache").write_text("a file")
    found, said = fresh()
    assert found is None
    assert "Not a directory" in said


@kernels
def test_a_library_that_others_could_have_written_is_not_loaded(fresh, tmp_path):
    folder = tmp_path / "cache" / "similitude" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    found, said = fresh()
    assert found is None
    assert f"{folder} belongs to someone else, or others may write to it" in said


@pytest.mark.parametrize("environment", [(build.OFF, "0"), ("CXX", "no-such-compiler")], ids=str)
def test_without_a_compiler_or_switched_off_no_kernels_are_asked_for(environment, monkeypatch):
    monkeypatch.setenv("CXX", sys.executable)
    monkeypatch.delenv(build.OFF, raising=False)
    assert build.available()
    monkeypatch.setenv(*environment)
    assert not build.available()


def test_a_failed_build_is_tried_and_told_once(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = functools.cache(build.library.__wrapped__)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert library() is None
        assert library() is None
    assert len(said) == 1
