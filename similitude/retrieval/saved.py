"""An index in a folder: index.json, which says what it is, and a safetensors file beside it, which index.json names.

index.json is replaced last, at once, so that a save that is killed leaves the index that was there. Tensors are mapped
when they are loaded: what a search does not read is not in memory.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from .. import __version__
from ..bank import cut
from ..files import clear_halves, locked, make_folder, parse_json, read_json, whole, write_json
from ..form import Form
from ..names import Notes
from ..nn import TverskySimilarity
from ..reach import comparison
from .bounds import Reach
from .codes import constants
from .flat import Flat
from .ids import Ids
from .lists import Lists

if TYPE_CHECKING:
    from .index import Progress, TverskyIndex

ABOUT, FORMAT = "index.json", 1
# Bytes that are read or written at once.
PIECE = 2**24
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "U8": np.uint8, "I64": np.int64, "I32": np.int32}
CODE_OF = {np.dtype(dtype): code for code, dtype in DTYPES.items()}


class NoIndex(OSError):
    """A folder without an index, with one that is damaged, or with one of another layer."""


def save(index: TverskyIndex, folder: Path, progress: Progress | None) -> None:
    """See ``TverskyIndex.save``."""
    make_folder(folder)
    lock = locked(folder)
    try:
        clear_halves(folder, "*index*")
        name = f"index-{uuid.uuid4().hex[:8]}.safetensors"
        digest = _write(folder / name, _tensors(index), progress)
        about = {"format": FORMAT, "similitude": __version__, "file": name, "sha256": digest} | _described(index)
        write_json(folder / ABOUT, about | {"checked": _digest(about)})
        with suppress(OSError):  # some systems keep a file that is mapped
            for path in folder.glob("index-????????.safetensors"):
                if path.name != name:
                    path.unlink()
    finally:
        lock.release()


def load(make: type[TverskyIndex], folder: Path, layer: Any) -> TverskyIndex:
    """See ``TverskyIndex.load``."""
    about = _about(folder)
    path = folder / Path(str(about["file"])).name
    if not path.is_file():
        raise NoIndex(f"{folder} has an index without its {path.name}: restore that file, or index again.")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != about["sha256"]:
        raise NoIndex(f"{path} is damaged: it is not the file that was saved; restore it, or index again.")
    tensors = _mapped(path)
    own = _layer(about, tensors)
    if layer is not None:
        given = comparison(layer)
        if bank_digest(given) != about["bank"]:
            D, K = about["dim"], about["num_features"]
            raise NoIndex(
                f"{folder} is the index of another layer: its documents were measured by another bank, of {K} features "
                f"of width {D}; index them again with this layer, which has {given.features.num_features} of width "
                f"{given.features.dim}, or load without it."
            )
        own = given
    index = make(own, about["codes"])
    index._ids = Ids(tensors["ids"].numpy(), tensors["letters"].numpy() if "letters" in tensors else None)
    reach = {name: tensors[f"reach.{name}"].clone() for name in ("most", "sums", "counts")}
    index._reach = Reach(about["longest"], about["total"], **reach)
    index._blocks = list(_blocks(index, tensors))
    if sum(map(len, index._blocks)) != len(index._ids):
        raise NoIndex(f"{path} has {len(index._ids)} ids for {sum(map(len, index._blocks))} documents.")
    return index


def _described(index: TverskyIndex) -> dict[str, Any]:
    layer, (alpha, beta, theta) = index.layer, constants(index.layer, None, None, None)
    return {
        "documents": len(index),
        "codes": index.codes,
        "dim": layer.features.dim,
        "num_features": index.num_features,
        "bank": bank_digest(layer),
        "form": layer.form._asdict(),
        "alpha": alpha,
        "beta": beta,
        "theta": theta,
        "longest": index._reach.longest,
        "total": index._reach.total,
        "names": layer.features.notes.plain(),
    }


def _tensors(index: TverskyIndex) -> dict[str, list[Tensor]]:
    """Tensors of the file, in parts that are written one behind another."""
    weight, threshold = cut(index.layer.features)
    found = {"layer.features": [weight.detach().to(index.dtype)]}
    if threshold is not None:
        found["layer.threshold"] = [threshold.detach().to(index.dtype)]
    found |= {f"reach.{name}": [getattr(index._reach, name)] for name in ("most", "sums", "counts")}
    found["ids"] = [torch.from_numpy(index._ids.numbers)]
    if index._ids.letters is not None:
        found["letters"] = [torch.from_numpy(index._ids.letters)]
    if index.codes == "sparse":
        for number, block in enumerate(index._blocks):
            found |= {f"{number}.{name}": [tensor] for name, tensor in block.stored.items()}
    elif index._blocks:
        for name in index._blocks[0].stored:
            found[name] = [block.stored[name] for block in index._blocks]
    return found


def _blocks(index: TverskyIndex, tensors: dict[str, Tensor]) -> Iterator[Flat | Lists]:
    if index.codes == "sparse":
        number = 0
        while f"{number}.starts" in tensors:
            yield Lists(**{name: tensors[f"{number}.{name}"] for name in ("starts", "documents", "measures", "totals")})
            number += 1
        return
    stored = {name: tensors[name] for name in ("measures", "codes", "scales", "missing") if name in tensors}
    if stored:
        step = index._rows_of_a_block()
        for start in range(0, len(stored["measures"]), step):
            yield Flat(**{name: tensor[start : start + step] for name, tensor in stored.items()})


def _layer(about: dict[str, Any], tensors: dict[str, Tensor]) -> TverskySimilarity:
    """What compared when the index was saved, with constants that are not learned."""
    weight, threshold = tensors["layer.features"], tensors.get("layer.threshold")
    K, D = weight.shape
    layer = TverskySimilarity(
        D,
        K,
        **{name: about[name] for name in ("alpha", "beta", "theta")},
        learnable=False,
        parametrization="plain",
        **Form.of(**about["form"])._asdict(),
        presence=None if threshold is None else 0.5,
        dtype=weight.dtype,
    )
    with torch.no_grad():
        layer.features.weight.copy_(weight)
        if threshold is not None and layer.features.threshold is not None:
            layer.features.threshold.copy_(threshold)
    layer.features.note(Notes.of(about["names"], K))
    return layer.eval()


def bank_digest(layer: Any) -> str:
    """What makes a document's measures: features, thresholds, and whether vectors are normalised."""
    sums = hashlib.sha256(str(layer.normalize).encode())
    for tensor in cut(layer.features):
        if tensor is not None:
            sums.update(f"{list(tensor.shape)}".encode())
            sums.update(_bytes(tensor.detach().cpu().double()))
    return sums.hexdigest()


def _about(folder: Path) -> dict[str, Any]:
    path = folder / ABOUT
    try:
        about = read_json(path)
    except NotADirectoryError:
        command = f"similitude index {shlex.quote(str(folder))} --out FOLDER"
        raise NoIndex(f"{folder} is a file, and an index is a folder; make one with: {command}") from None
    except FileNotFoundError:
        command = f"similitude index SOURCE --out {shlex.quote(str(folder))}"
        raise NoIndex(
            f"no index in {folder}: {ABOUT} is not there; make one with index.save(folder), or: {command}"
        ) from None
    except (OSError, ValueError) as error:
        raise NoIndex(f"{path} cannot be read: {error}.") from None
    if not isinstance(about, dict) or not {"format", "file", "sha256", "checked", "bank"} <= about.keys():
        raise NoIndex(f"{path} is no index of similitude's.")
    if about["format"] != FORMAT:
        raise NoIndex(f"{path} has format {about['format']}; this version reads {FORMAT}.")
    if about["checked"] != _digest({name: value for name, value in about.items() if name != "checked"}):
        raise NoIndex(f"{path} is damaged or edited: it is not what was saved; restore it, or index again.")
    return about


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _bytes(tensor: Tensor) -> Any:
    """The tensor's bytes, without a copy where it is whole."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b""


def _write(path: Path, tensors: dict[str, list[Tensor]], progress: Progress | None) -> str:
    """Writes a safetensors file piece by piece, and returns its sha256."""
    header, end = {}, 0
    for name, parts in tensors.items():
        shape = [sum(len(part) for part in parts), *parts[0].shape[1:]]
        start, end = end, end + sum(part.numel() * part.element_size() for part in parts)
        dtype = CODE_OF[np.dtype(str(parts[0].dtype)[6:])]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    sums, done = hashlib.sha256(), 0
    with whole(path) as half, open(half, "wb") as file:

        def put(piece: Any) -> None:
            file.write(piece)
            sums.update(piece)

        put(len(text).to_bytes(8, "little") + text)
        for parts in tensors.values():
            for part in parts:
                content = _bytes(part.cpu())
                for start in range(0, len(content), PIECE):
                    put(content[start : start + PIECE])
                    done += len(content[start : start + PIECE])
                    if progress is not None:
                        progress(done, end)
    return sums.hexdigest()


def _mapped(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, mapped: a page is read when it is asked for."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = parse_json(file.read(length))
    found = {}
    for name, about in header.items():
        (start, stop), shape = about["data_offsets"], about["shape"]
        if stop == start:
            found[name] = torch.from_numpy(np.empty(shape, DTYPES[about["dtype"]]))
        else:
            # Copied on a write, which torch may think of; nothing writes.
            raw = np.memmap(path, DTYPES[about["dtype"]], "c", 8 + length + start, tuple(shape))
            found[name] = torch.from_numpy(raw)
    return found
