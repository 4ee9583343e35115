# SPDX-License-Identifier: Apache-2.0
"""What presum found, as plain values and as text for a terminal."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SEVERITIES = ("info", "warning", "critical")
NOUNS = {"info": "note", "warning": "warning", "critical": "critical finding"}
SHOWN_AT_THE_END = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of disagreement between workers (docs/findings.md).

    ``ranks`` are global: the minority that differs, or all where there is none. ``evidence`` is
    what was seen, its own first, then that of the checks in ``also``, which have the same cause:
    each with ``check``, ``ranks``, ``sentence`` and ``values`` by name. ``confidence`` is from 0 to
    1. ``sentence`` is the title with since when; ``evidence_text``, ``consequence`` and
    ``suspects`` are what ``presum findings`` says, "" where there is nothing. ``equal_until`` is
    the last step at which what differs was equal, ``certain_step`` that at which a statistic had
    enough evidence; None where there is none.
    """

    check: str
    severity: str  # "info", "warning" or "critical"
    ranks: list[int]
    first_step: int
    last_step: int
    confidence: float
    title: str
    sentence: str
    evidence: list[dict[str, Any]] = field(default_factory=list)
    evidence_text: str = ""
    consequence: str = ""
    suspects: str = ""
    remedy: str = ""
    also: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    resembles: str = ""
    equal_until: int | None = None
    certain_step: int | None = None
    segment: int = 1
    model_index: int = 0
    dp_group: int = 0

    @property
    def values(self) -> dict[str, Any]:
        """What was seen of its own check, by name."""
        return self.evidence[0]["values"] if self.evidence else {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.sentence} [{self.check}]"


def announcement(finding: Finding, run: Path) -> str:
    """What the rank that records says the moment a critical finding appears."""
    return f"presum: {finding}\n        {finding.remedy}\n        presum findings {run}"


def summary(
    run: Path,
    steps: int,
    verdict: str,
    findings: Iterable[Finding],
    incomplete: str = "",
    too_short: str = "",
) -> str:
    """A few lines for the end of a run, worst findings first. ``incomplete``: what its record
    lacks; then the last line says so. ``too_short``: what it was too short for."""
    worst = sorted(findings, key=lambda f: -SEVERITIES.index(f.severity))
    shown = [f for f in worst if f.severity != "info"][:SHOWN_AT_THE_END]
    counts = Counter(f.severity for f in worst)
    said = ", ".join(counted(counts[s], NOUNS[s]) for s in reversed(SEVERITIES) if counts[s])
    lines = [
        f"presum: {verdict} after {counted(steps, 'step')}: {said or 'no finding'}",
        *(f"  {f}" for f in shown),
    ]
    if too_short:
        lines.append(f"  facts only: {too_short}")
    hidden = len(worst) - len(shown)
    more = f" ({hidden} more)" if hidden and shown else ""
    if incomplete:
        return "\n".join([*lines, f"presum: the record in {run} is not whole: {incomplete}"])
    return "\n".join([*lines, f"  presum report {shlex.quote(str(run))}{more}"])


def counted(count: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
