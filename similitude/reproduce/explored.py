"""What ``similitude explore`` looks at: sessions on a run, a checkpoint, word vectors or the demo's digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..explore.content import OBJECTS, Content, Progress, content, content_of_words
from ..explore.indexed import content_of_index
from ..explore.session import Session
from ..files import read_json
from ..interpret import words
from ..interpret.sets import Universe
from ..models.data_domain import DataDomain
from ..reach import seen
from ..retrieval import TverskyIndex
from ..retrieval.saved import ABOUT as INDEX
from . import demo
from .data.digits import mnist
from .data.made_up import synthetic_digits
from .figures.gallery import runs_in
from .figures.runs import MADE_UP, Run
from .loop import counted
from .mnist import NETWORKS
from .record import RunError, result_of_now

DEMO = "demo"
# Networks of a run with a Tversky layer, best first: those that can be drawn on.
TVERSKY = ("VisualTverskyMNISTNet", "TverskyMNISTNet")
DIGITS = tuple("0123456789")
NOTE = "The digits are those of MNIST."


def session_of(
    source: str,
    network: str | None = None,
    names: Path | None = None,
    vocabulary: Path | None = None,
    how_many: int = 30_000,
    features: int | None = None,
    bank: str | None = None,
    progress: Progress = lambda done, steps, what: None,
) -> Session:
    """A session on what the source holds; the arguments are those of the command, and of ``content``."""
    if source == DEMO:
        return demo_session(names, progress=progress)
    folder = Path(source).expanduser()
    if (folder / INDEX).exists():
        return _index_session(folder, names or folder / "names.json", progress)
    if (folder / "result.json").exists() and bank is None:
        run = runs_in(folder)[0]
        if run.whole["experiment"] in ("mnist", "editing"):
            name, model, x, y = _network(run, network)
            traces = run.trace("" if run.whole["experiment"] == "editing" else name)
            title = run.label + _warning(folder)
            return session_of_digits(model, x, y, title, names or folder / "names.json", traces)

    if (folder / "model.json").is_file() and (folder / "model.safetensors").is_file():
        from ..human import TverskySimilarityModel

        u, title = TverskySimilarityModel.load(folder).universe(), f"Objects of {folder.name}"
        return _session_of_words(u, title, names, progress)

    def tell(done: int, steps: int) -> None:
        progress(done, steps, "fitting a bank")

    if not folder.exists() and source.replace("-", "_") != words.GLOVE_PACKAGE:
        raise words.SourceError(
            f"{source} does not exist; give a run's folder, a checkpoint, an index, word vectors, or demo."
        )
    u = words.universe(source, vocabulary, how_many, features, progress=tell, bank=bank)
    return _session_of_words(u, f"Words of {folder.name or source}{_warning(folder)}", names, progress)


def note_of(source: str, session: Session) -> str:
    """Where the digits of a session are from; empty where it has none."""
    if session.universe is not None or session.index is not None:
        return ""
    smoke = source != DEMO and _warning(Path(source).expanduser())
    return f"The digits are {MADE_UP}." if smoke else NOTE


def _warning(folder: Path) -> str:
    """What the title of a smoke run's page ends with."""
    result = folder / "result.json"
    warning = Run(folder.name, result_of_now(read_json(result)), "").warning if result.is_file() else ""
    return f" ({warning})" if warning else ""


def _session_of_words(u: Universe, title: str, names: Path | None, progress: Progress) -> Session:
    def make() -> Content:
        return content_of_words(u, title, exact=2**24, rounded=2**25, progress=progress)

    return Session(make, universe=u, names_file=names)


def _index_session(folder: Path, names: Path, progress: Progress) -> Session:
    index = TverskyIndex.load(folder)

    def make() -> Content:
        return content_of_index(index, f"Documents of {folder.name}", exact=2**24, rounded=2**25, progress=progress)

    return Session(make, bank=index.layer.features, index=index, names_file=names)


def session_of_digits(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    title: str,
    names: Path | None = None,
    traces: Mapping[str, Sequence[float]] | None = None,
) -> Session:
    """A session on a network and digits ``[N, 1, 28, 28]``."""
    edited, vectors = (model, x) if isinstance(model, DataDomain) else seen(model.eval(), x)
    bank = None if isinstance(edited, DataDomain) else edited.features

    def make() -> Content:
        return content(model, x, y, classes=DIGITS, title=title, traces=traces)

    return Session(make, model.eval(), bank, edited=edited, inputs=vectors, labels=y, names_file=names)


def demo_session(
    names: Path | None = None, examples: int = OBJECTS, progress: Progress = lambda done, steps, what: None
) -> Session:
    """The demo's layer, which is trained first, and its test digits; the page holds as many of them as ``examples``."""
    config = demo.Config()
    digits = demo.load_digits(config.seed)
    layer = demo.tversky(digits, config)
    step = counted(progress, config.steps(digits), "training the demo's layer")
    demo.train(layer, digits, config, config.tversky_rate, config.tversky_decay, lambda loss: step())
    x, y = digits.test_x, digits.test_y
    images = digits.restored(x).clamp(0, 1).reshape(-1, demo.SIDE, demo.SIDE)

    def make() -> Content:
        return content(layer, x, y, classes=DIGITS, images=images, title="MNIST digits", objects=examples)

    return Session(make, layer.eval(), layer.features, edited=layer, inputs=x, labels=y, names_file=names)


def _network(run: Run, wanted: str | None) -> tuple[str, nn.Module, Tensor, Tensor]:
    """The name of a run's trained network, the network and the test digits."""
    tensors, config = run.tensors(), run.config
    if not tensors:
        raise RunError(f"{run.label} has no model.safetensors: look at the folder of the run itself.")
    if run.whole["experiment"] == "editing":
        name, own = TVERSKY[0], tensors
    else:
        there = [name for name in TVERSKY if name in config["networks"]]
        if not there or wanted not in (None, *there):
            asked = "" if wanted is None else f" {wanted!r}; there"
            raise RunError(f"{run.label} has no such Tversky network{asked} are {', '.join(there) or 'none'}.")
        name = wanted or there[0]
        own = {k.removeprefix(f"{name}/"): v for k, v in tensors.items() if k.startswith(f"{name}/")}
    options: dict[str, Any] = {"num_features": len(own["features"])} if "features" in own else {}
    plain = {"init": "unit", "parametrization": "plain"}
    model = NETWORKS[name](
        dropout=config["dropout"], **options, **(plain if "alpha" in own or "head.alpha" in own else {})
    )
    try:
        model.load_state_dict(own)
    except RuntimeError as error:
        raise RunError(f"{run.label} is of another version: {str(error).splitlines()[-1].strip()}") from None
    digits = synthetic_digits(config["made_up"]) if config["made_up"] else mnist()
    return name, model, digits.test_x.float().div(255).unsqueeze(1), torch.as_tensor(digits.test_y).long()
