# SPDX-License-Identifier: Apache-2.0
"""Judges whether a fault was found, by the right check, on the right ranks, how soon, and whether
its clean twin is quiet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from faults.claims import unsupported
from faults.fault import Fault
from faults.plan import Roles
from faults.sightings import Result, Sighting

ALARMING = ("warning", "critical")
# Checks that see two ranks differ: with only two, they cannot tell which one is wrong.
NAMES_BOTH = frozenset(
    f"{what}-mismatch"
    for what in (
        *("dataset", "sampler", "optimizer", "mode", "environment", "reduced-gradient"),
        *("loss", "input"),
    )
) | {
    *("rank-outlier", "token-imbalance", "token-weight", "state-desync", "parameter-desync"),
    "clip-norm",
    "shared-parameters",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one fault."""

    fault: Fault
    workers: int
    expected_ranks: tuple[int, ...]
    check: str = ""  # of the finding that counts; empty: there is none
    ranks: tuple[int, ...] = ()
    severity: str = ""
    delay: int | None = None  # steps from the fault's first step to the finding
    also: tuple[str, ...] = ()  # checks that this finding absorbed
    other_findings: tuple[str, ...] = ()  # other warnings and critical findings
    false_alarms: tuple[str, ...] = ()  # of the clean twin
    # sentences with a number that their evidence does not contain
    unsupported: tuple[str, ...] = ()

    @property
    def found(self) -> bool:
        """Some finding points at the fault's consequences."""
        return bool(self.check)

    @property
    def right_check(self) -> bool:
        """The finding has the expected check and severity."""
        return self.check in self.fault.checks and self.severity == self.fault.severity

    @property
    def right_ranks(self) -> bool:
        """It names exactly the ranks at fault, or both of two if the check cannot tell them
        apart."""
        cannot_tell = self.workers == 2 and self.check in NAMES_BOTH and not self.fault.tells_which
        both = cannot_tell and self.ranks == (0, 1)
        return self.found and (self.ranks == self.expected_ranks or both)

    @property
    def in_time(self) -> bool:
        """It came no later than the target, if there is one."""
        target = self.fault.within
        return self.delay is not None and (target is None or self.delay <= target)

    @property
    def passed(self) -> bool:
        """Found, named correctly, with supporting evidence, and no false alarm without the
        fault."""
        right = self.right_check and self.right_ranks
        return right and not self.false_alarms and not self.unsupported


def judge(fault: Fault, result: Result, twin: Result, *, workers: int) -> Outcome:
    """The outcome of ``fault``, from its run and that of its clean twin."""
    ranks = Roles(workers).named(fault.ranks)
    alarms = false_alarms(fault, twin.findings)
    chosen = _choose(fault, result.findings, ranks)
    if chosen is None:
        return Outcome(fault=fault, workers=workers, expected_ranks=ranks, false_alarms=alarms)
    others = [f["check"] for f in result.findings if f is not chosen and f["severity"] in ALARMING]
    return Outcome(
        fault=fault,
        workers=workers,
        expected_ranks=ranks,
        check=chosen["check"],
        ranks=tuple(chosen["ranks"]),
        severity=chosen["severity"],
        delay=_delay(fault, chosen, result.sightings),
        also=tuple(chosen["also"]),
        other_findings=tuple(others),
        false_alarms=alarms,
        unsupported=tuple(s for f in [*result.findings, *twin.findings] for s in unsupported(f)),
    )


def false_alarms(fault: Fault, findings: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Findings of a run without the fault that should not be there."""
    expected = fault.expects, fault.severity
    return tuple(
        f["check"]
        for f in findings
        if f["severity"] in ALARMING or (f["check"], f["severity"]) == expected
    )


def _choose(
    fault: Fault, findings: Sequence[dict[str, Any]], ranks: tuple[int, ...]
) -> dict[str, Any] | None:
    """The finding that counts: the expected check on the right ranks, else on any ranks, else the
    worst."""
    named = [f for f in findings if f["check"] in fault.checks]
    exact = [f for f in named if tuple(f["ranks"]) == ranks]
    alarming = [f for f in findings if f["severity"] in ALARMING]
    return next(iter([*exact, *named, *alarming]), None)


def _delay(fault: Fault, finding: dict[str, Any], sightings: Sequence[Sighting]) -> int:
    """Steps from the first wrong step to the first step with this finding; 0: immediately."""
    ranks = set(finding["ranks"])
    named = finding["check"], finding["severity"]
    seen = [s.step for s in sightings if (s.check, s.severity) == named and ranks & set(s.ranks)]
    return min(seen, default=int(finding["last_step"])) - fault.begins
