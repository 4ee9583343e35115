# SPDX-License-Identifier: Apache-2.0
"""A run that takes long to read is read seldom."""

from __future__ import annotations

import pytest

from presum.serve import runs
from presum.serve.runs import Latest, Written


def test_reading_takes_at_most_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    read: list[Written] = []
    monkeypatch.setattr(runs.time, "monotonic", lambda: now[0])

    def slowly(written: Written) -> int:
        now[0] += 3.0
        read.append(written)
        return len(read)

    latest = Latest(slowly)
    writes = [Written(number, (1,)) for number in range(3)]
    assert latest.get(writes[0]) == 1
    now[0] += 29.0
    assert latest.get(writes[1]) == 1, "3 of the 32 seconds since it began"
    now[0] += 1.0
    assert latest.get(writes[1]) == 2
    now[0] += 1000.0
    assert latest.get(writes[1]) == 2, "nothing was written"
    assert latest.get(writes[2]) == 3
    assert read == writes
