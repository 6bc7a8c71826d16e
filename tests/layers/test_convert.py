"""convert: what it replaces, keeps, ties, counts, saves and refuses, on models as users have them."""

import copy
import pickle
import re

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
)
from transformers.pytorch_utils import Conv1D

from similitude import FeatureBank, TverskyProjection, convert

WTE = "transformer.wte.weight"
TOKENS = torch.arange(14).reshape(2, 7)
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def sequential() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)), nn.Linear(8, 3)
    )


def gpt2(**options) -> GPT2LMHeadModel:
    sizes = dict(vocab_size=50, n_embd=8, n_layer=2, n_head=2, n_positions=16, bos_token_id=1, eos_token_id=2)
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **options}))


def bert() -> BertForMaskedLM:
    sizes = dict(vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    return BertForMaskedLM(BertConfig(**sizes, max_position_embeddings=16))


def llama() -> LlamaForCausalLM:
    sizes = dict(vocab_size=50, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16)
    return LlamaForCausalLM(LlamaConfig(**sizes))


def resnet() -> ResNetForImageClassification:
    sizes = dict(num_labels=5, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    return ResNetForImageClassification(ResNetConfig(**sizes))


def output(model: nn.Module) -> torch.Tensor:
    if isinstance(model, nn.Sequential):
        return model(IMAGES[:, 0, :, :8])
    return model(IMAGES if isinstance(model, ResNetForImageClassification) else TOKENS).logits


# A model, rules that share one bank of width 8 where bank is asked for, and the layers that they choose.
CASES = {
    "sequential": (sequential, lambda bank: {nn.Linear: dict(features=bank)}, ["0", "2.0", "3"]),
    "gpt2": (
        gpt2,
        lambda bank: {
            "transformer.h.*.mlp": dict(dim=8, num_prototypes=8, features=bank),
            "*.attn.c_attn": dict(features=bank, start="weights", bias=True),
            "lm_head": dict(features=bank, prototypes=WTE),
        },
        [
            "transformer.h.0.attn.c_attn",
            "transformer.h.0.mlp",
            "transformer.h.1.attn.c_attn",
            "transformer.h.1.mlp",
            "lm_head",
        ],
    ),
    "bert": (
        bert,
        lambda bank: {
            re.compile(r".*\.intermediate\.dense"): dict(features=bank, start="weights"),
            "cls.predictions.decoder": dict(features=bank, prototypes="bert.embeddings.word_embeddings.weight"),
        },
        [
            "bert.encoder.layer.0.intermediate.dense",
            "bert.encoder.layer.1.intermediate.dense",
            "cls.predictions.decoder",
        ],
    ),
    "llama": (
        llama,
        lambda bank: {"*.mlp": dict(dim=8, num_prototypes=8, features=bank), "lm_head": dict(num_features=6)},
        ["model.layers.0.mlp", "model.layers.1.mlp", "lm_head"],
    ),
    "resnet": (resnet, lambda bank: {"classifier.1": dict(num_features=6, start="weights")}, ["classifier.1"]),
}


def converted(case: str, **options):
    make, rules, names = CASES[case]
    torch.manual_seed(0)
    model = make()
    return model, convert(model, rules(FeatureBank(7, 8)), **options), names


@pytest.mark.parametrize("case", CASES)
def test_models_keep_their_shape_and_every_new_parameter_gets_a_gradient(case):
    shape = output(CASES[case][0]()).shape
    model, table, names = converted(case)
    assert [row.name for row in table.rows] == names
    assert all(isinstance(model.get_submodule(name), TverskyProjection) for name in names)
    result = output(model)
    assert result.shape == shape
    result.square().sum().backward()
    for name in names:
        for part, parameter in model.get_submodule(name).named_parameters():
            assert parameter.grad is not None, f"{name}.{part}"
            assert parameter.grad.isfinite().all(), f"{name}.{part}"


@pytest.mark.parametrize("case", CASES)
def test_saved_weights_load_into_a_model_converted_by_the_same_rules(case, tmp_path):
    model, _, _ = converted(case)
    other = CASES[case][0]()
    convert(other, CASES[case][1](FeatureBank(7, 8)))
    model.eval()
    other.eval()
    assert not torch.equal(output(other), output(model))
    path = str(tmp_path / "model.safetensors")
    save_model(model, path)
    load_model(other, path)
    assert torch.equal(output(other), output(model))
    again = CASES[case][0]().eval()
    convert(again, CASES[case][1](FeatureBank(7, 8)))
    again.load_state_dict(model.state_dict())
    assert torch.equal(output(again), output(model))


@pytest.mark.parametrize("case", ["gpt2", "bert", "llama", "resnet"])
def test_save_pretrained_stores_shared_tensors_once_and_loads_back(case, tmp_path):
    model, _, _ = converted(case)
    model.eval().save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118
    assert stored == sum({t.data_ptr(): t.numel() for t in model.state_dict().values()}.values())
    other = type(model)(type(model.config).from_pretrained(tmp_path)).eval()
    convert(other, CASES[case][1](FeatureBank(7, 8)))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert torch.equal(output(other), output(model))


@pytest.mark.parametrize("case", CASES)
def test_freeze_leaves_only_what_was_put_in_to_train(case):
    model, table, names = converted(case, freeze=True)
    had = {id(p) for p in model.parameters() if not p.requires_grad}
    new = {id(p) for name in names for p in model.get_submodule(name).parameters()}
    trains = {id(p): p.numel() for p in model.parameters() if p.requires_grad}
    tied = {id(p) for n, p in model.named_parameters() if n in (WTE, "bert.embeddings.word_embeddings.weight")}
    assert trains.keys() == new - tied
    assert tied <= had
    assert table.trainable == sum(trains.values()) < table.parameters_after
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    output(model).square().sum().backward()
    optimizer.step()
    assert {id(p) for n, p in model.named_parameters() if not torch.equal(before[n], p)} <= trains.keys()
    assert any(not torch.equal(before[n], p) for n, p in model.named_parameters())


@pytest.mark.parametrize("case", CASES)
def test_dtype_and_mode_are_kept_and_the_bank_follows(case):
    make, rules, names = CASES[case]
    model = make().to(torch.bfloat16).eval()
    convert(model, rules(FeatureBank(7, 8)))
    for name in names:
        layer = model.get_submodule(name)
        assert {p.dtype for p in layer.parameters()} == {torch.bfloat16}
        assert not any(part.training for part in layer.modules())
    model.train()
    part = model.get_submodule(names[0])
    assert part.training


def test_the_mode_is_that_of_the_replaced_layer_and_not_of_the_model():
    model = sequential().train()
    model[3].eval()
    convert(model, nn.Linear, num_features=4)
    assert model[0].training
    assert not model[3].training


def test_the_device_is_kept_and_the_bank_follows():
    model = sequential().to("meta")
    bank = FeatureBank(4, 8)
    convert(model, nn.Linear, features=bank)
    assert all(p.is_meta for p in model.parameters())
    assert model[0].features is model[3].features is bank


def test_rows_of_weights_start_the_prototypes_and_the_bias():
    linear, transposed = nn.Linear(4, 3), Conv1D(3, 4)
    nn.init.normal_(transposed.bias)
    model = nn.ModuleDict({"linear": linear, "transposed": transposed})
    convert(model, "*", num_features=5, start="weights", bias=True)
    torch.testing.assert_close(model["linear"].prototypes, linear.weight)
    torch.testing.assert_close(model["linear"].bias, linear.bias)
    torch.testing.assert_close(model["transposed"].prototypes, transposed.weight.T)
    torch.testing.assert_close(model["transposed"].bias, transposed.bias)
    assert model["linear"].prototypes is not linear.weight


def test_fresh_prototypes_are_those_of_a_new_layer():
    model = nn.Sequential(nn.Linear(4, 3))
    torch.manual_seed(3)
    convert(model, "0", num_features=5, init="normal", intersection="min")
    torch.manual_seed(3)
    other = TverskyProjection(4, 3, 5, init="normal", intersection="min")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
    assert model[0].intersection == "min"


def test_each_layer_has_a_bank_of_its_own_or_all_have_one():
    own, shared, bank = sequential(), sequential(), FeatureBank(4, 8)
    convert(own, nn.Linear, num_features=4)
    convert(shared, nn.Linear, features=bank)
    assert own[0].features is not own[3].features
    assert shared[0].features is shared[2][0].features is shared[3].features is bank


def test_options_of_a_rule_come_before_the_common_ones():
    model = sequential()
    convert(model, {"0": {}, "3": dict(num_features=9, alpha=0.25)}, num_features=4, alpha=0.75)
    assert (model[0].features.num_features, model[3].features.num_features) == (4, 9)
    assert (model[0].alpha.item(), model[3].alpha.item()) == (0.75, 0.25)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("transformer.h.?.mlp.c_*", ["0.mlp.c_fc", "0.mlp.c_proj", "1.mlp.c_fc", "1.mlp.c_proj"]),
        ("*.h.1*.c_attn", ["1.attn.c_attn"]),
        (
            re.compile(r"transformer\.h\.\d+\.mlp\.c_(fc|proj)"),
            ["0.mlp.c_fc", "0.mlp.c_proj", "1.mlp.c_fc", "1.mlp.c_proj"],
        ),
        (Conv1D, [f"{i}.{n}" for i in "01" for n in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")]),
    ],
    ids=str,
)
def test_names_patterns_and_classes_choose(pattern, names):
    table = convert(gpt2(), pattern, num_features=4)
    assert [row.name.removeprefix("transformer.h.") for row in table.rows] == names


def test_a_module_in_two_places_becomes_one_layer_in_both():
    linear = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": linear, "b": nn.Sequential(nn.ReLU(), linear)})
    table = convert(model, "b.1", num_features=4)
    assert model["a"] is model["b"][1]
    assert isinstance(model["a"], TverskyProjection)
    (row,) = table.rows
    assert row.name == "a, b.1"
    assert (row.parameters_before, row.parameters_after) == (72, 8 * 8 + 4 * 8 + 3)


def test_fresh_prototypes_break_a_tie_and_named_ones_keep_it():
    fresh, tied = gpt2(), gpt2()
    assert fresh.lm_head.weight is fresh.transformer.wte.weight
    convert(fresh, "lm_head", num_features=4)
    assert not torch.equal(fresh.lm_head.prototypes, fresh.transformer.wte.weight)
    table = convert(tied, "lm_head", num_features=4, prototypes=WTE)
    assert tied.lm_head.prototypes is tied.transformer.wte.weight
    assert table.parameters_after == table.parameters_before + 4 * 8 + 3
    weights = gpt2()
    convert(weights, "lm_head", num_features=4, start="weights")
    assert torch.equal(weights.lm_head.prototypes, weights.transformer.wte.weight)
    assert weights.lm_head.prototypes is not weights.transformer.wte.weight


def test_makers_put_in_whatever_they_return():
    model, seen, bank = gpt2(dtype="float32"), [], FeatureBank(4, 8)

    def maker(old, name):
        seen.append((old, name))
        return nn.Sequential(old.c_fc, nn.ReLU(), TverskyProjection(32, 8, 4), TverskyProjection(8, 8, features=bank))

    blocks = [block.mlp for block in model.transformer.h]
    model.to(torch.bfloat16).eval()
    table = convert(model, {"transformer.h.*.mlp": maker}, freeze=True)
    assert seen == [(mlp, f"transformer.h.{i}.mlp") for i, mlp in enumerate(blocks)]
    assert [row.after for row in table.rows] == ["Sequential", "Sequential"]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.transformer.h[0].mlp[2].training
    assert not model.transformer.h[0].mlp[0].weight.requires_grad
    assert table.trainable == 2 * (4 * 32 + 8 * 32 + 3 + 8 * 8 + 3) + 4 * 8
    assert output(model).shape == (2, 7, 50)


def test_parts_that_a_maker_takes_over_stay_as_they_are():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8, dtype=torch.bfloat16), nn.LayerNorm(8)))
    convert(model, {"0": lambda old, name: nn.Sequential(TverskyProjection(8, 8, 4), old[1])})
    assert model[0][0].prototypes.dtype == torch.bfloat16
    assert model[0][1].weight.dtype == torch.float32


# Parameters of the paper's GPT-2 variants: tied or not, K features, in the head or in all blocks.
PAPER = [
    ("head", True, 2048, 124_439_808 + 2048 * 768 + 3),
    ("all", True, 8192, 81_140_007),
    ("all", False, 4096, 116_591_655),
]


@pytest.mark.parametrize(("variant", "tied", "num_features", "count"), PAPER)
def test_converted_gpt2_has_the_parameters_of_the_paper(variant, tied, num_features, count):
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config(tie_word_embeddings=tied))
    rules: dict = {"lm_head": dict(prototypes=WTE) if tied else {}}
    if variant == "all":
        rules["transformer.h.*.mlp"] = dict(dim=768, num_prototypes=768)
    table = convert(model, rules, features=FeatureBank(num_features, 768))
    assert table.parameters_after == sum(p.numel() for p in model.parameters()) == count
    assert table.parameters_before == (124_439_808 if tied else 163_037_184)


@pytest.mark.parametrize("case", CASES)
def test_rows_add_up_to_what_the_model_lost_and_won(case):
    make, _, _ = CASES[case]
    model, table, _ = converted(case)
    assert table.parameters_before == sum(p.numel() for p in make().parameters())
    assert table.parameters_after == sum(p.numel() for p in model.parameters())
    change = sum(row.parameters_after - row.parameters_before for row in table.rows)
    assert table.parameters_before + change == table.parameters_after


def test_the_table_says_what_changed():
    torch.manual_seed(0)
    table = convert(gpt2(), CASES["gpt2"][1](FeatureBank(7, 8)), freeze=True)
    expected = """\
layer                        before       after                         parameters  after
transformer.h.0.attn.c_attn  Conv1D 8→24  Tversky 8→24 K=7 shared              216    275
transformer.h.0.mlp          GPT2MLP      Tversky 8→8 K=7 shared               552     67
transformer.h.1.attn.c_attn  Conv1D 8→24  Tversky 8→24 K=7 shared              216    219
transformer.h.1.mlp          GPT2MLP      Tversky 8→8 K=7 shared               552     67
lm_head                      Linear 8→50  Tversky 8→50 tied K=7 shared           0      3
whole model                                                                  2,288  1,383
of which train                                                                        631"""
    assert str(table) == repr(table) == expected


def test_the_table_fits_a_page_for_long_names_and_many_layers():
    model = nn.Module()
    for i in range(100):
        model.add_module(
            "a_very_long_name_of_a_module_that_is_about_as_long_as_names_get" * 2 + str(i), nn.Linear(9, 9)
        )
    text = str(convert(model, "*", num_features=4))
    assert max(map(len, text.splitlines())) <= 100
    assert "names_get0 " in text
    assert "… 77 more in .rows" in text
    assert len(text.splitlines()) < 30


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("tied", [True, False])
def test_transformers_ties_resizes_and_generates_after_conversion(tied, copied, tmp_path):
    options = dict(prototypes=WTE) if tied else dict(start="weights")
    model = gpt2().eval()
    convert(model, "lm_head", num_features=4, bias=True, **options)
    model = copied(model)
    before = output(model)
    state = set(model.state_dict())
    model.tie_weights()
    assert set(model.state_dict()) == state
    assert torch.equal(output(model), before)
    assert model.get_output_embeddings() is model.lm_head
    for size in (53, 53, 40):
        assert model.resize_token_embeddings(size) is model.get_input_embeddings()
        assert model.config.vocab_size == size
        assert (model.lm_head.prototypes is model.transformer.wte.weight) == tied
        after = output(model)
        assert after.shape == (2, 7, size)
        torch.testing.assert_close(after[..., :40], before[..., :40])
        if size == 53 and not tied:
            mean = model.lm_head.prototypes[:50].mean(0)
            torch.testing.assert_close(model.lm_head.prototypes[50:], mean.expand(3, 8))
    model.save_pretrained(tmp_path)
    prompt = TOKENS[:1, :3]
    cached, plain = (model.generate(prompt, max_new_tokens=4, do_sample=False, use_cache=c) for c in (True, False))
    assert torch.equal(cached, plain)


def test_a_head_put_back_resizes_as_transformers_does():
    model = gpt2(tie_word_embeddings=False)
    convert(model, "lm_head", num_features=4)
    model.set_output_embeddings(nn.Linear(8, 50, bias=False))
    model.resize_token_embeddings(53)
    assert output(model).shape == (2, 7, 53)


def test_a_head_of_another_size_than_the_vocabulary_is_not_resized():
    model = gpt2()
    convert(model, "lm_head", num_features=4, num_prototypes=10)
    model.resize_token_embeddings(53)
    assert output(model).shape == (2, 7, 10)


def test_ties_of_other_layers_stay_declared(tmp_path):
    model = gpt2()
    convert(model, "transformer.h.*.mlp", dim=8, num_prototypes=8, features=FeatureBank(4, 8))
    assert model.all_tied_weights_keys["lm_head.weight"] == WTE
    model.transformer.wte.weight = nn.Parameter(torch.randn(50, 8))
    model.tie_weights()
    assert model.lm_head.weight is model.transformer.wte.weight
    model.save_pretrained(tmp_path / "whole")
    model.transformer.save_pretrained(tmp_path / "inner")


def test_ties_that_are_not_asked_for_yet_stay_declared():
    model = llama()
    convert(model, "*.mlp", dim=8, num_prototypes=8, features=FeatureBank(4, 8))
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    model.config.tie_word_embeddings = True
    model.tie_weights()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.layers[0].mlp.features is model.model.layers[1].mlp.features


def test_a_layer_in_two_places_is_saved_once_with_its_constants(tmp_path):
    model = gpt2()
    model.transformer.h[1].mlp = model.transformer.h[0].mlp
    convert(model, "transformer.h.*.mlp", dim=8, num_prototypes=8, num_features=4, learnable=False)
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert len([key for key in file.keys() if key.endswith("mlp.theta_gain")]) == 1  # noqa: SIM118


def test_a_bias_is_not_tied_again_behind_the_back():
    """BERT lists its decoder's bias as tied, by a name that the new layer has too."""
    model = bert()
    convert(model, "cls.predictions.decoder", num_features=4, bias=True, start="weights")
    bias = model.cls.predictions.decoder.bias
    model.tie_weights()
    assert model.cls.predictions.decoder.bias is bias
    assert bias is not model.cls.predictions.bias


def test_the_fused_path_of_a_torch_encoder_is_left():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    convert(encoder, "layers.1.linear?", num_features=4)
    convert(encoder, "layers.0.linear?", num_features=4)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, False, False]])
    expected = encoder(x, src_key_padding_mask=padding).detach()
    with torch.no_grad():
        torch.testing.assert_close(encoder(x, src_key_padding_mask=padding), expected)


def test_models_convert_step_by_step():
    model, bank = sequential(), FeatureBank(4, 8)
    convert(model, "0", features=bank)
    table = convert(model, "3", features=bank, freeze=True)
    assert table.rows[0].parameters_after == 3 * 8 + 3
    assert not bank.weight.requires_grad, "the model had it before"
    assert model[3].prototypes.requires_grad


def mixed() -> nn.Module:
    """Layers of two dtypes, one already converted, and others that do not convert."""
    model = nn.Module()
    model.embedding = nn.Embedding(5, 4)
    model.position = nn.Embedding(6, 4)
    model.narrow = nn.Linear(4, 5).to(torch.bfloat16)
    model.head = nn.Linear(4, 5)
    model.block = nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 4, 1))
    model.attention = nn.MultiheadAttention(4, 2)
    model.done = TverskyProjection(4, 5, 3)
    return model


MESSAGES = {
    "no match": (
        lambda m: convert(m, "bloc.*", num_features=3),
        ValueError,
        "no layer matches 'bloc.*'; nearest names: block.0, block.1, block.",
    ),
    "a model that is a layer itself": (
        lambda m: convert(nn.Linear(3, 2), "head", num_features=3),
        ValueError,
        "no layer matches 'head': the model is one layer; give nn.Sequential(model) and '0'.",
    ),
    "a name without its beginning": (
        lambda m: convert(m, "out_proj", num_features=3),
        ValueError,
        "no layer matches 'out_proj'; nearest names: attention.out_proj.",
    ),
    "no match of a regular expression": (
        lambda m: convert(m, re.compile("hea"), num_features=3),
        ValueError,
        "no layer matches re.compile('hea'); nearest names: head.",
    ),
    "no such class": (
        lambda m: convert(m.block, nn.Embedding, num_features=3),
        ValueError,
        "no layer is of class Embedding; the model has Linear, Conv2d.",
    ),
    "already converted": (
        lambda m: convert(m, "d*", num_features=3),
        ValueError,
        "'done' is already a TverskyProjection; convert a fresh model.",
    ),
    "part of a converted layer": (
        lambda m: convert(m, {"head": {}, "done.features": lambda old, name: old}, num_features=3),
        ValueError,
        "'done.features' is part of a TverskyProjection; convert a fresh model.",
    ),
    "what does not convert": (
        lambda m: convert(m, "block.*", num_features=3),
        ValueError,
        "'block.1', chosen by 'block.*', is of class Conv2d, and only nn.Linear and transformers' Conv1D convert by "
        "themselves: narrow the pattern, or give dim and num_prototypes, or a maker.",
    ),
    "what is read and not called": (
        lambda m: convert(m, "*.out_proj", num_features=3),
        ValueError,
        "'attention.out_proj' cannot be converted: nn.MultiheadAttention reads its weight without calling it; "
        "choose layers by name and leave it out.",
    ),
    "two rules for one": (
        lambda m: convert(m, {"head": {}, re.compile("h.*d"): {}}, num_features=3),
        ValueError,
        "'head' is chosen by two rules, 'head' and re.compile('h.*d'); let one of them choose it.",
    ),
    "one inside another": (
        lambda m: convert(m, {"block.0": {}, "block": lambda old, name: old}, num_features=3),
        ValueError,
        "'block.0', chosen by 'block.0', lies inside 'block', chosen by 'block', and only one of them can be replaced.",
    ),
    "the model itself": (
        lambda m: convert(m.head, nn.Linear, num_features=3),
        ValueError,
        "Linear chooses the model itself, of class Linear, which cannot be replaced inside itself; "
        "make a TverskyProjection in its place.",
    ),
    "tied prototypes of the wrong shape": (
        lambda m: convert(m, "head", num_features=3, prototypes="position.weight"),
        ValueError,
        "tied prototypes of 'head' must be [num_prototypes, dim] = [5, 4]; got 'position.weight' of shape [6, 4].",
    ),
    "tied prototypes that are not there": (
        lambda m: convert(m, "head", num_features=3, prototypes="embeding.weight"),
        ValueError,
        "the model has no parameter 'embeding.weight' to tie prototypes to; "
        "nearest names: embedding.weight, head.weight, position.weight.",
    ),
    "prototypes tied to what goes": (
        lambda m: convert(m, "head", num_features=3, prototypes="head.weight"),
        ValueError,
        "prototypes='head.weight' is in a layer that is replaced; start='weights' puts its values in.",
    ),
    "tied prototypes of another dtype": (
        lambda m: convert(m, "narrow", num_features=3, prototypes="embedding.weight"),
        ValueError,
        "the prototypes of 'narrow' cannot be shared: it would be torch.float32 on cpu in the model and torch.bfloat16 "
        "on cpu in 'narrow'.",
    ),
    "one bank in two dtypes": (
        lambda m: convert(m, re.compile("narrow|head"), features=FeatureBank(3, 4)),
        ValueError,
        "the features.weight of 'head' cannot be shared: it would be torch.bfloat16 on cpu in 'narrow' and "
        "torch.float32 on cpu in 'head'.",
    ),
    "weights of another shape": (
        lambda m: convert(m, "head", num_features=3, num_prototypes=7, start="weights"),
        ValueError,
        "start='weights' needs a floating weight of [num_prototypes, dim] = [7, 4]; "
        "'head', of class Linear, has one of [5, 4], float32.",
    ),
    "weights of no linear layer": (
        lambda m: convert(m, "block", num_features=3, dim=4, num_prototypes=4, start="weights"),
        ValueError,
        "start='weights' needs a floating weight of [num_prototypes, dim] = [4, 4]; "
        "'block', of class Sequential, has none.",
    ),
    "weights and a tie": (
        lambda m: convert(m, "head", num_features=3, prototypes="embedding.weight", start="weights"),
        ValueError,
        "'head' cannot have both start='weights' and tied prototypes; give one of them.",
    ),
    "another start": (
        lambda m: convert(m, "head", num_features=3, start="weight"),
        ValueError,
        "start must be one of fresh, weights; got 'weight'. Did you mean 'weights'?",
    ),
    "the layer's own checks": (
        lambda m: convert(m, "head", features=FeatureBank(3, 6)),
        ValueError,
        "'head': the feature bank has dim 6 and the layer dim 4; they must be equal.",
    ),
    "no number of features": (
        lambda m: convert(m, "head"),
        ValueError,
        "'head': give num_features for a feature bank of its own, or features=FeatureBank(...) to share one.",
    ),
    "an option misspelt": (
        lambda m: convert(m, "head", num_feature=3),
        TypeError,
        "convert has no option 'num_feature'; did you mean 'num_features'?",
    ),
    "options that no maker takes": (
        lambda m: convert(m, {"head": lambda old, name: old}, num_features=3),
        ValueError,
        "every rule has a maker, so that num_features would do nothing; leave it out.",
    ),
    "a maker of nothing": (
        lambda m: convert(m, {"head": lambda old, name: None, "block.0": dict(num_features=3)}),
        TypeError,
        "the maker of 'head' must return an nn.Module; got NoneType.",
    ),
    "a rule that is none": (
        lambda m: convert(m, {"head": 256}),
        TypeError,
        "the rule of 'head' must be a mapping of options, or a maker(old_module, name); got 256.",
    ),
    "patterns that are none": (
        lambda m: convert(m, ["head", "narrow"], num_features=3),
        TypeError,
        "rules must be a name pattern, a compiled regular expression, a class of modules, or a mapping from these; "
        "got ['head', 'narrow'].",
    ),
    "no rules": (
        lambda m: convert(m, {}),
        ValueError,
        "rules are empty; give a name pattern, a class of modules, or a mapping from these.",
    ),
    "no model": (
        lambda m: convert(m.head.weight, "head", num_features=3),
        TypeError,
        "model must be an nn.Module; got Parameter.",
    ),
}


def snapshot(model: nn.Module) -> list:
    tensors = [(n, id(p), p._version, p.requires_grad) for n, p in model.named_parameters(remove_duplicate=False)]
    return tensors + [(n, id(m), m.training) for n, m in model.named_modules(remove_duplicate=False)]


@pytest.mark.parametrize("case", MESSAGES)
def test_bad_input_gets_one_clear_sentence_and_the_model_stays_as_it_was(case):
    call, kind, message = MESSAGES[case]
    model = mixed()
    model.narrow.eval()
    before = snapshot(model)
    with pytest.raises(kind) as error:
        call(model)
    assert str(error.value) == message
    assert snapshot(model) == before


@pytest.mark.filterwarnings("ignore")
def test_models_that_have_no_python_modules_left_are_refused():
    model = nn.Sequential(nn.Linear(8, 4))
    quantised = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)), {nn.Linear})
    for made, error, words in (
        (torch.jit.script(model), TypeError, "got TorchScript: convert before it is scripted or traced"),
        (torch.jit.trace(model, torch.ones(1, 8)), TypeError, "got TorchScript"),
        (quantised, ValueError, "'0' is quantised, .*: convert first, then quantise"),
    ):
        with pytest.raises(error, match=words):
            convert(made, "0", num_features=8)
