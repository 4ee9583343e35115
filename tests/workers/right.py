# SPDX-License-Identifier: Apache-2.0
"""Trains the programs that it is given, watched, and asserts that right ones end with equal
parameters on all ranks."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from right import FAULTS, RIGHT
from right.run import Program, Run

from workers.launch import STUCK_S, main


def work(rank: int, world: int, out: Path) -> None:
    for name in sys.argv[3:]:
        faulthandler.dump_traceback_later(STUCK_S, exit=True)
        trained({**RIGHT, **FAULTS}[name], Run(rank, world, out / name))
        dist.barrier()


def trained(program: Program, run: Run) -> None:
    program.train(run)
    if not program.finds:
        for model in run.models:
            for parameter in model.parameters():
                first = parameter.detach().clone()
                dist.broadcast(first, 0)
                assert torch.equal(first, parameter.detach()), program.name
    for monitor in run.monitors:
        monitor.close()


if __name__ == "__main__":
    main(work)
