# SPDX-License-Identifier: Apache-2.0
"""Prints new findings while training runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from presum.findings import Finding, announcement

QUIET_SECONDS = 10.0


def _same(one: Finding, other: Finding) -> bool:
    names = ("check", "ranks", "segment", "model_index", "dp_group")
    return all(getattr(one, name) == getattr(other, name) for name in names)


class Announcements:
    """Prints a critical finding at once, with its remedy, and a warning in one line, at most one
    per ``QUIET_SECONDS``; warnings in between are counted and printed with the next one. A stall is
    printed at once, since nothing may follow it. Information is not printed."""

    def __init__(self, say: Callable[[str], None], run: Path) -> None:
        self._say = say
        self._run = run
        self._said = -QUIET_SECONDS
        self._waiting: list[Finding] = []

    def take(self, finding: Finding) -> None:
        """A new finding, or one whose severity has risen."""
        if finding.severity == "critical":
            self._waiting = [other for other in self._waiting if not _same(other, finding)]
            self._say(announcement(finding, self._run))
        elif finding.severity == "warning" and finding.check == "stall":
            self._say(f"presum: {finding}")
        elif finding.severity == "warning":
            self._waiting.append(finding)

    def flush(self) -> None:
        """Print the waiting warnings, unless one was printed recently."""
        now = time.monotonic()
        if not self._waiting or now - self._said < QUIET_SECONDS:
            return
        self._said = now
        first, *others = self._waiting
        self._waiting.clear()
        more = f" ({len(others)} more: presum findings {self._run})" if others else ""
        self._say(f"presum: {first}{more}")
