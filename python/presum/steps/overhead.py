# SPDX-License-Identifier: Apache-2.0
"""Measures presum's own time on this rank, once per recording."""

from __future__ import annotations

import time

from presum._core import PassFlags
from presum.steps.setup import RecorderSetup

FIRST = 10  # the first recorded step that is measured: caches are warm
LAST = 60  # the last one: everything that is sampled by default has run


class Overhead:
    """Adds the facts ``overhead_ms``, presum's milliseconds per step on the training threads, and
    ``step_ms``, the milliseconds of the whole step.

    Both are means from recorded step ``FIRST`` to ``LAST``, over all steps between them, recorded
    or not, and include what the program does between steps. They exclude the background thread,
    hashes of samples while a loader prepares a batch, and waits for collectives that were requested
    (``audit``, ``reduction``).
    """

    def __init__(self, setup: RecorderSetup, flags: PassFlags) -> None:
        self._setup = setup
        self._flags = flags
        self._recorded = 0
        self._first = (0.0, 0.0, 0)

    def step_recorded(self) -> None:
        self._recorded += 1
        if self._recorded == FIRST:
            self._first = self._now()
        elif self._recorded == LAST:
            self._tell()

    def _now(self) -> tuple[float, float, int]:
        return self._flags.spent, time.perf_counter(), self._setup.observer.windows

    def _tell(self) -> None:
        own, passed, steps = (b - a for a, b in zip(self._first, self._now(), strict=True))
        self._setup.observer.fact("overhead_ms", f"{1e3 * own / steps:.3f}")
        self._setup.observer.fact("step_ms", f"{1e3 * passed / steps:.3f}")
        self._setup.hello()
