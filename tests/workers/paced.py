# SPDX-License-Identifier: Apache-2.0
"""A training at a pace, in which both ranks read the same data.

python paced.py RUN STEPS SECONDS
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import presum


def main(run: str, steps: int, seconds: float) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    presum.attach(model, optimizer=optimizer, run=run)
    rows = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x, y = torch.randn(8, 16, generator=rows), torch.randint(0, 4, (8,), generator=rows)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        time.sleep(seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
