# SPDX-License-Identifier: Apache-2.0
"""Follows a run log for trackers, in one thread for each."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from presum._core import RunLog
from presum.errors import missing
from presum.findings import SEVERITIES, Finding
from presum.text import one_line
from presum.trackers.series import rows_of, segments_of
from presum.trackers.tracker import Found, Identity, Tracker, identity_of

LOOK_SECONDS = 1.0
RETRY_SECONDS = 10.0  # after an error of a tracker; twice as long after each further one
RETRY_SECONDS_MAX = 320.0
NOT_DONE = 4  # exit code of the process of trackers: it has said which
STEPS_AT_ONCE = 500  # that are held in memory


class Place(NamedTuple):
    """Where in a run its current segment begins."""

    run: Path
    after: int  # steps of earlier segments
    segment: int


def end_of(run: Path) -> Place:
    log = RunLog(run)
    return Place(run, log.steps_written(), max(segments_of(log)))


class Follower(threading.Thread):
    """Logs the segment of a run to one tracker, at the tracker's own pace. A tracker that fails is
    tried again until the run ends, and costs one line.

    Args:
        name: of the tracker, for messages.
        found: where the program logs to.
        place: the beginning of the segment.
        complain: takes a line about what went wrong.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        found: Found,
        place: Place,
        complain: Callable[[str], None],
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.ended = threading.Event()
        self._tracker = tracker
        self._found = found
        self._run, self._taken, self._segment = place
        self._complain = complain
        self._told: dict[Identity, int] = {}  # findings and their severity
        self._has_complained = False

    def run(self) -> None:
        try:
            self._tracker.open(self._run, self._found)
            self._follow()
            self._close()
        except ModuleNotFoundError as error:
            self.complain(missing("logging to it", error))
        except Exception as error:
            self.complain(error)

    def complain(self, error: object) -> None:
        """Say what went wrong, the first time."""
        text = one_line(error) if isinstance(error, Exception) else str(error)
        if not self._has_complained:
            self._has_complained = True
            known = re.sub(r"//[^/@\s]+@", "//***@", text)  # a password
            self._complain(f"{self.name}: {known}; the run log has everything")

    def _follow(self) -> None:
        pause = RETRY_SECONDS
        while True:
            last = self.ended.is_set()  # before it reads
            try:
                more = self._look()
            except Exception as error:
                if last:
                    raise
                self.complain(error)
                self.ended.wait(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
                continue
            pause = RETRY_SECONDS
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
        severity = SEVERITIES.index(finding.severity)
        identity = identity_of(finding)
        if severity > self._told.get(identity, -1):
            self._tracker.tell(finding)
            self._told[identity] = severity

    def _close(self) -> None:
        log = RunLog(self._run)
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "presum-report.html"
            report.write_text(log.report(), encoding="utf-8")
            self._tracker.close(log.judgment()[0], report)


def follow(
    trackers: Mapping[str, tuple[Tracker, Found]],
    place: Place,
    complain: Callable[[str], None],
    await_end: Callable[[], object],
    seconds: float,
) -> Sequence[Follower]:
    """Log a segment to trackers until ``await_end`` returns, and what is left then for at most
    ``seconds``. Returns those that are not done."""
    followers = [Follower(n, t, found, place, complain) for n, (t, found) in trackers.items()]
    for follower in followers:
        follower.start()
    await_end()
    deadline = time.monotonic() + seconds
    for follower in followers:
        follower.ended.set()
    for follower in followers:
        follower.join(max(0.0, deadline - time.monotonic()))
        if follower.is_alive():
            follower.complain(f"not done {seconds:.0f} s after the end of the run")
    return [follower for follower in followers if follower.is_alive()]
