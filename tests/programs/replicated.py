# SPDX-License-Identifier: Apache-2.0
"""A training of a module that the composable ``replicate`` was applied to; knows nothing of
presum."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.replicate import replicate
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS = 40

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model: Any = replicate(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)))
    optimizer = torch.optim.Adam(model.parameters())
    rows = TensorDataset(torch.randn(16 * STEPS, 8), torch.randint(4, (16 * STEPS,)))
    sampler: Any = DistributedSampler(rows)
    with torch.no_grad():
        model(rows.tensors[0][:4])  # before the first training step, as a sanity check
    for x, y in DataLoader(rows, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if "scaled" in sys.argv and dist.get_rank():
            loss = 3 * loss
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
