"""One loader of pretrained models: every tensor comes from the checkpoint, or one sentence names those that do not."""

import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("transformers")

from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification

from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel
from similitude.models.hf import load
from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification
from similitude.reproduce.data import hub

GPT2 = dict(n_embd=16, n_layer=2, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0)
RESNET = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
LOADERS = {
    "from_gpt2": lambda folder: TverskyGPT2LMHeadModel.from_gpt2(folder, num_features=8).transformer,
    "from_resnet": lambda folder: TverskyResNetForImageClassification.from_resnet(folder).resnet,
    "reproduce, GPT-2": lambda folder: hub.pretrained(GPT2LMHeadModel, str(folder)).transformer,
    "reproduce, ResNet": lambda folder: hub.pretrained(ResNetForImageClassification, str(folder)).resnet,
}
FIRST = {"gpt2": "transformer.h.0.attn.c_attn.weight", "resnet": "resnet.embedder.embedder.convolution.weight"}
every_loader = pytest.mark.parametrize("loader", LOADERS)


def kind_of(loader: str) -> str:
    return "resnet" if "esnet" in loader.lower() else "gpt2"


def saved(folder, loader: str, change=lambda tensors: None, **options):
    """The network's own tensors, after the checkpoint of it in the folder was changed."""
    if kind_of(loader) == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**GPT2, **options))
    else:
        model = ResNetForImageClassification(ResNetConfig(**RESNET, **options))
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model.base_model.state_dict()


@every_loader
def test_a_whole_checkpoint_loads_every_tensor(loader, tmp_path):
    there = saved(tmp_path, loader)
    here = LOADERS[loader](tmp_path).state_dict()
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in there)


@every_loader
def test_a_missing_tensor_is_named_and_nothing_trains_on_random_numbers(loader, tmp_path):
    first = FIRST[kind_of(loader)]
    saved(tmp_path, loader, lambda tensors: tensors.pop(first))
    with pytest.raises((ValueError, LookupError), match=f"are not those of a .*: they lack {first}") as error:
        LOADERS[loader](tmp_path)
    assert "\n" not in str(error.value)


@every_loader
def test_a_surplus_tensor_is_named(loader, tmp_path):
    saved(tmp_path, loader, lambda tensors: tensors.update({"score.weight": torch.ones(2, 16)}))
    with pytest.raises((ValueError, LookupError), match=r"they have score\.weight, which the model has not"):
        LOADERS[loader](tmp_path)


@every_loader
def test_a_tensor_of_another_shape_is_named(loader, tmp_path):
    first = FIRST[kind_of(loader)]
    saved(tmp_path, loader, lambda tensors: tensors.update({first: torch.ones(3, 2)}))
    with pytest.raises((ValueError, LookupError), match=rf"{first} is \[3, 2\] in the weights of .* by the config"):
        LOADERS[loader](tmp_path)


def test_many_tensors_are_counted(tmp_path):
    saved(tmp_path, "from_gpt2", lambda tensors: [tensors.pop(n) for n in list(tensors) if ".h.0." in n])
    with pytest.raises(ValueError, match=r"they lack (transformer.h.0\S+ ){2}\S+ and 9 more\.$"):
        LOADERS["from_gpt2"](tmp_path)


def test_blocks_that_the_config_leaves_out_are_surplus(tmp_path):
    saved(tmp_path, "from_gpt2")
    (tmp_path / "config.json").write_text(
        (tmp_path / "config.json").read_text().replace('"n_layer": 2', '"n_layer": 1')
    )
    with pytest.raises(ValueError, match=r"they have transformer.h.1.* and 8 more, which the model has not"):
        LOADERS["from_gpt2"](tmp_path)


def bare(tensors: dict) -> None:
    """As openai-community/gpt2 is saved: without the model's prefix, with masks of attention."""
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for i in range(2):
        tensors[f"h.{i}.attn.bias"] = torch.ones(1, 1, 8, 8).tril()
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)


@pytest.mark.parametrize("loader", ["from_gpt2", "reproduce, GPT-2"])
def test_old_checkpoints_of_a_tied_gpt2_load_without_a_head_and_with_masks(loader, tmp_path):
    there = saved(tmp_path, loader, bare)
    here = LOADERS[loader](tmp_path).state_dict()
    assert all(torch.equal(here[name], there[name]) for name in there)


def test_an_untied_gpt2_must_have_its_head(tmp_path):
    saved(tmp_path, "from_gpt2", lambda tensors: tensors.pop("lm_head.weight"), tie_word_embeddings=False)
    with pytest.raises(ValueError, match=r"they lack lm_head\.weight"):
        LOADERS["from_gpt2"](tmp_path)


def headless(tensors: dict) -> None:
    for name in list(tensors):
        if name.startswith("classifier.") or name.endswith("num_batches_tracked"):
            del tensors[name]


@pytest.mark.parametrize("loader", ["from_resnet", "reproduce, ResNet"])
@pytest.mark.parametrize("change", [headless, lambda t: t.update({"classifier.1.weight": torch.ones(3, 16)})])
def test_a_resnet_needs_no_classifier_and_no_counts_of_batches(loader, change, tmp_path):
    there = saved(tmp_path, loader, change)
    here = LOADERS[loader](tmp_path).state_dict()
    assert all(torch.equal(here[name], there[name]) for name in there if "num_batches" not in name)


def test_our_own_saved_models_load_whole_too(tmp_path):
    ours = {
        "gpt2": TverskyGPT2LMHeadModel(TverskyGPT2Config(**GPT2, num_features=8, variant="all-1layer")),
        "resnet": TverskyResNetForImageClassification(TverskyResNetConfig(**RESNET, num_labels=3, num_features=8)),
    }
    for name, model in ours.items():
        model.save_pretrained(tmp_path / name)
        loaded = load(type(model), tmp_path / name).state_dict()
        assert all(torch.equal(loaded[key], value) for key, value in model.state_dict().items())


@pytest.mark.parametrize("make", [TverskyGPT2LMHeadModel.from_gpt2, TverskyResNetForImageClassification.from_resnet])
def test_a_folder_that_is_not_there_is_told(make, tmp_path):
    for source in (tmp_path / "nowhere", "./nowhere"):
        with pytest.raises(FileNotFoundError, match=r"there is no folder '.*nowhere' with a"):
            make(source)
