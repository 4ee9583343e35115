# SPDX-License-Identifier: Apache-2.0
"""What a run of the benchmark leaves behind: its findings, and when each was first there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from presum.errors import UserError

SIGHTINGS = "sightings.json"


class Sighting(NamedTuple):
    """A finding of this severity and these ranks was there after this step, and not before."""

    check: str
    severity: str
    ranks: tuple[int, ...]
    step: int


class Result(NamedTuple):
    """One run: its findings as ``presum findings --format json`` has them, worst first."""

    findings: list[dict[str, Any]]
    sightings: list[Sighting]


def read_result(run: Path) -> Result:
    """The result of a finished run. Raises UserError where it cannot be read."""
    command = [sys.executable, "-m", "presum", "findings", str(run), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UserError(f"{run}: {done.stderr.strip() or 'its findings cannot be read'}")
    noted = json.loads((run / SIGHTINGS).read_text(encoding="utf-8"))
    sightings = [Sighting(**one | {"ranks": tuple(one["ranks"])}) for one in noted]
    return Result(json.loads(done.stdout)["findings"], sightings)
