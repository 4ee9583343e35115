# SPDX-License-Identifier: Apache-2.0
"""A run that takes long to read is read seldom."""

from __future__ import annotations

import pytest

from presum.serve import runs
from presum.serve.runs import Latest, Written


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time."""
    time = [100.0]
    monkeypatch.setattr(runs.time, "monotonic", lambda: time[0])
    return time


def written(number: int) -> Written:
    return Written(number, ((1, number, 1),))


def test_reading_takes_at_most_a_tenth_of_the_time(now: list[float]) -> None:
    read: list[Written] = []

    def slowly(at: Written) -> int:
        now[0] += 3.0
        read.append(at)
        return len(read)

    latest = Latest(slowly)
    assert latest.get(written(0)) == 1
    now[0] += 29.0
    assert latest.get(written(1)) == 1, "3 of the 32 seconds since it began"
    now[0] += 1.0
    assert latest.get(written(1)) == 2
    now[0] += 1000.0
    assert latest.get(written(1)) == 2, "nothing was written"
    assert latest.get(written(2)) == 3
    assert read == [written(0), written(1), written(2)]


def test_an_error_is_kept_as_long_and_then_looked_at_again(now: list[float]) -> None:
    errors = [OSError("busy"), OSError("busy")]

    def failing(at: Written) -> str:
        now[0] += 2.0
        if errors:
            raise errors.pop()
        return "read"

    latest = Latest(failing)
    for left in (1, 1, 0, 0):
        with pytest.raises(OSError, match="busy"):
            latest.get(written(0))
        assert len(errors) == left
        now[0] += 1.5
    assert latest.get(written(0)) == "read", "though nothing was written"
