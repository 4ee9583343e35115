# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from presum.findings import Finding
from presum.transport import announcements
from presum.transport.announcements import QUIET_SECONDS, Announcements


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(announcements, "time", clock)
    return clock


def found(severity: str, title: str, check: str = "check") -> Finding:
    return Finding(check, severity, [1], 3, 5, 0.9, title, title, remedy="Mend it.")


def test_critical_at_once_warnings_in_one_line_information_never(clock: Clock) -> None:
    said: list[str] = []
    announced = Announcements(said.append, Path("runs/a"))
    announced.take(found("info", "I"))
    announced.take(found("critical", "C"))
    assert len(said) == 1
    assert "Mend it." in said[0]
    announced.take(found("warning", "W1"))
    announced.take(found("warning", "W2"))
    announced.flush()
    assert said[1:] == ["presum: warning: W1 [check] (1 more: presum findings runs/a)"]
    announced.flush()
    assert len(said) == 2


def test_a_warning_that_became_critical_is_not_said_afterwards(clock: Clock) -> None:
    said: list[str] = []
    announced = Announcements(said.append, Path("r"))
    announced.take(found("warning", "W"))
    announced.take(found("warning", "other", "check-2"))
    announced.take(found("critical", "C"))
    announced.flush()
    assert said[1:] == ["presum: warning: other [check-2]"]


def test_a_stall_is_said_at_once_whatever_was_said_before(clock: Clock) -> None:
    said: list[str] = []
    announced = Announcements(said.append, Path("r"))
    for n in range(2):
        announced.take(found("warning", f"W{n}"))
        announced.flush()
    announced.take(found("warning", "S", "stall"))
    announced.take(found("info", "harmless", "stall"))
    assert said[1:] == ["presum: warning: S [stall]"]


def test_warnings_are_said_at_a_limited_rate_and_none_is_lost(clock: Clock) -> None:
    said: list[str] = []
    announced = Announcements(said.append, Path("r"))
    for n in range(5):
        announced.take(found("warning", f"W{n}"))
        announced.flush()
    assert len(said) == 1
    clock.now += QUIET_SECONDS
    announced.flush()
    assert said[1] == "presum: warning: W1 [check] (3 more: presum findings r)"
