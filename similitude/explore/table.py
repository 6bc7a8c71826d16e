"""The values of inputs that are rows of a table, and the columns that go with each feature.

N objects, J columns, K features, H of the objects on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..shares import measures

# Columns of a table on a page at most, those that are listed for a feature, letters of a value, and of all texts.
COLUMNS, STRONGEST, LETTERS, TEXTS = 200, 8, 80, 2**21
# Numbers that are in memory at once; whole numbers that float64 has exactly; objects that say where measures lie.
AT_ONCE, WHOLE, FIRST = 2**24, 2**53, 1000
# Share of its size below which the spread of a column, or of a feature's float32 measures, is rounding.
NOISE, ROUNDING = 1e-12, 1e-6
# The arrays that a table has on the page.
ARRAYS = ("values", "spread", "columns", "correlations")


def of_table(
    model: Any,
    inputs: Any,
    columns: Sequence[str] | None,
    layer: Any,
    vectors: Tensor,
    H: int,
    about: dict[str, Any],
) -> dict[str, np.ndarray]:
    """A table's values and the columns that go with each feature, as arrays and in ``about``; none of other inputs.

    Args:
        model, inputs: what the page shows, as in ``content``.
        columns: names of the columns; by default those of a data frame, or those that a classifier was fitted with.
        layer, vectors: the model's layer, and the vectors ``[N, D]`` that reach it.
        H: objects on the page.
        about: gets ``table``, and sentences on what is left out.
    """
    N, rows = len(vectors), _rows(model, inputs, len(vectors))
    if rows is None:
        if columns is not None:
            raise ValueError(
                f"columns are those of a table, [{N}, J], one row for each of {N:,} objects; got inputs of "
                f"{'shape ' + str(list(inputs.shape)) if hasattr(inputs, 'shape') else type(inputs).__name__}."
            )
        return {}
    J, names = rows.shape[1], _names(model, inputs, columns)
    if names is None:
        return {}
    if len(names) != J:
        raise ValueError(f"columns must be {J}, one for each; got {len(names)}.")
    if J > COLUMNS:
        about["left_out"].append(f"The page holds no values: it has {COLUMNS} columns at most, and the table {J:,}.")
        return {}
    found = [_column(rows, j) for j in range(J)]
    kept, texts = _texts(found, H)
    if len(kept) < J:
        about["left_out"].append(f"Texts of {J - len(kept):,} columns are too long for the page; it leaves them out.")
    if not kept:
        return {}
    nothing = np.full(N, np.nan, np.float32)
    numbers = np.column_stack([nothing if j in texts else found[j] for j in kept])
    values = numbers[:H].copy()
    for place, j in enumerate(kept):
        if j in texts:
            code = {text: c for c, text in enumerate(texts[j])}
            values[:, place] = [np.nan if text is None else code[text] for text in found[j][:H]]
    about["table"] = {
        "columns": [names[j] for j in kept],
        "gaps": any(bool(np.isnan(found[j]).any()) for j in kept if j not in texts),
        # Values of these columns are numbers of texts.
        "texts": {str(place): texts[j] for place, j in enumerate(kept) if j in texts},
    }
    x, mean, deviation = _standard(numbers)
    r = correlations(layer, vectors, x)
    most = min(STRONGEST, sum(j not in texts for j in kept))
    strongest = r.abs().argsort(dim=-1, descending=True, stable=True)[:, :most]
    return {
        "values": values,
        "spread": np.stack([mean, deviation], axis=1),
        "columns": strongest.numpy().astype(np.int32),
        "correlations": r.gather(1, strongest).numpy().astype(np.float32),
    }


def correlations(layer: Any, vectors: Tensor, x: Tensor) -> Tensor:
    """Correlation of each feature's measure with each column, over the objects that have a value, ``[K, J]``.

    It is 0 where the measure or the column does not vary.

    Args:
        layer, vectors: the layer, and the vectors ``[N, D]`` that reach it.
        x: the columns, centred, ``[N, J]`` in float64; NaN where there is no value.
    """
    known = x.isfinite()
    x, has = x.nan_to_num(0.0, 0.0, 0.0), known.double()
    K, J = layer.features.num_features, x.shape[1]
    # A shift to about the mean, so that sums of squares keep their digits.
    shift = measures(layer, vectors[:FIRST]).double().mean(0).cpu()
    products, sums, squares = (torch.zeros(K, J, dtype=torch.float64) for _ in range(3))
    at = 0
    for part in vectors.split(max(1, AT_ONCE // K)):
        found, rows = measures(layer, part).double().cpu() - shift, slice(at, at := at + len(part))
        products += found.mT @ x[rows]
        sums += found.mT @ has[rows]
        squares += found.square().mT @ has[rows]
    count = has.sum(0).clamp(min=1)
    variance = (squares - sums.square() / count).clamp(min=0) / count
    size = (sums / count + shift[:, None]).abs() + variance.sqrt()
    spread = (x.square().sum(0) / count).sqrt()
    varies = (variance.sqrt() > ROUNDING * size) & (spread > 0)
    return torch.where(varies, products / count / (variance.sqrt() * spread), 0.0).clamp(-1, 1)


def _standard(numbers: np.ndarray) -> tuple[Tensor, np.ndarray, np.ndarray]:
    """Columns less their means, in parts of their largest value; means, NaN where there are none; and deviations."""
    x = torch.from_numpy(numbers).double()
    x = torch.where(x.isfinite(), x, torch.nan)
    size = x.nan_to_num(0.0).abs().amax(0).clamp(min=torch.finfo(x.dtype).tiny) if len(x) else torch.ones(x.shape[1])
    mean = (x / size).nanmean(0)
    x = x / size - mean
    deviation = x.square().nanmean(0).sqrt()
    # What is left of equal values is rounding.
    varies = deviation > NOISE
    x, deviation = torch.where(varies | x.isnan(), x, 0.0), torch.where(varies, deviation, 0.0)
    return x, (mean * size).numpy(), (deviation * size).numpy()


def _rows(model: Any, inputs: Any, N: int) -> Any:
    """The inputs as what has columns, [N, J], or None. A network's are a tensor; a classifier's what numpy reads."""
    if isinstance(model, nn.Module):
        rows = inputs.detach().cpu() if isinstance(inputs, Tensor) else None
    elif hasattr(inputs, "iloc"):
        rows = inputs
    else:
        try:
            rows = np.asarray(inputs.detach().cpu() if isinstance(inputs, Tensor) else inputs)
        except ValueError:
            rows = None
    return rows if rows is not None and len(rows.shape) == 2 and rows.shape[0] == N else None


def _names(model: Any, inputs: Any, columns: Sequence[str] | None) -> list[str] | None:
    """Names of the columns: those given, a frame's, or those that a classifier or a Pipeline was fitted with."""
    if columns is None:
        columns = getattr(inputs, "columns", None)
    if columns is None:
        columns = getattr(model, "feature_names_in_", None)
    # A frame that was given no names numbers its columns.
    return None if columns is None else [f"column {c}" if isinstance(c, Integral) else str(c) for c in columns]


def _column(rows: Any, j: int) -> np.ndarray:
    """A column as floats, NaN where there is no value, or as texts, None where there is none."""
    if isinstance(rows, Tensor):
        column = rows[:, j]
        return column.numpy() if column.dtype in (torch.float32, torch.float64) else column.double().numpy()
    column = rows.iloc[:, j] if hasattr(rows, "iloc") else rows[:, j]
    kind = getattr(column.dtype, "kind", "O")
    if kind in "biuf":
        missing = {"na_value": np.nan} if hasattr(rows, "iloc") else {}
        floats = np.float32 if str(column.dtype) in ("float32", "Float32", "float16") else np.float64
        found = column.to_numpy(dtype=floats, **missing) if missing else column.astype(floats)
        if kind not in "iu" or not (abs(found) >= WHOLE).any():
            return found
    values = np.asarray(column, dtype=object)
    given = [value for value in values if not _is_missing(value)]
    if str(column.dtype) != "category" and all(_is_number(value) for value in given):
        return np.array([np.nan if _is_missing(value) else float(value) for value in values])
    return np.array([None if _is_missing(value) else _short(str(value)) for value in values], dtype=object)


def _texts(found: list[np.ndarray], H: int) -> tuple[list[int], dict[int, list[str]]]:
    """The columns that the page has room for, and the texts of those that are text, as they first come."""
    kept, texts, room = [], {}, TEXTS
    for j, column in enumerate(found):
        if column.dtype == object:
            own = list(dict.fromkeys(text for text in column[:H] if text is not None))
            if (letters := sum(map(len, own))) > room:
                continue
            texts[j], room = own, room - letters
        kept.append(j)
    return kept, texts


def _is_missing(value: Any) -> bool:
    nothing = type(value).__name__ in ("NAType", "NaTType")
    return value is None or nothing or (isinstance(value, Real) and bool(value != value))


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | np.bool_) and (not isinstance(value, Integral) or abs(int(value)) < WHOLE)


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"
