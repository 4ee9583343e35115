# SPDX-License-Identifier: Apache-2.0
"""Recordings that break in the middle of a healthy training; each trains to its end.

Each case has processes of its own, for a limit of one cannot be taken back. Rank 0's terminal is
written to OUT/CASE.txt.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.transport.store_queue import StoreQueue
from workers.launch import launch, steps_committed, wait_until

STEPS = 100
BREAKS_AT = 30


def deleted(run: Path) -> None:
    shutil.rmtree(run)


def replaced(run: Path) -> None:
    other = run.with_name("other.db")
    other.write_bytes(b"something else")
    other.rename(run / "presum.db")


def full(run: Path) -> None:
    """No file of this process may grow any more."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    largest = max(path.stat().st_size for path in run.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))


def thread_fails(_run: Path) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("planted failure")

    StoreQueue.waiting = fails  # type: ignore[method-assign]


def nothing(_run: Path) -> None:
    pass


CASES: dict[str, Callable[[Path], None]] = {
    "healthy": nothing,
    "deleted": deleted,
    "replaced": replaced,
    "full": full,
    "thread": thread_fails,
}


def train(run: Path, rank: int, break_it: Callable[[Path], None]) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    presum.attach(model, optimizer=optimizer, run=run)
    for step in range(STEPS):
        if step == BREAKS_AT and rank == 0:
            wait_until(lambda: steps_committed(run) >= BREAKS_AT - 1)
            break_it(run)
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)


def work(case: str, rank: int, _world: int, out: Path) -> None:
    if rank == 0:
        terminal = os.open(out / f"{case}.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(terminal, 2)
    train(out / case, rank, CASES[case])
    if rank == 1 and case != "healthy":  # rank 0 may be able to open no file
        said = out / f"{case}.txt"
        wait_until(lambda: "nothing more is recorded here" in said.read_text(encoding="utf-8"))
    dist.barrier()
    print("trained to the end", file=sys.stderr, flush=True)


def run_case(case: str, world: int, out: Path) -> None:
    sys.exit(launch(partial(work, case), world, out))


if __name__ == "__main__":
    world, out = int(sys.argv[1]), Path(sys.argv[2])
    fork = multiprocessing.get_context("fork").Process
    # They mostly sleep: all at once.
    cases = [fork(target=run_case, args=(case, world, out)) for case in CASES]
    for one in cases:
        one.start()
    for one in cases:
        one.join()
    sys.exit(max(one.exitcode or 0 for one in cases))
