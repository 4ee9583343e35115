# SPDX-License-Identifier: Apache-2.0
"""Real reductions of Gloo: every worker saves what it puts in, rank 0 what comes out."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workers.launch import main

ELEMENTS = 50_000
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def bare(name: str, rank: int, out: Path) -> None:
    """The sum of an all-reduce."""
    generator = torch.Generator().manual_seed(100 + rank)
    mine = torch.randn(ELEMENTS, generator=generator).mul_(1e-3).to(DTYPES[name])
    torch.save(mine, out / f"{name}.{rank}.pt")
    dist.all_reduce(mine)
    if rank == 0:
        torch.save(mine, out / f"{name}.result.pt")


def ddp(rank: int, out: Path) -> None:
    """The mean that DistributedDataParallel makes of gradients."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(256, 128))
    torch.manual_seed(100 + rank)
    batch = torch.randn(16, 256)
    with model.no_sync():
        model(batch).square().mean().backward()
    torch.save(flat(model), out / f"ddp.{rank}.pt")
    model.zero_grad()
    model(batch).square().mean().backward()
    if rank == 0:
        torch.save(flat(model), out / "ddp.result.pt")


def work(rank: int, world: int, out: Path) -> None:
    for name in DTYPES:
        bare(name, rank, out)
    ddp(rank, out)


if __name__ == "__main__":
    main(work)
