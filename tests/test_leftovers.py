# SPDX-License-Identifier: Apache-2.0
"""What tests start ends with them, whoever its parents are and whatever becomes of pytest."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from programs_started import run_command

TESTS = Path(__file__).parent
LEAVES = """
import os, subprocess, sys
one = subprocess.Popen(["sleep", "3600"], start_new_session=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.kill(one.pid, {signal})
print(one.pid, flush=True)
"""
# As pytest does, until it is killed.
KILLED = """
import os, signal, leftovers
with leftovers.killed_at_the_end():
    {start}
    os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(") ")[2][0] not in "ZX"


@pytest.mark.parametrize("sent", [signal.SIGCONT, signal.SIGSTOP])
def test_a_command_leaves_nothing_that_it_started(sent: signal.Signals) -> None:
    done = run_command([sys.executable, "-c", LEAVES.format(signal=int(sent))])
    assert done.returncode == 0, done.stderr
    assert not runs(int(done.stdout))


def test_neither_does_a_pytest_that_is_killed() -> None:
    start = LEAVES.format(signal=int(signal.SIGSTOP)).strip().replace("\n", "\n    ")
    program = KILLED.format(start=start)
    done = run_command([sys.executable, "-c", program], PYTHONPATH=str(TESTS))
    assert done.returncode == -signal.SIGKILL, done.stderr
    while runs(int(done.stdout)):
        time.sleep(0.05)
