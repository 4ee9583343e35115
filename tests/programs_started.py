# SPDX-License-Identifier: Apache-2.0
"""Programs that tests start. One that does not end is killed with everything that it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from presum.experiments.launch import free_port

PROGRAM = Path(__file__).parent / "programs" / "gan.py"
WORLD = 2
UNDER = ["-m", "presum.run"]
Ended = subprocess.CompletedProcess[str]


def run_command(command: Sequence[object], *, timeout: float = 400, **extra: str) -> Ended:
    """This command, to its end, with these environment variables as well."""
    (end,) = _run_commands([command], timeout, [extra])
    return end


def presum_command(*arguments: object) -> Ended:
    return run_command([sys.executable, "-m", "presum", *arguments])


def run_commands(commands: Sequence[Sequence[object]], *, timeout: float = 120) -> list[Ended]:
    """These commands at once, as the ranks of one training are."""
    return _run_commands(commands, timeout, [{}] * len(commands))


def start(
    command: Sequence[object], *, world: int = WORLD, timeout: float = 120, **extra: str
) -> list[Ended]:
    """Python with these arguments, once for each rank, as a launcher does."""
    shared = {
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        **extra,
    }
    places = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world)]
    return _run_commands([[sys.executable, *command]] * world, timeout, places)


def _run_commands(
    commands: Sequence[Sequence[object]], timeout: float, extras: Sequence[Mapping[str, str]]
) -> list[Ended]:
    processes = [
        subprocess.Popen(
            [*map(str, command)],
            env={**os.environ, **extra},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, extra in zip(commands, extras, strict=True)
    ]
    try:
        ends = [process.communicate(timeout=timeout) for process in processes]
    except subprocess.TimeoutExpired as late:
        said = [_kill(process) for process in processes]
        raise AssertionError(f"{late}\n" + "\n".join(said)) from None
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(processes, ends, strict=True)
    ]


def _kill(process: subprocess.Popen[str]) -> str:
    """The end of what it said. A process that it started and that lived on would hold the pipes,
    and whoever reads them would wait for ever."""
    if process.poll() is None:
        tree = psutil.Process(process.pid)
        for one in [*tree.children(recursive=True), tree]:
            one.kill()
    return "\n".join(text[-3000:] for text in process.communicate(timeout=30))
