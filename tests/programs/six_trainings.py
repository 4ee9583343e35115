# SPDX-License-Identifier: Apache-2.0
"""Six trainings, one after the other, as a sweep over settings runs them; knows nothing of presum.

Prints what of each is still alive when the program has let go of it.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train(number: int) -> None:
    torch.manual_seed(number)
    width = 4 + number
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (number + 1))
    for x in batches(number, width):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    print(number, f"{loss.item():.6f}")
    REFERENCES.extend(map(weakref.ref, (model, optimizer, model.module[0].weight)))


def batches(number: int, width: int) -> Iterator[torch.Tensor]:
    """The last trainings have no loader."""
    if number > 3:
        own = torch.Generator().manual_seed(dist.get_rank())
        yield from (torch.randn(4, width, generator=own) for _ in range(10))
        return
    rows = TensorDataset(torch.randn(40 + 8 * number, width))
    sampler: Any = DistributedSampler(rows, seed=number)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        yield from (x for (x,) in DataLoader(rows, batch_size=4, sampler=sampler))


REFERENCES: list[weakref.ref[Any]] = []

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    train(0)
    gc.collect()
    gc.disable()
    for number in range(1, 6):
        train(number)
        print("alive", sum(reference() is not None for reference in REFERENCES))
    time.sleep(1)
    dist.destroy_process_group()
