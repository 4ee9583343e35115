# SPDX-License-Identifier: Apache-2.0
"""A hundred short trainings; presum's monitor is the last to let go of each model."""

from __future__ import annotations

import faulthandler
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum


def train(run: Path) -> None:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    model = DistributedDataParallel(nn.Linear(4, 1))
    monitor = presum.attach(model, run=run, record=presum.Record(quiet=True))
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
    dist.destroy_process_group()
    del model
    monitor.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.setswitchinterval(1)  # seconds: what waits for the GIL while it is held waits for good
    for _ in range(100):
        faulthandler.dump_traceback_later(30, exit=True)
        train(Path(sys.argv[1]))
