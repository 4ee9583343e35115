# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: a bar on a terminal, one line per run elsewhere; both with an estimate."""

from __future__ import annotations

import sys
import time


class Progress:
    """Reports the steps of all runs. Silent unless ``shown``."""

    def __init__(self, *, runs: int, steps: int, shown: bool) -> None:
        from tqdm import tqdm

        self._runs = runs
        self._done = 0
        self._begun = time.monotonic()
        self._lines = shown and not sys.stderr.isatty()
        hidden = not shown or self._lines
        self._bar = tqdm(total=steps, unit="step", disable=hidden, dynamic_ncols=True)

    def start(self, name: str) -> None:
        self._name = name
        self._started = time.monotonic()
        self._bar.set_description(f"{name} ({self._done + 1}/{self._runs})")

    def step(self) -> None:
        self._bar.update()

    def finish(self, note: str = "") -> None:
        """The run has ended. ``note`` is appended to its line."""
        self._done += 1
        if self._lines:
            now = time.monotonic()
            line = f"{self._done}/{self._runs} {self._name}: {now - self._started:.1f} s{note}"
            left = (now - self._begun) / self._done * (self._runs - self._done)
            if left:
                line += f", about {left:.0f} s left"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar's line."""
        self._bar.close()
