"""TverskyResNet: a transformers model, its counts, its start, what stays frozen, and what goes to disk and back."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from similitude import TverskyProjection

transformers = pytest.importorskip("transformers")

from transformers import (  # noqa: E402
    AutoConfig,
    AutoModelForImageClassification,
    BertConfig,
    ResNetConfig,
    ResNetForImageClassification,
    ResNetModel,
    Trainer,
    TrainingArguments,
)

from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification  # noqa: E402

TINY = dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
# The paper's bank sizes: MNIST and NABirds.
PAPER = [(10, 20), (555, 224)]


def tversky(**options) -> TverskyResNetForImageClassification:
    return TverskyResNetForImageClassification(TverskyResNetConfig(**{**TINY, "num_labels": 5, **options}))


def resnet(num_labels: int = 4) -> ResNetForImageClassification:
    """A ResNet whose batch norms have seen something."""
    model = ResNetForImageClassification(ResNetConfig(**TINY, num_labels=num_labels))
    model(torch.randn(8, 3, 32, 32) + 1)
    return model.eval()


def images(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 3, 32, 32)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def state(module: nn.Module) -> dict:
    return {name: value.clone() for name, value in module.state_dict().items()}


def assert_equal(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize(("P", "K"), PAPER)
def test_parameters_are_the_backbones_and_prototypes_features_and_three(P, K):
    with torch.device("meta"):
        linear = ResNetForImageClassification(ResNetConfig(num_labels=P))
        model = TverskyResNetForImageClassification(TverskyResNetConfig(num_labels=P, num_features=K))
    D = 2048
    assert count(linear.resnet) == 23_508_032
    assert count(linear) == 23_508_032 + P * D + P
    assert count(model) == count(linear.resnet) + P * D + K * D + 3


def test_ten_classes_are_the_papers_baseline():
    with torch.device("meta"):
        assert count(ResNetForImageClassification(ResNetConfig(num_labels=10))) == 23_528_522


def test_logits_are_similarities_of_pooled_maps():
    model, x = tversky(intersection="min", level="set").eval(), images()
    pooled = model.resnet(x).pooler_output.flatten(1)
    out = model(x)
    torch.testing.assert_close(out.logits, model.classifier(pooled))
    assert out.logits.shape == (6, 5)
    assert (model.classifier.intersection, model.classifier.level) == ("min", "set")
    assert out.loss is None
    assert out.hidden_states is None
    assert len(model(x, output_hidden_states=True).hidden_states) == 3
    assert torch.equal(model(x, return_dict=False)[0], out.logits)


def test_labels_give_the_mean_cross_entropy():
    model, x, labels = tversky().eval(), images(), torch.tensor([0, 1, 2, 3, 4, 0])
    out = model(x, labels=labels)
    torch.testing.assert_close(out.loss, nn.functional.cross_entropy(out.logits, labels))
    out.loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_dropout_stands_before_the_head():
    seen = []
    model = tversky(head_dropout=0.5)
    model.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    nn.init.ones_(model.resnet.encoder.stages[-1].layers[-1].layer[-1].normalization.bias)
    model(images(64))
    share = (seen[0] == 0).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.1)
    model.eval()(images(64))
    assert (seen[1] == 0).float().mean() < 0.05
    assert TverskyResNetConfig().head_dropout == 0.1


@pytest.mark.parametrize("start", ["new", "from_resnet", "loaded"])
def test_a_frozen_backbone_stays_bit_equal_and_the_head_learns(start, tmp_path):
    if start == "from_resnet":
        model = TverskyResNetForImageClassification.from_resnet(resnet(), frozen=True, num_labels=5, num_features=7)
    else:
        model = tversky(frozen=True)
    if start == "loaded":
        model.save_pretrained(tmp_path)
        model = AutoModelForImageClassification.from_pretrained(tmp_path)
    before, head = state(model.resnet), state(model.classifier)
    assert "embedder.embedder.normalization.running_mean" in before
    model.train()
    assert model.dropout.training
    assert not any(module.training for module in model.resnet.modules())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(images() + 2, labels=torch.tensor([0, 1, 2, 3, 4, 0])).loss.backward()
        optimizer.step()
    assert_equal(state(model.resnet), before)
    for name, value in state(model.classifier).items():
        assert torch.equal(value, head[name]) == name.endswith("_unit"), name


def test_unfrozen_again_the_backbone_learns_too():
    model = tversky(frozen=True).freeze(False)
    before = state(model.resnet)
    assert model.resnet.training
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(images(), labels=torch.zeros(6, dtype=torch.long)).loss.backward()
    optimizer.step()
    after = state(model.resnet)
    assert all(not torch.equal(after[name], before[name]) for name in before if name.endswith("running_mean"))
    assert not torch.equal(
        after["embedder.embedder.convolution.weight"], before["embedder.embedder.convolution.weight"]
    )
    assert not model.config.frozen


def test_saved_and_loaded_by_auto_classes_gives_equal_logits(tmp_path):
    model = tversky(
        num_features=7, difference="substractmatch", alpha=0.3, learnable=("theta", "alpha"), bias=True, frozen=True
    ).eval()
    with torch.no_grad():
        model.classifier.beta.fill_(0.7)
        model.classifier.bias.normal_()
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(loaded, TverskyResNetForImageClassification)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), TverskyResNetConfig)
    assert not info["missing_keys"] | info["unexpected_keys"]
    assert_equal(loaded.state_dict(), model.state_dict())
    # A copy lies in memory as the original does; at addresses of a mapped file sums may be taken in another order.
    x = images()
    assert torch.equal(copy.deepcopy(loaded)(x).logits, model(x).logits)
    torch.testing.assert_close(loaded(x).logits, model(x).logits)
    assert (loaded.config.difference, loaded.config.learnable) == ("subtractmatch", ["alpha", "theta"])


def test_frozen_goes_to_disk_and_can_be_changed_on_loading(tmp_path):
    tversky(frozen=True).save_pretrained(tmp_path)
    frozen = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert not any(p.requires_grad for p in frozen.resnet.parameters())
    assert all(p.requires_grad for p in frozen.classifier.parameters())
    free = AutoModelForImageClassification.from_pretrained(tmp_path, frozen=False)
    assert all(p.requires_grad for p in free.parameters())
    assert free.train().resnet.training


def test_loading_in_halves_keeps_them(tmp_path):
    tversky().save_pretrained(tmp_path)
    loaded = TverskyResNetForImageClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert loaded(images().bfloat16()).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("missing", ["prototypes", "features.weight", "alpha_gain", "bias", "all"])
def test_what_a_checkpoint_lacks_starts_properly_and_what_it_has_stays(missing, tmp_path):
    model = tversky(num_features=3000, alpha=0.3, theta=2.0, bias=True, init="unit")
    with torch.no_grad():
        for tensor in model.classifier.state_dict().values():
            tensor.fill_(7.0)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gone = [f"classifier.{missing}"] if missing != "all" else [n for n in weights if n.startswith("classifier.")]
    save_file({n: v for n, v in weights.items() if n not in gone}, tmp_path / "model.safetensors", {"format": "pt"})
    loaded = TverskyResNetForImageClassification.from_pretrained(tmp_path)
    assert loaded.classifier.features.weight.isfinite().all()
    for name, value in loaded.state_dict().items():
        if not name.startswith("classifier."):
            assert torch.equal(value, weights[name]), name
        elif name not in gone:
            assert (value == 7).all(), name
        elif name.endswith(("prototypes", "features.weight")):
            assert 0.1 < value.std().item() < 0.4, name  # U(±√(3/16)) has 1/4
        else:
            starts = {"alpha_unit": 0.3, "beta_unit": 0.5, "theta_unit": 2.0, "bias": 0.0}
            expected = starts.get(name.split(".")[-1], 1.0)
            assert value.tolist() == pytest.approx([expected] * len(value)), name


@pytest.mark.parametrize("kind", ["folder", "path", "folder of a backbone", "model", "backbone"])
def test_from_resnet_takes_the_backbone_of_any_resnet(kind, tmp_path):
    source = resnet()
    match kind:
        case "folder" | "path":
            source.save_pretrained(tmp_path)
            given = str(tmp_path) if kind == "folder" else tmp_path
        case "folder of a backbone":
            source.resnet.save_pretrained(tmp_path)
            given = str(tmp_path)
        case "model":
            given = source
        case "backbone":
            given = source.resnet
    model = TverskyResNetForImageClassification.from_resnet(given, num_labels=3, num_features=7, theta=2.0)
    assert_equal(model.resnet.state_dict(), source.resnet.state_dict())
    assert not model.training
    assert (model.classifier.out_features, model.classifier.features.num_features) == (3, 7)
    assert model.classifier.theta.item() == 2
    assert model.config.id2label == {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
    with torch.no_grad():
        model.resnet.embedder.embedder.convolution.weight.zero_()
    assert source.resnet.embedder.embedder.convolution.weight.abs().max() > 0
    assert source.resnet.embedder.embedder.convolution.weight.requires_grad


def test_from_resnet_keeps_names_of_labels_or_takes_new_ones():
    source = resnet(2)
    source.config.id2label, source.config.label2id = {0: "cat", 1: "dog"}, {"cat": 0, "dog": 1}
    make = TverskyResNetForImageClassification.from_resnet
    assert make(source, num_features=3).config.id2label == {0: "cat", 1: "dog"}
    assert make(source, num_labels=2, num_features=3).config.label2id == {"cat": 0, "dog": 1}
    named = make(source, num_features=3, id2label={0: "a", 1: "b", 2: "c"})
    assert named.classifier.out_features == 3
    assert named.config.label2id == {"a": 0, "b": 1, "c": 2}
    with pytest.raises(ValueError, match="num_labels=4 contradicts id2label of 3 names"):
        make(source, num_labels=4, id2label={0: "a", 1: "b", 2: "c"})


def test_from_resnet_keeps_dtype_and_mode():
    source = resnet().double().train()
    model = TverskyResNetForImageClassification.from_resnet(source, num_features=3, frozen=True)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.training
    assert not model.resnet.training
    assert model(images().double()).logits.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(intersection="produkt"), "intersection must be one of .* Did you mean 'product'"),
        (dict(num_features=0), "num_features must be a whole number of 1 or more; got 0"),
        (dict(num_labels=0), "num_labels must be 1 or more"),
        (dict(head_dropout=1.5), "head_dropout must be a number from 0 to below 1; got 1.5"),
        (dict(alpha="x"), "alpha must be one number"),
        (dict(learnable=["gamma"]), "learnable must be one of alpha, beta, theta"),
        (dict(frozen="no"), "frozen must be True or False; got 'no'"),
    ],
)
def test_wrong_options_fail_in_the_config(options, message):
    with pytest.raises(ValueError, match=message):
        TverskyResNetConfig(**options)


def test_from_resnet_refuses_what_is_no_resnet(tmp_path):
    make = TverskyResNetForImageClassification.from_resnet
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        make(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="got NoneType"):
        TverskyResNetForImageClassification.from_resnet(None)  # pyright: ignore
    with pytest.raises(TypeError, match="takes a name, a folder or a ResNet; got Linear"):
        make(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="got TverskyResNetForImageClassification"):
        make(tversky())
    with pytest.raises(ValueError, match=r"got 'numfeatures'. Did you mean 'num_features'"):
        make(resnet(), numfeatures=3)
    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="must be of type 'resnet'; it is of type 'bert'"):
        make(tmp_path)
    tversky().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="is of type 'tversky_resnet': load it by from_pretrained"):
        make(tmp_path)


def test_damaged_weights_are_one_clear_error(tmp_path):
    tversky().save_pretrained(tmp_path / "tversky")
    resnet().save_pretrained(tmp_path / "linear")
    loads = [
        ("tversky", TverskyResNetForImageClassification.from_pretrained),
        ("tversky", AutoModelForImageClassification.from_pretrained),
        ("linear", TverskyResNetForImageClassification.from_resnet),
    ]
    for folder, load in loads:
        file = tmp_path / folder / "model.safetensors"
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(OSError, match=f"{folder}' are cut short or damaged"):
            load(tmp_path / folder)
        file.write_bytes(whole)
        config = tmp_path / folder / "config.json"
        settings = config.read_text()
        config.write_text(json.dumps({**json.loads(settings), "embedding_size": 12}))
        with pytest.raises(ValueError, match=r"is \[8.*\] in the weights of .* and \[12.*\] by the config"):
            load(tmp_path / folder)
        config.write_text(settings)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, n: int):
        self.images, self.labels = images(n), torch.arange(n) % 5

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {"pixel_values": self.images[i], "labels": self.labels[i]}


def test_trainer_accumulates_the_gradient_of_one_large_batch(tmp_path):
    pictures, heads = Pictures(8), []
    start = tversky(num_features=7, frozen=True, head_dropout=0.0).state_dict()
    for steps in (1, 2):
        model = tversky(num_features=7, frozen=True, head_dropout=0.0)
        model.load_state_dict(start)
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8 // steps,
            gradient_accumulation_steps=steps,
            max_steps=2,
            learning_rate=0.1,
            optim="sgd",
            max_grad_norm=0.0,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=pictures).train()
        assert_equal(state(model.resnet), {n.removeprefix("resnet."): v for n, v in start.items() if "resnet" in n})
        heads.append(state(model.classifier))
    for name in heads[0]:
        torch.testing.assert_close(heads[0][name], heads[1][name])
        assert torch.equal(heads[0][name], start[f"classifier.{name}"]) == name.endswith("_unit")


def test_the_head_is_a_tversky_projection_on_the_last_stage():
    head = tversky(num_features=7).classifier
    assert isinstance(head, TverskyProjection)
    assert head.in_features == TINY["hidden_sizes"][-1]
    assert isinstance(tversky().resnet, ResNetModel)
