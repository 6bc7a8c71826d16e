"""TverskyGPT-2 as a transformers model: counts, loss, round trips, starting values, messages."""

import copy
import importlib
import json
import math
import pickle
import re
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import similitude.functional as F
from similitude import TverskyProjection
from similitude.initialize import SPREAD
from similitude.models.gpt2 import VARIANTS, TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.reproduce.record import paper

TINY = dict(
    n_embd=32,
    n_layer=2,
    n_head=4,
    vocab_size=101,
    n_positions=64,
    bos_token_id=0,
    eos_token_id=0,
    initializer_range=0.2,
)
STILL = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
OTHER = dict(
    intersection="min",
    difference="subtractmatch",
    level="set",
    model="ratio",
    normalize=True,
    alpha=0.25,
    beta=0.75,
    theta=2.0,
    scale=4.0,
    learnable=["alpha"],
    parametrization="gain",
    init="orthogonal",
    backend="torch",
    leak=0.0,
)

every_model = pytest.mark.parametrize(
    ("variant", "tied"), [(v, t) for v in VARIANTS for t in (True, False)], ids=lambda value: str(value)
)


def config(variant="head", tied=True, **options) -> TverskyGPT2Config:
    return TverskyGPT2Config(**{**TINY, "variant": variant, "tie_word_embeddings": tied, "num_features": 48, **options})


def tiny(variant="head", tied=True, **options) -> TverskyGPT2LMHeadModel:
    return TverskyGPT2LMHeadModel(config(variant, tied, **options)).eval()


def tokens(*shape) -> torch.Tensor:
    return torch.randint(1, 101, shape or (3, 9))


def layers(model) -> list[TverskyProjection]:
    return [module for module in model.modules() if isinstance(module, TverskyProjection)]


def count(model) -> int:
    return sum(p.numel() for p in model.parameters())


def paper_count(model: str, tied: bool, K: int | None) -> int:
    with torch.device("meta"):
        if model == "baseline":
            return count(GPT2LMHeadModel(GPT2Config(tie_word_embeddings=tied)))
        variant = model.removeprefix("tversky-")
        return count(
            TverskyGPT2LMHeadModel(TverskyGPT2Config(variant=variant, tie_word_embeddings=tied, num_features=K))
        )


BASELINE = {True: 124_439_808, False: 163_037_184}


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_as_many_as_in_the_paper(tied):
    assert paper_count("baseline", tied, None) == BASELINE[tied]
    assert paper_count("tversky-head", tied, 16384) == BASELINE[tied] + 16384 * 768 + 3
    all_layers = {True: (8192, 81_140_007), False: (4096, 116_591_655)}
    K, expected = all_layers[tied]
    assert paper_count("tversky-all-1layer", tied, K) == expected


def test_parameters_are_as_many_as_in_every_row_of_the_papers_tables():
    tables = [paper("ptb_test_perplexity"), paper("ptb_validation_perplexity")]
    assert [len(table) for table in tables] == [8, 600]
    rows = {
        (row["model"], row["tied_prototypes"] == "Y", int(row["num_features"] or 0) or None, int(row["params"]))
        for table in tables
        for row in table
    }
    assert len(rows) == 30
    for *model, params in rows:
        assert paper_count(*model) == params, model


@every_model
def test_saving_and_loading_keeps_answers_ties_and_the_one_bank(variant, tied, tmp_path):
    model, x = tiny(variant, tied), tokens()
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    assert [name for name in state if name.endswith("features.weight")] == ["lm_head.features.weight"]
    assert ("lm_head.prototypes" in state) != tied
    assert sum(t.numel() for name, t in state.items() if not name.endswith("_unit")) == count(model)

    other, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(other) is TverskyGPT2LMHeadModel
    assert not any(info.values()), info
    assert torch.equal(other(x).logits, model(x).logits)
    assert (other.lm_head.prototypes is other.transformer.wte.weight) == tied
    assert ("prototypes=tied" in repr(other.lm_head)) == tied
    assert len({id(layer.features.weight) for layer in layers(other)}) == 1
    assert len(layers(other)) == (1 if variant == "head" else 3)
    assert count(other) == count(model)


@every_model
def test_the_trunk_alone_is_saved_and_opens_with_a_new_head(variant, tied, tmp_path):
    model = tiny(variant, tied)
    model.base_model.save_pretrained(tmp_path)
    opened, info = TverskyGPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert "lm_head.features.weight" in info["missing_keys"]
    assert torch.equal(opened.transformer.wte.weight, model.transformer.wte.weight)
    assert opened(tokens()).logits.isfinite().all()


def test_every_option_is_saved_and_reaches_every_layer(tmp_path):
    tiny("all-1layer", **OTHER).save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).layer_options() == OTHER
    kept = OTHER.keys() - {"alpha", "beta", "theta", "learnable"}
    for layer in layers(AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert {name: getattr(layer, name) for name in kept} == {name: OTHER[name] for name in kept}
        assert [layer.alpha.item(), layer.beta.item(), layer.theta.item()] == [0.25, 0.75, 2.0]
        assert dict(layer.named_parameters(recurse=False)).keys() == {"prototypes", "alpha_gain", "scale_log"}


def test_options_are_written_to_json_as_the_library_spells_them():
    options = dict(learnable={"theta", "alpha"}, difference="substractmatch", alpha=torch.tensor(0.5), theta=2)
    written = json.loads(config(**options).to_json_string())
    assert written["learnable"] == ["alpha", "theta"]
    assert (written["difference"], written["alpha"], written["theta"]) == ("subtractmatch", 0.5, 2.0)
    assert written["model_type"] == "tversky_gpt2"


def test_auto_model_builds_it_from_its_config():
    assert type(AutoModelForCausalLM.from_config(config())) is TverskyGPT2LMHeadModel


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "double"])
def test_copies_and_casts_keep_ties_and_the_one_bank(way):
    model = tiny("all-1layer")
    ways = {
        "deepcopy": copy.deepcopy,
        "pickle": lambda m: pickle.loads(pickle.dumps(m)),
        "double": lambda m: copy.deepcopy(m).double(),
    }
    other = ways[way](model)
    assert {id(layer.features) for layer in layers(other)} == {id(other.lm_head.features)}
    assert other.lm_head.features is not model.lm_head.features
    assert other.lm_head.prototypes is other.transformer.wte.weight
    x = tokens()
    torch.testing.assert_close(other(x).logits.float(), model(x).logits)


def test_a_block_has_no_parameters_but_its_own():
    model = tiny("all-1layer")
    names = {name for name, _ in model.transformer.h[0].mlp.named_parameters()}
    assert names == {"projection.prototypes", *(f"projection.{name}_gain" for name in ("alpha", "beta", "theta"))}
    assert [name for name in model.state_dict() if "features" in name] == ["lm_head.features.weight"]


def test_an_mlp_is_one_projection_on_the_heads_bank_and_gpt2s_dropout():
    model = tiny("all-1layer", resid_pdrop=1.0)
    mlp, x = model.transformer.h[1].mlp, torch.randn(2, 3, 32)
    constants = mlp.projection.constants()
    expected = F.tversky_projection(x, mlp.projection.prototypes, model.lm_head.features.weight, **constants)
    torch.testing.assert_close(mlp(x), expected)
    assert expected.abs().min() > 0
    assert mlp.train()(x).abs().max() == 0


@pytest.mark.parametrize(
    ("variant", "presence", "expected"), [("head", None, 0.75), ("head", 0.9, 0.9), ("all-1layer", None, 0.5)]
)
@pytest.mark.parametrize("tied", [True, False])
def test_a_new_head_starts_with_the_presence_asked_for(variant, tied, presence, expected, tmp_path):
    sizes = dict(n_embd=192, vocab_size=2000, num_features=600, initializer_range=0.02, presence=presence)
    model = TverskyGPT2LMHeadModel(config(variant, tied, **sizes)).eval()
    x = torch.randint(2000, (4, 20))
    out, hidden, head = model(x, labels=x), model.transformer(x).last_hidden_state, model.lm_head
    for objects in (hidden, head.prototypes):
        assert (head.features(objects) > 0).float().mean().item() == pytest.approx(expected, abs=0.01)
    assert out.logits.std().item() == pytest.approx(SPREAD, rel=0.15)
    assert out.loss.item() == pytest.approx(math.log(2000), rel=0.1)
    out.loss.backward()
    assert all(p.grad.any() for p in model.parameters())
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(x).logits, out.logits)


def test_presence_is_checked_and_not_for_a_pretrained_gpt2():
    for wrong in (0, 1, "most"):
        with pytest.raises(ValueError, match="presence must be a number between 0 and 1"):
            config(presence=wrong)
    with pytest.raises(ValueError, match="needs init='calibrated'; got init='uniform'"):
        config(presence=0.75, init="uniform")
    with pytest.raises(ValueError, match="needs variant='head'; got variant='all-1layer'"):
        config("all-1layer", presence=0.75)
    gpt2 = GPT2LMHeadModel(GPT2Config(**TINY))
    with pytest.raises(ValueError, match="is for new models; from_gpt2"):
        TverskyGPT2LMHeadModel.from_gpt2(gpt2, presence=0.75)
    assert torch.equal(TverskyGPT2LMHeadModel.from_gpt2(gpt2).transformer.ln_f.bias, gpt2.transformer.ln_f.bias)
    others = dict(init="uniform", intersection="min", difference="subtractmatch", level="set", model="ratio")
    for name, value in {**others, "normalize": True, "alpha": 0.5}.items():
        assert not TverskyGPT2LMHeadModel(config(**{name: value})).transformer.ln_f.bias.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_new_model_of_another_dtype_starts_alike(dtype):
    sizes = dict(n_embd=192, vocab_size=2000, num_features=600, initializer_range=0.02)
    model = AutoModelForCausalLM.from_config(config(**sizes), dtype=dtype).eval()
    assert model.lm_head.prototypes.dtype == dtype
    x = torch.randint(2000, (4, 20))
    assert (model.lm_head.features(model.lm_head.prototypes) > 0).float().mean().item() == pytest.approx(0.75, abs=0.01)
    assert model(x, labels=x).loss.item() == pytest.approx(math.log(2000), rel=0.1)


def test_what_a_block_adds_is_smaller_the_more_blocks_there_are():
    x = torch.randn(500, 32)
    for blocks in (2, 8):
        mlp = tiny("all-1layer", n_layer=blocks, num_features=128).transformer.h[1].mlp
        assert mlp.projection(x).std().item() == pytest.approx(SPREAD / (2 * blocks) ** 0.5, rel=0.15)


@every_model
def test_generating_with_and_without_cache_gives_the_same_tokens(variant, tied):
    model, x = tiny(variant, tied), tokens(2, 5)
    settings = dict(max_new_tokens=12, pad_token_id=0, eos_token_id=None, attention_mask=torch.ones_like(x))
    for sampled in (False, True):
        answers = []
        for cached in (True, False):
            torch.manual_seed(1)
            answers.append(model.generate(x, use_cache=cached, do_sample=sampled, **settings))
        assert torch.equal(*answers)
        assert answers[0].shape == (2, 17)
    assert len(answers[0][:, 5:].unique()) > 5


def reference_loss(model, x, labels):
    logits = model(x, skip_logits=False).logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@every_model
@pytest.mark.parametrize(
    "options",
    [{}, {"intersection": "min", "difference": "subtractmatch"}, {"level": "set"}, {"model": "ratio"}],
    ids=str,
)
def test_the_loss_and_its_gradients_are_those_of_cross_entropy_on_the_logits(variant, tied, options):
    model, x = tiny(variant, tied, **STILL, **options).double().train(), tokens()
    labels = x.masked_fill(torch.rand(x.shape) < 0.3, -100)
    losses, gradients = [], []
    for loss in (model(x, labels=labels).loss, reference_loss(model, x, labels)):
        names, parameters = zip(*model.named_parameters(), strict=True)
        losses.append(loss)
        gradients.append(dict(zip(names, torch.autograd.grad(loss, parameters), strict=True)))
    torch.testing.assert_close(*losses)
    torch.testing.assert_close(*gradients)
    assert all(gradient.abs().max() > 0 for gradient in gradients[0].values())


@pytest.mark.parametrize("way", ["autocast", "bfloat16"])
def test_in_half_precision_the_loss_has_32_bits_and_is_that_of_the_logits(way):
    """Up to the rounding of the logits, which are in bfloat16 while the loss never makes them: half a unit each."""
    model, x = tiny("all-1layer"), tokens()
    if way == "bfloat16":
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
        out = model(x, labels=x)
    assert out.logits.dtype == torch.bfloat16
    assert out.loss.dtype == torch.float32
    logits = out.logits.float()[:, :-1].flatten(0, 1)
    expected = nn.functional.cross_entropy(logits, x[:, 1:].flatten())
    assert abs(out.loss - expected) <= 2**-8 * logits.abs().max()
    out.loss.backward()


@pytest.mark.parametrize("number", [40, torch.tensor(40)])
def test_the_loss_is_divided_by_the_number_of_items_that_the_trainer_gives(number):
    model, x = tiny(), tokens()
    loss = model(x, labels=x, num_items_in_batch=number).loss
    torch.testing.assert_close(loss, model(x, labels=x).loss * (3 * 8) / 40)


def test_labels_that_are_shifted_already_are_taken_as_they_are():
    model, x, shifted = tiny(), tokens(), tokens()
    expected = nn.functional.cross_entropy(model(x).logits.flatten(0, 1), shifted.flatten())
    torch.testing.assert_close(model(x, labels=x, shift_labels=shifted).loss, expected)


def test_logits_are_not_made_in_training_with_labels(monkeypatch):
    model, x = tiny(), tokens()
    assert model(x, labels=x).logits.shape == (3, 9, 101)
    assert model.train()(x).logits.shape == (3, 9, 101)
    assert model(x, labels=x, skip_logits=False).logits.shape == (3, 9, 101)
    monkeypatch.setattr(model.lm_head, "forward", lambda x: pytest.fail("logits were made"))
    assert model(x, labels=x).logits is None
    assert model.eval()(x, labels=x, skip_logits=True).logits is None


@pytest.mark.parametrize("kept", [1, 4, torch.tensor([0, 7])], ids=str)
def test_logits_are_those_of_the_positions_to_keep(kept):
    model, x = tiny(), tokens()
    positions = slice(-kept, None) if isinstance(kept, int) else kept
    out = model(x, labels=x, logits_to_keep=kept)
    torch.testing.assert_close(out.logits, model(x).logits[:, positions])
    torch.testing.assert_close(out.loss, model(x, labels=x).loss)


def test_accumulated_steps_of_trainer_are_those_of_one_large_batch(tmp_path):
    start, x = tiny("all-1layer", **STILL), tokens(8, 9)
    labels = x.clone()
    for i, row in enumerate(labels):
        row[:i] = -100
    data = [dict(input_ids=a, labels=b) for a, b in zip(x, labels)]
    first = start(x, labels=labels).loss.item()
    states = []
    for steps in (1, 4):
        model = copy.deepcopy(start)
        arguments = TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=8 // steps,
            gradient_accumulation_steps=steps,
            max_steps=2,
            learning_rate=1e-2,
            optim="sgd",
            max_grad_norm=0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        trainer.train()
        assert trainer.state.log_history[0]["loss"] == pytest.approx(first, rel=1e-5)
        assert trainer.predict(data).predictions.shape == (8, 9, 101)
        states.append(model.state_dict())
    assert not torch.equal(states[0]["lm_head.features.weight"], start.lm_head.features.weight)
    torch.testing.assert_close(*states, rtol=1e-5, atol=1e-6)


def test_gradient_checkpointing_gives_equal_gradients():
    model, x = tiny("all-1layer", **STILL).train(), tokens()
    calls = []
    model.transformer.h[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(x, labels=x, use_cache=False).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert len(calls) == 3
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@every_model
@pytest.mark.parametrize("size", [110, 50])
def test_prototypes_follow_the_token_embedding_when_it_is_resized(variant, tied, size, tmp_path):
    model, x = tiny(variant, tied), tokens(2, 7) % 50
    before, prototypes = model(x).logits.detach(), model.lm_head.prototypes.detach().clone()
    model.resize_token_embeddings(size)
    kept = min(size, 101)
    assert model.config.vocab_size == model.lm_head.out_features == model.transformer.wte.num_embeddings == size
    assert (model.lm_head.prototypes is model.transformer.wte.weight) == tied
    assert torch.equal(model.lm_head.prototypes[:kept], prototypes[:kept])
    assert model.lm_head.prototypes.requires_grad
    torch.testing.assert_close(model(x).logits[..., :kept], before[..., :kept])
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits[..., :kept], before[..., :kept])
    model(x, labels=x).loss.backward()
    assert model.lm_head.prototypes.grad.shape == (size, 32)
    model.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(x).logits, model(x).logits)


def test_what_is_not_tversky_starts_as_in_gpt2():
    sizes = dict(n_layer=3, n_embd=96, n_head=2, vocab_size=400)
    theirs = dict(GPT2LMHeadModel(GPT2Config(**sizes)).named_parameters())
    model = TverskyGPT2LMHeadModel(TverskyGPT2Config(**sizes, num_features=8))
    ours = {name: p for name, p in model.named_parameters() if not name.startswith("lm_head.")}
    assert ours.keys() == theirs.keys() - {"lm_head.weight"}
    for name, p in ours.items():
        torch.testing.assert_close(p.std(), theirs[name].std(), rtol=0.1, atol=0, msg=name)


def test_a_new_model_starts_as_its_config_says():
    model = TverskyGPT2LMHeadModel(config("all-1layer", init="uniform", num_features=500, alpha=0.25))
    assert model.transformer.wte.weight.std().item() == pytest.approx(0.2, rel=0.1)
    for weight in (model.lm_head.features.weight, model.transformer.h[1].mlp.projection.prototypes):
        assert 0 <= weight.min() < 0.1
        assert 0.9 < weight.max() < 1
    assert [layer.alpha.item() for layer in layers(model)] == [0.25] * 3
    untied = TverskyGPT2LMHeadModel(config(tied=False, init="normal"))
    assert untied.lm_head.prototypes.std().item() == pytest.approx(1, rel=0.1)


@every_model
@pytest.mark.parametrize("learnable", [True, False, ["theta"]], ids=str)
def test_what_a_gpt2_checkpoint_lacks_gets_its_starting_value(variant, tied, learnable, tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(**TINY))
    gpt2.save_pretrained(tmp_path)
    chosen = config(variant, tied, learnable=learnable, alpha=0.25, beta=0.75, theta=2.0, init="orthogonal")
    model = TverskyGPT2LMHeadModel.from_pretrained(tmp_path, config=chosen)
    bank = model.lm_head.features.weight
    torch.testing.assert_close(bank.T @ bank, torch.eye(32), rtol=1e-5, atol=1e-5)
    for layer in layers(model):
        assert [layer.alpha.item(), layer.beta.item(), layer.theta.item()] == [0.25, 0.75, 2.0]
        if layer is not model.lm_head or not tied:
            P = layer.prototypes
            gram = P.T @ P if len(P) > 32 else P @ P.T
            torch.testing.assert_close(gram, torch.eye(32), rtol=1e-5, atol=1e-5)
    trunk = gpt2.transformer.state_dict()
    for name, value in model.transformer.state_dict().items():
        assert ".mlp." in name or torch.equal(value, trunk[name]), name
    assert (model.lm_head.prototypes is model.transformer.wte.weight) == tied


def test_only_what_a_checkpoint_lacks_is_started_anew(tmp_path):
    model = tiny("all-1layer", tied=False)
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(7.0)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    lacks = {"lm_head.beta_gain", "lm_head.beta_unit", "transformer.h.0.mlp.projection.prototypes"}
    save_file(
        {name: t for name, t in state.items() if name not in lacks}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    other, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == lacks
    for name, p in other.named_parameters():
        assert (p == 7.0).all() != (name in lacks), name
    assert 0 < other.lm_head.beta.item() < 1
    assert 0.09 < other.transformer.h[0].mlp.projection.prototypes.std() < 0.11  # of a length of 1/√3


def test_it_loads_in_bfloat16_by_a_device_map(tmp_path):
    tiny("all-1layer", learnable=["alpha"]).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, device_map="cpu")
    assert {t.dtype for t in (*model.parameters(), *model.buffers())} == {torch.bfloat16}
    assert model.lm_head.prototypes is model.transformer.wte.weight
    assert model(tokens()).logits.isfinite().all()


@every_model
@pytest.mark.parametrize("given", ["folder", "model"])
def test_from_gpt2_takes_the_weights_of_a_gpt2(variant, tied, given, tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(**TINY, resid_pdrop=0.3)).eval()
    gpt2.generation_config.max_new_tokens = 7
    gpt2.save_pretrained(tmp_path)
    source = tmp_path if given == "folder" else gpt2
    model = TverskyGPT2LMHeadModel.from_gpt2(source, variant=variant, num_features=40, tie_word_embeddings=tied)
    assert not model.training
    assert (model.config.resid_pdrop, model.config.architectures) == (0.3, None)
    assert model.generation_config.max_new_tokens == 7
    assert model.lm_head.features.num_features == 40
    trunk, x = gpt2.transformer.state_dict(), tokens()
    for name, value in model.transformer.state_dict().items():
        assert ".mlp.projection." in name or torch.equal(value, trunk[name]), name
    assert torch.equal(model.lm_head.prototypes, gpt2.lm_head.weight)
    assert (model.lm_head.prototypes is model.transformer.wte.weight) == tied
    if variant == "head":
        hidden = gpt2.transformer(x).last_hidden_state
        torch.testing.assert_close(model.transformer(x).last_hidden_state, hidden)
        torch.testing.assert_close(model(x).logits, model.lm_head(hidden))
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in gpt2.parameters()}
    model.save_pretrained(tmp_path / "again")
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "again")(x).logits, model(x).logits)


def test_from_gpt2_starts_untied_prototypes_as_the_head_of_an_untied_gpt2():
    gpt2 = GPT2LMHeadModel(GPT2Config(**TINY, tie_word_embeddings=False)).bfloat16().train()
    model = TverskyGPT2LMHeadModel.from_gpt2(gpt2, num_features=40)
    assert model.training
    assert model.dtype == model.config.dtype == torch.bfloat16
    assert torch.equal(model.lm_head.prototypes, gpt2.lm_head.weight)
    assert torch.equal(model.transformer.wte.weight, gpt2.transformer.wte.weight)
    assert not torch.equal(model.lm_head.prototypes, model.transformer.wte.weight)
    assert TverskyGPT2LMHeadModel.from_gpt2(gpt2, num_features=40, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("left", [0, 3, 1000, -100])
def test_weights_cut_short_are_one_clear_error(left, tmp_path):
    tiny().save_pretrained(tmp_path / "ours")
    GPT2LMHeadModel(GPT2Config(**TINY)).save_pretrained(tmp_path / "gpt2")
    for folder, load in (("ours", AutoModelForCausalLM.from_pretrained), ("gpt2", TverskyGPT2LMHeadModel.from_gpt2)):
        path = tmp_path / folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:left])
        with pytest.raises(
            OSError, match=r"^the weights of '.*' are cut short or damaged \(.*\); save or download"
        ) as e:
            load(path.parent)
        assert str(path.parent) in str(e.value)
        assert "\n" not in str(e.value)


def test_weights_of_another_size_are_one_clear_error_unless_they_are_wanted(tmp_path):
    tiny().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="by the config") as error:
        AutoModelForCausalLM.from_pretrained(tmp_path, num_features=50)
    assert str(error.value) == (
        f"lm_head.features.weight is [48, 32] in the weights of '{tmp_path}' and [50, 32] by the config; "
        "give the config they were saved with."
    )
    with pytest.raises(ValueError, match="by the config, and 1 more differ; give"):
        AutoModelForCausalLM.from_pretrained(tmp_path, num_features=50, n_positions=32)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, num_features=50, ignore_mismatched_sizes=True)
    assert model.lm_head.features.weight.shape == (50, 32)
    assert model(tokens()).logits.isfinite().all()


MESSAGES = {
    "variant": (dict(variant="heads"), "variant must be one of head, all-1layer; got 'heads'. Did you mean 'head'?"),
    "num_features": (dict(num_features=0), "num_features must be a whole number of 1 or more; got 0."),
    "intersection": (
        dict(intersection="produkt"),
        "intersection must be one of product, min, max, mean, gmean, softmin; got 'produkt'. Did you mean 'product'?",
    ),
    "difference": (dict(difference="none"), "difference must be one of ignorematch, subtractmatch; got 'none'."),
    "level": (dict(level="sets"), "level must be one of feature, set; got 'sets'. Did you mean 'set'?"),
    "model": (dict(model="linear"), "model must be one of contrast, ratio; got 'linear'."),
    "learnable": (dict(learnable=["gamma"]), "learnable must be one of alpha, beta, theta; got 'gamma'."),
    "init": (dict(init="xavier"), "init must be one of calibrated, unit, uniform, normal, orthogonal; got 'xavier'."),
    "backend": (dict(backend="cuda"), "backend must be one of auto, reference, torch, triton; got 'cuda'."),
    "theta": (
        dict(theta="large"),
        "theta must be one number, a float or a floating tensor of one element; got 'large'.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_wrong_option_fails_in_the_config_and_in_the_constructor(case):
    options, message = MESSAGES[case]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        config(**options)
    changed = config()
    for name, value in options.items():
        setattr(changed, name, value)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TverskyGPT2LMHeadModel(changed)


def test_from_gpt2_says_what_it_takes(tmp_path):
    gpt2 = GPT2LMHeadModel(GPT2Config(**TINY))
    with pytest.raises(TypeError, match=r"got 'num_feature'\. Did you mean 'num_features'\?"):
        TverskyGPT2LMHeadModel.from_gpt2(gpt2, num_feature=8)
    with pytest.raises(TypeError, match="got NoneType"):
        TverskyGPT2LMHeadModel.from_gpt2(None)  # pyright: ignore
    with pytest.raises(TypeError, match="takes a name, a folder or a GPT2LMHeadModel; got GPT2Model"):
        TverskyGPT2LMHeadModel.from_gpt2(gpt2.transformer)
    with pytest.raises(ValueError, match="keeps the GPT-2's sizes; got n_layer=1 and a GPT-2 of n_layer=2"):
        TverskyGPT2LMHeadModel.from_gpt2(gpt2, variant="all-1layer", n_layer=1)
    tiny().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"must be of type 'gpt2'; it is of type 'tversky_gpt2': load it by from"):
        TverskyGPT2LMHeadModel.from_gpt2(tmp_path)


def test_without_transformers_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "similitude.models.gpt2")
    with pytest.raises(ImportError, match=r"needs transformers: pip install 'similitude\[hf\]'"):
        importlib.import_module("similitude.models.gpt2")


def test_a_config_of_another_model_is_refused():
    with pytest.raises(TypeError, match="must be a TverskyGPT2Config; got GPT2Config: for a GPT-2 that exists use"):
        TverskyGPT2LMHeadModel(GPT2Config())


def test_alpha_takes_a_hundredth_of_what_is_common_in_a_new_head_and_beta_the_rest():
    for options, expected in ((dict(), [0.01, 0.99]), (dict(presence=0.5), [0.5, 0.5])):
        head = tiny(**options).lm_head
        # A gain is the part of the common measure that the constant's difference takes away at the start.
        assert [head.alpha_gain.item(), head.beta_gain.item()] == pytest.approx(expected, abs=0.03)
