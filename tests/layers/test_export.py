"""Shipped models answer as they do in torch: ONNX in onnxruntime, torch.export, 8-bit integers."""

import copy

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

import similitude.export
from similitude import FeatureBank, TverskyProjection
from similitude.export import to_onnx
from similitude.models import mnist
from similitude.models.data_domain import DataDomain

# Each intersection at each level, each difference, both models; products, min-sums and what is made of their sums.
OPTIONS = """
    product ignorematch feature contrast
    product subtractmatch feature ratio
    min ignorematch feature ratio
    max subtractmatch feature contrast
    mean ignorematch feature ratio
    gmean ignorematch feature contrast
    softmin ignorematch feature contrast
    min subtractmatch set contrast
    max ignorematch set ratio
    mean subtractmatch set ratio
    gmean subtractmatch set contrast
    softmin subtractmatch set ratio
"""
NAMES = ("intersection", "difference", "level", "model")
COMBINATIONS = [dict(zip(NAMES, line.split(), strict=True)) for line in OPTIONS.strip().splitlines()]


def cut() -> TverskyProjection:
    """With thresholds and a feature that is named and fixed."""
    layer = TverskyProjection(12, 7, 9, presence=0.2)
    examples = torch.randn(60, 12)
    layer.features.name("ahead", examples[examples[:, 0] > 0], examples[examples[:, 0] < 0])
    return layer


class Heads(nn.Module):
    """Projections with all the combinations, side by side: exporting each would take three times as long."""

    def __init__(self):
        super().__init__()
        bank = FeatureBank(9, 12, init="unit")
        common = dict(features=bank, alpha=0.3, beta=0.7, theta=1.2)
        layers = [
            TverskyProjection(12, 7, **common, **c, normalize=c["intersection"] == "gmean", bias=c["model"] == "ratio")
            for c in COMBINATIONS
        ]
        layers += [cut()]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            if layer.bias is not None:
                nn.init.normal_(layer.bias)
            if layer.intersection == "softmin":
                # Short vectors have shared sums of either sign, and a ratio of such is all rounding.
                layer.prototypes.data *= 40 if layer.level == "feature" else 300

    def forward(self, x):
        return torch.cat([layer(x) for layer in self.layers], -1)


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    torch.manual_seed(0)
    model = Heads()
    return model, to_onnx(model, torch.randn(2, 12), tmp_path_factory.mktemp("heads") / "heads.onnx")


@pytest.fixture(scope="module")
def projection(tmp_path_factory):
    torch.manual_seed(0)
    model = TverskyProjection(64, 50, num_features=40, intersection="mean", dtype=torch.bfloat16)
    before = copy.deepcopy(model)
    example = torch.randn(1, 64, dtype=torch.bfloat16)
    path = to_onnx(model, example, tmp_path_factory.mktemp("projection") / "projection.onnx")
    # The model stays as it was.
    assert model.training
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True))
    return model.float(), path


def answers(model, x):
    with torch.no_grad():
        out = model.eval()(x)
    return getattr(out, "logits", out)


def run(path, x):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {"input": x.numpy()})[0])


def assert_same(path, model, make, batches=(1, 3, 100)):
    """Answers of onnxruntime and torch to random inputs, in batches of other sizes than the exported one."""
    for n in batches:
        x = make(n)
        expected = answers(model, x)
        assert expected.std() > 1e-3
        torch.testing.assert_close(run(path, x), expected, atol=1e-4, rtol=0)


def test_onnx_answers_as_torch_for_all_options(heads):
    model, path = heads
    assert_same(path, model, lambda n: torch.randn(n, 12))


def test_softmin_of_large_measures_does_not_overflow_in_onnx(heads):
    model, path = heads
    x = 300 * torch.randn(100, 12)
    got, expected = run(path, x).split(7, -1), answers(model, x).split(7, -1)
    softmins = [n for n, layer in enumerate(model.layers) if layer.intersection == "softmin"]
    assert len(softmins) == 2
    for n in softmins:
        size = expected[n].abs().max().item()
        torch.testing.assert_close(got[n], expected[n], atol=1e-6 * size, rtol=0)


def test_no_tensor_in_onnx_is_over_pairs_and_features(heads):
    graph = onnx.shape_inference.infer_shapes(onnx.load(heads[1]), strict_mode=True).graph
    loops = [node.attribute[0].g for node in graph.node if node.op_type == "Scan"]
    assert len(loops) >= 4
    made = [value for g in (graph, *loops) for value in (*g.value_info, *g.output)]
    assert len(made) > 100
    assert max(len(value.type.tensor_type.shape.dim) for value in made) == 2


def test_halves_and_an_example_of_one_make_an_onnx_model_in_32_bits_for_any_batch(projection):
    model, path = projection
    assert_same(path, model, lambda n: torch.randn(n, 64))


def test_a_file_does_not_tell_where_it_was_made(heads):
    assert b"similitude/" not in heads[1].read_bytes()


# Without their images the visual networks are the other two.
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(mnist.MNISTNet, marks=pytest.mark.slow),
        pytest.param(mnist.TverskyMNISTNet, marks=pytest.mark.slow),
        mnist.VisualMNISTNet,
        mnist.VisualTverskyMNISTNet,
    ],
)
def test_onnx_answers_as_the_networks_for_mnist(network, tmp_path):
    model = network()
    with torch.no_grad():
        for _ in range(3):
            model(3 * torch.rand(16, 1, 28, 28))
    path = to_onnx(model, torch.rand(2, 1, 28, 28), tmp_path / "mnist.onnx")
    assert model.training
    assert_same(path, model, lambda n: 3 * torch.rand(n, 1, 28, 28))
    # Images are encoded once, and not at every call.
    shapes = [list(tensor.dims) for tensor in onnx.load(path).graph.initializer]
    assert len(shapes) > 5
    assert [10, 1, 28, 28] not in shapes


def tiny_resnet():
    from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

    sizes = dict(embedding_size=8, hidden_sizes=[8], depths=[1], layer_type="bottleneck")
    return TverskyResNetForImageClassification(TverskyResNetConfig(num_labels=5, num_features=12, **sizes))


def test_onnx_answers_as_a_tversky_resnet_for_images_of_any_size(tmp_path):
    model = tiny_resnet()
    with torch.no_grad():
        model(torch.randn(8, 3, 32, 32))
    path = to_onnx(model, torch.randn(2, 3, 32, 32), tmp_path / "resnet.onnx", dynamic=(0, 2, 3))
    assert_same(path, model, lambda n: torch.randn(n, 3, 32, 32))
    assert_same(path, model, lambda n: torch.randn(n, 3, 40, 56), batches=(2,))


@pytest.mark.slow
def test_onnx_answers_as_a_tversky_resnet_50(tmp_path):
    from similitude.models.resnet import TverskyResNetConfig, TverskyResNetForImageClassification

    model = TverskyResNetForImageClassification(TverskyResNetConfig(num_labels=555))
    with torch.no_grad():
        model(torch.randn(4, 3, 224, 224))
    path = to_onnx(model, torch.randn(2, 3, 224, 224), tmp_path / "resnet.onnx")
    assert_same(path, model, lambda n: torch.randn(n, 3, 224, 224))


def tiny_gpt2():
    from similitude.models.gpt2 import TverskyGPT2Config, TverskyGPT2LMHeadModel

    sizes = dict(vocab_size=101, n_embd=16, n_layer=1, n_head=2, n_positions=32, num_features=24)
    return TverskyGPT2LMHeadModel(TverskyGPT2Config(**sizes, variant="all-1layer", bos_token_id=1, eos_token_id=2))


def test_onnx_answers_as_a_tversky_gpt2_for_texts_of_any_length(tmp_path):
    model = tiny_gpt2()
    path = to_onnx(model, torch.randint(101, (2, 7)), tmp_path / "gpt2.onnx", dynamic=(0, 1))
    for length in (1, 19):
        assert_same(path, model, lambda n: torch.randint(101, (n, length)), batches=(1, 3))  # noqa: B023


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: TverskyProjection(12, 7, num_features=9), (12,)),
        (lambda: TverskyProjection(12, 7, num_features=9, intersection="softmin", difference="subtractmatch"), (12,)),
        (mnist.VisualTverskyMNISTNet, (1, 28, 28)),
        # Images apart it is the one before.
        pytest.param(mnist.TverskyMNISTNet, (1, 28, 28), marks=pytest.mark.slow),
    ],
    ids=["product", "min-sum", "data-domain", "mnist"],
)
def test_an_exported_program_answers_the_same_after_saving_and_loading(make, shape, tmp_path):
    model = make().eval()
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.rand(2, *shape),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    for n in (1, 3, 100):
        x = torch.rand(n, *shape)
        torch.testing.assert_close(again(x), answers(model, x))


# What ONNX is made of is such a program, so that the test of GPT-2 in ONNX sees what torch.export does to it.
@pytest.mark.slow
def test_an_exported_gpt2_answers_the_same_after_saving_and_loading(tmp_path):
    model = tiny_gpt2().eval()
    sizes = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}, "use_cache": None}
    kwargs = {"input_ids": torch.randint(101, (2, 7)), "use_cache": False}
    torch.export.save(torch.export.export(model, (), kwargs, dynamic_shapes=sizes), tmp_path / "model.pt2")
    again = torch.export.load(tmp_path / "model.pt2").module()
    tokens = torch.randint(101, (3, 11))
    torch.testing.assert_close(again(input_ids=tokens, use_cache=False).logits, answers(model, tokens))


def test_eight_bits_are_half_of_the_size_and_choose_the_same_prototypes(projection, tmp_path):
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, path = projection
    quant_pre_process(path, tmp_path / "folded.onnx", skip_symbolic_shape=True)
    quantize_dynamic(tmp_path / "folded.onnx", tmp_path / "int8.onnx")
    assert (tmp_path / "int8.onnx").stat().st_size < path.stat().st_size / 2
    # Inputs near a prototype are those that a trained layer sees.
    chosen = torch.arange(100) % 50
    x = 3 * model.prototypes.detach()[chosen] + 0.1 * torch.randn(100, 64)
    exact, rounded = run(path, x), run(tmp_path / "int8.onnx", x)
    assert (exact.argmax(-1) == rounded.argmax(-1)).float().mean() >= 0.98
    assert (exact - rounded).std() < 0.2 * exact.std()


class Moody(nn.Linear):
    """Answers that no export can repeat."""

    def forward(self, x):
        return super().forward(x) + torch.rand_like(x)


def test_a_model_whose_answers_differ_is_not_written(tmp_path):
    (tmp_path / "model.onnx").write_text("before")
    with pytest.raises(RuntimeError, match=r"differ from torch's by .*; nothing was written\.$"):
        to_onnx(Moody(4, 4), torch.randn(2, 4), tmp_path / "model.onnx")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["before"]


def test_images_within_a_larger_model_are_encoded_too():
    model = nn.Sequential(DataDomain(nn.Flatten(), nn.Linear(6, 5), (2, 3)), nn.ReLU()).eval()
    x = torch.randn(4, 2, 3)
    expected = answers(model, x)
    plain = similitude.export._without_images(model)
    assert not any(isinstance(module, DataDomain) for module in plain.modules())
    torch.testing.assert_close(answers(plain, x), expected)


@pytest.mark.parametrize(
    ("error", "message", "model", "example", "options"),
    [
        (TypeError, "model must be a module; got function.", lambda x: x, torch.ones(2, 3), {}),
        (TypeError, "example must be a tensor that the model takes; got list.", nn.ReLU(), [1.0], {}),
        (
            ValueError,
            "example must be a batch of one input or more, [N, ...]; got shape [0, 3].",
            nn.ReLU(),
            torch.ones(0, 3),
            {},
        ),
        (
            ValueError,
            "dynamic must be axes of the example, such as (0,) or (0, 1); got (0, 2).",
            nn.ReLU(),
            torch.ones(2, 3),
            {"dynamic": (0, 2)},
        ),
        (
            ValueError,
            "dynamic must be axes of the example, such as (0,) or (0, 1); got 0.",
            nn.ReLU(),
            torch.ones(2, 3),
            {"dynamic": 0},
        ),
        (
            TypeError,
            "the model must return a tensor, or an object with logits; got tuple.",
            nn.LSTM(3, 3),
            torch.ones(2, 3),
            {},
        ),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_sentence(error, message, model, example, options, tmp_path):
    with pytest.raises(error) as caught:
        to_onnx(model, example, tmp_path / "model.onnx", **options)
    assert str(caught.value) == message
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"^there is no folder '.*nowhere' to write 'model.onnx' to\.$"):
        to_onnx(nn.ReLU(), torch.ones(2, 3), tmp_path / "nowhere" / "model.onnx")
    with pytest.raises(
        IsADirectoryError, match=r"^path must be that of a file, such as 'model.onnx'; '.*' is a folder\.$"
    ):
        to_onnx(nn.ReLU(), torch.ones(2, 3), tmp_path)

    def refused(dir):
        raise PermissionError(13, "Permission denied", f"{dir}/tmp1234")

    # The owner of a test may be root, who may write everywhere.
    monkeypatch.setattr(similitude.export.tempfile, "TemporaryFile", refused)
    with pytest.raises(PermissionError, match=rf"^nothing can be written to '{tmp_path}': Permission denied\.$"):
        to_onnx(nn.ReLU(), torch.ones(2, 3), tmp_path / "model.onnx")


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(similitude.export, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(ImportError, match=r"^to_onnx needs onnxscript: pip install 'similitude\[onnx\]'\.$"):
        to_onnx(nn.ReLU(), torch.ones(2, 3), tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("example", "sentence"),
    [(torch.ones(8), r"example must be a batch .* got shape \[8\]"), (torch.full((2, 8), torch.nan), "must be finite")],
)
def test_an_example_that_shows_nothing_is_refused(example, sentence, tmp_path):
    with pytest.raises(ValueError, match=sentence):
        to_onnx(TverskyProjection(8, 3, num_features=4), example, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
