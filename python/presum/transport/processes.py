# SPDX-License-Identifier: Apache-2.0
"""How the processes of other ranks end, where they are this host's."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROCESS = re.compile(r"[0-9]{1,9}")
UNKNOWN = -1  # exit code of a process that is gone, of which nobody says how it ended
# Fields of /proc/PID/stat behind the name (proc(5)).
_STATE, _THREADS, _START, _STATUS = 0, 17, 19, 49


class ProcessEnd(NamedTuple):
    rank: int
    signal: int  # 0: none
    exit_code: int


class Processes:
    """Processes by rank. For one thread."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._known: dict[int, tuple[int, str]] = {}  # by rank: process and when it began
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}  # by descriptor
        self._unpolled: set[int] = set()  # ranks whose end no descriptor tells

    def __bool__(self) -> bool:
        return bool(self._known)

    def watch(self, processes: Iterable[tuple[int, str, str, str]]) -> None:
        """Rank, host, process and when it began, as they say themselves. What is no process of this
        host is not watched, nor is this one."""
        for rank, host, pid, start in processes:
            if host != self._host or not PROCESS.fullmatch(pid) or int(pid) == os.getpid():
                continue
            if self._known.get(rank) == (int(pid), start):
                continue
            self._forget(rank)
            if start and start_of(int(pid)) == start:
                self._known[rank] = int(pid), start
                self._add(rank, int(pid))

    def wait(self, seconds: float) -> list[ProcessEnd]:
        """Those that have ended, as soon as one has. A process that is watched is told once."""
        ready = [self._ranks[fd] for fd, _ in self._poll.poll(seconds * 1000)]
        ready += [rank for rank in self._unpolled if not _runs(*self._known[rank])]
        ends = [ProcessEnd(rank, *_how_ended(*self._known[rank])) for rank in ready]
        for rank in ready:
            self._forget(rank)
        return ends

    def close(self) -> None:
        for rank in list(self._known):
            self._forget(rank)

    def _add(self, rank: int, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except (OSError, AttributeError):  # Python itself may have been built without it
            self._unpolled.add(rank)
            return
        self._ranks[descriptor] = rank
        self._poll.register(descriptor, select.POLLIN)

    def _forget(self, rank: int) -> None:
        self._known.pop(rank, None)
        self._unpolled.discard(rank)
        for descriptor in [fd for fd, held in self._ranks.items() if held == rank]:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._ranks[descriptor]


def start_of(pid: int) -> str:
    """When a process began, as its system counts it, and in which namespace of processes: it is
    one of this process's own, or not seen. Empty where that is not known. As in
    src/judge/recording_process.cc."""
    fields = _stat(pid)
    return f"{fields[_START]}-{_namespace()}" if len(fields) > _START else ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _runs(pid: int, start: str) -> bool:
    """The first thread of a process may have ended before the others."""
    fields = _stat(pid)
    if len(fields) <= _START or start_of(pid) != start:
        return False
    return fields[_STATE] != "Z" or fields[_THREADS] != "1"


def _how_ended(pid: int, start: str) -> tuple[int, int]:
    """Signal and exit code, which its parent can take away at any time."""
    fields = _stat(pid)
    if len(fields) <= _STATUS or start_of(pid) != start or not _may_see(pid):
        return 0, UNKNOWN
    status = int(fields[_STATUS])
    return status & 0x7F, (status >> 8) & 0xFF


def _may_see(pid: int) -> bool:
    """The system hides the status of another user's process behind a zero."""
    try:
        return os.geteuid() in (0, Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return False
