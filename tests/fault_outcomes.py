# SPDX-License-Identifier: Apache-2.0
"""Outcomes of faults that are made up."""

from __future__ import annotations

from typing import Any

from faults.catalog import choose
from faults.fault import Fault
from faults.judge import Outcome, judge
from faults.sightings import Result


def fault(name: str) -> Fault:
    (found,) = choose([name])
    return found


def finding(check: str, severity: str, ranks: list[int], **rest: Any) -> dict[str, Any]:
    values = {"check": check, "severity": severity, "ranks": ranks, "also": [], "last_step": 39}
    values["evidence"] = []
    return values | rest


QUIET = Result([], [])


def judged(
    name: str,
    *findings: dict[str, Any],
    seen: Any = (),
    twin: Result = QUIET,
    workers: int = 8,
) -> Outcome:
    return judge(fault(name), Result(list(findings), list(seen)), twin, workers=workers)
