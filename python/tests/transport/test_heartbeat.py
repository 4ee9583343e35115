# SPDX-License-Identifier: Apache-2.0
"""Where a thread is, as its stack tells; and heartbeats that nothing can break."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from presum.transport import heartbeat
from presum.transport.heartbeat import Heartbeat, place_of


def stopped_in(call: Callable[[threading.Event], None]) -> tuple[str, str, str]:
    """The place of a thread that is in ``call``."""
    inside, goes_on = threading.Event(), threading.Event()

    def run() -> None:
        inside.set()
        call(goes_on)

    thread = threading.Thread(target=run)
    thread.start()
    inside.wait()
    try:
        while True:
            place = place_of(sys._current_frames()[thread.ident or 0])
            if "wait" in place[2]:
                return place
    finally:
        goes_on.set()
        thread.join()


def evaluate(goes_on: threading.Event) -> None:
    goes_on.wait()


def test_the_programs_innermost_line_is_told() -> None:
    collective, site, stack = stopped_in(evaluate)
    assert collective == ""
    assert site.startswith("evaluate() of test_heartbeat.py:")
    innermost, *_, outermost = stack.splitlines()
    assert "threading.py" in innermost and "_bootstrap" in outermost


def test_a_collective_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile(
        "def all_reduce(goes_on): goes_on.wait()", dist.distributed_c10d.__file__, "exec"
    )
    names: dict[str, Callable[[threading.Event], None]] = {}
    exec(code, names)

    def log(goes_on: threading.Event) -> None:
        names["all_reduce"](goes_on)

    collective, site, _ = stopped_in(log)
    assert collective == "all_reduce"
    assert site.startswith("log() of test_heartbeat.py:")


def deep(depth: int, goes_on: threading.Event) -> None:
    if depth == 0:
        goes_on.wait()
    else:
        deep(depth - 1, goes_on)


@pytest.mark.parametrize("depth", [20, 400, 900])
def test_both_ends_of_a_deep_stack_are_told(depth: int) -> None:
    """Stacks of two ranks are compared from their outermost frames on."""
    *_, stack = stopped_in(lambda goes_on: deep(depth, goes_on))
    lines = stack.splitlines()
    assert "threading.py" in lines[0] and lines[-1].endswith(" _bootstrap")
    assert lines.count("...") == (0 if depth == 20 else 1)
    assert len(stack.encode()) <= heartbeat.STACK_BYTES_MAX


def test_of_a_bottomless_stack_the_outermost_frames_are_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "FRAMES_MAX", 10)
    *_, stack = stopped_in(lambda goes_on: deep(20, goes_on))
    assert len(stack.splitlines()) == 11 and stack.endswith("\n...")


def test_no_thread_is_nowhere() -> None:
    assert place_of(None) == ("", "", "")


def test_beats_are_due_now_and_then() -> None:
    beats = Heartbeat(0, "host", 60.0)
    assert beats.take() is not None
    assert beats.take() is None
    beats.stop()
    beats.stop()


def test_what_cannot_be_told_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    beats = Heartbeat(0, "host", 60.0)
    monkeypatch.setattr(heartbeat, "place_of", lambda _: ("", "d\udcff/train.py:3", "\udcff"))
    assert beats.take() is not None

    def fails(_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(heartbeat, "place_of", fails)
    assert Heartbeat(0, "host", 60.0).take() is None


def test_an_exception_of_an_earlier_cell_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "last_value", NameError("foo"), raising=False)
    assert heartbeat.end_of_the_program(sys._getframe()) == ""


def test_libraries_are_told_from_programs() -> None:
    assert all(not str(Path(__file__)).startswith(folder) for folder in heartbeat.LIBRARIES)
    assert threading.__file__.startswith(heartbeat.LIBRARIES)
