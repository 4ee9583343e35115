# SPDX-License-Identifier: Apache-2.0
"""``presum.load``: reads a run log into pandas frames, or into NumPy columns without pandas."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from presum import _core
from presum.errors import UserError
from presum.findings import Finding
from presum.loading.frames import column_meanings, to_frame
from presum.loading.page import page_of
from presum.loading.plots import Plots
from presum.text import printable

if TYPE_CHECKING:
    import pandas as pd

FILE_NAME = "presum.db"
MATRIX_WORKERS = 256  # with more ranks, only every 50th step keeps its matrix
T = TypeVar("T")


def load(run: str | os.PathLike[str]) -> Run:
    """Open a RUN for reading. The training may still write to it; nothing is locked.

    Args:
        run: the RUN folder, or the ``presum.db`` in it.

    Returns:
        A :class:`Run`.

    Raises:
        UserError: there is no such run, it is damaged, or a newer presum wrote it.
    """
    return Run(Path(run))


class Run:
    """A run log. Each frame is read on first use and then cached; call :func:`presum.load` again to
    see newer steps.

    Frames contain only numbers and strings (categoricals in large frames). Missing values are NaN.
    Rows are sorted by segment, model_index and step. :attr:`columns` describes every column.

    Without pandas (``presum[frames]``), each frame is a dict from column names to NumPy arrays,
    with strings as objects. Every attribute raises UserError if the file can no longer be read. Not
    thread-safe: use it from one thread at a time.

    A notebook shows the verdict, the findings, the last values and the losses; :attr:`plot` draws
    figures.
    """

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        with _as_user_error(self.path):
            _core.RunLog(path)

    def __repr__(self) -> str:
        try:
            state, _ = self._judged
        except UserError as error:
            state = str(error)
        return printable(f"<presum.Run {self.path.parent}: {state}>")

    def _repr_html_(self) -> str:
        name = printable(self.path.resolve().parent.name)
        try:
            verdict, _ = self._judged
            findings = self.judgment["findings"]
            return page_of(name, verdict, findings, self.steps, self.plot.png())
        except UserError:
            return f"<p>{escape(repr(self))}</p>"

    @cached_property
    def judgment(self) -> dict[str, Any]:
        """What ``presum findings --format json`` prints: ``verdict`` ("consistent", "inconsistent"
        or "insufficient-evidence"), ``coverage``, ``segments``, ``findings``, ``checks`` and more
        (docs/findings.md)."""
        judgment: dict[str, Any] = json.loads(self._judged[1])
        return judgment

    @property
    def plot(self) -> Plots:
        """Figures of the run, with matplotlib (``presum[plot]``)."""
        return Plots(self.workers, self.findings, self._cosines_of_ranks)

    @cached_property
    def columns(self) -> pd.DataFrame:
        """One row per column of the other frames: frame, column, type, unit, meaning, and what a
        missing value means."""
        return column_meanings()

    @cached_property
    def segments(self) -> pd.DataFrame:
        """One row per segment, which is one start or continuation of the recording: whether it was
        closed, why it is incomplete and after which step, and how many packets could not be
        used."""
        return self._frame("segments")

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row per step and model: the metrics over all ranks."""
        return self._frame("steps", categories=True)

    @cached_property
    def workers(self) -> pd.DataFrame:
        """One row per step and rank. Fingerprints are unsigned 64-bit integers; the fingerprint of
        a reduced gradient that was not read is 0."""
        return self._frame("workers", categories=True)

    @cached_property
    def groups(self) -> pd.DataFrame:
        """One row per step, group (layer) and rank: the gradient's L2 norm and largest absolute
        value in that group."""
        return to_frame(self._read(_core.RunLog.group_norms), categories=True)

    @cached_property
    def facts(self) -> pd.DataFrame:
        """The facts that each rank reported about itself: segment, model_index, rank, key,
        value."""
        return self._frame("facts")

    @cached_property
    def findings(self) -> list[Finding]:
        """The findings, worst first."""
        return [Finding(**finding) for finding in self._read(_core.RunLog.findings)]

    @cached_property
    def checks(self) -> pd.DataFrame:
        """One row per check and model: segment, model_index, dp_group, check, state, reason."""
        return self._frame("checks")

    @cached_property
    def audits(self) -> pd.DataFrame:
        """One row per audit of the reduction (``attach(audit=)``): how the sum was computed, and
        its error (docs/audit.md)."""
        return self._frame("audits")

    @cached_property
    def stalls(self) -> pd.DataFrame:
        """One row per stall of the job (docs/time.md)."""
        return self._frame("stalls")

    @cached_property
    def stalled_ranks(self) -> pd.DataFrame:
        """One row per stall and rank: where the rank was."""
        return self._frame("stalled_ranks")

    def cosines(
        self, step: int, segment: int = -1, model_index: int = 0, dp_group: int = 0
    ) -> npt.NDArray[np.float64]:
        """The cosine similarities between the gradients of all pairs of ranks in one step.

        Args:
            step: a recorded step.
            segment: the segment. Default -1: the last one.
            model_index: the model.
            dp_group: the data-parallel group.

        Returns:
            A float64 array of shape (W, W) for W ranks, in the order of their replicas, with 1 on
            the diagonal. NaN where a rank's gradient has no direction: it is zero or non-finite, or
            there is no sketch.

        Raises:
            KeyError: the step is not recorded, or its matrix was not kept. With more than 256
                ranks, only every 50th step keeps its matrix.
        """
        return self._cosines_of_ranks(step, segment, model_index, dp_group)[0]

    def _cosines_of_ranks(
        self, step: int, segment: int, model_index: int, dp_group: int
    ) -> tuple[npt.NDArray[np.float64], list[int]]:
        """The matrix, and the global ranks of its rows."""
        segments = np.asarray(self.steps["segment"])
        if segment < 0 and len(segments):
            segment = int(segments.max())
        sought = {
            "segment": segment,
            "model_index": model_index,
            "dp_group": dp_group,
            "step": step,
        }
        found = _rows_with(self.steps, sought)
        if not len(found):
            raise KeyError(f"{self.path}: no step {step} of model {model_index}")
        workers = int(np.asarray(self.steps["workers"])[found[0]])
        pairs = self._read(lambda log: log.cosines(segment, model_index, dp_group, step))
        if not len(pairs) and workers > MATRIX_WORKERS:
            raise KeyError(f"{self.path}: step {step} has no cosine matrix (every 50th step has)")
        rows = _rows_with(self.workers, sought)  # in the order of their replicas
        return self._matrix(workers, pairs), np.asarray(self.workers["rank"])[rows].tolist()

    def _matrix(self, workers: int, pairs: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        if workers < 0 or len(pairs) not in (0, workers * (workers - 1) // 2):
            raise UserError(f"{self.path} is damaged: {len(pairs)} cosines of {workers} ranks")
        matrix = np.eye(workers)
        upper = np.triu_indices(workers, 1)
        matrix[upper] = pairs if len(pairs) else np.nan
        matrix.T[upper] = matrix[upper]
        return matrix

    @cached_property
    def _judged(self) -> tuple[str, str]:
        return self._read(_core.RunLog.judgment)

    def _frame(self, table: str, *, categories: bool = False) -> pd.DataFrame:
        return to_frame(self._read(lambda log: log.frame(table)), categories=categories)

    def _read(self, read: Callable[[_core.RunLog], T]) -> T:
        with _as_user_error(self.path):
            return read(_core.RunLog(self.path))


def _rows_with(frame: Any, values: dict[str, int]) -> npt.NDArray[np.intp]:
    rows = [np.asarray(frame[name]) == value for name, value in values.items()]
    return np.flatnonzero(np.logical_and.reduce(rows))


@contextmanager
def _as_user_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(str(error)) from None
    except (MemoryError, ValueError) as error:  # sizes that no valid run has
        raise UserError(f"{path} is damaged ({type(error).__name__})") from None
