# SPDX-License-Identifier: Apache-2.0
"""What a session keeps in the store of the rank that records."""

from __future__ import annotations

from typing import Any

PACKETS_PER_WORKER = 64  # in the store


class Queues:
    """A session's queue of packets, and the keys beside it. Torch's errors pass through."""

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._packets = f"{key}/packets"
        self.exit_code = f"{key}/exit_code"  # of a preflight
        self.exit_code_read = f"{key}/exit_code_read"
        self._given_up = f"{key}/given_up"

    def give_up(self) -> None:
        """Nobody will take packets any more."""
        self._store.set(self._given_up, "")

    def given_up(self) -> bool:
        return bool(self._store.check([self._given_up]))

    def waiting(self) -> int:
        """Packets that nobody has taken."""
        return int(self._store.queue_len(self._packets))

    def push(self, packet: bytes) -> None:
        self._store.queue_push(self._packets, packet)

    def pop(self) -> bytes:
        """Raises torch.distributed.QueueEmptyError."""
        packet: bytes = self._store.queue_pop(self._packets, block=False)
        return packet
