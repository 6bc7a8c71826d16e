"""Layers under programs that reach into modules: replicas, parametrisations, hooks on the bank, offloading."""

import copy
import importlib

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from similitude import TverskyProjection, TverskySimilarity

replicate = importlib.import_module("torch.nn.parallel.replicate")


@pytest.fixture
def two_replicas(monkeypatch):
    """nn.DataParallel's own replicate; what it would send to two GPUs is copied on the CPU."""

    def copies(tensors, devices, detach=False):
        return [[t.detach().clone() if detach else t.clone() for t in tensors] for _ in devices]

    monkeypatch.setattr(replicate, "_broadcast_coalesced_reshape", copies)
    return lambda module: replicate.replicate(module, [0, 1])


@pytest.mark.parametrize("learnable", [True, False, "alpha"], ids=str)
@pytest.mark.parametrize("parametrization", ["gain", "log", "plain"])
def test_replicas_of_data_parallel_answer_and_learn_as_one(two_replicas, parametrization, learnable):
    model = nn.Sequential(
        nn.Linear(6, 8), TverskyProjection(8, 5, 12, bias=True, parametrization=parametrization, learnable=learnable)
    )
    x, target = torch.randn(6, 6), torch.arange(6) % 5

    def gradients(replicas) -> list[torch.Tensor]:
        model.zero_grad()
        out = torch.cat([replica(part) for replica, part in zip(replicas, x.chunk(len(replicas)))])
        loss = replicas[-1][1].cross_entropy(replicas[-1][0](x), target)
        (out.square().sum() + loss).backward()
        return [out, *(p.grad.clone() for p in model.parameters())]

    torch.testing.assert_close(gradients(two_replicas(model)), gradients([model]))
    model.eval()
    with torch.no_grad():
        expected = model(x)
        for replica in two_replicas(model):
            torch.testing.assert_close(replica(x), expected)
            torch.testing.assert_close(replica(x), expected)


def test_replicas_of_a_gpt2_have_a_bank_each_for_all_their_layers(two_replicas):
    gpt2 = pytest.importorskip("similitude.models.gpt2")
    sizes = dict(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = gpt2.TverskyGPT2LMHeadModel(gpt2.TverskyGPT2Config(**sizes, variant="all-1layer", num_features=6)).eval()
    tokens = torch.arange(8)[None]
    for replica in two_replicas(model):
        torch.testing.assert_close(replica(tokens).logits, model(tokens).logits)
        for block in replica.transformer.h:
            assert block.mlp.projection.features is replica.lm_head.features is not model.lm_head.features
    assert model.transformer.h[0].mlp.projection.features is model.lm_head.features


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


@pytest.mark.parametrize("name", ["beta_gain", "beta_log", "beta", "prototypes", "features.weight"])
def test_what_is_parametrised_answers_and_learns_and_comes_back(name):
    how = name.partition("_")[2] or "plain"
    layer = TverskyProjection(8, 5, 12, parametrization=how if how in ("gain", "log") else "plain")
    x = torch.randn(4, 8)
    expected = layer(x)
    module, _, own = name.rpartition(".")
    owner = layer.get_submodule(module)
    parametrize.register_parametrization(owner, own, Doubled())
    torch.testing.assert_close(layer(x), expected)
    layer(x).sum().backward()
    assert owner.parametrizations[own].original.grad.abs().sum() > 0
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), expected)
        owner.parametrizations[own].original.add_(0.1)
        torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))
    parametrize.remove_parametrizations(owner, own)
    torch.testing.assert_close(layer(x), copy.deepcopy(layer).train()(x))


@pytest.mark.parametrize("layer", [TverskyProjection(6, 4, 9), TverskySimilarity(6, 9)], ids=["projection", "pairs"])
def test_hooks_on_the_bank_fire_at_each_forward(layer):
    layer, seen = copy.deepcopy(layer), []
    layer.features.register_forward_pre_hook(lambda *_: seen.append("before"))
    layer.features.register_forward_hook(lambda *_: seen.append("after"))
    x = (torch.randn(3, 6),) if isinstance(layer, TverskyProjection) else (torch.randn(3, 6), torch.randn(3, 6))
    for _ in range(2):
        layer(*x)
    assert seen == ["before", "after"] * 2


def test_pruned_features_stay_pruned_while_the_rest_learns():
    layer = TverskyProjection(6, 4, 9)
    prune.random_unstructured(layer.features, "weight", amount=0.5)
    mask = layer.features.weight_mask
    optimizer = torch.optim.SGD(layer.parameters(), 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(20, 6)).square().mean().backward()
        optimizer.step()
    changed = layer.features.weight_orig.detach() * mask
    layer(torch.randn(2, 6))
    torch.testing.assert_close(layer.features.weight.detach(), changed)
    assert (layer.features.weight_orig.grad[mask == 0] == 0).all()


def test_weight_norm_of_the_bank_learns():
    layer = TverskyProjection(6, 4, 9)
    x = torch.randn(20, 6)
    expected = layer(x)
    parametrizations.weight_norm(layer.features, dim=0)
    torch.testing.assert_close(layer(x), expected)
    layer(x).square().mean().backward()
    assert all(p.grad.abs().sum() > 0 for p in layer.features.parameters())


def offloads():
    accelerate = pytest.importorskip("accelerate")
    return {
        "cpu": lambda model, folder: accelerate.cpu_offload(model, torch.device("cpu")),
        "disk": lambda model, folder: accelerate.disk_offload(model, str(folder), torch.device("cpu")),
    }


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_offloaded_layers_answer_as_before(where, training, tmp_path):
    first = TverskyProjection(8, 5, 12, bias=True)
    model = nn.Sequential(nn.Linear(8, 8), first, nn.Linear(5, 8), TverskyProjection(8, 3, features=first.features))
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = model.train(training)(x)
        offloads()[where](model, tmp_path)
        assert all(p.is_meta for p in model.parameters())
        for _ in range(2):
            torch.testing.assert_close(model(x), expected)


def adapted(target: str | None, saved: str | None = None, **options):
    """A network with LoRA on one of its parameters, or on its first layer, and the network as it was."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = nn.Sequential(nn.Linear(6, 8), TverskyProjection(8, 5, 12, **options), nn.Linear(5, 3))
    aims = dict(target_modules=[], target_parameters=[target]) if target else dict(target_modules=["0"])
    before = copy.deepcopy(model)
    return peft.get_peft_model(model, peft.LoraConfig(r=2, modules_to_save=[saved] if saved else None, **aims)), before


LORA = {
    "prototypes": dict(target="1.prototypes"),
    "bank": dict(target="1.features.weight"),
    "bank with thresholds": dict(target="1.features.weight", presence=0.3),
    "bank that holds": dict(target="1.features.weight", presence=0.3, hold=True, bias=True),
    "a linear layer and the bank whole": dict(target=None, saved="1.features"),
    "a linear layer and the layer whole": dict(target=None, saved="1"),
}


@pytest.mark.parametrize("case", LORA.values(), ids=LORA)
def test_lora_learns_and_is_merged_and_unloaded(case):
    model, before = adapted(**case)
    x = torch.randn(40, 6)
    torch.testing.assert_close(model(x), before(x))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    assert all(p.grad.abs().sum() > 0 for p in trained)
    model.eval()
    with torch.no_grad():
        learned = model(x)
        torch.testing.assert_close(model(x), learned)
        assert (learned - before.eval()(x)).abs().max() > 0.05
        if "hold" not in case:  # a bank that holds has moved its thresholds
            with model.disable_adapter():
                torch.testing.assert_close(model(x), before(x))
        merged = model.merge_and_unload()
        assert [type(part) for part in merged.modules()] == [type(part) for part in before.modules()]
        torch.testing.assert_close(merged(x), learned)


def test_lora_on_the_bank_of_a_gpt2_reaches_all_its_layers():
    peft, gpt2 = pytest.importorskip("peft"), pytest.importorskip("similitude.models.gpt2")
    sizes = dict(n_embd=8, n_layer=2, n_head=2, vocab_size=11, n_positions=8, bos_token_id=0, eos_token_id=0)
    model = gpt2.TverskyGPT2LMHeadModel(gpt2.TverskyGPT2Config(**sizes, variant="all-1layer", num_features=6)).eval()
    tokens = torch.arange(8)[None]
    before = model(tokens).logits
    aims = dict(target_modules=[], target_parameters=["lm_head.features.weight"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, init_lora_weights=False, **aims))
    with torch.no_grad():
        learned = adapted(input_ids=tokens).logits
        assert (learned - before).abs().max() > 0.05
        merged = adapted.merge_and_unload()
        torch.testing.assert_close(merged(tokens).logits, learned)
    assert merged.transformer.h[0].mlp.projection.features is merged.lm_head.features


@pytest.mark.parametrize("target", ["1", "1.features"])
def test_a_layer_as_a_target_of_lora_is_refused_by_name(target):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model = nn.Sequential(nn.Linear(6, 8), TverskyProjection(8, 5, 12))
    name = type(model.get_submodule(target)).__name__
    with pytest.raises(ValueError, match=rf"Target module {name}\([\s\S]*\) is not supported"):
        peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=[target]))
