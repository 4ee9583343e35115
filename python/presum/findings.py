# SPDX-License-Identifier: Apache-2.0
"""Findings as plain values, and as text for a terminal."""

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
    """One cause of disagreement between ranks (docs/findings.md).

    Attributes:
        check: the id of the check.
        severity: "info", "warning" or "critical".
        ranks: global ranks: the minority that differs, or all ranks if there is no minority.
        first_step: the first step at which the finding was seen.
        last_step: the last step at which the finding was seen.
        confidence: from 0 to 1.
        title: what differs, in a few words.
        sentence: the title, and since when.
        evidence: the observations, first those of this check, then those of the checks in ``also``.
            Each is a dict with ``check``, ``ranks``, ``sentence`` and ``values`` (by name).
        evidence_text: the evidence as ``presum findings`` prints it; "" if there is none.
        consequence: the effect on training as ``presum findings`` prints it, or "".
        suspects: the likely causes as ``presum findings`` prints them, or "".
        remedy: what to do.
        also: ids of other checks that fired for the same cause.
        hosts: the hosts of ``ranks``.
        resembles: a public issue about a similar problem, as "owner/repository#number", or "".
        equal_until: the last step at which the ranks were still equal, or None if unknown.
        certain_step: the step at which a statistic had enough evidence, or None if the finding does
            not rest on one.
        segment: the segment of the run, from 1.
        model_index: the model, from 0.
        dp_group: the data-parallel group, by its lowest global rank.
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
        """The values of this check's own evidence, by name. Empty if there is no evidence."""
        return self.evidence[0]["values"] if self.evidence else {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.sentence} [{self.check}]"


def announcement(finding: Finding, run: Path) -> str:
    """What the rank that records prints as soon as a critical finding appears."""
    return f"presum: {finding}\n        {finding.remedy}\n        presum findings {run}"


def summary(
    run: Path,
    steps: int,
    verdict: str,
    findings: Iterable[Finding],
    incomplete: str = "",
    too_short: str = "",
) -> str:
    """The summary at the end of a run, worst findings first.

    Args:
        incomplete: what the record lacks, for the last line; "" if it is complete.
        too_short: what the run was too short to decide, or "".
    """
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
        return "\n".join([*lines, f"presum: the record in {run} is incomplete: {incomplete}"])
    return "\n".join([*lines, f"  presum report {shlex.quote(str(run))}{more}"])


def counted(count: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
