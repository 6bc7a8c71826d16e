"""What every figure of an experiment is drawn from, a finished run, and what its drawing yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ...files import check_readable, parse_json, read_text
from ..record import RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What stands beside all that is shown of a smoke run.
MADE_UP = "made-up data: the numbers mean nothing"


class Run(NamedTuple):
    """A finished run: its label, its result.json, and the prefix of the paths of its other files."""

    label: str
    whole: dict[str, Any]
    files: str

    @property
    def config(self) -> dict[str, Any]:
        return self.whole["config"]

    @property
    def warning(self) -> str:
        """What to say beside the numbers of a smoke run; empty for any other."""
        if self.whole.get("config", {}).get("made_up"):
            return MADE_UP
        # XOR's points are real, but a smoke run takes few steps.
        return "smoke run: the numbers mean nothing" if self.whole.get("smoke") else ""

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """The arrays in the run's NAME.npz; empty if it has no such file."""
        path = Path(f"{self.files}{name}.npz")
        if not path.exists():
            return {}
        try:
            with np.load(path, allow_pickle=False) as found:
                return dict(found)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None

    def tensors(self) -> dict[str, Tensor]:
        """The trained tensors by name; empty without a model.safetensors, which results/ does not keep."""
        path = Path(f"{self.files}model.safetensors")
        if not path.exists():
            return {}
        try:
            check_readable(path)
            return load_file(path)
        except PermissionError as error:
            raise RunError(f"cannot open {path}: {error.strerror}.") from None
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None

    def trace(self, network: str = "") -> dict[str, list[float]]:
        """step, alpha, beta and theta from the run's log, of one network where it has several; empty without them."""
        path = Path(f"{self.files}log.jsonl")
        try:
            lines = [parse_json(line) for line in read_text(path).splitlines()] if path.exists() else []
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}; make it again by running the experiment.") from None
        start = f"{network}/" if network else ""
        keys = {"step": "step"} | {name: start + name for name in ("alpha", "beta", "theta")}
        lines = [line for line in lines if isinstance(line, dict) and all(key in line for key in keys.values())]
        return {name: [line[key] for line in lines] for name, key in keys.items()} if lines else {}


class Drawn(NamedTuple):
    """A figure, the name of its file, a heading, and a description for those who cannot see it.

    compares: whether it has our numbers beside the paper's.
    """

    name: str
    title: str
    alt: str
    figure: Figure
    compares: bool = False


class Missing(NamedTuple):
    """A figure that could not be drawn, and why."""

    title: str
    why: str


Progress = Callable[..., None]
Made = Iterator[Drawn | Missing]
