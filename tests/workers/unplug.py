# SPDX-License-Identifier: Apache-2.0
"""What may break around presum, one case after the other; each trains twice, without and with it.

Writes CASE.json on every rank: the parameters' digest and the seconds of both trainings.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.steps import step_recorder
from presum.transport.connections import store_connections
from presum.transport.session import Session, open_sessions
from workers.launch import main, steps_committed, wait_until, write_json
from workers.matrix import digest

STEPS = 40
Case = Callable[[int, Path], None]


def train(run: Path | None, sabotage: Case, rank: int) -> tuple[str, float]:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.Linear(50, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank + 1)
    dist.barrier()
    began = time.monotonic()
    monitor = presum.attach(model, optimizer=optimizer, run=run) if run is not None else None
    for step in range(STEPS):
        if monitor is not None and step == STEPS // 2:
            sabotage(rank, run or Path())
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        time.sleep(0.005)
    if monitor is not None:
        monitor.close()
    return digest(model), time.monotonic() - began


def nothing(_rank: int, _run: Path) -> None:
    pass


def store_gone(rank: int, _run: Path) -> None:
    """The aggregator's store server dies, as with its process."""
    if rank == 0:
        for one in open_sessions():
            one.recorder.queue = None
        store_connections().stop_serving()


def collectors_break(_rank: int, run: Path) -> None:
    collector_breaks(1, run)


def collector_breaks(rank: int, _run: Path) -> None:
    if rank == 1:
        assert open_sessions()
        step_recorder.StepRecorder.before_backward = _broken  # type: ignore[method-assign]


def _broken(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("planted failure")


def work(rank: int, world: int, out: Path) -> None:
    if world == 1:
        aggregator_killed(rank, out)
    logging.basicConfig(filename=out / f"log{rank}.txt", format="%(message)s")
    (out / "a-file").write_text("in the way")
    cases: dict[str, tuple[Path, Case]] = {
        "healthy": (out / "healthy", nothing),
        "folder": (out / "a-file" / "run", nothing),
        "store": (out / "store", store_gone),
        "silent": (out / "silent", nothing),
        "collector": (out / "collector", collector_breaks),
        "collectors": (out / "collectors", collectors_break),
    }
    begins, send = step_recorder.StepRecorder.before_backward, Session.send
    for name, (run, sabotage) in cases.items():
        logging.getLogger("presum").warning("== %s", name)
        if name == "silent" and rank == 1:
            Session.send = _silent  # type: ignore[method-assign]
        plain, seconds = train(None, nothing, rank)
        watched, watched_seconds = train(run, sabotage, rank)
        step_recorder.StepRecorder.before_backward = begins  # type: ignore[method-assign]
        Session.send = send  # type: ignore[method-assign]
        write_json(
            out / f"{name}.{rank}.json",
            {"plain": plain, "watched": watched, "seconds": seconds, "with": watched_seconds},
        )
    model = DistributedDataParallel(nn.Linear(4, 1))
    with presum.attach(model, run=out / "one-step"):
        model(torch.ones(2, 4)).sum().backward()
    if rank == 2:
        _train_alone(model, out / "killed", rank, 3)
        wait_until(lambda: steps_committed(out / "killed") >= 3)
        os.kill(os.getpid(), signal.SIGKILL)
    _train_alone(model, out / "killed", rank, 20).close()


def aggregator_killed(rank: int, out: Path) -> None:
    """The only worker dies without a word, once what came is committed."""
    _train_alone(DistributedDataParallel(nn.Linear(4, 1)), out / "aggregator-killed", rank, 20)
    wait_until(lambda: steps_committed(out / "aggregator-killed") == 20)
    os.kill(os.getpid(), signal.SIGKILL)


def _silent(*_args: object) -> None:
    """A worker that never sends."""


def _train_alone(
    model: DistributedDataParallel, run: Path, rank: int, steps: int
) -> presum.Monitor:
    """Without the reduction after step 3, so that survivors can go on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = presum.attach(model, optimizer=optimizer, run=run)
    for step in range(steps):
        forward = model if step < 3 else model.module
        forward(torch.ones(2, 4) * (rank + 1)).sum().backward()
        optimizer.step()
    return monitor


if __name__ == "__main__":
    main(work, patient=False)
