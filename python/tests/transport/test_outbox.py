# SPDX-License-Identifier: Apache-2.0
"""Packets on their way out: bounded, in order, and what is not made is told."""

from __future__ import annotations

import pytest

from presum.transport import outbox
from presum.transport.outbox import LatePacket, Outbox


class Late:
    """A packet whose numbers come later."""

    def __init__(self) -> None:
        self.arrived = False
        self.dropped = 0

    def packet(self) -> LatePacket:
        return LatePacket(lambda: self.arrived, lambda: b"late", self.drop)

    def drop(self) -> None:
        self.dropped += 1


def test_packets_leave_in_order_and_wait_for_a_late_one() -> None:
    box, late = Outbox(), Late()
    box.put(late.packet())
    box.put(b"next")
    assert box.take() is None and len(box) == 2
    late.arrived = True
    assert [box.take(), box.take(), box.take()] == [b"late", b"next", None]
    assert late.dropped == 0


def test_what_does_not_fit_is_dropped_counted_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PACKETS_MAX", 1)
    box, first, second = Outbox(), Late(), Late()
    box.put(first.packet())
    box.put(second.packet())
    assert (box.dropped, len(box), first.dropped, second.dropped) == (1, 1, 0, 1)


def test_of_a_closed_one_everything_is_told_and_nothing_kept() -> None:
    box, before, after = Outbox(), Late(), Late()
    box.put(before.packet())
    box.close()
    box.put(after.packet())
    assert (len(box), before.dropped, after.dropped, box.take()) == (0, 1, 1, None)
