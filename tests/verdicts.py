# SPDX-License-Identifier: Apache-2.0
"""What was found of trainings that share a machine with whatever else runs there."""

from __future__ import annotations

from dataclasses import asdict

from faults.claims import unsupported
from presum import Run
from presum.findings import Finding

# True of this machine at this minute, whatever the training does, unless they are critical:
# tests/test_times.py and tests/test_stalls.py plant them.
OF_THE_CLOCK = frozenset(
    ("slow-rank", "slow-node", "data-starved", "periodic-stall", "gradual-slowing", "stall")
)


def found_of_training(run: Run) -> list[Finding]:
    """All but what the clock alone shows, and what tokens weigh by the program's own divisor. No
    sentence goes beyond its evidence."""
    beyond = [text for finding in run.findings for text in unsupported(asdict(finding))]
    assert not beyond, beyond
    return [
        finding
        for finding in run.findings
        if (finding.check not in OF_THE_CLOCK or finding.severity == "critical")
        and (finding.check, finding.severity) != ("token-weight", "info")
    ]
