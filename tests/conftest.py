# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from programs_started import Ended, run_command

TESTS = Path(__file__).parent
Launch = Callable[..., Ended]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run tests/workers/PROGRAM.py with its arguments; no torchrun, whose agent ends survivors."""

    def launched(program: str, *args: object) -> Ended:
        command = [sys.executable, "-m", f"workers.{program}", *args]
        return run_command(command, PYTHONPATH=str(TESTS), OMP_NUM_THREADS="1")

    return launched
