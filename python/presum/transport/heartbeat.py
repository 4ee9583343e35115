# SPDX-License-Identifier: Apache-2.0
"""Reports periodically where this process's training stands (docs/time.md)."""

from __future__ import annotations

import json
import logging
import os
import sys
import sysconfig
import threading
import time
from itertools import accumulate
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.distributed import distributed_c10d

from presum._core import Watchdog
from presum.text import one_line

PERIODS_PER_STALL = 10
PERIOD_SECONDS = (0.2, 2.0)
FRAMES_MAX = 1000
STACK_BYTES_MAX = 8000  # a decoder keeps 8,192
LEFT_OUT = "..."
COLLECTIVES_TOLD = 4
_FOLDERS = (
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parent.parent),
    str(Path(torch.__file__).parent),
)
LIBRARIES = (*(folder + os.sep for folder in _FOLDERS), "<frozen")
_COLLECTIVES = distributed_c10d.__file__
log = logging.getLogger("presum")


class Heartbeat:
    """The heartbeat of the thread that creates it, which must be the training thread. ``take`` is
    for the background thread."""

    def __init__(self, rank: int, host: str, stall_seconds: float, *, quiet: bool = False) -> None:
        shortest, longest = PERIOD_SECONDS
        self.stall_seconds = stall_seconds
        self._period = min(longest, max(shortest, stall_seconds / PERIODS_PER_STALL))
        self._thread = threading.get_ident()
        self._watchdog = Watchdog(
            rank=rank,
            host=host,
            period=self._period,
            stall_seconds=stall_seconds,
            thread=threading.get_native_id(),
            quiet=quiet,
        )
        self._due = 0.0

    def reaches(self, hosts: list[str], port: int, queue: str, run: int, segment: int) -> None:
        """Set where a native thread sends if the interpreter does not respond; without hosts, this
        process records."""
        self._watchdog.reaches(hosts=hosts, port=port, queue=queue, run=run, segment=segment)

    def take(self, *, now: bool = False) -> bytes | None:
        """The next packet, if one is due, or ``now``."""
        time_now = time.monotonic()
        if time_now < self._due and not now:
            return None
        self._due = time_now + self._period
        try:
            return self._beat()
        except Exception:  # must not end a recording
            log.debug("presum: no heartbeat", exc_info=True)
            return None

    def _beat(self) -> bytes:
        frame = sys._current_frames().get(self._thread)
        collective, site, stack = place_of(frame)
        site = end_of_the_program(frame) or site
        del frame  # it holds the program's tensors
        recorder = _last_collectives() if self._watchdog.still > self.stall_seconds / 2 else ""
        texts = (collective, site, stack, recorder)  # file names in them may not be valid UTF-8
        packet: bytes = self._watchdog.beat(*(t.encode("utf-8", "replace").decode() for t in texts))
        return packet

    def stop(self) -> None:
        """Send no more heartbeats."""
        self._watchdog.stop()

    def interrupt(self, error: type[BaseException]) -> None:
        """Raise the error in the training thread as soon as it runs Python again."""
        import ctypes

        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self._thread), ctypes.py_object(error)
        )


def place_of(frame: FrameType | None) -> tuple[str, str, str]:
    """The collective that a thread is in, the program's innermost line, and the stack, one frame
    per line, innermost first. The outermost frame is always included, because stacks are compared
    from there. Empty if there is no frame."""
    collective, site = "", ""
    lines: list[str] = []
    while frame is not None and len(lines) < FRAMES_MAX:
        code = frame.f_code
        lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        if not site and code.co_filename == _COLLECTIVES:
            collective = code.co_name  # the outermost one is what the program called
        elif not site and not code.co_filename.startswith(LIBRARIES):
            site = _site_of(code.co_filename, frame.f_lineno, code.co_name)
        frame = frame.f_back
    if frame is not None:
        lines.append(LEFT_OUT)
    return collective, site, _bounded(lines)


def _bounded(lines: list[str]) -> str:
    """All lines, or those at both ends with a mark in between."""
    sizes = [len(line.encode("utf-8", "replace")) + 1 for line in lines]
    if sum(sizes) <= STACK_BYTES_MAX:
        return "\n".join(lines)
    half = STACK_BYTES_MAX // 2 - len(LEFT_OUT)
    first = sum(size <= half for size in accumulate(sizes))
    last = sum(size <= half for size in accumulate(reversed(sizes)))
    return "\n".join([*lines[:first], LEFT_OUT, *lines[len(lines) - last :]])


def _site_of(path: str, line: int, function: str) -> str:
    place = f"{Path(path).name}:{line}"
    return place if function.startswith("<") else f"{function}() of {place}"


def end_of_the_program(frame: FrameType | None) -> str:
    """A description if an exception has ended the main thread while other threads keep the process
    alive."""
    error = getattr(sys, "last_value", None)
    while frame is not None and frame.f_code.co_name != "_shutdown":
        frame = frame.f_back
    if error is None or frame is None or frame.f_code.co_filename != threading.__file__:
        return ""
    return f"the interpreter's shutdown, after {type(error).__name__}: {one_line(error)}"


def _last_collectives() -> str:
    """The last collectives from torch's flight recorder, if it is on (TORCH_FR_BUFFER_SIZE)."""
    dump: Any = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return ""
    try:
        entries = json.loads(dump(True, True)).get("entries", [])[-COLLECTIVES_TOLD:]
        return "; ".join(
            f"{one['profiling_name']} #{one['collective_seq_id']} {one['input_sizes']} "
            f"{one['state']}"
            for one in entries
        )
    except Exception:  # the format is private to torch
        return ""
