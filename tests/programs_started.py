# SPDX-License-Identifier: Apache-2.0
"""Programs that tests start: each is waited for until it ends, for as long as pytest lets a test
take. Nothing of what it started outlives it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import leftovers
from experiments.launch import free_port

TESTS = Path(__file__).parent
MODULES = os.pathsep.join([str(TESTS), str(TESTS.parent / "bench")])  # where ours are found
PROGRAM = TESTS / "programs" / "gan.py"
WORLD = 2
UNDER = ["-m", "presum.run"]
Ended = subprocess.CompletedProcess[str]


def run_command(command: Sequence[object], *, cwd: Path | None = None, **extra: str) -> Ended:
    """This command, to its end, with these environment variables as well."""
    (end,) = _run_commands([command], [extra], cwd)
    return end


def presum_command(*arguments: object) -> Ended:
    return run_command([sys.executable, "-m", "presum", *arguments])


def run_commands(commands: Sequence[Sequence[object]], **extra: str) -> list[Ended]:
    """These commands at once, as the ranks of one training are."""
    return _run_commands(commands, [extra] * len(commands))


def start(command: Sequence[object], *, world: int = WORLD, **extra: str) -> list[Ended]:
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
    return _run_commands([[sys.executable, *command]] * world, places)


def _run_commands(
    commands: Sequence[Sequence[object]],
    extras: Sequence[Mapping[str, str]],
    cwd: Path | None = None,
) -> list[Ended]:
    mark = leftovers.new_mark()
    processes = [
        subprocess.Popen(
            [*map(str, command)],
            env={**os.environ, **extra, **mark},
            cwd=cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, extra in zip(commands, extras, strict=True)
    ]
    try:
        ends = [process.communicate() for process in processes]
    except BaseException:  # pytest's limit
        leftovers.kill(mark)
        for process in processes:
            print(*(text[-3000:] for text in process.communicate()), sep="\n")
        raise
    finally:
        leftovers.kill(mark)
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *end)
        for process, end in zip(processes, ends, strict=True)
    ]
