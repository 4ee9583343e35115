# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import leftovers
from programs_started import MODULES, run_command

os.environ["XDG_CONFIG_HOME"] = f"{tempfile.gettempdir()}/presum-tests"  # not the user's salt
# A shell lets what it starts in the background ignore Ctrl-C, and so would all programs of tests.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leftovers.killed_at_the_end():
        yield


class Launched(NamedTuple):
    out: Path
    stderr: str


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Launched]:
    """Run tests/workers/PROGRAM.py with so many workers, which must end with that code; no
    torchrun, whose agent ends survivors. ``silent``: presum says nothing."""

    def launched(
        program: str,
        world: int,
        *names: str,
        out: Path | None = None,
        code: int = 0,
        silent: bool = False,
    ) -> Launched:
        out = out or tmp_path_factory.mktemp(program)
        command = [sys.executable, "-m", f"workers.{program}", world, out, *names]
        done = run_command(command, PYTHONPATH=MODULES, OMP_NUM_THREADS="1")
        assert done.returncode == code, done.stderr[-4000:]
        assert not silent or "presum:" not in done.stderr
        return Launched(out, done.stderr)

    return launched
