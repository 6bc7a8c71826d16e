"""torch.compile: whole graphs at any size and constant, and no N×P×K tensor."""

import copy
import gc
import pickle
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


@pytest.mark.parametrize("variant", ["head", pytest.param("all-1layer", marks=pytest.mark.slow)])
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


@pytest.fixture
def asking(monkeypatch):
    """Graphs ask for what layers keep, however small these are."""
    monkeypatch.setattr("similitude.kept.WORTH_A_CALL", 0)


def made(**options) -> TverskyProjection:
    return TverskyProjection(32, 6, 10, **options).eval()


def fresh(layer, x):
    """The layer's answer with nothing kept."""
    return copy.deepcopy(layer)(x)


KEPT = [*FORMS[:-1], dict(presence=0.3), dict(parametrization="log"), dict(model="ratio", scale=3.0, bias=True)]


@torch._dynamo.config.patch(error_on_recompile=True)
@torch.no_grad()
@pytest.mark.parametrize("options", [*KEPT, dict(learnable=False), dict(normalize=True)], ids=str)
def test_a_graph_keeps_the_prototypes_side_and_sees_changes(options, asking):
    layer = made(**options)
    compiled = whole(layer)
    for shape in ((5, 32), (5, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fresh(layer, x))
    kept = layer._kept
    assert kept is not None
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-6, atol=1e-6)
    assert layer._kept is kept
    for tensor in (layer.prototypes, layer.features.weight, layer.learned()[0]):
        tensor.mul_(2)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), fresh(layer, x))
    layer.prototypes = torch.nn.Parameter(torch.randn(6, 32))
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fresh(layer, x))
    assert layer._kept is not kept


@torch.no_grad()
def test_a_graph_on_a_kept_side_takes_any_shape(asking):
    layer = made()
    compiled = whole(layer, dynamic=True)
    for shape in ((5, 32), (5, 32), (9, 32), (2, 3, 32), (32,), (0, 32)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), fresh(layer, x))
    with pytest.raises(Exception, match="x must have at least one axis"):
        torch.compile(layer, backend="aot_eager")(torch.tensor(1.0))


@torch.no_grad()
@pytest.mark.parametrize("order", ["after", "between", "before"])
def test_a_graph_that_changes_a_parameter_leaves_no_old_side(order, asking):
    """The element changed is not among those that are sampled."""
    layer, x = made(), torch.randn(5, 32)

    def step(x):
        first = layer(x) if order != "before" else x
        layer.prototypes[0, 1].add_(1.0)
        return first, x if order == "after" else layer(x)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True)
    for _ in range(4):
        old = fresh(layer, x)
        first, second = compiled(x)
        new = fresh(layer, x)
        if order != "before":
            torch.testing.assert_close(first, old)
        if order != "after":
            torch.testing.assert_close(second, new)
        torch.testing.assert_close(layer(x), new)


@torch._dynamo.config.patch(error_on_recompile=True)
@torch.no_grad()
def test_one_graph_serves_many_layers_and_their_copies(asking):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = TverskyProjection(32, 32, 10)

        def forward(self, x):
            return self.layer(x) + x

    torch._dynamo.reset()
    first, x = Block().eval(), torch.randn(5, 32)
    blocks = [first, Block().eval(), copy.deepcopy(first), pickle.loads(pickle.dumps(first.layer)), copy.copy(first)]
    blocks[3] = Block().eval()
    blocks[2].layer.prototypes.neg_()
    for _ in range(3):
        for block in blocks:
            compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
            torch.testing.assert_close(compiled(x), fresh(block.layer, x) + x)
    assert len({id(block.layer._kept) for block in blocks[:4]}) == 4
    assert all(block.layer._kept is not None for block in blocks)


@torch.no_grad()
def test_every_copy_of_a_layer_has_a_number_of_its_own():
    layer = made()
    copies = [layer, copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))]
    assert len({int(each._number) for each in copies}) == 4


@torch.no_grad()
def test_a_layer_that_is_gone_leaves_nothing(asking):
    from similitude import kept

    layer, x = made(), torch.randn(5, 32)
    compiled = whole(layer)
    for _ in range(2):
        compiled(x)
    number = int(layer._number)
    assert kept._layers[number]._kept is not None
    del layer, compiled
    torch._dynamo.reset()
    gc.collect()
    assert number not in kept._layers


@torch.no_grad()
def test_under_transforms_autocast_and_export_a_graph_asks_for_nothing(asking):
    layer, x = made(), torch.randn(5, 32)
    mapped = whole(lambda x: torch.func.vmap(lambda row: layer(row))(x))
    torch.testing.assert_close(mapped(x), layer(x))
    sloped = whole(lambda x: torch.func.grad(lambda x: layer(x).sum())(x))
    assert sloped(x).abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert whole(layer)(x).dtype is torch.bfloat16
    for strict in (True, False):
        exported = torch.export.export(layer, (x,), strict=strict)
        assert "project_kept" not in str(exported.graph)
        torch.testing.assert_close(exported.module()(x), fresh(layer, x))


@torch.no_grad()
def test_of_tensors_that_are_not_its_own_a_layer_keeps_nothing(asking):
    layer, x = made(), torch.randn(5, 32)
    others = {name: 2 * tensor for name, tensor in layer.state_dict().items()}

    def answer(tensors, x):
        return torch.func.functional_call(layer, tensors, (x,))

    compiled = whole(answer)
    for _ in range(3):
        torch.testing.assert_close(compiled(others, x), answer(others, x))
        layer.eval()  # drops what eager calls kept
    compiled(others, x)
    assert layer._kept is None


def test_each_call_in_a_graph_has_a_number_of_its_own():
    from similitude.kept import call_number

    assert len(set(whole(lambda: (call_number(), call_number()))())) == 2


@torch.inference_mode()
def test_a_layer_made_in_inference_mode_is_compiled_and_keeps_nothing(asking):
    layer, x = made(), torch.randn(5, 32)
    compiled = whole(layer)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), fresh(layer, x))
        layer.prototypes[0, 1] += 1.0
    assert layer._kept is None


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
@pytest.mark.parametrize("kind", ["min", pytest.param("softmin", marks=pytest.mark.slow)])
def test_a_compiled_step_holds_no_table_of_pairs_by_features(kind):
    run = subprocess.run([sys.executable, "-c", MEASURE, kind], capture_output=True, text=True, check=True)
    table = 256 * 600 * 1024 * 4 / 2**20  # 600 MB
    # Compiling itself takes a few dozen MB; the measures alone take 3.
    assert 3 < float(run.stdout) < table / 2, f"{run.stdout} MB above the start"
