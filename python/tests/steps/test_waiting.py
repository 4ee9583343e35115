# SPDX-License-Identifier: Apache-2.0
"""Waits that exceptions leave open."""

from __future__ import annotations

import math
import struct
import time

import pytest

from observers import make_observer
from packet_decoder import decode
from presum import _core
from presum.steps.waiting import Waiting

TIMES, REDUCTION = 15, 5
SLEEP = 0.2  # long beside what a machine that is busy with other things adds


def test_a_wait_that_was_never_ended_is_over_at_the_next_forward_pass() -> None:
    observer = make_observer([("p", 1, "")], knows_optimizer=True)
    for _ in range(2):
        _core.wait_begins()
        observer.enter_module()
        time.sleep(SLEEP)
        observer.pass_begins(True, False, True, 0.0)
        observer.pass_ends(1.0, None, 1.0, 1.0, 0.0, math.nan, False)
        observer.optimizer_begins()
        observer.optimizer_steps(0)
        ended = observer.take_ended()
        assert ended is not None
    seconds = struct.unpack_from("<6d", decode(ended.packet()).sections[TIMES])
    assert seconds[REDUCTION] < SLEEP / 2 and seconds[1] >= 0.9 * SLEEP


def test_two_beginnings_are_one_and_an_end_without_one_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    for name in ("begins", "ends"):
        monkeypatch.setattr(
            f"presum.steps.waiting.wait_{name}", lambda name=name: told.append(name)
        )
    waiting = Waiting()
    for call in (waiting.end, waiting.begin, waiting.begin, waiting.end, waiting.end):
        call()
    assert told == ["begins", "ends"]
