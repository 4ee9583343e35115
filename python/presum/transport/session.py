# SPDX-License-Identifier: Apache-2.0
"""This process's part of a run: its recordings, and the background thread that sends their packets.

One rank, usually global rank 0, runs its own TCPStore server and an :class:`Aggregator` that writes
the run log; the other ranks push packets into the store's queue. The server's address is published
once, through the default store. The store has no authentication: anyone who can reach that rank's
port can push packets. The training thread never waits here, except at the end, for a limited time.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store

from presum.findings import counted
from presum.text import one_line
from presum.transport.channel import GOODBYE_SECONDS, NO_VERDICT, PREFLIGHT_SECONDS, Channel
from presum.transport.connections import store_connections
from presum.transport.listeners import FindingListeners
from presum.transport.outbox import LatePacket
from presum.transport.recorder import Recorder
from presum.transport.rendezvous import NotRecordedError, Rendezvous, session_key
from presum.transport.sending import send_until_closed

STOP_SECONDS = 5.0  # for a store call that the thread is in
FLUSH_SECONDS = 10.0  # for the run log at the end
LOOK_SECONDS = 0.02  # between polls of a device at the end
# The last reference to a model can disappear inside one of its hooks, or while autograd's thread is
# in one. Hooks check `off` when they begin: after this time none runs.
ORPHAN_SECONDS = 0.5
_sessions_begun: Counter[str] = Counter()
_exit_codes: list[int] = []  # of preflights of this process
_sessions: dict[Path | None, Session] = {}


class RecordedModel(Protocol):
    """The recording of a model, as a session sees it."""

    def end(self) -> None: ...

    def end_without_model(self) -> None: ...

    def say_if_cut_short(self) -> None: ...

    def is_of(self, module: object) -> bool: ...


def open_session(run: Path | None, channel: Callable[[], Channel]) -> Session:
    """The session of a run (None: the default run). Recordings of several models in one process
    share it, with the first one's channel."""
    session = _session_of(run)
    if session is None:
        session = _sessions[run] = Session(str(run or ""), channel())
    return session


def next_module_number(run: Path | None, ranks: tuple[int, ...]) -> int:
    """The number of the next model of these ranks in a run: 0, 1, ... in the order of attaching.
    Counted by ranks, because a rank can have models that other ranks do not have."""
    session = _session_of(run)
    return session.modules[ranks] if session is not None else 0


def end_recordings_of(module: object) -> None:
    """End recordings of a module in an earlier wrapper."""
    for session in open_sessions():
        for recording in [one for one in list(session.recordings) if one.is_of(module)]:
            recording.end()


def end_preflights() -> int:
    """The exit code of the preflights, when the program is over. Preflights with steps left end
    with the data so far; if nothing was trained, the code is 2."""
    for session in open_sessions():
        for recording in list(session.recordings):
            recording.say_if_cut_short()
        session.end_preflight()
    return 1 if 1 in _exit_codes else max(_exit_codes, default=NO_VERDICT)


def open_sessions() -> list[Session]:
    """The sessions of this process. A forked child starts with none."""
    for run in [run for run, session in _sessions.items() if not session.is_own()]:
        del _sessions[run]
    return list(_sessions.values())


def _session_of(run: Path | None) -> Session | None:
    session = _sessions.get(run)
    return session if session in open_sessions() else None


class Session:
    """This process's session of one run.

    It ends when all monitors are closed, which all ranks do alike, or with the process. It does not
    end when models are freed, because ranks free them at different times.

    Thread-safety: ``send`` and ``forget`` can be called from any thread, the rest from one.
    """

    def __init__(self, name: str, channel: Channel) -> None:
        _sessions_begun[name] += 1  # equal on ranks that train alike
        self._name, self._number = name, _sessions_begun[name]
        self._began = time.time()
        self._rendezvous: Rendezvous | None = None  # if this rank records
        self.modules: Counter[tuple[int, ...]] = Counter()  # all that were ever recorded, by ranks
        self.channel = channel
        self.listeners = FindingListeners()
        self.recorder = Recorder(self.channel, self.listeners)
        self.recordings: list[RecordedModel] = []  # that have not ended
        # recordings whose models were freed, and when
        self.orphans: deque[tuple[float, RecordedModel]] = deque()
        self._open_monitors = 0
        self._pid = os.getpid()
        # Keeps the store alive: its server may go with the process group, before the end of the
        # run.
        self._default_store: Store | None = _get_default_store() if channel.world_size > 1 else None
        self.channel.now_and_then = self._end_orphans
        self._thread = threading.Thread(target=self._work, name="presum", daemon=True)
        self._thread.start()
        atexit.register(self.end)
        # Processes of multiprocessing end without calling atexit functions.
        self._at_process_end = multiprocessing.util.Finalize(None, self.end, exitpriority=100)

    def send(self, packet: bytes | LatePacket) -> None:
        """Queue a packet; a late packet is made on the background thread. Never waits."""
        self.channel.outbox.put(packet)

    def join(self, recording: RecordedModel, ranks: tuple[int, ...]) -> None:
        """Add a recording and its monitor."""
        self.recordings.append(recording)
        self.modules[ranks] += 1
        self._open_monitors += 1

    def stepped(self) -> None:
        """Called on the training thread after an optimizer step."""
        if self.channel.records is not False:
            self.channel.trackers.find()
        self.listeners.tell_training_thread()

    def is_own(self) -> bool:
        """Whether this process created the session (and was not forked from it)."""
        return self._pid == os.getpid()

    def forget(self, recording: RecordedModel) -> None:
        with contextlib.suppress(ValueError):
            self.recordings.remove(recording)

    # ---- the end

    def leave(self) -> None:
        """A monitor was closed. The last one ends the session."""
        self._open_monitors -= 1
        if self._open_monitors == 0:
            self.end()

    def end(self) -> None:
        """End every recording, and let the thread send and write what is queued. Waits at most 1.5
        s for other ranks, then for the run log. A second call does nothing."""
        if not self.is_own():
            return
        for recording in list(self.recordings):
            recording.say_if_cut_short()
        if not self._end_recordings():
            return
        self._await_thread(GOODBYE_SECONDS)
        if self.channel.records:
            self._await_thread(FLUSH_SECONDS - GOODBYE_SECONDS)
        if not self._thread.is_alive():
            self.recorder.say_summary()
        self.channel.trackers.finish()
        outbox = self.channel.outbox
        if len(outbox) and not outbox.shut:
            unsent = counted(len(outbox), "packet")
            self.channel.complain(f"{unsent} could not be sent before the end")
        steps = outbox.refused - sum(self.modules.values())  # except for the final packets
        if self.channel.ended_without_us and steps > 0:
            lost = counted(steps, "packet")
            self.channel.remark(f"the recording ended before this rank did: {lost} lost")
        self._stop_thread()

    def end_preflight(self) -> int:
        """End the session as ``end`` does, and wait for the verdict on every rank. Returns its exit
        code, or 2 if there is none."""
        self.channel.preflight = True
        if self._end_recordings():
            self._await_thread(3 * PREFLIGHT_SECONDS)
            self.channel.trackers.finish()
        code = NO_VERDICT if self.channel.exit_code is None else self.channel.exit_code
        _exit_codes.append(code)
        return code

    def _stop_thread(self) -> None:
        """Wait for the thread: if it returns from a call of torch's store after the interpreter has
        ended, Python ends the thread and with it the process: ``terminate called without an active
        exception``."""
        if not self._thread.is_alive():
            return
        if not self.channel.records:
            self.channel.outbox.close()
        self._await_thread(STOP_SECONDS)

    def _await_thread(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self.channel.poll_devices()
            self._thread.join(LOOK_SECONDS)

    def _end_recordings(self) -> bool:
        """Returns whether this process still had to end them."""
        if self.channel.closing.is_set() or not self.is_own():
            return False
        for recording in list(self.recordings):
            recording.end()
        self.channel.closing.set()
        self.channel.now_and_then = lambda: None
        atexit.unregister(self.end)
        self._at_process_end.cancel()
        for run in [run for run, open_one in _sessions.items() if open_one is self]:
            del _sessions[run]
        return True

    # ---- on the background thread

    def _work(self) -> None:
        try:
            self._move_packets()
        except BaseException as error:
            # At the end the store may be gone; ``end`` reports packets that are left.
            lost = isinstance(error, NotRecordedError) or self.channel.records
            if lost or not self.channel.closing.is_set():
                self.channel.outbox.close()
                self.channel.complain(one_line(error))
        finally:
            self.channel.heartbeat.stop()
        while not self.channel.closing.wait(ORPHAN_SECONDS):
            self._end_orphans()
        if self._rendezvous is not None and self.channel.records:
            self._rendezvous.announce_end()

    def _move_packets(self) -> None:
        if self._default_store is None:
            self._record(None, "")
            return
        # A separate connection: a wait on the shared client would block the training thread.
        store = store_connections().connect_to_default(self._default_store)
        found, key, rendezvous = self._find(store)
        if found is None:
            self._rendezvous = rendezvous
            self._record(rendezvous, key)
        else:
            self._thread.name = "presum-sender"
            send_until_closed(self.channel, found)
        store_connections().keep_to_default(self._default_store, store)

    def _find(self, store: Store) -> tuple[dict[str, Any] | None, str, Rendezvous]:
        """Find the other ranks. If this rank took no part in earlier trainings, it skips their
        sessions, which have ended."""
        while True:
            key = session_key(self._name, self._number)
            rendezvous = Rendezvous(store, key, self.channel)
            found = rendezvous.find()
            if found is None or "ended" not in found:
                return found, key, rendezvous
            # Clocks of two hosts differ: a rank that is about to end belonged to that session.
            if found["ended"] > self._began or self.channel.closing.is_set():
                if "off" in found:
                    return found, key, rendezvous
                raise NotRecordedError("the recording ended before this rank found it")
            self._number += 1
            _sessions_begun[self._name] = max(_sessions_begun[self._name], self._number)

    def _record(self, rendezvous: Rendezvous | None, key: str) -> None:
        channel = self.channel
        channel.records = True
        self._thread.name = "presum-aggregator"
        if channel.rank != 0:
            channel.say(
                f"presum: rank 0 has not attached; rank {channel.rank} records into {channel.run}"
            )
        self.recorder.record(rendezvous, key)

    def _end_orphans(self) -> None:
        """Runs on this thread, so that the thread that frees a model's last part is not inside its
        end."""
        while self.orphans and time.monotonic() > self.orphans[0][0] + ORPHAN_SECONDS:
            self.orphans.popleft()[1].end_without_model()
