# SPDX-License-Identifier: Apache-2.0
"""The background thread of the rank that records: it takes packets, writes the run log, and reports
findings."""

from __future__ import annotations

import contextlib
import logging
import socket
import time

from torch.distributed import DistError, QueueEmptyError

from presum._core import Aggregator, stamp
from presum.findings import Finding, summary
from presum.text import one_line
from presum.transport.announcements import Announcements
from presum.transport.channel import GOODBYE_SECONDS, IDLE_SECONDS, POLL_SECONDS, Channel
from presum.transport.connections import own_address, store_connections
from presum.transport.listeners import FindingListeners
from presum.transport.processes import Processes
from presum.transport.rendezvous import Rendezvous
from presum.transport.store_queue import ENDED, FAILED, StoreQueue

log = logging.getLogger("presum")

LOOK_SECONDS = 0.25  # between checks for new findings
STALLED_SECONDS = 3.0  # for other ranks to see that the job is stalled
_given_up: list[StoreQueue] = []  # by sessions of this process, in its server


class Recorder:
    """An open run log."""

    def __init__(self, channel: Channel, listeners: FindingListeners) -> None:
        self._channel = channel
        self._listeners = listeners
        self._announcements = Announcements(channel.say, channel.run)
        self._looked = 0.0
        self._processes = Processes(socket.gethostname())
        self._ranks_heard = 0
        self._summary = ""  # of a recording that has ended
        self.queue: StoreQueue | None = None  # of other ranks
        self.others_lost = False  # no more packets of other ranks can arrive

    def record(self, rendezvous: Rendezvous | None, key: str) -> None:
        """Record until the session is closed. ``rendezvous``: how other ranks find this one."""
        try:
            self._record(rendezvous, key)
        finally:
            self.queue = None
            self._processes.close()

    def _record(self, rendezvous: Rendezvous | None, key: str) -> None:
        try:
            aggregator = Aggregator(str(self._channel.run), self._channel.world_size)
        except Exception as error:
            if rendezvous is not None:
                rendezvous.announce_off(one_line(error))
            raise
        try:
            self._tell_notices(aggregator, f" in {self._channel.run}")
            self._channel.trackers.start(self._channel.run)
            self._channel.heartbeat.reaches([], 0, "", aggregator.run, aggregator.segment)
            if rendezvous is not None:
                self._serve(rendezvous, aggregator, key)
            self._ingest_until_closed(aggregator)
            code = None
            if self._channel.preflight:
                code = aggregator.end_preflight(self._channel.require_statistics)
            aggregator.close()
            self._channel.exit_code = code
        except Exception as error:
            aggregator.abandon(one_line(error))
            if rendezvous is not None:
                rendezvous.announce_off(one_line(error))
            self._give_up(FAILED)
            raise
        finally:
            self._look(aggregator)
            self._summary = self._summarize(aggregator)
        self.say_summary()
        if self._channel.preflight:
            self._publish_exit_code()
        self._give_up(ENDED)

    def _give_up(self, why: str) -> None:
        """Notify ranks that still send. The connection to them may be gone."""
        with contextlib.suppress(Exception):
            if self.queue is not None and not self.others_lost:
                self.queue.give_up(why)
                _given_up.append(self.queue)

    def _summarize(self, aggregator: Aggregator) -> str:
        run, steps = self._channel.run, aggregator.counters["steps"]
        verdict, findings = aggregator.verdict(), self._listeners.findings
        short = aggregator.too_short()
        return summary(run, steps, verdict, findings, aggregator.incomplete(), short)

    def say_summary(self) -> None:
        """Print the result of the run, once. It is printed at the end of the program, even if the
        recording ended earlier."""
        if self._summary:
            self._channel.say(self._summary)
            self._summary = ""

    def _serve(self, rendezvous: Rendezvous, aggregator: Aggregator, key: str) -> None:
        world_size = self._channel.world_size
        try:
            server = store_connections().serve(world_size)
        except Exception as error:
            rendezvous.announce_off(one_line(error))
            self._lose_others(aggregator, error)
            return
        while _given_up:
            _given_up.pop().empty()  # of packets that arrived after their end
        self.queue = StoreQueue(server, key)
        known = {"key": key, "run": aggregator.run, "segment": aggregator.segment}
        rendezvous.announce(own_address(server.port, world_size) | known)

    def _ingest_until_closed(self, aggregator: Aggregator) -> None:
        channel, closed = self._channel, None
        news, looked_at = False, 0  # records
        while True:
            idle = self._drain(aggregator) == 0
            self._beat(aggregator)
            aggregator.tick()
            records = aggregator.counters["records"]
            news = news or not idle or records != looked_at or bool(aggregator.stall)
            if news and time.monotonic() > self._looked + LOOK_SECONDS:
                self._look(aggregator)
                news, looked_at = False, records
            if not channel.closing.is_set():  # else the summary includes it
                self._announcements.flush()
            if channel.closing.is_set() and closed is None:
                closed = time.monotonic()
            if closed is not None:
                waited = time.monotonic() - closed
                if waited > channel.seconds_to_wait() or (
                    idle and self._is_all(aggregator, waited)
                ):
                    return
            if idle or closed is None:
                self._pause(aggregator, IDLE_SECONDS if idle else POLL_SECONDS)

    def _pause(self, aggregator: Aggregator, seconds: float) -> None:
        """Wait for the next poll, or until a rank's process ends: then a launcher soon ends this
        process too."""
        if self._ranks_heard != aggregator.ranks_heard:
            self._ranks_heard = aggregator.ranks_heard
            self._processes.watch(aggregator.processes)
        if not self._channel.closing.is_set() and self._processes:
            self._channel.now_and_then()
            ends = self._processes.wait(seconds)
        else:
            self._channel.pause(seconds)
            ends = self._processes.wait(0)
        if ends:  # first the packets that they sent, and this rank's heartbeat
            self._drain(aggregator)
            self._beat(aggregator, now=True)
        for end in ends:
            aggregator.process_ended(*end)

    def _beat(self, aggregator: Aggregator, *, now: bool = False) -> None:
        """Take this rank's heartbeat, and end the job if it is stalled and ``on_stall`` says so."""
        heartbeat = self._channel.heartbeat
        packet = heartbeat.take(now=now)
        if packet is None:
            return
        aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))
        stall = aggregator.stall
        if not stall or self._channel.on_stall == "report":
            return
        self._look(aggregator)
        heartbeat.stop()
        others = None if self.others_lost else self.queue
        if others is not None:
            with contextlib.suppress(DistError):
                others.tell_stalled(stall)
        if self._channel.on_stall == "exit":
            aggregator.abandon(f"it was stalled: {stall}")
        if others is not None:
            time.sleep(STALLED_SECONDS)  # they check regularly
        self._channel.end_stalled(stall, lambda: aggregator.abandon(f"it was stalled: {stall}"))

    def _is_all(self, aggregator: Aggregator, waited: float) -> bool:
        """Whether all packets have arrived. Ranks that were never heard from may not take part in
        the training, so the wait for them is short."""
        if self.others_lost:
            return len(self._channel.outbox) == 0
        everyone = aggregator.ranks_heard >= self._channel.world_size
        return aggregator.everyone_left and (everyone or waited > GOODBYE_SECONDS)

    def _drain(self, aggregator: Aggregator) -> int:
        taken, outbox = 0, self._channel.outbox
        run, segment = aggregator.run, aggregator.segment
        while packet := self._channel.take():
            aggregator.ingest(stamp(packet, run, segment, outbox.dropped))
            taken += 1
        return taken + self._take_forwarded(aggregator)

    def _take_forwarded(self, aggregator: Aggregator) -> int:
        """Take the packets of other ranks. If the connection fails, this rank's own steps are still
        recorded."""
        queue = self.queue
        if queue is None or self.others_lost:
            return 0
        waiting = 0
        try:
            waiting = queue.waiting()
            for _ in range(waiting):
                aggregator.ingest(queue.pop())
        except QueueEmptyError:
            return waiting
        except DistError as error:
            self._lose_others(aggregator, error)
            return 0
        return waiting

    def _lose_others(self, aggregator: Aggregator, error: Exception) -> None:
        self.others_lost = True
        store_connections().stop_serving()
        what = f"{one_line(error)}; nothing more is recorded of other ranks"
        log.warning("presum: rank %d: %s", self._channel.rank, what)
        aggregator.lose_others(what)

    def _look(self, aggregator: Aggregator) -> None:
        """Report what is new to listeners."""
        self._looked = time.monotonic()
        self._tell_notices(aggregator)
        new = [Finding(**found) for found in aggregator.take_new_findings()]
        if new or self._channel.closing.is_set():
            self._listeners.findings = [Finding(**found) for found in aggregator.findings()]
        for finding in new:
            self._announcements.take(finding)
            self._listeners.tell(finding)

    def _tell_notices(self, aggregator: Aggregator, where: str = "") -> None:
        """Print notices about the continuation of a run."""
        for notice in aggregator.take_notices():
            self._channel.say(f"presum: {notice}{where}")

    def _publish_exit_code(self) -> None:
        """Publish the exit code after the run log is complete (a launcher may end this rank
        together with the first other rank that ends), and wait until the other ranks have read
        it."""
        channel, queue = self._channel, self.queue
        channel.say(f"presum: preflight ends with exit code {channel.exit_code}")
        if queue is None or self.others_lost:
            return
        assert channel.exit_code is not None
        queue.tell_exit_code(channel.exit_code)
        deadline = time.monotonic() + GOODBYE_SECONDS
        others = channel.world_size - 1
        while queue.exit_code_readers() < others and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
