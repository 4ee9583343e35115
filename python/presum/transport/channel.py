# SPDX-License-Identifier: Apache-2.0
"""State shared by the training thread and the background thread of a session."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from presum.errors import StallError
from presum.text import one_line
from presum.trackers.process import Trackers
from presum.transport.heartbeat import Heartbeat
from presum.transport.outbox import Outbox

log = logging.getLogger("presum")

POLL_SECONDS = 0.05
IDLE_SECONDS = 0.1  # after a poll that found nothing; each poll costs 0.1 ms
POLL_SECONDS_AT_THE_END = 0.005
GOODBYE_SECONDS = 1.5  # to wait for other ranks at the end
PREFLIGHT_SECONDS = 60.0  # the same, for a preflight's verdict
NO_VERDICT = 2  # exit code of a preflight
RAISE_SECONDS = 10.0  # for StallError to end a program
OnStall = Literal["report", "raise", "exit"]


class Channel:
    """Thread-safety: ``remark``, ``complain`` and ``say`` can be called from any thread."""

    def __init__(
        self,
        run: Path,
        rank: int,
        world_size: int,
        heartbeat: Heartbeat,
        on_stall: OnStall,
        log_to: Sequence[str] = (),
        webhook: str | None = None,
    ) -> None:
        self.run = run
        self.rank = rank
        self.world_size = world_size
        self.outbox = Outbox()
        self.closing = threading.Event()
        self.quiet = False
        self.records: bool | None = None  # this rank writes the run log; None: not known yet
        self.ended_without_us = False  # the recording ended before this rank's part of it
        self.preflight = False  # a preflight is ending
        self.require_statistics = False  # exit with 2 if the preflight was too short for statistics
        self.exit_code: int | None = None  # of a preflight
        # called regularly, on the background thread
        self.now_and_then: Callable[[], None] = lambda: None
        self.heartbeat = heartbeat
        self.on_stall: OnStall = on_stall
        self.poll_devices: Callable[[], None] = lambda: None  # see Session.end
        self._said: set[str] = set()
        self.trackers = Trackers(log_to, webhook, self.remark)

    def seconds_to_wait(self) -> float:
        """Seconds to wait for other ranks at the end."""
        return PREFLIGHT_SECONDS if self.preflight else GOODBYE_SECONDS

    def take(self) -> bytes | None:
        """The next packet, or None. Logs a packet that cannot be made."""
        try:
            return self.outbox.take()
        except Exception as error:
            self.remark(f"a step could not be read from its device ({one_line(error)})")
            return None

    def pause(self, seconds: float = POLL_SECONDS) -> None:
        """Sleep until the next poll. Only the end of the session wakes it: packets can wait, so
        sending stays cheap."""
        self.now_and_then()
        if self.closing.is_set():
            time.sleep(POLL_SECONDS_AT_THE_END)
        else:
            self.closing.wait(seconds)

    def end_stalled(self, why: str, at_exit: Callable[[], None] = lambda: None) -> None:
        """Do what ``on_stall`` requests for a stalled job. Returns only if StallError was raised in
        the program, which then handles it."""
        self.remark(f"the job is stalled, and on_stall is {self.on_stall!r}: {why}")
        self.heartbeat.stop()  # this thread no longer serves it
        if self.on_stall == "raise":
            self.on_stall, StallError.why = "report", why
            self.heartbeat.interrupt(StallError)
            deadline = time.monotonic() + RAISE_SECONDS
            while not StallError.delivered and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
            if StallError.delivered:
                return
        at_exit()
        os._exit(1)  # a call that blocks in a collective cannot be interrupted

    def remark(self, what: str) -> None:
        """Log once what went wrong on this rank."""
        if what not in self._said:
            self._said.add(what)
            log.warning("presum: rank %d: %s", self.rank, what)

    def complain(self, what: str) -> None:
        """Log once what ended the recording."""
        self.remark(f"{what}; nothing more is recorded here, training goes on")

    def say(self, text: str) -> None:
        """Print a line on the terminal of the rank that records, unless quiet. While that rank is
        unknown, rank 0 prints."""
        speaks = self.rank == 0 if self.records is None else self.records
        if speaks and not self.quiet:
            print(text, file=sys.stderr, flush=True)
