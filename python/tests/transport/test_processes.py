# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from presum.transport import processes
from presum.transport.processes import UNKNOWN, ProcessEnd, Processes, start_of


@pytest.fixture(params=["descriptor", "refused", "missing"])
def watched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    if request.param == "refused":

        def refused(_pid: int) -> int:
            raise OSError

        monkeypatch.setattr(processes.os, "pidfd_open", refused)
    elif request.param == "missing":
        monkeypatch.delattr(processes.os, "pidfd_open", raising=False)
    made = Processes("here")
    yield made
    made.close()


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)


def told(process: subprocess.Popen[bytes], rank: int = 1) -> tuple[int, str, str, str]:
    return rank, "here", str(process.pid), start_of(process.pid)


def ends(watched: Processes) -> list[ProcessEnd]:
    found: list[ProcessEnd] = []
    while not found:
        found = watched.wait(0.1)
    return found


@pytest.mark.parametrize(
    ("code", "signal_sent", "end"),
    [
        ("input()", signal.SIGKILL, (signal.SIGKILL, 0)),
        ("import os; input(); os._exit(3)", None, (0, 3)),
        ("input()", None, (0, 0)),
    ],
)
def test_how_a_process_ended(
    code: str, signal_sent: int | None, end: tuple[int, int], watched: Processes
) -> None:
    process = started(code)
    watched.watch([told(process)])
    assert watched and watched.wait(0) == []
    if signal_sent is None:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
    else:
        process.send_signal(signal_sent)
    assert ends(watched) == [ProcessEnd(1, *end)]
    assert not watched and watched.wait(0) == []
    process.wait()


def test_of_one_whose_parent_was_faster_nobody_knows_how(watched: Processes) -> None:
    process = started("input()")
    watched.watch([told(process)])
    process.kill()
    process.wait()
    assert ends(watched) == [ProcessEnd(1, 0, UNKNOWN)]


def test_who_is_not_of_this_host_or_not_that_process_is_not_watched(watched: Processes) -> None:
    process = started("input()")
    rank, _, pid, start = told(process)
    watched.watch(
        [
            (rank, "there", pid, start),
            (rank, "here", pid, start + "0"),  # a later process under its number
            *((rank, "here", odd, start) for odd in ("unknown", "²", "-1", "9" * 5000)),
            (rank, "here", "999999999", ""),
            (0, "here", str(os.getpid()), start_of(os.getpid())),
        ]
    )
    assert not watched
    process.kill()
    process.wait()
