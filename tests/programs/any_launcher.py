# SPDX-License-Identifier: Apache-2.0
"""Prints the arguments that it got and trains for three steps, under whatever launcher."""

import os
import sys

RANKS = {"RANK": "WORLD_SIZE", "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE"}
RANKS["SLURM_PROCID"] = "SLURM_NTASKS"


def train(rank: int, world: int) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    rank, world = next((os.environ[r], os.environ[w]) for r, w in RANKS.items() if r in os.environ)
    print(f"rank {rank}: {sys.argv}\n", end="", flush=True)
    if "ARGUMENTS_ONLY" not in os.environ:
        train(int(rank), int(world))
