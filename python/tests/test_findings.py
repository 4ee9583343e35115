# SPDX-License-Identifier: Apache-2.0
"""What is said of findings at the end of a run."""

from __future__ import annotations

from pathlib import Path

from presum.findings import Finding, summary


def finding(severity: str) -> Finding:
    return Finding("data-coverage", severity, [0], 0, 1, 0.9, "Title", "Title, at step 0")


def test_the_summary_counts_steps_and_findings() -> None:
    def first_line(steps: int, *severities: str) -> str:
        found = [finding(severity) for severity in severities]
        return summary(Path("runs/a"), steps, "inconsistent", found).splitlines()[0]

    said = first_line(1, "info", "warning", "critical")
    assert said == "presum: inconsistent after 1 step: 1 critical finding, 1 warning, 1 note"
    said = first_line(2, *["info", "warning", "critical"] * 2)
    assert said == "presum: inconsistent after 2 steps: 2 critical findings, 2 warnings, 2 notes"
    assert first_line(2) == "presum: inconsistent after 2 steps: no finding"
