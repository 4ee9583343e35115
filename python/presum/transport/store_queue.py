# SPDX-License-Identifier: Apache-2.0
"""The data of a session in the store of the rank that records."""

from __future__ import annotations

import contextlib
from typing import Any

from torch.distributed import QueueEmptyError

PACKETS_PER_WORKER = 64  # in the store
ENDED = "ended"
FAILED = "failed"


class StoreQueue:
    """A session's queue of packets, and the keys next to it. Errors of torch propagate."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._packets = f"{key}/packets"
        self._exit_code = f"{key}/exit_code"  # of a preflight
        self._exit_code_read = f"{key}/exit_code_read"
        self._given_up = f"{key}/given_up"
        self._stalled = f"{key}/stalled"

    def give_up(self, why: str) -> None:
        """Announce that no rank takes packets any longer, because the recording has ENDED or
        FAILED."""
        self._store.set(self._given_up, why)
        self.empty()

    def empty(self) -> None:
        """Drop the waiting packets."""
        with contextlib.suppress(QueueEmptyError):
            for _ in range(self.waiting()):
                self.pop()

    def given_up(self) -> str | None:
        """The reason, or None while packets are taken."""
        return self._told(self._given_up)

    @property
    def name(self) -> str:
        """The name of the queue in the store."""
        return self._packets

    def tell_stalled(self, why: str) -> None:
        """Announce that the job is stalled and is to end."""
        self._store.set(self._stalled, why)

    def stalled(self) -> str | None:
        """The reason to end, or None."""
        return self._told(self._stalled)

    def tell_exit_code(self, code: int) -> None:
        self._store.set(self._exit_code, str(code))

    def read_exit_code(self) -> int | None:
        """None until it is known."""
        code = self._told(self._exit_code)
        if code is None:
            return None
        self._store.add(self._exit_code_read, 1)
        return int(code)

    def exit_code_readers(self) -> int:
        """The number of ranks that have read it."""
        return int(self._store.add(self._exit_code_read, 0))

    def waiting(self) -> int:
        """The number of packets in the queue."""
        return int(self._store.queue_len(self._packets))

    def push(self, packet: bytes) -> None:
        self._store.queue_push(self._packets, packet)

    def pop(self) -> bytes:
        """Raises torch.distributed.QueueEmptyError."""
        packet: bytes = self._store.queue_pop(self._packets, block=False)
        return packet

    def _told(self, key: str) -> str | None:
        """The value of a key, or None."""
        found: bytes | None = self._store.get(key) if self._store.check([key]) else None
        return None if found is None else found.decode()
