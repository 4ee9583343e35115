# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from presum.transport import session as module
from presum.transport.channel import GOODBYE_SECONDS, Channel
from presum.transport.heartbeat import Heartbeat


class SlowStore:
    """Of a job whose other ranks never attach; its first answer takes long."""

    asked = 0

    def clone(self) -> SlowStore:
        return self

    def check(self, _keys: list[str]) -> bool:
        self.asked += 1
        if self.asked == 1:
            time.sleep(GOODBYE_SECONDS + 0.5)
        return False

    def __getattr__(self, name: str) -> Any:
        raise ConnectionError(name)


def test_at_the_end_no_thread_is_left_in_a_call_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SlowStore()
    monkeypatch.setattr(module, "_get_default_store", lambda: store)
    session = module.Session("slow", Channel(tmp_path, 1, 2, Heartbeat(1, "host", 60.0), "report"))
    session.channel.quiet = True
    while not store.asked:
        time.sleep(0.01)
    before = threading.active_count()
    session.end()
    assert threading.active_count() == before - 1
