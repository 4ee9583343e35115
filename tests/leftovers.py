# SPDX-License-Identifier: Apache-2.0
"""Whatever tests start ends with them. It bears a mark in its environment, by which it is found
wherever its parents have gone; where pytest itself is killed, a process of its own looks for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

NAME = "STARTED_BY_TESTS_OF"
LOOK_SECONDS = 0.5
KERNEL_THREAD = 0x200000  # of the flags in /proc/PID/stat
_numbers = itertools.count(1)


def new_mark() -> dict[str, str]:
    """For the environment of what a test starts."""
    return {NAME: f"{_session()}/{next(_numbers)}"}


def kill(mark: dict[str, str]) -> None:
    """Everything that bears the mark, and what that has started meanwhile."""
    since = _stat(Path("/proc/self"))[2]
    while (found := _marked(mark[NAME])) or any(_between_programs(p, since) for p in _processes()):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)  # until it is gone


@contextlib.contextmanager
def killed_at_the_end() -> Iterator[None]:
    """What this process starts, also where it does not get to its end."""
    mark = {NAME: _session()}
    os.environ |= mark
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark[NAME]]
    others = {name: value for name, value in os.environ.items() if name != NAME}
    watch = subprocess.Popen(command, env=others, start_new_session=True)
    try:
        yield
    finally:
        watch.kill()
        watch.wait()
        kill(mark)


def _session() -> str:
    return f"pytest-{os.getpid()}"


def _processes() -> list[Path]:
    return [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _marked(mark: str) -> list[int]:
    own = f"{NAME}={mark}".encode()
    return [
        int(folder.name)
        for folder in _processes()
        if any(entry == own or entry.startswith(own + b"/") for entry in _environment_of(folder))
    ]


def _between_programs(folder: Path, since: int) -> bool:
    """Whether a process of this user that began at ``since`` or later has no environment to look
    into: it is about to run another program, or to end."""
    try:
        own = folder.stat().st_uid == os.getuid()
        state, flags, begun, environment_at = _stat(folder)
    except OSError:
        return False
    alive = state not in "ZX" and not flags & KERNEL_THREAD
    return own and begun >= since and alive and environment_at == 0


def _stat(folder: Path) -> tuple[str, int, int, int]:
    """State, flags, when it began and where its environment is."""
    fields = (folder / "stat").read_text().rpartition(") ")[2].split()
    return fields[0], int(fields[6]), int(fields[19]), int(fields[47])


def _environment_of(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


def _watch(parent: int, mark: str) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    kill({NAME: mark})


if __name__ == "__main__":
    _watch(int(sys.argv[1]), sys.argv[2])
