# SPDX-License-Identifier: Apache-2.0
"""The trackers of one session, on the program's side."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from presum._core import RunLog
from presum.errors import UserError
from presum.text import one_line
from presum.trackers.following import LOOK_SECONDS, NOT_DONE, Place, end_of
from presum.trackers.kinds import KINDS, WEBHOOK
from presum.trackers.tracker import Found
from presum.trackers.webhook import address_in

log = logging.getLogger("presum")

END_SECONDS = 30.0  # that the end of the program waits
OURS = "PRESUM"  # begins the names of variables that would start presum there


class Trackers:
    """Logs in a process of its own: a library that is imported, slow, or at its end disturbs
    neither the program nor the program's use of the same library. That process follows the run
    log; it outlives a program that is killed, and logs what is left.

    Thread-safety: ``find`` is for the training thread, ``start`` for the thread that records,
    ``finish`` for any.
    """

    def __init__(
        self, names: Sequence[str], webhook: str | None, remark: Callable[[str], None]
    ) -> None:
        self._names = list(dict.fromkeys(names))
        self._webhook = webhook
        self._remark = remark
        self._found: dict[str, Found] = {name: {} for name in self._names}
        self._looked = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def find(self) -> None:
        """Called after each step. After the first one it looks where the program logs to: programs
        often open their tracker after they wrap their model."""
        if self._looked.is_set():
            return
        for name in self._names:
            try:
                self._found[name] = KINDS[name].find()
            except Exception:
                log.debug("presum: %s: the program's run was not found", name, exc_info=True)
        self._looked.set()

    def start(self, run: Path) -> None:
        """Log the segment of this run that begins here. Never raises."""
        self._add_webhook()
        if not self._found:
            return
        try:
            place = end_of(run.absolute())
            self._thread = threading.Thread(
                target=self._work, args=(place,), name="presum-trackers", daemon=True
            )
            self._thread.start()
        except Exception as error:
            self._remark(f"nothing is logged to {', '.join(self._found)} ({one_line(error)})")

    def _add_webhook(self) -> None:
        if self._webhook is None:
            return
        try:
            self._found[WEBHOOK] = {"address": address_in(self._webhook)}
        except UserError as error:
            self._remark(f"webhook: {error}; no finding is sent")

    def finish(self) -> None:
        """The run log is complete. Waits at most 30 s for the trackers."""
        thread, self._thread = self._thread, None
        self._ended.set()
        if thread is not None:
            thread.join(END_SECONDS)
            if thread.is_alive():
                names = ", ".join(self._found)
                self._remark(f"{names}: not done yet; it continues without this program")

    def _work(self, place: Place) -> None:
        try:
            if self._await_a_step(place):
                self._log(place)
        except Exception as error:
            self._remark(f"nothing more is logged to trackers ({one_line(error)})")

    def _await_a_step(self, place: Place) -> bool:
        """A step, and what ``find`` looks for, which it may never do without an optimizer. False:
        the run ended without a step."""
        seen = 0
        while seen < 2 and not (seen and self._looked.is_set()):
            ended = self._ended.wait(LOOK_SECONDS)
            seen += RunLog(place.run).steps_written() > place.after
            if ended:
                return seen > 0
        return True

    def _log(self, place: Place) -> None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(OURS)
        }
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-m", "presum.trackers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            encoding="utf-8",
            start_new_session=True,  # a launcher ends the program's processes together
        )
        assert process.stdin is not None and process.stdout is not None
        task = {**place._asdict(), "run": str(place.run), "trackers": self._found}
        process.stdin.write(json.dumps(task, default=str) + "\n")
        process.stdin.flush()
        threading.Thread(target=self._end_input, args=(process,), daemon=True).start()
        for line in process.stdout:
            self._remark(line.rstrip())
        if process.wait() not in (0, NOT_DONE):
            raise ChildProcessError(f"its process ended with exit code {process.returncode}")

    def _end_input(self, process: subprocess.Popen[str]) -> None:
        self._ended.wait()
        assert process.stdin is not None
        try:
            process.stdin.close()
        except OSError:
            log.debug("presum: the trackers' process is gone", exc_info=True)
