"""to_onnx writes a model as an ONNX file for any batch size, and checks its answers first."""

from __future__ import annotations

import copy
import logging
import os
import tempfile
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from .models.data_domain import DataDomain

TOLERANCE = 1e-4


def to_onnx(model: nn.Module, example: Tensor, path: str | os.PathLike, dynamic: Sequence[int] = (0,)) -> Path:
    """The path of an ONNX file that answers as ``model`` does in ``eval()``, from "input" to "output".

    A copy is exported, in float32 on the CPU; prototypes and features that are images are encoded in it, once. If
    onnxruntime is installed, its answers to the example, and to twice the batch if axis 0 is dynamic, are compared with
    torch's. If they differ by more than 1e-4 of the largest, ``RuntimeError`` is raised and nothing is written.

    Args:
        model: A module that takes one tensor and returns a tensor, or an object with ``logits``, which is then the
            output.
        example: An input of the model, with the batch as its first axis.
        path: The file to write.
        dynamic: Axes of the example whose sizes may differ later.

    Equivalent to: ``torch.onnx.export(model.eval(), (example,), path, dynamic_shapes=[{0: "batch"}])``, checked.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise ImportError(f"to_onnx needs {' and '.join(missing)}: pip install 'similitude[onnx]'.")
    path = Path(path)
    _check(model, example, path, dynamic)
    # Without gradients, which the exporter would trace too, at a fifth of its time.
    answers = _Answers(copy.deepcopy(model).float().cpu().eval()).requires_grad_(False)
    example = example.detach().cpu()
    inputs = [example.float() if example.is_floating_point() else example]
    if 0 in dynamic:
        inputs.append(torch.cat(inputs * 2))
    with torch.no_grad():
        expected = [answers(x) for x in inputs]
    if not isinstance(expected[0], Tensor):
        raise TypeError(f"the model must return a tensor, or an object with logits; got {type(expected[0]).__name__}.")
    answers.model = _without_images(answers.model)
    program = _export(answers, inputs[0], dynamic)
    # Beyond 2 GB weights go into a second file, to which the first refers by name.
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        program.save(Path(folder) / path.name)
        if find_spec("onnxruntime") is not None:
            _compare(Path(folder) / path.name, inputs, expected)
        for file in sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name):
            os.replace(file, path.parent / file.name)
    return path


class _Answers(nn.Module):
    """The model as a function of one tensor that returns one tensor."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input: Tensor) -> Tensor:
        out = self.model(input)
        return getattr(out, "logits", out)


def _check(model: nn.Module, example: Tensor, path: Path, dynamic: Sequence[int]) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a module; got {type(model).__name__}.")
    if not isinstance(example, Tensor):
        raise TypeError(f"example must be a tensor that the model takes; got {type(example).__name__}.")
    if example.dim() < 2 or example.numel() == 0:
        raise ValueError(f"example must be a batch of one input or more, [N, ...]; got shape {list(example.shape)}.")
    if not example.isfinite().all():
        raise ValueError("example must be finite, since its answers are compared; it has NaN or infinite numbers.")
    if not isinstance(dynamic, Sequence) or not set(dynamic) <= set(range(example.dim())):
        raise ValueError(f"dynamic must be axes of the example, such as (0,) or (0, 1); got {dynamic!r}.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name!r} to.")
    if path.is_dir():
        raise IsADirectoryError(f"path must be that of a file, such as 'model.onnx'; {str(path)!r} is a folder.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise type(error)(f"nothing can be written to {str(path.parent)!r}: {error.strerror}.") from None


def _without_images(model: nn.Module) -> nn.Module:
    """The model with encoded vectors instead of images, which would go through the backbone at every call."""
    for name, module in list(model.named_modules()):
        if isinstance(module, DataDomain) and isinstance(module.backbone, nn.Module):
            plain = nn.Sequential(module.backbone, module.materialize())
            if not name:
                return plain
            model.set_submodule(name, plain)
    return model


def _export(answers: _Answers, example: Tensor, dynamic: Sequence[int]) -> torch.onnx.ONNXProgram:
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass

    sizes = {axis: torch.export.Dim("batch" if axis == 0 else f"axis_{axis}") for axis in dynamic}
    names: dict = {"input_names": ["input"], "output_names": ["output"]}
    level = logging.root.manager.disable
    try:
        # The exporter warns of packages and operators that play no part here.
        logging.disable(logging.WARNING)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            program = torch.onnx.export(answers, (example,), **names, dynamic_shapes=(sizes,), verbose=False)
    finally:
        logging.disable(level)
    assert program is not None
    # Metadata names the paths and lines of the code here, and would be half of a small file.
    ClearMetadataAndDocStringPass()(program.model)
    return program


def _compare(file: Path, inputs: list[Tensor], expected: list[Tensor]) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for x, y in zip(inputs, expected, strict=True):
        (answer,) = session.run(None, {"input": x.numpy()})
        error, size = (torch.from_numpy(answer) - y).abs().max().item(), y.abs().max().item()
        if not error <= TOLERANCE * max(1.0, size):
            raise RuntimeError(
                f"onnxruntime's answers differ from torch's by {error:.1e}, where the largest is {size:.1e}; "
                "nothing was written."
            )
