# SPDX-License-Identifier: Apache-2.0
"""Progress on stderr: a bar on a terminal, else one line a run."""

import sys
import time

from presum.experiments.s1.settings import Run


class Progress:
    """Reports the steps of all runs. Silent unless ``shown``."""

    def __init__(self, *, runs: int, steps: int, shown: bool) -> None:
        from tqdm import tqdm

        self._runs = runs
        self._done = 0
        self._lines = shown and not sys.stderr.isatty()
        self._bar = tqdm(
            total=runs * steps, unit="step", disable=not shown or self._lines, dynamic_ncols=True
        )

    def start(self, run: Run) -> None:
        """``run`` begins."""
        self._started = time.monotonic()
        self._bar.set_description(f"{run.mode} {run.setting} ({self._done + 1}/{self._runs})")

    def step(self) -> None:
        """One step is done."""
        self._bar.update()

    def finish(self, run: Run, *, loss: float) -> None:
        """``run`` has ended; ``loss`` is worker 0's in its last step."""
        self._done += 1
        if self._lines:
            seconds = time.monotonic() - self._started
            place = f"{self._done}/{self._runs}"
            line = f"{place} {run.mode} {run.setting}: {seconds:.0f} s, last loss {loss:.3f}"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the bar's line."""
        self._bar.close()
