# SPDX-License-Identifier: Apache-2.0
"""FSDP2 trainings that are interrupted and go on from torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import QUIET, main
from workers.resume import BATCH, MORE, SAMPLES, batches, other_state

WORKERS = 4
PASS = SAMPLES // BATCH // WORKERS
SAVED = PASS + PASS // 2
STEPS_OF_GROUPS = 12


def other_weights(model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
    """Of one layer, on one rank: its own shard."""
    if dist.get_rank() == 1:
        weight: Any = model.get_parameter("0.weight")
        weight.to_local().detach().mul_(1.01)


# How the second training differs from what it should be.
CASES: dict[str, dict[str, Any]] = {
    "shards-as-they-were": {},
    "shards-attached-first": {"attaches_first": True},
    "shards-other-weights": {"change": other_weights},
    "shards-other-state": {"change": other_state},
}


def sharded() -> nn.Sequential:
    """Layers whose rows are no equal shards; some ranks have none."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1))
    for part in (layers[0], layers[2], layers):
        fully_shard(part)
    return layers


def load(model: nn.Module, optimizer: torch.optim.Optimizer, saved: Path) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=saved)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


def train(run: Path, checkpoint: Path | None, **how: Any) -> Path:
    """Leaves its checkpoint, where it does not go on from one."""
    model = sharded()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def attach() -> presum.Monitor:
        return presum.attach(model, optimizer=optimizer, run=run, record=QUIET)

    monitor = attach() if how.get("attaches_first") else None
    if checkpoint is not None:
        load(model, optimizer, checkpoint)
        how.get("change", lambda *_: None)(model, optimizer)
    monitor = monitor or attach()
    begin, end = (0, SAVED + MORE) if checkpoint is None else (SAVED, 3 * PASS)
    for step, x in enumerate(batches(seed=0, first=begin), begin):
        if step == end:
            break
        if checkpoint is None and step == SAVED:
            weights, state = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": state}, checkpoint_id=run.with_suffix(".dcp"))
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    monitor.close()
    dist.barrier()
    return run.with_suffix(".dcp")


def train_groups(run: Path) -> None:
    """Each half of the ranks trains a model of its own."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    half = halves[dist.get_rank() // 2]
    torch.manual_seed(dist.get_rank() // 2)
    model = DistributedDataParallel(nn.Linear(6, 1), process_group=half)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with presum.attach(model, optimizer=optimizer, run=run, record=QUIET):
        for _, x in zip(range(STEPS_OF_GROUPS), batches(seed=0, first=0), strict=False):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    dist.barrier()


def work(_rank: int, _world: int, out: Path) -> None:
    for name, how in CASES.items():
        train(out / name, train(out / name, None), **how)
    train_groups(out / "groups")


if __name__ == "__main__":
    main(work)
