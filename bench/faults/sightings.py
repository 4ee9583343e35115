# SPDX-License-Identifier: Apache-2.0
"""What a run of the benchmark leaves behind: its findings, and when each was first there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from presum._core import RunLog
from presum.errors import UserError
from presum.findings import SEVERITIES

SIGHTINGS = "sightings.json"
DONE = "done.txt"


class Sighting(NamedTuple):
    """A finding of this severity and these ranks was there after this step, and not before."""

    check: str
    severity: str
    ranks: tuple[int, ...]
    step: int


class Result(NamedTuple):
    """One run: its findings, worst first, and when each was there."""

    findings: list[dict[str, Any]]
    sightings: list[Sighting]


def read_result(run: Path) -> Result:
    """The result of a finished run. Raises UserError where it cannot be read."""
    try:
        findings = sorted(
            RunLog(str(run)).findings(), key=lambda f: -SEVERITIES.index(f["severity"])
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(f"{run}: {error}") from error
    noted = json.loads((run / SIGHTINGS).read_text(encoding="utf-8"))
    sightings = [Sighting(**one | {"ranks": tuple(one["ranks"])}) for one in noted]
    return Result(findings, sightings)


def mark_done(run: Path, signature: str) -> None:
    """Notes that a run has ended, and what it was."""
    (run / DONE).write_text(signature, encoding="utf-8")


def is_done(run: Path, signature: str) -> bool:
    """Whether this very run has ended here before."""
    try:
        return (run / DONE).read_text(encoding="utf-8") == signature
    except OSError:
        return False
