# SPDX-License-Identifier: Apache-2.0
"""Trainings on tensors that are not plain: distributed, nested, of a user's class, of no address.

Each trains without presum and with it; writes CASE.json on every rank: the parameters' digests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import main, write_json

STEPS = 4
BATCH = 3
WIDTH = 8


class Marked(torch.Tensor):
    """A class of the user's own; presum knows nothing of it."""


class Classifier(nn.Module):
    """Takes whatever its batch is made of, and the labels beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, x: Any, labels: Any = None) -> dict[str, torch.Tensor]:
        local = x.to_local() if isinstance(x, DTensor) else x
        if local.is_nested:
            local = torch.stack([part.mean(0) for part in local.unbind()])
        local = local.as_subclass(torch.Tensor)
        if labels is None:
            return {"loss": self.layer(local).square().mean()}
        labels = labels.to_local() if isinstance(labels, DTensor) else labels
        return {"loss": nn.functional.cross_entropy(self.layer(local), labels)}


Batch = tuple[tuple[Any, ...], dict[str, Any]]


def rows(rank: int, step: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step))


def labels(step: int) -> torch.Tensor:
    return torch.tensor([step % 4, -100, 1])


def plain(_mesh: DeviceMesh, rank: int, step: int) -> Batch:
    return (rows(rank, step), labels(step)), {}


def distributed(mesh: DeviceMesh, rank: int, step: int) -> Batch:
    """Each rank's rows are its part of one tensor over all ranks."""
    x = DTensor.from_local(rows(rank, step), mesh, [Shard(0)])
    return (x,), {"labels": DTensor.from_local(labels(step), mesh, [Shard(0)])}


def unnamed_labels(mesh: DeviceMesh, rank: int, step: int) -> Batch:
    return (rows(rank, step), DTensor.from_local(labels(step), mesh, [Shard(0)])), {}


def nested(_mesh: DeviceMesh, rank: int, step: int) -> Batch:
    parts = [rows(rank, step)[: 1 + at] for at in range(BATCH)]
    return (torch.nested.nested_tensor(parts),), {}


def marked(_mesh: DeviceMesh, rank: int, step: int) -> Batch:
    return (rows(rank, step).as_subclass(Marked),), {}


def with_empty(_mesh: DeviceMesh, rank: int, step: int) -> Batch:
    x = rows(rank, step).to_sparse().to_dense().t().contiguous().t()
    return (x,), {"labels": labels(step)}


CASES: dict[str, Callable[[DeviceMesh, int, int], Batch]] = {
    "plain": plain,
    "distributed": distributed,
    "unnamed-labels": unnamed_labels,
    "nested": nested,
    "marked": marked,
    "strided": with_empty,
}


def train(case: str, rank: int, world: int, run: Path | None) -> float:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world,))
    model = DistributedDataParallel(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = presum.attach(model, optimizer=optimizer, run=run) if run is not None else None
    for step in range(STEPS):
        args, kwargs = CASES[case](mesh, rank, step)
        optimizer.zero_grad()
        model(*args, **kwargs)["loss"].backward()
        optimizer.step()
    if monitor is not None:
        monitor.close()
    return float(sum(p.detach().double().sum() for p in model.parameters()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 16)
        self.down = nn.Linear(16, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


def train_tensor_parallel(rank: int, world: int, run: Path | None) -> float:
    """FSDP2 over halves of the ranks, tensor parallelism within each."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = Block()
    plan: Any = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate())}
    parallelize_module(model, mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    group = mesh.get_group("dp")
    monitor = None
    if run is not None:
        monitor = presum.attach(model, optimizer=optimizer, run=run, process_group=group)
    for step in range(STEPS):
        own = rows(dist.get_rank(group), step)
        x = distribute_tensor(own, mesh["tp"], [Replicate()])
        optimizer.zero_grad()
        out = model(x)
        out = out.to_local() if isinstance(out, DTensor) else out
        out.square().mean().backward()
        optimizer.step()
    if monitor is not None:
        monitor.close()
    sums = [p.full_tensor().detach().double().sum() for p in model.parameters()]
    return float(sum(sums))


def work(rank: int, world: int, out: Path) -> None:
    for case in CASES:
        result = {
            "plain": train(case, rank, world, None),
            "watched": train(case, rank, world, out / case),
        }
        write_json(out / f"{case}.{rank}.json", result)
    result = {
        "plain": train_tensor_parallel(rank, world, None),
        "watched": train_tensor_parallel(rank, world, out / "tensor-parallel"),
    }
    write_json(out / f"tensor-parallel.{rank}.json", result)


if __name__ == "__main__":
    main(work)
