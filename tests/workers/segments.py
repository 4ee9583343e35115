# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings that share a RUN: after one another, or as two process groups."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import main

STEPS = 12
SAVED, LEFT = 20, 23  # of the training that is interrupted
WORKERS = 2


def layers(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))


def train(
    run: Path,
    model: nn.Module,
    steps: int = STEPS,
    *,
    group: Any = None,
    saved: dict[str, Any] | None = None,
    saved_at: int = 0,
) -> dict[str, Any]:
    """From what was saved, if anything. Returns what is to be saved."""
    ddp = DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    generator = torch.Generator().manual_seed(dist.get_rank() + 10 * steps)
    kept: dict[str, Any] = {}
    with presum.attach(ddp, optimizer=optimizer, run=run):
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            ddp(torch.randn(8, 6, generator=generator)).square().mean().backward()
            optimizer.step()
            if step == saved_at:
                kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                kept = copy.deepcopy(kept)
    dist.barrier()
    return kept


def independent(run: Path) -> None:
    train(run, layers(0))
    train(run, layers(1))


def resumed(run: Path) -> None:
    saved = train(run, layers(0), LEFT, saved_at=SAVED)
    train(run, layers(1), STEPS, saved=saved)


def ended(run: Path) -> None:
    """Of a program that goes on with its model, in a second session."""
    model = layers(0)
    train(run, model)
    train(run, model)


def groups(run: Path) -> None:
    """Each half of the ranks trains a model of its own."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = dist.get_rank() // 2
    train(run, layers(half), group=halves[half])


CASES = {"independent": independent, "resumed": resumed, "ended": ended}


def work(rank: int, world: int, out: Path) -> None:
    """What is said of a case stands below its name."""
    if world == 4:
        return groups(out / "groups")
    for name, case in CASES.items():
        if rank == 0:
            print(f"== {name}", file=sys.stderr, flush=True)
        case(out / name)
    return None


if __name__ == "__main__":
    main(work)
