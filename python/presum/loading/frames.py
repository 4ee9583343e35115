# SPDX-License-Identifier: Apache-2.0
"""Tables of a run log as pandas frames, or as NumPy columns without pandas."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presum import _core

if TYPE_CHECKING:
    import pandas as pd

Columns = list[tuple[str, npt.NDArray[Any], list[str] | None]]

_FRAMES = ("segments", "steps", "workers", "facts", "checks", "audits", "stalls", "stalled_ranks")
_GROUP_KEYS = ("step", "segment", "model_index", "dp_group", "group")
_GROUP_COLUMNS = (
    ("groups", "rank", "integer", "", "global rank", ""),
    ("groups", "grad_norm", "real", "gradient", "L2 norm of its own gradient in the group", "NaN"),
    ("groups", "grad_max", "real", "gradient", "largest absolute value of a finite element", "NaN"),
)
_FRAME_NAMES = {"check_id": "check"}


def to_frame(columns: Columns, *, categories: bool = False) -> pd.DataFrame:
    """Numbers are not copied."""
    categories = categories and _pandas() is not None
    names = (_FRAME_NAMES.get(name, name) for name, _, _ in columns)
    values = (_values(array, texts, categories) for _, array, texts in columns)
    return _framed(dict(zip(names, values, strict=True)))


def column_meanings() -> pd.DataFrame:
    """One row per column of the frames."""
    shown = {table: columns for table, _, columns in _core.shown_tables()}
    rows = [(frame, *_as_framed(c)) for frame in _FRAMES for c in shown[frame]]
    rows += [("groups", *c) for c in shown["groups"] if c[0] in _GROUP_KEYS]
    names = ("frame", "column", "type", "unit", "meaning", "unknown")
    columns = zip(*[*rows, *_GROUP_COLUMNS], strict=True)
    return _framed({n: np.array(c, dtype=object) for n, c in zip(names, columns, strict=True)})


def _as_framed(column: tuple[str, str, str, str, str]) -> tuple[str, str, str, str, str]:
    """A column of a table as its frame shows it: 64-bit hashes become integers."""
    name, kind, unit, meaning, unknown = column
    kind = "integer" if name in ("fingerprint", "reduced_fingerprint") else kind
    return _FRAME_NAMES.get(name, name), kind, unit, meaning, unknown


def _framed(columns: dict[str, Any]) -> pd.DataFrame:
    pandas = _pandas()
    return columns if pandas is None else pandas.DataFrame(columns, copy=False)


def _pandas() -> Any:
    """pandas, or None if it is not installed."""
    try:
        return importlib.import_module("pandas")
    except ModuleNotFoundError:
        return None


def _values(array: npt.NDArray[Any], texts: list[str] | None, categories: bool) -> Any:
    """``array``, or, if ``texts`` is given, the texts at these positions; position -1 is a missing
    value."""
    if texts is None:
        return array
    if categories:
        return _pandas().Categorical.from_codes(array, texts)
    return np.array([*texts, np.nan], dtype=object)[array]
