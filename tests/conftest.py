# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def launch() -> Launch:
    """Run tests/workers/PROGRAM.py with its arguments; no torchrun, whose agent ends survivors."""

    def run(program: str, *args: object, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", f"workers.{program}", *map(str, args)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
        )

    return run
