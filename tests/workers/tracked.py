# SPDX-License-Identifier: Apache-2.0
"""A training that logs to trackers itself, with ``step=``, while presum logs to the same ones.

    python tracked.py FOLDER NAMES [own]

It runs in FOLDER, where it records into "run". NAMES: trackers, separated by commas, or "none".
The environment variable HOOK says where the address of a webhook is. Prints the bits of the
parameters at the end. It ends without closing its monitor, as most programs do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import presum

STEPS = 40
Log = Callable[[float, int], object]


def wandb() -> Log:
    import wandb

    run = wandb.init(project="program", mode="offline")
    return lambda loss, step: run.log({"loss": loss}, step=step)


def mlflow() -> Log:
    import mlflow

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.start_run()
    return lambda loss, step: mlflow.log_metric("loss", loss, step=step)


def trackio() -> Log:
    import trackio

    trackio.init("program", auto_log_cpu=False)
    return lambda loss, step: trackio.log({"loss": loss}, step=step)


def tensorboard() -> Log:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter("tensorboard/program")
    return lambda loss, step: writer.add_scalar("loss", loss, step)


OWN = {f.__name__: f for f in (wandb, mlflow, trackio, tensorboard)}


def main(names: list[str], *, own: bool) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    hook = os.environ.get("HOOK")
    presum.attach(model, optimizer=optimizer, run="run", log_to=names, webhook=hook)
    logs = [OWN[name]() for name in names] if own and rank == 0 else []
    rows = torch.Generator().manual_seed(0)  # the same on both ranks, which is a finding
    for step in range(STEPS):
        x, y = torch.randn(8, 16, generator=rows), torch.randint(0, 4, (8,), generator=rows)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for log in logs:
            log(loss.item(), step)
    print("bits", [p.detach().double().sum().item().hex() for p in model.parameters()])


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    given = sys.argv[2]
    main([] if given == "none" else given.split(","), own="own" in sys.argv)
