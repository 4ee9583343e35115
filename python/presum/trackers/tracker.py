# SPDX-License-Identifier: Apache-2.0
"""What presum needs of an experiment tracker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from presum.findings import Finding


class Row(NamedTuple):
    """The values of one step, by name. All are finite or infinite, none is NaN."""

    step: int
    values: Mapping[str, float]


class Tracker(Protocol):
    """A tracker's library. Its package is imported in ``open``, because that takes seconds.

    ``find`` runs on the training thread, and only reads; the other methods run on a thread of their
    own, and any may raise.
    """

    def find(self) -> None:
        """Remember where the program logs to, if it does so by now. Called after the first step:
        programs often open their tracker after they wrap their model."""

    def open(self, run: Path) -> None:
        """Open a destination beside the program's."""

    def log(self, rows: Sequence[Row]) -> None:
        """Log steps, in the order in which they were recorded."""

    def tell(self, finding: Finding) -> None:
        """Log a finding that is new or graver."""

    def close(self, verdict: str, report: Path) -> None:
        """End the destination, with the run's verdict and its HTML report."""
