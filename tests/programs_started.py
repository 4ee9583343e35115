# SPDX-License-Identifier: Apache-2.0
"""Starting a program as a launcher does, once for each rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).parent / "programs" / "gan.py"
WORLD = 2
UNDER = ["-m", "presum.run"]


def start(
    command: Sequence[object], *, world: int = WORLD, timeout: float = 120, **extra: str
) -> list[subprocess.CompletedProcess[str]]:
    """Python with these arguments, once for each rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        **extra,
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, command)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    ends = [process.communicate(timeout=timeout) for process in processes]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(processes, ends, strict=True)
    ]
