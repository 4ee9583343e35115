# SPDX-License-Identifier: Apache-2.0
"""A program that knows presum, and attaches after its first step."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import presum

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    if step == 0:
        try:
            presum.attach(model, optimizer=optimizer)
        except ValueError as error:
            print(error)
dist.destroy_process_group()
