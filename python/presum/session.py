# SPDX-License-Identifier: Apache-2.0
"""Moving packets to the aggregator: one background thread per process, no collective.

Global rank 0 runs a TCPStore server of its own and an :class:`Aggregator` that writes the run log;
the other ranks push packets into the store's queue. The address travels once through the default
store. The store has no authentication: anyone who can reach rank 0's port can push packets.
Nothing here makes the training thread wait, except :meth:`Session.close`, for a bounded time.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import DistError, QueueEmptyError

from presum._core import Aggregator, stamp
from presum.findings import Finding, announcement, summary

if TYPE_CHECKING:
    from presum.monitor import Monitor

log = logging.getLogger("presum")

QUEUE = "packets"
PACKETS_PER_WORKER = 64  # in the store
PACKETS_IN_PROCESS = 256
POLL_SECONDS = 0.05
GOODBYE_SECONDS = 1.5
LOOK_SECONDS = 0.25  # between looks for new findings
FLUSH_SECONDS = 10.0
PREFLIGHT_SECONDS = 60.0  # a preflight waits this long for the verdict over all ranks
PREFLIGHT_CODE = "preflight/exit_code"
PREFLIGHT_READ = "preflight/read"
NO_VERDICT = 2
# Long: starved threads are slow, and only background threads wait.
STORE_TIMEOUT = timedelta(seconds=30)
_sessions_begun: Counter[str] = Counter()


class LatePacket(NamedTuple):
    """A packet whose numbers are still on a device."""

    ready: Callable[[], bool]
    make: Callable[[], bytes]


class Session:
    """This process's way to the aggregator of one run; shared by all its monitors.

    Thread-safety: ``send`` and ``complain`` may be called from any thread, the rest from one.
    """

    def __init__(self, name: str, run: Path, rank: int, world_size: int) -> None:
        _sessions_begun[name] += 1  # counts alike on all ranks
        self.run = run
        self.rank = rank
        self.world_size = world_size
        self.dropped = 0
        self.sent = 0
        self.members: list[Monitor] = []  # that have ever used this session
        self.quiet = False
        self.findings: list[Finding] = []  # on rank 0, worst first
        self._open_monitors = 0
        self._listeners: list[Callable[[Finding], None]] = []
        self._training_listeners: list[Callable[[Finding], None]] = []
        self._untold: deque[Finding] = deque()  # of the training thread's listeners
        self._exit_code: int | None = None  # of a preflight
        self._preflight = False
        self._key = f"presum/session/{name}/{_sessions_begun[name]}"
        # A deque without a lock to wait on: sending must not wake a thread that wants the GIL.
        self._queue: deque[bytes | LatePacket] = deque()
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._said = False
        self._off = False
        self._pid = os.getpid()
        self._server: TCPStore | None = None  # kept: workers may push after a failure here
        self._others_lost = False  # nothing of them can come any more
        self._default_store = _default_store() if world_size > 1 else None
        target = self._aggregate if rank == 0 else self._forward
        name = "presum-aggregator" if rank == 0 else "presum-sender"
        self._thread = threading.Thread(
            target=self._guarded, args=(target,), name=name, daemon=True
        )
        self._thread.start()

    def send(self, packet: bytes | LatePacket) -> None:
        """Queue a packet; a late one is made on the background thread.

        Drops it, counted, when the queue is full. Never waits.
        """
        if self._off:
            return
        if len(self._queue) < PACKETS_IN_PROCESS:
            self._queue.append(packet)
        else:
            self.dropped += 1

    def complain(self, what: str) -> None:
        """Say once what ended the collection on this rank."""
        if not self._said:
            self._said = True
            log.warning(
                "presum: rank %d: %s; nothing more is recorded here, training goes on",
                self.rank,
                what,
            )

    def join(self, monitor: Monitor) -> None:
        """Count one more monitor."""
        self.members.append(monitor)
        self._open_monitors += 1

    def listen(self, callback: Callable[[Finding], None], *, on_training_thread: bool) -> None:
        """Call ``callback`` on rank 0 for every new finding: on the background thread, or on the
        training thread after its next optimiser step."""
        (self._training_listeners if on_training_thread else self._listeners).append(callback)

    def tell_training_thread(self) -> None:
        """Hand new findings to those who listen on the training thread. What they raise to end the
        process passes through."""
        while self._untold:
            finding = self._untold.popleft()
            for callback in self._training_listeners:
                self._tell(callback, finding)

    def leave(self) -> bool:
        """Count one monitor less. The last one (True) lets the thread send and write what is
        queued: it waits for 1.5 s at most for other ranks, then for the run log."""
        self._open_monitors -= 1
        if self._open_monitors > 0:
            return False
        if self._pid == os.getpid():
            self._closing.set()
            self._wake.set()
            self._thread.join(FLUSH_SECONDS if self.rank == 0 else GOODBYE_SECONDS)
            if self._queue and not self._off:
                self.complain(f"{len(self._queue)} packets could not be sent before the end")
        return True

    def end_preflight(self) -> int:
        """Close the session as the last monitor would, and wait for the verdict on every rank.
        Returns its exit code; 2 where there is none."""
        self._preflight = True
        self._open_monitors = 0
        self._closing.set()
        self._wake.set()
        self._thread.join(2 * PREFLIGHT_SECONDS)
        return NO_VERDICT if self._exit_code is None else self._exit_code

    def say(self, text: str) -> None:
        """Print a line on rank 0's terminal, unless it is to be quiet."""
        if self.rank == 0 and not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def _tell(self, callback: Callable[[Finding], None], finding: Finding) -> None:
        try:
            callback(finding)
        except Exception:
            log.warning("presum: on_finding failed", exc_info=True)

    def _guarded(self, target: Callable[[], None]) -> None:
        try:
            target()
        except Exception as error:
            if not self._closing.is_set() or self.rank == 0:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._off = True
        self.complain(one_line(error))

    # ---- rank 0

    def _aggregate(self) -> None:
        try:
            aggregator = Aggregator(str(self.run), self.world_size)
        except OSError as error:
            self._publish({"off": True})
            self._give_up(error)
            return
        if self.world_size > 1:
            self._server = self._serve(aggregator)
        try:
            self._ingest_until_closed(aggregator)
            if self._preflight:
                verdict = aggregator.end_preflight()
                self._exit_code = NO_VERDICT if self._others_lost else verdict
        finally:
            aggregator.close()
        self._look(aggregator)
        steps = aggregator.counters["steps"]
        self.say(summary(self.run, steps, aggregator.verdict(), self.findings))
        if self._preflight:
            self._publish_exit_code()

    def _publish_exit_code(self) -> None:
        """Let the other ranks end, now that the run log is complete (a launcher may end this rank
        with the first of them), and wait until they have read the code."""
        self.say(f"presum: preflight ends with exit code {self._exit_code}")
        if self._server is None or self._others_lost:
            return
        self._server.set(PREFLIGHT_CODE, str(self._exit_code))
        deadline = time.monotonic() + GOODBYE_SECONDS
        others = self.world_size - 1
        while self._server.add(PREFLIGHT_READ, 0) < others and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)

    def _look(self, aggregator: Aggregator) -> None:
        """Tell those who listen what is new."""
        new = [Finding(**found) for found in aggregator.take_new_findings()]
        if new or self._closing.is_set():
            self.findings = [Finding(**found) for found in aggregator.findings()]
        for finding in new:
            if finding.severity == "critical":
                self.say(announcement(finding, self.run))
            for callback in self._listeners:
                self._tell(callback, finding)
            if self._training_listeners:
                self._untold.append(finding)

    def _serve(self, aggregator: Aggregator) -> TCPStore:
        listener = socket.socket()
        listener.bind(("" if _several_hosts(self.world_size) else "127.0.0.1", 0))
        server = TCPStore(
            "127.0.0.1",
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=STORE_TIMEOUT,
            use_libuv=True,
            master_listen_fd=listener.detach(),
        )
        self._publish(
            {
                "hosts": _own_addresses(self.world_size),
                "port": server.port,
                "run": aggregator.run,
                "segment": aggregator.segment,
            }
        )
        return server

    def _publish(self, message: dict[str, Any]) -> None:
        if self._default_store is not None:
            self._default_store.set(self._key, json.dumps(message))

    def _ingest_until_closed(self, aggregator: Aggregator) -> None:
        deadline = None
        looked = 0.0
        while True:
            idle = self._drain(aggregator) == 0
            aggregator.tick()
            if not idle and time.monotonic() > looked + LOOK_SECONDS:
                self._look(aggregator)
                looked = time.monotonic()
            if self._closing.is_set() and deadline is None:
                deadline = time.monotonic() + self._patience()
            if deadline is not None:
                workers = 1 if self._others_lost else self.world_size
                everyone = aggregator.goodbyes >= workers * len(self.members)
                if (everyone and idle) or time.monotonic() > deadline:
                    return
            if idle:
                self._wait()

    def _patience(self) -> float:
        """Seconds to wait for other ranks at the end."""
        return PREFLIGHT_SECONDS if self._preflight else GOODBYE_SECONDS

    def _drain(self, aggregator: Aggregator) -> int:
        taken = 0
        while packet := self._next():
            aggregator.ingest(stamp(packet, aggregator.run, aggregator.segment))
            self.sent += 1
            taken += 1
        return taken + self._take_forwarded(aggregator)

    def _take_forwarded(self, aggregator: Aggregator) -> int:
        """What other ranks sent; if their way is gone, this rank's own steps are recorded still."""
        server = self._server
        if server is None or self._others_lost:
            return 0
        waiting = 0
        try:
            waiting = int(server.queue_len(QUEUE))
            for _ in range(waiting):
                aggregator.ingest(server.queue_pop(QUEUE, block=False))
        except QueueEmptyError:
            return waiting
        except DistError as error:
            self._others_lost = True
            log.warning(
                "presum: rank 0: %s; nothing more of other ranks is recorded", one_line(error)
            )
            return 0
        return waiting

    def _wait(self) -> None:
        # Woken at close only: packets can wait for the next poll, so the sender stays cheap.
        if self._closing.is_set():
            time.sleep(0.005)
        else:
            self._wake.wait(POLL_SECONDS)

    # ---- the other ranks

    def _forward(self) -> None:
        found = self._find_aggregator()
        if found is None:
            return
        store, run, segment = found
        room = PACKETS_PER_WORKER * self.world_size
        deadline = float("inf")
        while time.monotonic() < deadline:
            packet = self._next()
            if packet is None:
                if self._closing.is_set() and not self._queue:
                    break
                if self._closing.is_set():
                    deadline = min(deadline, time.monotonic() + self._patience())
                self._wait()
            elif store.queue_len(QUEUE) > room:
                self.dropped += 1
            else:
                store.queue_push(QUEUE, stamp(packet, run, segment))
                self.sent += 1
        if self._preflight:
            self._await_preflight(store)

    def _await_preflight(self, store: TCPStore) -> None:
        store.wait([PREFLIGHT_CODE], timedelta(seconds=PREFLIGHT_SECONDS))
        self._exit_code = int(store.get(PREFLIGHT_CODE))
        store.add(PREFLIGHT_READ, 1)

    def _next(self) -> bytes | None:
        """The oldest packet, or None while there is none or its numbers are on their way."""
        while self._queue:
            head = self._queue[0]
            if isinstance(head, LatePacket) and not head.ready():
                return None
            self._queue.popleft()
            if isinstance(head, bytes):
                return head
            try:
                return head.make()
            except Exception as error:
                self.complain(f"a step could not be read from its device ({one_line(error)})")
        return None

    def _find_aggregator(self) -> tuple[TCPStore, int, int] | None:
        # A connection of its own: a wait on the shared client would block the training thread.
        assert self._default_store is not None
        store = self._default_store.clone()  # type: ignore[attr-defined]
        deadline = float("inf")
        while not store.check([self._key]):
            if self._closing.is_set():  # a short run: the aggregator may still be starting
                deadline = min(deadline, time.monotonic() + self._patience())
            if time.monotonic() > deadline:
                self.complain("rank 0 has not attached, so nothing was recorded")
                return None
            self._wait()
        message = json.loads(store.get(self._key))
        if message.get("off"):
            self._off = True
            return None
        return _connect(message), message["run"], message["segment"]


def _default_store() -> Store:
    from torch.distributed.distributed_c10d import _get_default_store

    return _get_default_store()


def _connect(message: dict[str, Any]) -> TCPStore:
    last: Exception | None = None
    for host in message["hosts"]:
        try:
            return TCPStore(
                host, message["port"], is_master=False, timeout=STORE_TIMEOUT, use_libuv=True
            )
        except Exception as error:
            last = error
    raise ConnectionError(f"cannot reach the aggregator on rank 0: {last}")


def _several_hosts(world_size: int) -> bool:
    local = os.environ.get("LOCAL_WORLD_SIZE")
    if local is not None:
        return int(local) < world_size
    return os.environ.get("MASTER_ADDR", "localhost") not in ("localhost", "127.0.0.1", "::1")


def _own_addresses(world_size: int) -> list[str]:
    if not _several_hosts(world_size):
        return ["127.0.0.1"]
    found = [socket.gethostname(), socket.getfqdn()]
    master = os.environ.get("MASTER_ADDR")
    if master:
        # The address of the interface that reaches the rendezvous host; nothing is sent.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((master, 9))
                found.insert(0, str(probe.getsockname()[0]))
            except OSError:
                pass
    return list(dict.fromkeys(found))


def one_line(error: BaseException) -> str:
    text = str(error).encode("utf-8", "replace").decode("utf-8")
    return " ".join(text.split()) or type(error).__name__
