"""Pairs, the loss, sets, a language model and the program's start on one core of a CPU, beside what they stand for."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch

import similitude.functional as F
from similitude import TverskySimilarity
from similitude.interpret.sets import Universe

from .measure import Run, forward_backward, inputs, peak_gib

SET = dict(intersection="min", difference="subtractmatch", level="set")
Found = dict[str, tuple[float, float]]


def ratios() -> Found:
    """What was measured, a ratio of processor times in one run unless its name has a unit, and the most it may be."""
    threads, found = torch.get_num_threads(), {}
    torch.set_num_threads(1)
    try:
        for part in (pairs, loss, nearest, language_model, start):
            found |= part()
    finally:
        torch.set_num_threads(threads)
    return found


def pairs() -> Found:
    N, D, K = 100_000, 300, 1024
    layer, a, b = TverskySimilarity(D, K).eval(), torch.randn(N, D), torch.randn(N, D)
    features = layer.features.weight.detach()

    def products():
        for x, y in zip(a.split(2048), b.split(2048)):
            torch.mm(x, features.T)
            torch.mm(y, features.T)

    ours = torch.no_grad()(lambda: layer(a, b))
    name = "10⁵ pairs (D 300, K 1024) in eval"
    # In a process of its own: here memory that earlier parts have freed would serve, and nothing be seen.
    code = "from benchmarks import cpu_large; print(cpu_large.megabytes_of_pairs())"
    megabytes = float(subprocess.check_output([sys.executable, "-c", code], text=True))
    return {
        f"{name} to their two products": (_ratio(ours, products, 9), 1.4),
        f"{name}, megabytes": (megabytes, 150.0),
    }


def megabytes_of_pairs() -> float:
    torch.set_num_threads(1)
    layer, a, b = TverskySimilarity(300, 1024).eval(), torch.randn(100_000, 300), torch.randn(100_000, 300)
    before = _highest()
    with torch.no_grad():
        layer(a, b)
    return (_highest() - before) / 1024


def _highest() -> int:
    """Most memory that this process has had, in kB; getrusage would count its parent's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def loss() -> Found:
    N, D, P, K = 512, 256, 50257, 512
    tensors, target, one = inputs(N, D, P, K), torch.randint(P, (N,)), torch.ones(())
    x, prototypes, features = (t.detach() for t in tensors[:3])

    def products():
        A, B = x @ features.T, prototypes @ features.T
        S = A @ B.T
        to_a, to_b = S @ B, S.T @ A
        return to_a @ features, to_b @ features, to_a.T @ x, to_b.T @ prototypes

    def fused(**options):
        return forward_backward(lambda x, *t: F.tversky_cross_entropy(x, target, *t, **options), tensors, one)

    def plain(*t):
        return torch.nn.functional.cross_entropy(F.tversky_projection(*t, **SET), target)

    of_layer, of_sets = forward_backward(plain, tensors, one), fused(**SET)
    memory = peak_gib(of_sets, "cpu", []) / peak_gib(of_layer, "cpu", [])
    name = f"loss {N, D, P, K}"
    return {
        f"{name}, product, to the nine bare products": (_ratio(fused(), products, 5), 1.35),
        f"{name}, min at set level, to layer and F.cross_entropy": (_ratio(of_sets, of_layer, 3), 1.0),
        "… memory": (memory, 0.5),
    }


def nearest() -> Found:
    u = Universe(torch.randn(8192, 768), None, torch.randn(50257, 768))
    field = u["0"] | u["1"]
    field.nearest()
    times = [_clock(field.nearest) for _ in range(11)]
    return {"nearest over 50,257 × 8,192 from its second call, ms": (1e3 * statistics.median(times), 60.0)}


def language_model() -> Found:
    """TverskyGPT-2 beside GPT-2; nothing without transformers."""
    if find_spec("transformers") is None:
        return {}
    from transformers import GPT2Config, GPT2LMHeadModel

    from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    small = dict(n_layer=2, n_embd=128, n_head=2, n_positions=256)
    ours = TverskyGPT2LMHeadModel(TverskyGPT2Config(**small, num_features=512))  # pyright: ignore[reportArgumentType]
    models = ours, GPT2LMHeadModel(GPT2Config(**small))  # pyright: ignore[reportArgumentType]
    ids = torch.randint(50257, (4, 128))

    def step(model) -> Run:
        def run():
            model.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()

        return run

    def tokens(model) -> Run:
        settings = dict(max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0)
        prompt = ids[:1, :16]
        return lambda: model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)

    name = "TverskyGPT-2 (2 × 128, K = 512)"
    first, second = models
    steps = _ratio(step(first.train()), step(second.train()), 7)
    generating = _ratio(tokens(first.eval()), tokens(second.eval()), 9)
    return {
        f"{name}, a step of 4 × 128 tokens to GPT-2's": (steps, 4.5),
        f"{name}, 16 tokens in eval to GPT-2's": (generating, 3.0),
    }


def start() -> Found:
    def children() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(5):
        before = children()
        command = [sys.executable, "-m", "similitude", "--help"]
        subprocess.run(command, capture_output=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        times.append(children() - before)
    return {"similitude --help, seconds": (statistics.median(times), 0.8)}


def _ratio(ours: Run, other: Run, rounds: int) -> float:
    """Median of the ratios of rounds, in each of which both take their turn, after one that does not count."""
    ours()
    other()
    return statistics.median(_clock(ours) / _clock(other) for _ in range(rounds))


def _clock(run: Callable[[], object]) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin
