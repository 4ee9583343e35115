# SPDX-License-Identifier: Apache-2.0
"""Two workers that are not alike: attached in different ways, or with different amounts of data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import QUIET, main, write_json


def model_of(run: Path, *, mean: bool) -> DistributedDataParallel:
    model = DistributedDataParallel(nn.Linear(3, 2))
    presum.attach(
        model,
        run=run,
        reduction=presum.Reduction(microbatch_mean=mean),
        record=QUIET,
    )
    return model


def disagree(rank: int, out: Path) -> str:
    model = model_of(out / "disagree", mean=rank == 1)
    try:
        model(torch.ones(1, 3)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def join(rank: int, out: Path) -> list[float]:
    """The last pass is worker 1's alone: 4 over the one leaf that counts."""
    model = model_of(out / "join", mean=True)
    found = []
    with model.join():
        for value in (1.0, 4.0)[: rank + 1]:
            model.zero_grad()
            model(torch.full((1, 3), value)).sum().backward()
            found.append(float(model.module.weight.grad[0, 0]))
    return found


def join_with_leaves(rank: int, out: Path) -> float:
    """Worker 0 has no input for the last pass, and two micro-batches that wait for it."""
    model = model_of(out / "leaves", mean=True)
    with model.join():
        model(torch.ones(1, 3)).sum().backward()
        model.zero_grad()
        with model.no_sync():
            for value in (3.0, 5.0):
                model(torch.full((1, 3), value + rank)).sum().backward()
        if rank == 1:
            model(torch.full((1, 3), 7.0)).sum().backward()
    return float(model.module.weight.grad[0, 0])


def join_with_zeroed_leaves(rank: int, out: Path) -> float | None:
    """Worker 0's micro-batch was zeroed; another model's backward pass comes before the last."""
    model = model_of(out / "zeroed", mean=True)
    with model.join():
        model(torch.ones(1, 3)).sum().backward()
        model.zero_grad()
        with model.no_sync():
            model(torch.full((1, 3), 8.0)).sum().backward()
        if rank == 0:
            model.zero_grad()
        torch.ones(2, requires_grad=True).sum().backward()
        if rank == 1:
            model(torch.full((1, 3), 4.0)).sum().backward()
    return float(model.module.weight.grad[0, 0]) if rank == 1 else None


def join_on_top(rank: int, out: Path) -> str:
    """Worker 1 adds to a sum, a part of which was worker 0's."""
    model = model_of(out / "top", mean=False)
    try:
        with model.join():
            for value in (1.0, 10.0)[: rank + 1]:
                model(torch.full((1, 3), value)).sum().backward()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def work(rank: int, _world: int, out: Path) -> None:
    found = {
        "disagree": disagree(rank, out),
        "join": join(rank, out),
        "join_with_leaves": join_with_leaves(rank, out),
        "join_with_zeroed_leaves": join_with_zeroed_leaves(rank, out),
        "join_on_top": join_on_top(rank, out),
    }
    write_json(out / f"{rank}.json", found)


if __name__ == "__main__":
    main(work)
