# SPDX-License-Identifier: Apache-2.0
"""Starts W Gloo workers by forking one process that has torch imported: seconds, not a minute."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import multiprocessing
import os
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.parallel  # imported before the fork: it is slow

import presum
from experiments.launch import free_port
from presum.transport import channel, recorder, session

QUIET = presum.Record(quiet=True)
PATIENCE_S = 120
STUCK_S = 1500  # where a worker is by then, it says as it ends
ALPACA = Path(__file__).parents[1] / "data" / "alpaca.jsonl"


def texts() -> list[str]:
    """Real alpaca records (tests/data/README.md)."""
    records = map(json.loads, ALPACA.read_text(encoding="utf-8").splitlines())
    return [r["instruction"] + "\n" + r["output"] for r in records]


def token_rows(length: int = 32) -> torch.Tensor:
    """The texts as rows of bytes, no two alike: first the beginning of each text, then what follows
    in each, and so on."""
    data = [text.encode() for text in texts()]
    starts = range(0, max(map(len, data)) - length + 1, length)
    rows = (text[at : at + length] for at in starts for text in data)
    return torch.tensor([list(row) for row in dict.fromkeys(rows) if len(row) == length])


def launch(
    work: Callable[[int, int, Path], None], world: int, out: Path, *, patient: bool = True
) -> int:
    """Run ``work(rank, world, out)`` in ``world`` forked processes. ``patient``: at the end they
    wait for each other's packets for as long as it takes; 1.5 s are little on a machine that is
    busy with other things.

    Returns the first bad exit code, as a shell says it.
    """
    if patient:
        for module in (channel, recorder, session):
            module.GOODBYE_SECONDS = PATIENCE_S  # type: ignore[attr-defined]
        session.FLUSH_SECONDS = 2 * PATIENCE_S
    torch.set_num_threads(1)
    port = free_port()
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_worker, args=(work, rank, world, out, port))
        for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    codes = [w.exitcode or 0 for w in workers]
    return next((code if code > 0 else 128 - code for code in codes if code), 0)


def _worker(
    work: Callable[[int, int, Path], None], rank: int, world: int, out: Path, port: int
) -> None:
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    dist.init_process_group("gloo")
    try:
        work(rank, world, out)
    finally:
        dist.destroy_process_group()


def wait_until(condition: Callable[[], object]) -> None:
    """At most for as long as anything takes on a machine that is busy with other things; what did
    not come by then the test misses."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def steps_committed(run: Path) -> int:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{run / 'presum.db'}?mode=ro", uri=True)) as db,
    ):
        return int(db.execute("SELECT count(*) FROM step").fetchone()[0])
    return 0


def main(work: Callable[[int, int, Path], None], *, patient: bool = True) -> None:
    """``program WORLD OUT``."""
    sys.exit(launch(work, int(sys.argv[1]), Path(sys.argv[2]), patient=patient))


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
