# SPDX-License-Identifier: Apache-2.0
"""Waits that exceptions leave open."""

from __future__ import annotations

import struct
import time
from typing import Any

import pytest

from observers import make_observer
from packet_decoder import decode
from presum import _core
from presum.steps.waiting import Waiting

TIMES, REDUCTION = 15, 5
SLEEP = 0.2  # long beside what a machine that is busy with other things adds


def seconds_of_a_step(between: Any) -> tuple[float, ...]:
    """The phases of a step in which ``between`` is called before the forward pass."""
    observer = make_observer([("p", 1, "")], knows_optimizer=True)
    packet = b""
    for _ in range(2):
        between()
        observer.enter_module()
        time.sleep(SLEEP)
        observer.pass_begins(True, False, True, 0.0)
        observer.pass_ends(1.0, None, 1.0, 1.0, False)
        observer.optimizer_begins()
        observer.optimizer_steps(0)
        ended = observer.take_ended()
        assert ended is not None
        packet = ended.packet()
    return struct.unpack_from("<6d", decode(packet).sections[TIMES])


def test_a_wait_that_was_never_ended_is_over_at_the_next_forward_pass() -> None:
    seconds = seconds_of_a_step(_core.wait_begins)
    assert seconds[REDUCTION] < SLEEP / 2 and seconds[1] >= 0.9 * SLEEP


def test_an_end_without_a_beginning_does_nothing() -> None:
    waiting = Waiting()
    waiting.end()
    seconds = seconds_of_a_step(_core.wait_ends)
    assert seconds[REDUCTION] == pytest.approx(0, abs=1e-3)


def test_two_beginnings_are_one() -> None:
    waiting = Waiting()

    def wait() -> None:
        waiting.begin()
        waiting.begin()
        time.sleep(SLEEP)
        waiting.end()

    seconds = seconds_of_a_step(wait)
    assert 0.9 * SLEEP < seconds[REDUCTION] < 1.9 * SLEEP
    assert seconds[0] < SLEEP / 2
