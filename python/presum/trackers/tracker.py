# SPDX-License-Identifier: Apache-2.0
"""What presum needs of an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from presum.findings import Finding

Found = Mapping[str, Any]  # where a program logs to; values that JSON has


class Row(NamedTuple):
    """The values of one step, by name. All are finite or infinite, none is NaN."""

    step: int
    values: Mapping[str, float]


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
