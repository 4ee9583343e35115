# SPDX-License-Identifier: Apache-2.0
"""The values that trackers show, from the rows of a run log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from presum._core import RunLog
from presum.trackers.tracker import Row, Series

Table = dict[str, npt.NDArray[Any]]

OF_STEP = (
    "loss_mean",
    "loss_std",
    "grad_norm_mean",
    "grad_norm_std",
    "grad_norm_cv",
    "cosine_mean",
    "cosine_low",
    "cosine_high",
    "effective_workers",
    "noise_scale",
)
OF_RANK = ("loss", "grad_norm")
OWN_TIMES = ("time_data", "time_forward", "time_backward", "time_optimizer", "time_rest")
SERIES_MAX = 64  # with more, only the extremes over ranks


def rows_of(log: RunLog, after: int, up_to: int) -> list[Row]:
    """The values of the steps after number ``after``, up to ``up_to`` (RunLog.steps_written)."""
    steps, workers = _table(log, "steps", after, up_to), _table(log, "workers", after, up_to)
    starts = [0, *np.cumsum(steps["workers"]).tolist()]
    rows = []
    for at, (first, end) in enumerate(pairwise(starts)):
        place = int(steps["model_index"][at]), int(steps["dp_group"][at])
        values = {Series(name, *place): steps[name][at] for name in OF_STEP}
        values |= {
            Series(name, *place, of): value for name, of, value in _of_ranks(workers, first, end)
        }
        known = {series: float(value) for series, value in values.items() if not np.isnan(value)}
        rows.append(Row(int(steps["step"][at]), known))
    return rows


def segments_of(log: RunLog) -> list[int]:
    """The segments of the run, ascending."""
    segments: list[int] = _table(log, "segments")["segment"].tolist()
    return segments


def _table(log: RunLog, name: str, *rows: int) -> Table:
    return {column: values for column, values, _ in log.frame(name, *rows)}


def _of_ranks(
    workers: Table, first: int, end: int
) -> Iterator[tuple[str, str, npt.NDArray[Any] | float]]:
    ranks = workers["rank"][first:end]
    own = np.sum([workers[name][first:end] for name in OWN_TIMES], axis=0)
    columns = {name: workers[name][first:end] for name in OF_RANK} | {"own_seconds": own}
    for name, values in columns.items():
        if len(columns) * len(ranks) <= SERIES_MAX:
            yield from ((name, f"rank_{r}", v) for r, v in zip(ranks, values, strict=True))
        elif not np.isnan(values).all():
            yield name, "lowest", np.nanmin(values)
            yield name, "highest", np.nanmax(values)
