# SPDX-License-Identifier: Apache-2.0
"""The queue of this process's outgoing packets."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

PACKETS_MAX = 2048
BYTES_MAX = 64 << 20
LATE_PACKET_BYTES = 256 << 10  # assumed for a packet whose size is not known yet


class LatePacket(NamedTuple):
    """A packet whose numbers are still on a device."""

    ready: Callable[[], bool]
    make: Callable[[], bytes]
    drop: Callable[[], None]  # called if it is never made


class Outbox:
    """A bounded queue without a lock to wait on: putting must not wake a thread that needs the GIL.

    Thread-safety: ``put`` from any thread, ``take`` from one.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.shut = False  # see close()
        self.refused = 0  # since then
        self._queue: deque[bytes | LatePacket] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, packet: bytes | LatePacket) -> None:
        """Queue the packet, or drop and count it if the queue is full. Never waits."""
        size = len(packet) if isinstance(packet, bytes) else LATE_PACKET_BYTES
        full = len(self._queue) >= min(PACKETS_MAX, max(1, BYTES_MAX // size))
        if not full:
            self._queue.append(packet)
        else:
            self.dropped += 1
            _drop(packet)
        if self.shut:
            self._throw_away()

    def close(self) -> None:
        """Drop all waiting and future packets, since no rank can use them."""
        self.shut = True
        self._throw_away()

    def _throw_away(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                _drop(self._queue.popleft())
                self.refused += 1

    def take(self) -> bytes | None:
        """The oldest packet, or None if there is none or its numbers are not on the host yet.
        Raises the error of making a late packet, which is then removed."""
        if self.shut or not self._queue:
            return None
        head = self._queue[0]
        if isinstance(head, LatePacket) and not head.ready():
            return None
        self._queue.popleft()
        return head if isinstance(head, bytes) else head.make()


def _drop(packet: bytes | LatePacket) -> None:
    if isinstance(packet, LatePacket):
        packet.drop()
