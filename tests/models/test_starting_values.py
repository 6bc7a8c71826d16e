"""However transformers makes a model, its constants are calibrated for the bank and prototypes that it then has."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

from similitude import TverskyProjection
from similitude.contrast import UNITS
from similitude.initialize import SPREAD
from similitude.models.gpt2 import VARIANTS, TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

GPT2 = dict(n_embd=96, n_layer=2, n_head=4, vocab_size=500, n_positions=64, bos_token_id=0, eos_token_id=0)
RESNET = dict(embedding_size=8, hidden_sizes=[8, 32], depths=[1, 1], layer_type="basic")


def gpt2(variant="head", tied=True):
    config = TverskyGPT2Config(**GPT2, variant=variant, tie_word_embeddings=tied, num_features=192)
    return TverskyGPT2LMHeadModel, config, GPT2LMHeadModel, GPT2Config(**GPT2, tie_word_embeddings=tied)


def resnet():
    config = TverskyResNetConfig(**RESNET, num_features=64, num_labels=5, bias=True)
    theirs = ResNetConfig(**RESNET, num_labels=7)
    return TverskyResNetForImageClassification, config, ResNetForImageClassification, theirs


MODELS = {f"{v}, {'tied' if t else 'untied'}": (gpt2, v, t) for v in VARIANTS for t in (True, False)}
MODELS["resnet"] = (resnet,)
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def new(kind, config, theirs, their_config, folder):
    return kind(config)


def of_a_plain_folder(kind, config, theirs, their_config, folder):
    theirs(their_config).save_pretrained(folder)
    return kind.from_pretrained(folder, config=config)


def by_a_device_map(kind, config, theirs, their_config, folder):
    theirs(their_config).save_pretrained(folder)
    return kind.from_pretrained(folder, config=config, device_map="cpu")


def of_no_weights(kind, config, theirs, their_config, folder):
    return kind.from_pretrained(None, config=config, state_dict={})


def from_meta(kind, config, theirs, their_config, folder):
    with torch.device("meta"):
        model = kind(config)
    model.to_empty(device="cpu").init_weights()
    return model


def from_meta_tied_first(kind, config, theirs, their_config, folder):
    with torch.device("meta"):
        model = kind(config)
    model.to_empty(device="cpu").tie_weights()
    model.init_weights()
    return model


def from_meta_of_zeros(kind, config, theirs, their_config, folder):
    with torch.device("meta"):
        model = kind(config)
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.zero_()
    model.init_weights()
    return model


ALL_NEW = [new, of_no_weights, from_meta, from_meta_tied_first, from_meta_of_zeros]


def layers(model: nn.Module) -> list[TverskyProjection]:
    return [module for module in model.modules() if isinstance(module, TverskyProjection)]


@every_model
@pytest.mark.parametrize("way", [*ALL_NEW, of_a_plain_folder, by_a_device_map], ids=lambda way: way.__name__)
def test_constants_are_calibrated_for_what_the_model_has(model, way, tmp_path):
    made = way(*model[0](*model[1:]), tmp_path)
    assert all(tensor.isfinite().all() for tensor in made.state_dict().values())
    # A layer that leans is calibrated for hidden states that lean.
    leaning = getattr(made, "presence", 0.5) != 0.5 and way in ALL_NEW
    for layer in layers(made)[: -1 if leaning else None]:
        again = copy.deepcopy(layer)
        again.reset_constants()
        assert layer.alpha.item() != 0.5
        for name in (*UNITS, "alpha", "beta", "theta"):
            torch.testing.assert_close(getattr(layer, name), getattr(again, name), msg=name)


@every_model
@pytest.mark.parametrize("way", [*ALL_NEW, of_a_plain_folder], ids=lambda way: way.__name__)
def test_prototypes_have_and_lack_the_first_feature_in_turn(model, way, tmp_path):
    for layer in layers(way(*model[0](*model[1:]), tmp_path)):
        if layer.owns_prototypes and layer.spread is not None:  # a head that leans has another first feature
            has = layer.prototypes @ layer.features.weight[0] > 0
            assert torch.equal(has, torch.arange(len(has)) % 2 == 0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("model", list(MODELS.values())[:4], ids=list(MODELS)[:4])
@pytest.mark.parametrize("way", [*ALL_NEW, of_a_plain_folder], ids=lambda way: way.__name__)
def test_logits_of_each_way_have_the_deviation_of_a_calibrated_start(model, way, seed, tmp_path):
    torch.manual_seed(seed)
    made = way(*model[0](*model[1:]), tmp_path).eval()
    with torch.no_grad():
        logits = made(torch.randint(500, (4, 20))).logits
    assert logits.std().item() == pytest.approx(SPREAD, rel=0.15)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("way", ALL_NEW, ids=lambda way: way.__name__)
def test_a_head_leans_in_each_way_if_all_of_it_is_new(tied, way, tmp_path):
    made = way(*gpt2(tied=tied), tmp_path)
    assert (made.transformer.ln_f.bias > 0).all()
    has = made.lm_head.features(made.lm_head.prototypes) > 0
    assert has.float().mean().item() == pytest.approx(0.75, abs=0.01)


def test_a_head_on_pretrained_hidden_states_does_not_lean(tmp_path):
    made = of_a_plain_folder(*gpt2(), tmp_path)
    assert not made.transformer.ln_f.bias.any()
    assert (made.lm_head.features(made.lm_head.prototypes) > 0).float().mean().item() == pytest.approx(0.5, abs=0.01)


@every_model
def test_what_has_started_or_is_loaded_does_not_start_again(model, tmp_path):
    made = new(*model[0](*model[1:]), tmp_path)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    made.init_weights()
    made.tie_weights()
    made.save_pretrained(tmp_path)
    for again in (made, type(made).from_pretrained(tmp_path)):
        for name, tensor in again.state_dict().items():
            assert torch.equal(tensor, before[name]), name


def test_a_model_built_by_its_config_leans_too():
    assert AutoModelForCausalLM.from_config(gpt2()[1]).transformer.ln_f.bias.all()


def test_a_missing_scale_starts_as_the_config_says(tmp_path):
    GPT2LMHeadModel(GPT2Config(**GPT2)).save_pretrained(tmp_path)
    config = TverskyGPT2Config(**GPT2, num_features=12, model="ratio", scale=4)
    made = TverskyGPT2LMHeadModel.from_pretrained(tmp_path, config=config)
    assert made.lm_head.scale is not None
    assert made.lm_head.scale.item() == pytest.approx(4)
    with torch.no_grad():
        made.lm_head.scale_log.fill_(2)
    made.save_pretrained(tmp_path / "again")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "again").lm_head.scale_log.item() == 2
