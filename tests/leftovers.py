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
_numbers = itertools.count(1)


def new_mark() -> dict[str, str]:
    """For the environment of what a test starts."""
    return {NAME: f"{_session()}/{next(_numbers)}"}


def kill(mark: dict[str, str]) -> None:
    """Everything that bears the mark, and what that has started meanwhile."""
    killed: set[int] = set()
    while (found := _marked(mark[NAME])) or any(map(runs, killed)):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        killed.update(found)
        time.sleep(0.01)  # one that ends has no environment any more, and may still run


def runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


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


def _marked(mark: str) -> list[int]:
    own = f"{NAME}={mark}".encode()
    return [
        int(folder.name)
        for folder in Path("/proc").iterdir()
        if folder.name.isdigit()
        and any(entry == own or entry.startswith(own + b"/") for entry in _environment_of(folder))
    ]


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
