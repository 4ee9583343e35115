# SPDX-License-Identifier: Apache-2.0
"""A user's training that uses all of presum's public Python, under mypy --strict and without Any:
typed.py RUN, on each rank. Lint holds its types."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import assert_type

import presum
from presum import Audit, Finding, MicroBatchSampler, Monitor, Record, Reduction, Run

STEPS, SIZE, MICRO_BATCHES, FEATURES = 20, 8, 4, 16
told: list[str] = []


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 32)
        self.last = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = torch.relu(self.first(x))
        out: Tensor = self.last(hidden)
        return out


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(STEPS * SIZE * MICRO_BATCHES, FEATURES, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


def tell(finding: Finding) -> None:
    told.append(f"{finding.severity}: {finding.check} on {finding.ranks}")


def attached(model: DistributedDataParallel, run: Path) -> tuple[Monitor, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = presum.attach(
        model,
        optimizer=[optimizer],
        run=run,
        reduction=Reduction(microbatch_mean=True),
        audit=Audit(every=5, elements=1000),
        record=Record(reduced_every=5, sketch=1024, fingerprints=["data", "rng"], quiet=True),
        on_finding=tell,
    )
    return assert_type(monitor, Monitor), optimizer


def train(run: Path) -> Path:
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())
    average = {name: p.detach().clone() for name, p in model.module.named_parameters()}
    monitor, optimizer = attached(model, run)
    sampler = MicroBatchSampler(data(), size=SIZE, micro_batches=MICRO_BATCHES)
    loader: DataLoader[tuple[Tensor, ...]] = DataLoader(data(), batch_sampler=sampler)
    own = MICRO_BATCHES // dist.get_world_size()
    with monitor:
        monitor.watch("average", average)
        for index, (x, y) in enumerate(loader):
            last = (index + 1) % own == 0
            model.require_backward_grad_sync = last
            loss = nn.functional.mse_loss(model(x), y)
            monitor.loss(loss, weight=1.0)
            (loss / 2).backward()  # type: ignore[no-untyped-call]
            if last:
                monitor.grad_norm(nn.utils.clip_grad_norm_(model.parameters(), 1e3))
                optimizer.step()
                optimizer.zero_grad()
        differing = assert_type(monitor.compare("copy", model.module.state_dict()), list[str])
        told.extend(f"differs: {name}" for name in differing)
        assert_type(monitor.findings, list[Finding])
    return monitor.run


def look(folder: Path) -> None:
    run = assert_type(presum.load(folder), Run)
    findings = assert_type(run.findings, list[Finding])
    cosines = assert_type(run.cosines(step=0), npt.NDArray[np.float64])
    print("steps", len(run.steps), "ranks", cosines.shape[0], "mean", float(cosines.mean()) <= 1)
    leaves = [np.array([1e8], np.float32), np.array([1.0], np.float32)]
    total: npt.NDArray[np.float32] = presum.reduce.sum(leaves, mean=False)
    same = assert_type(presum.reduce.sum([torch.from_numpy(leaf) for leaf in leaves]), Tensor)
    print("sum", float(total[0]) == float(same[0]), [*told, *(f.check for f in findings)])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    recorded = train(Path(sys.argv[1]))
    if dist.get_rank() == 0:
        look(recorded)
    dist.destroy_process_group()
