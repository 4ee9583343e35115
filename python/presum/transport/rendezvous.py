# SPDX-License-Identifier: Apache-2.0
"""How the processes of a session find the rank that records: two keys in the job's default store.

Global rank 0 records. If it does not attach (it trains nothing, as in reinforcement learning or a
pipeline), another rank that has attached records.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _get_default_store

from presum.transport.channel import POLL_SECONDS, Channel

TAKE_OVER_SECONDS = 10.0  # how long to wait for rank 0
TAKE_OVER_SECONDS_AT_THE_END = 0.3
PER_RANK_SECONDS = 0.1  # each next rank waits this much longer, so that a low rank takes over
RANKS_APART = 10
POLL_SECONDS_MAX = 2.0


def is_recorded(run: Path | None) -> bool:
    """Whether a rank of the job is known to record this run, for a rank that does not. Ask before
    the process group is destroyed."""
    try:
        store, key = _get_default_store(), session_key(str(run or ""), 1) + "/address"
        return bool(store.check([key])) and "off" not in json.loads(store.get(key))
    except Exception:
        return False


def session_key(name: str, number: int) -> str:
    """The key of a session. ``name``: the run as given, or "" for the default one; a path may not
    be valid UTF-8."""
    return f"presum/session/{name.encode('utf-8', 'surrogateescape').hex()}/{number}"


class NotRecordedError(Exception):
    """No rank takes this rank's packets."""


class Rendezvous:
    """The meeting point of one session. For the background thread, on a connection of its own."""

    def __init__(self, store: Store, key: str, channel: Channel) -> None:
        self._store = store
        self._recorder = f"{key}/recorder"
        self._address = f"{key}/address"
        self._channel = channel
        self._message: dict[str, Any] = {}

    def announce(self, message: dict[str, Any]) -> None:
        """Announce where this process takes packets."""
        self._store.set(self._address, json.dumps(message))
        self._message = message

    def announce_off(self, why: str) -> None:
        """Announce that this process takes no packets."""
        self.announce({"off": why})

    def announce_end(self) -> None:
        """Announce that the session is over. The store may be gone."""
        with contextlib.suppress(Exception):
            self.announce(self._message | {"ended": time.time()})

    def find(self) -> dict[str, Any] | None:
        """The announcement of the rank that records; None if this rank is to record. Waits with
        growing pauses. Raises NotRecordedError at the end of a run if no rank has announced
        itself."""
        channel, began = self._channel, time.monotonic()
        if channel.rank == 0 and self._claim():
            return None
        turn = PER_RANK_SECONDS * min(channel.rank, RANKS_APART)
        take_over, give_up = began + TAKE_OVER_SECONDS + turn, float("inf")
        pause = POLL_SECONDS
        while not self._store.check([self._address]):
            now = time.monotonic()
            if channel.closing.is_set():  # a short run: the rank that records may still be starting
                take_over = min(take_over, now + TAKE_OVER_SECONDS_AT_THE_END + turn)
                give_up = min(give_up, now + channel.seconds_to_wait())
            if now > take_over:
                take_over = float("inf")
                if self._claim():
                    return None
            if now > give_up:
                raise NotRecordedError("the rank that records did not start in time")
            channel.now_and_then()
            if channel.closing.is_set():
                time.sleep(POLL_SECONDS)
            else:
                channel.closing.wait(min(pause, max(POLL_SECONDS, take_over - now)))
                pause = min(2 * pause, POLL_SECONDS_MAX)
        found: dict[str, Any] = json.loads(self._store.get(self._address))
        return found

    def _claim(self) -> bool:
        """Whether this rank is the first to claim the recording."""
        mine = str(self._channel.rank)
        return self._store.compare_set(self._recorder, "", mine).decode() == mine
