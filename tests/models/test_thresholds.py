"""Models of transformers with thresholds and named features."""

import json
from contextlib import nullcontext

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetModel

from similitude import convert, init_from_data
from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetForImageClassification

TINY = dict(vocab_size=51, n_embd=16, n_layer=2, n_head=2, n_positions=12, bos_token_id=0, eos_token_id=0)
TOKENS = torch.randint(51, (4, 9), generator=torch.Generator().manual_seed(1))
IMAGES = torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def gpt2(**options) -> TverskyGPT2LMHeadModel:
    torch.manual_seed(0)
    options = {"presence": 0.1, "num_features": 64} | options
    return TverskyGPT2LMHeadModel(TverskyGPT2Config(**TINY, **options)).eval()


def presence(model) -> torch.Tensor:
    hidden = model.transformer(TOKENS).last_hidden_state.reshape(-1, 16)
    return (model.lm_head.features(hidden) > 0).float().mean()


@pytest.mark.parametrize("variant", ["head", "all-1layer"])
def test_hidden_states_start_with_the_presence_asked_for(variant):
    model = gpt2(variant=variant)
    assert model.lm_head.features.threshold is not None
    assert presence(model).item() == pytest.approx(0.1, abs=0.05)
    assert model(TOKENS).logits.std() < 1.5
    assert gpt2(presence=0.75).lm_head.features.threshold is None


@pytest.mark.parametrize("hold", [False, True])
def test_thresholds_and_names_survive_saving(hold, tmp_path):
    model = gpt2(hold=hold)
    bank = model.lm_head.features
    bank.name("odd", feature=3)
    ahead = torch.randn(300, 16)
    bank.name("ahead", ahead[ahead[:, 0] > 0.5][:20], ahead[ahead[:, 0] < 0])
    model.save_pretrained(tmp_path)
    assert "ahead" in json.loads((tmp_path / "config.json").read_text())["feature_notes"]["names"].values()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    other = loaded.lm_head.features
    assert other.names == bank.names
    assert torch.equal(other.threshold, bank.threshold)
    assert torch.equal(other.fixed, bank.fixed)
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS).logits, model(TOKENS).logits)
    with pytest.warns(UserWarning, match="the layer has no bias") if hold else nullcontext():
        loaded.train()(TOKENS, labels=TOKENS).loss.backward()
    k = next(k for k, name in other.names.items() if name == "ahead")
    assert not other.weight.grad[k].any()
    assert other.weight.grad.any()


def test_a_held_head_can_have_a_bias_which_is_saved_and_resized(tmp_path, recwarn):
    model = gpt2(hold=True, bias=True)
    plain = gpt2(hold=True)
    assert plain.lm_head.bias is None
    with torch.no_grad():
        assert torch.equal(model(TOKENS).logits, plain(TOKENS).logits)  # it starts as zeros
        model.lm_head.bias.copy_(torch.arange(51.0))
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits + torch.arange(51.0))
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.bias, torch.arange(51.0))
    loaded.resize_token_embeddings(53)
    assert loaded.lm_head.bias.tolist() == [*range(51), 25, 25]
    assert loaded(TOKENS).logits.shape[-1] == 53
    loaded.train()(TOKENS, labels=TOKENS).loss.backward()
    assert loaded.lm_head.bias.grad.abs().max() > 0
    loaded.resize_token_embeddings(50)
    assert loaded.lm_head.bias.tolist() == [*range(50)]
    assert not [w for w in recwarn if "has no bias" in str(w.message)]
    with pytest.raises(ValueError, match="bias must be True or False; got 'yes'"):
        gpt2(bias="yes")


def test_a_checkpoint_without_thresholds_gets_some(tmp_path):
    old = gpt2(presence=0.5)
    old.save_pretrained(tmp_path)
    config = TverskyGPT2Config.from_pretrained(tmp_path, presence=0.1)
    new = TverskyGPT2LMHeadModel.from_pretrained(tmp_path, config=config)
    assert torch.equal(new.lm_head.features.weight, old.lm_head.features.weight)
    assert presence(new.eval()).item() == pytest.approx(0.1, abs=0.05)


def test_a_plain_gpt2_gets_thresholds(tmp_path):
    GPT2LMHeadModel(GPT2Config(**TINY)).save_pretrained(tmp_path)
    for model in (
        TverskyGPT2LMHeadModel.from_gpt2(tmp_path, num_features=64, presence=0.1),
        TverskyGPT2LMHeadModel.from_pretrained(
            tmp_path, config=TverskyGPT2Config(**TINY, num_features=64, presence=0.1)
        ),
    ):
        assert presence(model.eval()).item() == pytest.approx(0.1, abs=0.05)
        assert model(TOKENS).logits.isfinite().all()


def test_a_resnet_head_starts_from_what_reaches_it():
    torch.manual_seed(0)
    backbone = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    model = TverskyResNetForImageClassification.from_resnet(
        backbone, num_labels=3, num_features=10, presence=0.25, bias=True
    )
    vectors = torch.rand(400, 16)
    init_from_data(model.classifier, vectors)
    has = (model.classifier.features(vectors) > 0).float().mean(0)
    torch.testing.assert_close(has, torch.full((10,), 0.25), atol=1e-6, rtol=0)
    assert model(IMAGES).logits.shape == (8, 3)


@pytest.mark.parametrize("bias", [False, True])
def test_a_resnets_held_head_asks_for_a_bias(bias, recwarn):
    backbone = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    options = {"num_labels": 3, "num_features": 10, "presence": 0.25, "hold": True, "bias": bias}
    model = TverskyResNetForImageClassification.from_resnet(backbone, **options).train()
    model(IMAGES, labels=torch.arange(8) % 3).loss.backward()
    assert model.classifier.features.passes == 1
    assert any("the layer has no bias" in str(w.message) for w in recwarn) != bias


def test_converted_layers_take_thresholds():
    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.ReLU(), torch.nn.Linear(6, 3))
    convert(model, "2", num_features=12, bias=True, presence=0.25)
    x = torch.randn(200, 8)
    init_from_data(model, x)
    has = (model[2].features(model[:2](x)) > 0).float().mean(0)
    torch.testing.assert_close(has, torch.full((12,), 0.25), atol=1e-6, rtol=0)
