# SPDX-License-Identifier: Apache-2.0
"""What presum takes of this rank's time, told once a recording."""

from __future__ import annotations

import time

from presum._core import PassFlags
from presum.steps.setup import RecorderSetup

FIRST = 10  # recorded step from which it is counted: caches are warm
LAST = 60  # to which: whatever is sampled by default has been done


class Overhead:
    """Adds the facts ``overhead_ms``, presum's milliseconds a step on the threads of the training,
    and ``step_ms``, those of the whole step: means from the recorded step ``FIRST`` to ``LAST``, of
    all steps between them, recorded or not, and with what the program does between steps.

    Not in it: the background thread, hashes of samples while a loader hands out a batch, waits for
    collectives that are asked for (``audit``, ``reduction``).
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
