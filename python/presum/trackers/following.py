# SPDX-License-Identifier: Apache-2.0
"""Follows a run log on the rank that writes it, one thread for each tracker."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from presum._core import RunLog
from presum.errors import missing
from presum.findings import SEVERITIES, Finding
from presum.text import one_line
from presum.trackers.mlflow import Mlflow
from presum.trackers.series import rows_of, segments_of
from presum.trackers.tensorboard import TensorBoard
from presum.trackers.tracker import Tracker
from presum.trackers.trackio import Trackio
from presum.trackers.wandb import Wandb

LOOK_SECONDS = 1.0
RETRY_SECONDS = 10.0  # after an error of a tracker
END_SECONDS = 30.0  # for all trackers, after the end of the run
STEPS_AT_ONCE = 500  # that are held in memory

_TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "mlflow": Mlflow,
    "trackio": Trackio,
}


def tracker_names() -> list[str]:
    return list(_TRACKERS)


class Trackers:
    """The trackers of one session.

    Each follows the run log at its own pace, so a slow one delays neither the recording nor the
    others. One that fails is tried again until the run ends, and costs one line. Thread-safety:
    ``find`` is for the training thread, ``start`` for the thread that records, ``finish`` for any.
    """

    def __init__(self, names: Sequence[str], remark: Callable[[str], None]) -> None:
        self._all = {name: _TRACKERS[name]() for name in dict.fromkeys(names)}
        self._remark = remark
        self._unfound = bool(names)
        self._followers: list[_Follower] = []

    def find(self) -> bool:
        """Called on the training thread after each step. Returns whether it has looked, which it
        does after the first one."""
        if not self._unfound:
            return False
        self._unfound = False
        for name, tracker in self._all.items():
            try:
                tracker.find()
            except Exception as error:
                self._remark(f"{name}: the program's own run was not found ({one_line(error)})")
        return True

    def start(self, run: Path, opened: Callable[[], None]) -> None:
        """Follow this run. ``opened`` is called when a tracker's library has been loaded."""
        self._followers = [
            _Follower(name, tracker, run, self._remark, opened)
            for name, tracker in self._all.items()
        ]
        for follower in self._followers:
            follower.start()

    def finish(self) -> None:
        """The run log is complete: let every tracker log the rest. Waits at most 30 s."""
        deadline = time.monotonic() + END_SECONDS
        for follower in self._followers:
            follower.ended.set()
        for follower in self._followers:
            follower.join(max(0.0, deadline - time.monotonic()))
            if follower.is_alive():
                follower.complain(f"not done {END_SECONDS:.0f} s after the end of the run")
        self._followers = []


class _Follower(threading.Thread):
    """Logs one run to one tracker."""

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        run: Path,
        remark: Callable[[str], None],
        opened: Callable[[], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.ended = threading.Event()
        self._tracker = tracker
        self._run = run
        self._remark = remark
        self._opened = opened
        log = RunLog(run)
        self._taken = log.steps_written()  # by earlier segments
        self._segment = max(segments_of(log))
        self._told: dict[tuple[object, ...], int] = {}  # findings and their severity

    def run(self) -> None:
        try:
            if self._await_a_step():
                self._tracker.open(self._run)
                self._opened()
                self._follow()
                self._close()
        except ModuleNotFoundError as error:
            self.complain(one_line(missing("logging to it", error)))
        except Exception as error:
            self.complain(one_line(error))

    def _await_a_step(self) -> bool:
        """The first step of this segment; False: the run ended without one."""
        while RunLog(self._run).steps_written() == self._taken:
            if self.ended.wait(LOOK_SECONDS) and RunLog(self._run).steps_written() == self._taken:
                return False
        return True

    def _follow(self) -> None:
        while True:
            last = self.ended.is_set()  # before it reads
            try:
                more = self._look()
            except Exception as error:
                if last:
                    raise
                self.complain(one_line(error))
                self.ended.wait(RETRY_SECONDS)
                continue
            if last and not more:
                return
            if not more:
                self.ended.wait(LOOK_SECONDS)

    def _look(self) -> bool:
        """Log what is new. Returns whether there is more."""
        log = RunLog(self._run)
        written = log.steps_written()
        up_to = min(written, self._taken + STEPS_AT_ONCE)
        if up_to > self._taken:
            self._tracker.log(rows_of(log, self._taken, up_to))
            self._taken = up_to
        for finding in (Finding(**found) for found in log.findings()):
            if finding.segment == self._segment:
                self._tell(finding)
        return up_to < written

    def _tell(self, finding: Finding) -> None:
        place = finding.model_index, finding.dp_group
        key = (*place, finding.check, finding.first_step, *finding.ranks)
        severity = SEVERITIES.index(finding.severity)
        if severity > self._told.get(key, -1):
            self._tracker.tell(finding)
            self._told[key] = severity

    def _close(self) -> None:
        log = RunLog(self._run)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "presum-report.html"
            report.write_text(log.report(), encoding="utf-8")
            self._tracker.close(log.judgment()[0], report)

    def complain(self, what: str) -> None:
        self._remark(f"{self.name}: {what}; the run log has everything")
