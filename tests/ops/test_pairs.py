"""Pairs in blocks against the law on the whole: values, all gradients, and memory."""

import math
import subprocess
import sys

import pytest
import torch
from cases import COMBINATIONS, SMOOTH, make_inputs, name, value_and_gradients

import similitude.functional as F
from similitude import TverskySimilarity
from similitude.ops import pairs

SMALL = {"cpu": 12}
# Graphs that keep their measures, and such that compute them again.
GRAPHS = pytest.mark.parametrize("kept", [math.inf, 0], ids=["kept", "again"])


@pytest.fixture
def in_blocks(monkeypatch):
    """Makes two of six features a block; ``calls`` counts them."""
    calls, block = [], pairs._block
    monkeypatch.setattr(pairs, "_block", lambda *given: calls.append(given) or block(*given))
    return lambda kept: (
        monkeypatch.setattr(pairs, "BLOCK", SMALL),
        monkeypatch.setattr(pairs, "KEPT", {"cpu": kept}),
        calls,
    )[-1]


def several(N=5, M=5) -> list[torch.Tensor]:
    return make_inputs(N=N, P=M, K=6, D=3)


@GRAPHS
@pytest.mark.parametrize("sizes", [(5, 5), (5, 1), (1, 5)], ids=str)
@pytest.mark.parametrize("options", COMBINATIONS, ids=name)
def test_blocks_equal_the_law(options, sizes, kept, in_blocks):
    inputs = several(N=sizes[0], M=sizes[1])
    truth, gradients = value_and_gradients(inputs, F.tversky_similarity, **options)
    calls = in_blocks(kept)
    value, ours = value_and_gradients(inputs, F.tversky_similarity, **options)
    assert len(calls) == (3 if kept else 6)
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)


@GRAPHS
def test_blocks_take_thresholds_leaks_and_numbers(kept, in_blocks):
    inputs = several()
    threshold = torch.linspace(-0.3, 0.3, 6, dtype=torch.float64, requires_grad=True)

    def similarity(*given):
        return F.tversky_similarity(*given[:-1], 0.3, 0.7, 1.2, leak=0.2, threshold=given[-1])

    def both():
        given = [*inputs[:3], threshold]
        return similarity(*given).detach(), torch.autograd.grad(similarity(*given).square().sum(), given)

    truth, gradients = both()
    in_blocks(kept)
    value, ours = both()
    torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours, gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", SMOOTH, ids=name)
def test_blocks_pass_gradgradcheck(options, in_blocks):
    inputs = make_inputs(N=3, P=3, K=6, D=2, seed=3)
    calls = in_blocks(0)
    function = lambda *i: F.tversky_similarity(*i, **options)  # noqa: E731
    assert torch.autograd.gradcheck(function, inputs, atol=1e-6)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-6)
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_of_blocks_are_those_of_the_law(dtype, in_blocks):
    exact = [t.detach().double() for t in make_inputs(N=64, P=64, K=33, D=16)]
    rounded = [t.to(dtype) for t in exact]
    truth = F.tversky_similarity(*[t.double() for t in rounded])
    error = lambda S: (S.double() - truth).norm().item()  # noqa: E731
    law = error(F.tversky_similarity(*rounded))
    assert in_blocks(0) == []
    assert error(F.tversky_similarity(*rounded)) <= 1.5 * law + 1e-6


def test_only_what_wants_a_gradient_gets_one(in_blocks):
    a, b, *rest = (t.detach() for t in several())
    in_blocks(0)
    F.tversky_similarity(a, b.requires_grad_(), *rest).sum().backward()
    assert b.grad is not None
    assert a.grad is None


def test_a_few_pairs_and_other_axes_are_as_ever(in_blocks):
    a, b, *rest = several()
    calls = in_blocks(0)
    F.tversky_similarity(a[:2], b[:2], *rest)
    assert F.tversky_similarity(a[:, None], b[None], *rest).shape == (5, 5)
    assert calls == []
    assert F.tversky_similarity(a.view(5, 1, 3), b.view(5, 1, 3), *rest).shape == (5, 1)
    assert len(calls) == 3
    assert torch.vmap(lambda x: F.tversky_similarity(x, b, *rest))(torch.stack([a, a])).shape == (2, 5)


MEASURE = """
import torch
from similitude import TverskySimilarity

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

similarity, a = TverskySimilarity(32, 1024), torch.randn(40_000, 32)
(a @ similarity.features.weight.T[:, :8]).sum().backward()
start = peak()
similarity(a, a.flip(0)).sum().backward()
print(peak() - start)
"""


def test_many_pairs_need_no_table_of_measures():
    """One would take 156 MB, and the law made a dozen."""
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 80


def test_a_layer_answers_alike_in_blocks_and_at_once():
    layer = TverskySimilarity(16, 1024, presence=0.1)
    a, b = torch.randn(600, 16), torch.randn(600, 16)
    assert pairs.BLOCK["cpu"] < 600 * 1024
    parts = [layer(x, y) for x, y in zip(a.split(100), b.split(100))]
    torch.testing.assert_close(layer(a, b), torch.cat(parts), rtol=1e-4, atol=1e-4)
