# SPDX-License-Identifier: Apache-2.0
"""The results of a benchmark run: its findings, and when each first appeared."""

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
    """A finding with this severity and these ranks first appeared after this step."""

    check: str
    severity: str
    ranks: tuple[int, ...]
    step: int


class Result(NamedTuple):
    """One run: its findings, worst first, and when each appeared."""

    findings: list[dict[str, Any]]
    sightings: list[Sighting]


def read_result(run: Path) -> Result:
    """The result of a finished run. Raises UserError if it cannot be read."""
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
    """Record that a run has ended, with its signature."""
    (run / DONE).write_text(signature, encoding="utf-8")


def is_done(run: Path, signature: str) -> bool:
    """Whether a run with this signature has ended here before."""
    try:
        return (run / DONE).read_text(encoding="utf-8") == signature
    except OSError:
        return False
