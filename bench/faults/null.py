# SPDX-License-Identifier: Apache-2.0
"""Long runs without a fault: how often is there an alarm? Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from faults.judge import ALARMING
from faults.plan import Case, Configuration
from faults.table import aligned, ranges

STEPS = 500
CONFIDENCE = 0.95
_LM = Configuration()

FAMILIES: tuple[Configuration, ...] = (
    _LM,
    replace(_LM, model="mlp", data="points", batch=8),
    replace(_LM, model="cnn", data="points", batch=8),
    replace(_LM, dropout=0.1, micro_batches=2),
    replace(_LM, model="mlp", data="points", batch=4, dropout=0.2, micro_batches=4),
    replace(_LM, model="batch-norm", augmentation="numpy"),
    replace(_LM, model="cnn", data="points", batch=4, dropout=0.2, micro_batches=2),
    replace(_LM, data="instructions"),
    replace(_LM, model="mlp", data="points", batch=8, fingerprints=False),
    replace(_LM, data="stream", micro_batches=2),
)
"""Kinds of runs, in the order in which they alternate."""


class NullRun(NamedTuple):
    """One clean run and its findings."""

    case: Case
    workers: int
    findings: list[dict[str, Any]]

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Warnings and critical findings. All of them are false."""
        return [f for f in self.findings if f["severity"] in ALARMING]


def cases(count: int, *, steps: int | None = None) -> tuple[Case, ...]:
    """``count`` runs of ``steps`` steps (default 500), each with a different seed."""
    return tuple(_case(number, steps or STEPS) for number in range(count))


def _case(number: int, steps: int) -> Case:
    configuration = replace(FAMILIES[number % len(FAMILIES)], steps=steps)
    return Case(
        folder=f"null-{number:03}-{configuration.name}",
        configuration=configuration,
        seed_offset=1_000_003 * (number + 1),
    )


def clopper_pearson(events: int, trials: int) -> tuple[float, float]:
    """Exact 95 % interval of a probability; (0, 1) without trials."""
    tail = (1 - CONFIDENCE) / 2
    low = _root(lambda p: 1 - _at_most(events - 1, trials, p), tail) if events else 0.0
    high = _root(lambda p: -_at_most(events, trials, p), -tail) if events < trials else 1.0
    return low, high


def _at_most(events: int, trials: int, p: float) -> float:
    """The probability of at most this many events."""
    terms = (math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(events + 1))
    return math.fsum(terms)


def _root(rising: Any, level: float) -> float:
    """The argument at which an increasing function of a probability reaches a level."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > level else (middle, high)
    return high


def render(runs: Sequence[NullRun]) -> str:
    """One line per run, and the interval."""
    lines = [(run.case.folder, str(run.workers), _words(run)) for run in runs]
    alarmed, low, high = _interval(runs)
    return (
        f"{aligned(lines)}\n\n{alarmed} of {len(runs)} clean runs with a warning or a critical "
        f"finding (95 % interval {low:.3f} to {high:.3f})"
    )


def as_json(runs: Sequence[NullRun], *, seed: int) -> dict[str, Any]:
    """The same content as JSON."""
    alarmed, low, high = _interval(runs)
    return {
        "schema_version": 2,
        "seed": seed,
        "runs": [
            {
                "run": run.case.folder,
                "workers": run.workers,
                "steps": run.case.configuration.steps,
                "findings": [
                    {k: f[k] for k in ("check", "severity", "ranks")} for f in run.findings
                ],
            }
            for run in runs
        ],
        "runs_with_alarm": alarmed,
        "interval": [low, high],
        "passed": alarmed == 0,
    }


def _interval(runs: Sequence[NullRun]) -> tuple[int, float, float]:
    alarmed = sum(bool(run.alarms) for run in runs)
    return (alarmed, *clopper_pearson(alarmed, len(runs)))


def _words(run: NullRun) -> str:
    said = [f"{f['severity']} {f['check']} {ranges(f['ranks'])}" for f in run.findings]
    return ", ".join(said) or "quiet"
