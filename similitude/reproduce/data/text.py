"""Penn Treebank from its published files, in the tokens of GPT-2."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from . import hub
from .find import DataError, File, contents, decoded, find, from_hub, hashes_of, kept, read, sha256

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Text:
    """Tokens to train, to validate and to test with, int64 ``[N]`` each.

    ``vocabulary`` is the number of different tokens, and ``hashes`` has the sha256 of each file that was read.
    """

    train: Tensor
    valid: Tensor
    test: Tensor
    vocabulary: int
    hashes: dict[str, str]


def ptb(where: str | Path | None = None, tokenizer: str | Path | Tokenizer | None = None, check: bool = True) -> Text:
    """Mikolov's Penn Treebank in tokens of GPT-2: the whole text, with its ``<unk>`` and newlines.

    Encoding takes some seconds; the tokens are cached in ``~/.cache/similitude``.

    Args:
        where: the folder with the three texts, or its parent. Default: ``SIMILITUDE_DATA``, then the hub.
        tokenizer: the folder with GPT-2's vocab.json and merges.txt, or any ``tokenizers.Tokenizer``.
        check: whether the files must be the published ones; with False, any text and vocabulary are read.
    """
    splits = ("train", "valid", "test")
    found = contents("ptb", [f"ptb.{split}.txt" for split in splits], where, hub.ptb)
    texts = [decoded(*found[f"ptb.{split}.txt"]) for split in splits]
    hashes = hashes_of("ptb", found, check)
    if tokenizer is None and where is not None and (Path(where).expanduser() / "gpt2-tokenizer").is_dir():
        tokenizer = where
    encoder, its_hashes = _tokenizer(tokenizer, check)

    def encode() -> dict[str, np.ndarray]:
        # The same tokens as encode(), in half the time, because it does not track their offsets.
        ids = [encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids for text in texts]
        return {split: np.array(i, dtype=np.int32) for split, i in zip(splits, ids, strict=True)}

    key = sha256("\n".join([encoder.to_str(), *hashes.values()]).encode())
    tokens = {split: torch.from_numpy(ids).long() for split, ids in kept(f"ptb-{key[:32]}.npz", encode).items()}
    return Text(**tokens, vocabulary=encoder.get_vocab_size(), hashes={**hashes, **its_hashes})


def _tokenizer(given: str | Path | Tokenizer | None, check: bool) -> tuple[Tokenizer, dict[str, str]]:
    """GPT-2's byte-level BPE, or a copy of the given tokenizer, and its hashes."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ImportError:
        raise ImportError("text needs tokenizers: pip install 'similitude[hf]'") from None
    if isinstance(given, Tokenizer):
        copied = Tokenizer.from_str(given.to_str())
        copied.no_truncation()
        copied.no_padding()
        return copied, {"tokenizer": sha256(copied.to_str().encode())}
    if given is not None and not isinstance(given, str | os.PathLike):
        raise TypeError(f"tokenizer must be a folder or a tokenizers.Tokenizer; got {type(given).__name__}.")
    name = "gpt2-tokenizer"
    folder = find(name, given)
    files = [folder / file if folder else from_hub(name, hub.gpt2_file, file) for file in ("vocab.json", "merges.txt")]
    hashes = hashes_of(name, {path.name: File(read(path, name), str(path)) for path in files}, check)
    try:
        bpe = models.BPE(*models.BPE.read_file(*map(str, files)))
    # tokenizers raises nothing more precise.
    except Exception as error:
        raise DataError(f"{files[0]} and {files[1].name} make no tokenizer: {error}.") from None
    tokenizer = Tokenizer(bpe)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, hashes
