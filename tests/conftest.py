# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import leftovers
from programs_started import Ended, run_command

TESTS = Path(__file__).parent
os.environ["XDG_CONFIG_HOME"] = f"{tempfile.gettempdir()}/presum-tests"  # not the user's salt
Launch = Callable[..., Ended]


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    with leftovers.killed_at_the_end():
        yield


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run tests/workers/PROGRAM.py with its arguments; no torchrun, whose agent ends survivors."""

    def launched(program: str, *args: object) -> Ended:
        command = [sys.executable, "-m", f"workers.{program}", *args]
        return run_command(command, PYTHONPATH=str(TESTS), OMP_NUM_THREADS="1")

    return launched
