# SPDX-License-Identifier: Apache-2.0
"""``run.plot``: which values of a run its figures show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presum.findings import Finding
from presum.loading.figures import (
    PHASES,
    Floats,
    Line,
    cosines_of,
    losses_of,
    png_of_losses,
    times_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Plots:
    """Figures of a run. Each method returns matplotlib's axes, and draws into ``axes`` if they are
    given. Raises ImportError if matplotlib is not installed (``presum[plot]``)."""

    def __init__(
        self,
        workers: Any,
        findings: Iterable[Finding],
        cosines: Callable[[int, int, int, int], tuple[Floats, list[int]]],
    ) -> None:
        self._workers = workers
        self._findings = findings
        self._cosines = cosines

    def losses(self, axes: Axes | None = None, *, model_index: int = 0) -> Axes:
        """The loss of each rank over the steps. Ranks that findings above information name have
        colors; if there are none, the first 8."""
        return losses_of(self._losses(model_index), self._named(), axes)

    def cosines(
        self,
        step: int,
        axes: Axes | None = None,
        *,
        segment: int = -1,
        model_index: int = 0,
        dp_group: int = 0,
    ) -> Axes:
        """The cosine similarity of every pair of ranks in one step.

        Args:
            step: a recorded step.
            axes: where to draw; a new figure by default.
            segment: the segment. Default -1: the last one.
            model_index: the model.
            dp_group: the data-parallel group.

        Raises:
            KeyError: as :meth:`presum.Run.cosines`.
        """
        matrix, ranks = self._cosines(step, segment, model_index, dp_group)
        return cosines_of(matrix, ranks, f"step {step}", axes)

    def times(self, axes: Axes | None = None, *, model_index: int = 0) -> Axes:
        """The mean time of a step of each rank, in milliseconds, by phase. Steps whose times are
        not known do not count."""
        rows = dict(self._rows_by_rank(model_index))
        columns = {phase: self._column(phase) for phase in PHASES}
        times = {
            phase: np.array([_mean(column[own]) for own in rows.values()])
            for phase, column in columns.items()
        }
        return times_of(list(rows), times, axes)

    def png(self) -> bytes:
        """The losses of the first model as PNG. Empty without matplotlib or steps."""
        lines = self._losses(0)
        return png_of_losses(lines, self._named()) if lines else b""

    def _losses(self, model_index: int) -> list[Line]:
        steps, losses = self._column("step").astype(np.float64), self._column("loss")
        segments = self._column("segment")
        lines = []
        for rank, own in self._rows_by_rank(model_index):
            starts = np.flatnonzero(np.diff(segments[own])) + 1  # a gap before each
            lines.append(
                Line(
                    rank,
                    np.insert(steps[own], starts, steps[own][starts]),
                    np.insert(losses[own], starts, np.nan),
                )
            )
        return lines

    def _rows_by_rank(self, model_index: int) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Each rank and its rows, in their order."""
        of_model = np.flatnonzero(self._column("model_index") == model_index)
        ranks = self._column("rank")[of_model]
        order = of_model[np.argsort(ranks, kind="stable")]
        names, first = np.unique(np.sort(ranks), return_index=True)
        parts: Sequence[npt.NDArray[np.intp]] = np.split(order, first[1:]) if len(names) else []
        return zip(names.tolist(), parts, strict=True)

    def _named(self) -> dict[int, str]:
        """The check of the worst finding that names a rank. Findings about all ranks name none."""
        ranks = len(np.unique(self._column("rank")))
        named: dict[int, str] = {}
        for finding in self._findings:
            if finding.severity == "info" or len(finding.ranks) == ranks:
                continue
            for rank in finding.ranks:
                named.setdefault(rank, finding.check)
        return named

    def _column(self, name: str) -> npt.NDArray[Any]:
        return np.asarray(self._workers[name])


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan
