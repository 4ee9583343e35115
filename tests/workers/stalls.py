# SPDX-License-Identifier: Apache-2.0
"""Trainings that stand still in planted ways, and what presum says of each within how long.

Processes are forked from one that has imported torch: python stalls.py FOLDER WAY... prints a JSON
object with a row for each way.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import queue
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
import presum.attaching  # before the forks
from experiments.launch import free_port

WORLD = 3
STEPS_AFTER = 6  # the step in which a way begins
STALL_SECONDS = 2.0
PATIENCE = STALL_SECONDS + 10.0
LONG = 3600.0


class Stuck(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(LONG)
        return torch.zeros(1)


def load_batch() -> None:
    next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))


def call_that_holds_the_lock() -> None:
    ctypes.PyDLL(None).sleep(int(LONG))


def save_checkpoint(seconds: float) -> None:
    time.sleep(seconds)


def skipped(rank: int) -> bool:
    """One rank leaves out a step. Returns whether the step is left out."""
    return rank == 2


def killed(rank: int) -> None:
    """The others notice nothing: they exchange through a store."""
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    queue.Queue[None]().get()  # until a message of the rank that was killed


def stopped(rank: int) -> None:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)


def loader(rank: int) -> None:
    if rank == 1:
        load_batch()


def order(rank: int) -> None:
    value = torch.ones(3)
    first, second = ("gather", "sum") if rank == 1 else ("sum", "gather")
    for one in (first, second):
        if one == "sum":
            dist.all_reduce(value)
        else:
            dist.all_gather([torch.ones(3) for _ in range(WORLD)], value)


def exception(rank: int) -> None:
    """Of a program whose other threads go on."""
    if rank == 1:
        threading.Thread(target=time.sleep, args=(LONG,)).start()
        raise ValueError("bad batch")


def lock_held(rank: int) -> None:
    if rank == 1:
        call_that_holds_the_lock()


def checkpoint(rank: int) -> None:
    """Clean: the others wait in a barrier while rank 0 saves."""
    if rank == 0:
        save_checkpoint(1.5 * STALL_SECONDS + 1)
    dist.barrier()


WAYS: dict[str, Callable[[int], Any]] = {
    "skipped": skipped,
    "killed": killed,
    "stopped": stopped,
    "loader": loader,
    "order": order,
    "exception": exception,
    "lock_held": lock_held,
    "checkpoint": checkpoint,
    "compilation": lambda *_: None,
}
# Who is named, and a part of what is said.
EXPECTED: dict[str, tuple[list[int], str]] = {
    "skipped": ([2], "barrier()"),
    "killed": ([2], "stopped answering"),
    "stopped": ([2], "stopped answering"),
    "loader": ([1], "load_batch() of stalls.py"),
    "order": ([1], "all_gather()"),
    "exception": ([1], "ValueError: bad batch"),
    "lock_held": ([1], "holds the interpreter's lock"),
}
CLEAN = ("checkpoint", "compilation")


class SlowFirst(nn.Module):
    """Compiles, so to speak, in its first step."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
        self.slow = slow

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.slow:
            self.slow = False
            time.sleep(2 * STALL_SECONDS + 1)
        y: torch.Tensor = self.layers(x)
        return y


def all_are_heard(run: Path) -> bool:
    """Whether the run log holds steps of every rank: of one that was never heard from, presum can
    only say that. The same on all ranks."""
    heard = torch.zeros(1)
    if dist.get_rank() == 0:
        heard[0] = len(query(run, "SELECT DISTINCT rank FROM worker_step")) == WORLD
    dist.broadcast(heard, src=0)
    return bool(heard)


def train(rank: int, way: str, run: Path, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_WORLD_SIZE": str(WORLD),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(rank)
    inner = SlowFirst(slow=way == "compilation" and rank == 0)
    model = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(stall_seconds=STALL_SECONDS)
    presum.attach(model, optimizer=optimizer, run=run, record=record)

    def train_step() -> None:
        model(torch.randn(4, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)

    while not all_are_heard(run):
        train_step()
    if not WAYS[way](rank):
        train_step()
    for _ in range(STEPS_AFTER):
        train_step()
    dist.barrier()
    dist.destroy_process_group()


def start(way: str, run: Path) -> list[int]:
    """The processes of its ranks."""
    port = free_port()
    children = []
    for rank in range(WORLD):
        child = os.fork()
        if child == 0:
            log = os.open(f"{run}-rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(run_to_the_end(rank, way, run, port))
        children.append(child)
    return children


def run_to_the_end(rank: int, way: str, run: Path, port: int) -> int:
    """As an interpreter ends whose program is ``train``; the exit code."""
    code = 0
    try:
        train(rank, way, run, port)
    except BaseException as error:
        sys.last_value = error
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return code


def query(run: Path, what: str) -> list[Any]:
    """Rows of the run log as it stands; none where it is not there yet."""
    with contextlib.suppress(sqlite3.Error):
        db = sqlite3.connect(f"file:{run / 'presum.db'}?mode=ro", uri=True)
        with contextlib.closing(db):
            return db.execute(what).fetchall()
    return []


def stalls_of(run: Path) -> list[tuple[str, float, int, int, str]]:
    return query(run, "SELECT sentence, seconds, over, harmless, ranks FROM stall ORDER BY number")


def alive(children: list[int]) -> list[int]:
    return [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]


def row_of(way: str, run: Path) -> dict[str, Any]:
    """What came of one try."""
    left = start(way, run)
    harmful, said = None, ""
    while left and not (harmful and harmful[0] in said):
        time.sleep(0.1)
        said = Path(f"{run}-rank-0.log").read_text(encoding="utf-8")
        harmful = next((s for s in stalls_of(run) if not s[3]), None)
        left = alive(left)
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {
        "sentence": harmful[0] if harmful else "",
        "ranks": json.loads(harmful[4]) if harmful else [],
        "seconds": harmful[1] if harmful else 0,
        "all": stalls_of(run),
        "said": Path(f"{run}-rank-0.log").read_text(encoding="utf-8"),
    }


def main() -> None:
    folder, ways = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for way in ways:
        run = Path(tempfile.mkdtemp(prefix=f"{way}-", dir=folder)) / "run"
        rows[f"{way}:{run.parent.name}"] = row_of(way, run)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
