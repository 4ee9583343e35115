# SPDX-License-Identifier: Apache-2.0
"""Detects how processes of other ranks on this host end."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROCESS = re.compile(r"[0-9]{1,9}")
UNKNOWN = -1  # exit code of an ended process whose status is unknown
# Fields of /proc/PID/stat after the name (proc(5)).
_STATE, _THREADS, _START, _STATUS = 0, 17, 19, 49


class ProcessEnd(NamedTuple):
    rank: int
    signal: int  # 0: none
    exit_code: int


class Processes:
    """Processes by rank. For one thread."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._known: dict[int, tuple[int, str]] = {}  # by rank: the process and its start time
        self._poll = select.poll()
        self._ranks: dict[int, int] = {}  # by descriptor
        self._unpolled: set[int] = set()  # ranks whose end no descriptor reports

    def __bool__(self) -> bool:
        return bool(self._known)

    def watch(self, processes: Iterable[tuple[int, str, str, str]]) -> None:
        """Watch processes, given as (rank, host, process, start time) as they report themselves.
        Processes of other hosts and this process are ignored."""
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
        """Wait until a watched process ends; return all that have ended. Each is reported once."""
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
        except (OSError, AttributeError):  # Python may be built without it
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
    """The start time of a process, as the system counts it, and its PID namespace (visible
    processes share this process's namespace). Empty if unknown. As in
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
    """Whether a process runs. Its first thread may end before the others."""
    fields = _stat(pid)
    if len(fields) <= _START or start_of(pid) != start:
        return False
    return fields[_STATE] != "Z" or fields[_THREADS] != "1"


def _how_ended(pid: int, start: str) -> tuple[int, int]:
    """The signal and the exit code, which the parent can reap at any time."""
    fields = _stat(pid)
    if len(fields) <= _STATUS or start_of(pid) != start or not _may_see(pid):
        return 0, UNKNOWN
    status = int(fields[_STATUS])
    return status & 0x7F, (status >> 8) & 0xFF


def _may_see(pid: int) -> bool:
    """The system shows zero as the status of another user's process."""
    try:
        return os.geteuid() in (0, Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return False
