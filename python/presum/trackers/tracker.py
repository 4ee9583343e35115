# SPDX-License-Identifier: Apache-2.0
"""What presum needs of an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from presum.findings import Finding

Identity = tuple[object, ...]
Found = Mapping[str, Any]  # where a program logs to; values that JSON has


class Series(NamedTuple):
    """Of what a value is.

    Attributes:
        name: a metric of the step or, if ``of`` is not empty, of ranks.
        model_index: the model, from 0.
        dp_group: the data-parallel group, by its lowest global rank.
        of: "rank_3", or "lowest" and "highest" over ranks; "": the step.
    """

    name: str
    model_index: int
    dp_group: int
    of: str = ""

    @property
    def path(self) -> str:
        """The name under which most trackers show it; slashes make groups."""
        model = f"model_{self.model_index}/" if self.model_index else ""
        group = f"group_{self.dp_group}/" if self.dp_group else ""
        if self.of:
            return f"presum_{self.name}/{model}{group}{self.of}"
        return f"presum/{model}{group}{self.name}"


class Row(NamedTuple):
    """The values of one step. All are finite or infinite, none is NaN."""

    step: int
    series: Mapping[Series, float]

    @property
    def values(self) -> dict[str, float]:
        """By path."""
        return {series.path: value for series, value in self.series.items()}


def identity_of(finding: Finding) -> Identity:
    """Equal for one finding of a segment when it is read again: its severity and its last step may
    have changed."""
    place = finding.model_index, finding.dp_group
    return (*place, finding.check, finding.first_step, *finding.ranks)


class Tracker(Protocol):
    """A tracker's library, which is imported in ``open``. Any method may raise.

    ``find`` runs on the training thread of the program and only reads. The rest runs in a process
    of presum's own.
    """

    @staticmethod
    def find() -> Found:
        """Where the program logs to, if it does so by now."""

    def open(self, run: Path, found: Found) -> None:
        """Open a destination beside the program's."""

    def log(self, rows: Sequence[Row]) -> None:
        """Log steps, in the order in which they were recorded."""

    def tell(self, finding: Finding) -> None:
        """Log a finding that is new or graver."""

    def close(self, verdict: str, report: Path) -> None:
        """End the destination, with the run's verdict and its HTML report."""
