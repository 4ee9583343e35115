# SPDX-License-Identifier: Apache-2.0
"""Runs with one planted fault each, and preflights; writes CASE.json on every rank."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import presum
from workers.launch import QUIET, main, token_rows, write_json

STEPS = 30
PREFLIGHT = 8
Fault = Callable[[int, int, torch.Tensor], torch.Tensor]


def clean(_rank: int, _step: int, loss: torch.Tensor) -> torch.Tensor:
    return loss


def poisoned(rank: int, step: int, loss: torch.Tensor) -> torch.Tensor:
    return loss * float("nan") if rank == 1 and step == 12 else loss


class Told:
    """What on_finding was called with, and on which thread."""

    def __init__(self) -> None:
        self.findings: list[presum.Finding] = []
        self.threads: set[str] = set()

    def __call__(self, finding: presum.Finding) -> None:
        self.findings.append(finding)
        self.threads.add(threading.current_thread().name)


def train(
    run: Path,
    rank: int,
    world: int,
    fault: Fault,
    *,
    same_data: bool,
    pause: float = 0.0,
    **options: Any,
) -> None:
    """``pause``: so many seconds a step, so that what is found is told before the last one."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(256, 16), nn.Linear(16, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = token_rows()[:800]
    replicas, replica = (1, 0) if same_data else (world, rank)
    sampler = DistributedSampler(rows, replicas, replica)  # type: ignore[arg-type, var-annotated]
    loader = DataLoader(rows, batch_size=4, sampler=sampler)  # type: ignore[arg-type, var-annotated]
    with presum.attach(model, optimizer=optimizer, run=run, **options):
        for step, batch in zip(range(STEPS), loader, strict=False):
            optimizer.zero_grad()
            scores = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
            fault(rank, step, loss).backward()
            optimizer.step()
            time.sleep(pause)


def case(out: Path, name: str, rank: int, world: int, fault: Fault, **options: Any) -> None:
    told = Told()
    terminal = io.StringIO()
    code: object = None
    with contextlib.redirect_stderr(terminal):
        try:
            train(out / name, rank, world, fault, on_finding=told, **options)
        except SystemExit as end:
            code = end.code
    write_json(
        out / f"{name}.{rank}.json",
        {
            "code": code,
            "checks": [f.check for f in told.findings],
            "ranks": [f.ranks for f in told.findings],
            "threads": sorted(told.threads),
            "terminal": terminal.getvalue(),
        },
    )


def work(rank: int, world: int, out: Path) -> None:
    os.environ["PRESUM_SALT"] = "tests"
    case(out, "clean", rank, world, clean, same_data=False)
    case(out, "nan", rank, world, poisoned, same_data=False)
    case(out, "nan-quiet", rank, world, poisoned, same_data=False, record=QUIET)
    case(
        out,
        "same",
        rank,
        world,
        clean,
        same_data=True,
        pause=0.03,
        record=presum.Record(on_training_thread=True),
    )
    case(out, "preflight-bad", rank, world, clean, same_data=True, preflight=PREFLIGHT)


if __name__ == "__main__":
    main(work)
