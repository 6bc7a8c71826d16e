"""torch.compile: whole graphs at any size and constant, and no N×P×K tensor."""

import subprocess
import sys

import pytest
import torch

import similitude.functional as F
from similitude import TverskyProjection

FORMS = [
    dict(),
    dict(intersection="min", difference="subtractmatch"),
    dict(intersection="softmin"),
    dict(model="ratio"),
    dict(level="set", intersection="gmean"),
    dict(leak=0.1),
]


def whole(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_sizes_and_constants_may_be_dynamic(form):
    p, features = torch.randn(4, 5), torch.randn(7, 5)
    compiled = whole(lambda x, alpha: F.tversky_projection(x, p, features, alpha=alpha, **form), dynamic=True)
    for n, alpha in ((6, 0.1), (9, 0.3), (11, 0.7)):
        x = torch.randn(n, 5)
        torch.testing.assert_close(compiled(x, alpha), F.tversky_projection(x, p, features, alpha=alpha, **form))


def test_arguments_of_the_loss_may_be_dynamic():
    p, features = torch.randn(4, 5), torch.randn(7, 5)

    def loss(x, target, z_loss, smoothing):
        return F.tversky_cross_entropy(x, target, p, features, z_loss=z_loss, label_smoothing=smoothing)

    compiled = whole(loss, dynamic=True)
    for n, z_loss, smoothing in ((6, 0.1, 0.1), (9, 0.3, 0.1), (6, 0.3, 0.2)):
        x, target = torch.randn(n, 5), torch.randint(4, (n,))
        torch.testing.assert_close(compiled(x, target, z_loss, smoothing), loss(x, target, z_loss, smoothing))


@pytest.mark.parametrize("variant", ["head", "all-1layer"])
def test_a_gpt2_is_one_graph_of_any_length(variant):
    gpt2 = pytest.importorskip("similitude.models.gpt2")
    sizes = dict(n_embd=8, n_layer=1, n_head=2, vocab_size=11, n_positions=16, bos_token_id=0, eos_token_id=0)
    model = gpt2.TverskyGPT2LMHeadModel(gpt2.TverskyGPT2Config(**sizes, variant=variant, num_features=6)).eval()

    def step(tokens):
        out = model(tokens, labels=tokens, use_cache=False)
        return out.loss, out.logits

    compiled = whole(step, dynamic=True)
    for n in (5, 9, 12):
        tokens = torch.randint(11, (2, n))
        torch.testing.assert_close(compiled(tokens), step(tokens))


def test_a_scale_may_be_compiled():
    layer, x, target = TverskyProjection(5, 4, 7, model="ratio", scale=4), torch.randn(6, 5), torch.arange(6) % 4
    torch.testing.assert_close(whole(layer)(x), layer(x))
    torch.testing.assert_close(whole(layer.cross_entropy)(x, target), layer.cross_entropy(x, target))


@pytest.mark.parametrize("intersection", ["min", "softmin"])
def test_gradients_are_those_of_the_layer_under_vmap_too(intersection):
    layer = TverskyProjection(5, 4, 7, intersection=intersection).double()
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    inputs = [x, *layer.parameters()]
    expected = torch.autograd.grad(layer(x).square().sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(whole(layer)(x).square().sum(), inputs), expected)
    mapped = whole(lambda x: torch.func.vmap(lambda row: layer(row))(x))
    torch.testing.assert_close(mapped(x), layer(x))


@torch._dynamo.config.patch(error_on_recompile=True)
def test_what_eager_calls_keep_compiles_nothing_again():
    layer, x = TverskyProjection(5, 4, 7).eval(), torch.randn(6, 5)
    compiled = whole(layer.forward)
    with torch.no_grad():
        expected = layer(x)
        torch.testing.assert_close(compiled(x), expected)
        layer.eval()
        torch.testing.assert_close(compiled(x), expected)
        layer(x)
        torch.testing.assert_close(compiled(x), expected)


MEASURE = """
import sys
import torch
import similitude.functional as F

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1024

kind, (N, D, P, K) = sys.argv[1], (256, 64, 600, 1024)
x, p, features = (torch.randn(rows, D, requires_grad=True) for rows in (N, P, K))
step = torch.compile(lambda *t: F.tversky_projection(*t, intersection=kind).square().mean(), backend="aot_eager")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # counts the peak anew
start = peak()
step(x, p, features).backward()
print(peak() - start)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["min", "softmin"])
def test_a_compiled_step_holds_no_table_of_pairs_by_features(kind):
    run = subprocess.run([sys.executable, "-c", MEASURE, kind], capture_output=True, text=True, check=True)
    table = 256 * 600 * 1024 * 4 / 2**20  # 600 MB
    # Compiling itself takes a few dozen MB; the measures alone take 3.
    assert 3 < float(run.stdout) < table / 2, f"{run.stdout} MB above the start"
