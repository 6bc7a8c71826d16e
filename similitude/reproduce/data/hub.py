"""The Hugging Face hub: MNIST, Penn Treebank and GPT-2's vocabulary as their published files, and pretrained models.

Whatever cannot be loaded raises a LookupError that says why.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np


def mnist() -> dict[str, bytes]:
    """MNIST's four idx files by name, rebuilt from the hub's images and labels."""
    splits, contents = _load("ylecun/mnist"), {}
    for split, file in (("train", "train"), ("test", "t10k")):
        rows = [(np.asarray(row["image"]), row["label"]) for row in splits[split]]
        for kind, column in zip(("images", "labels"), zip(*rows)):
            array = np.array(column, dtype=np.uint8)
            header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            contents[f"{file}-{kind}-idx{array.ndim}-ubyte"] = header + array.tobytes()
    return contents


def ptb() -> dict[str, bytes]:
    """Mikolov's three texts by file name."""
    # The data set is a script, which `datasets` no longer runs; the hub keeps its output on this branch.
    splits = _load("ptb-text-only/ptb_text_only", revision="refs/convert/parquet")
    # Mikolov's lines start and end with a space, which the script stripped.
    return {
        f"ptb.{name}.txt": "".join(f" {row['sentence']} \n" for row in splits[split]).encode()
        for split, name in (("train", "train"), ("validation", "valid"), ("test", "test"))
    }


def gpt2_file(name: str) -> Path:
    """The path of one of GPT-2's own files, downloaded now or earlier."""
    online = _online()
    try:
        from huggingface_hub import hf_hub_download

        # Files that were downloaded earlier load without a network too.
        return Path(hf_hub_download("openai-community/gpt2", name, local_files_only=not online))
    # Every failure has the same remedy: get the file by hand.
    except Exception as error:
        raise LookupError(_said(error) if online else "the Hugging Face hub cannot be reached from here") from error


def pretrained(kind: Any, source: str, **options: Any) -> Any:
    """A pretrained model in 32 bits, from a folder or the hub.

    The checkpoint may lack a classifier, a head that is tied to the embedding, and counts of batches; any other missing
    tensor is an error.

    Args:
        kind: the model's class, with transformers' ``from_pretrained``.
        source: a folder, or a name on the hub.
        options: changes to the checkpoint's config.
    """
    import torch

    from ...models.hf import load

    folder, online = Path(source).is_dir(), _online()
    try:
        # Files that were downloaded earlier load without a network too.
        cached = folder or not online
        return load(kind, source, ("classifier.",), local_files_only=cached, dtype=torch.float32, **options)
    except Exception as error:
        offline = not folder and not online
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise LookupError("the Hugging Face hub cannot be reached from here" if offline else said) from error


def _load(repository: str, **options: Any) -> Any:
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise LookupError("with `pip install datasets` it would come from the Hugging Face hub") from None
    try:
        return load_dataset(repository, **options)
    except Exception as error:
        raise LookupError(_said(error)) from error


def _online() -> bool:
    """Whether the hub's host name resolves; asked first, because the hub's own client retries for half a minute."""
    if getproxies():
        return True
    host = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    try:
        return bool(socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _said(error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"the Hugging Face hub did not give it: {reason[:160]}{'…' if len(reason) > 160 else ''}"
