# SPDX-License-Identifier: Apache-2.0
"""What small trainings have in common: equal models and data on all ranks, draws of each rank's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import presum
from presum.monitor import Monitor

STEPS, ROWS, INPUTS, CLASSES = 120, 512, 16, 4
Batch = Any  # of a loader: tensors


@dataclass
class Run:
    """One program's training on one rank."""

    rank: int
    world: int
    out: Path
    models: list[nn.Module] = field(default_factory=list)
    monitors: list[Monitor] = field(default_factory=list)

    def __post_init__(self) -> None:
        shared = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(ROWS, INPUTS, generator=shared)
        self.teacher = torch.randn(INPUTS, CLASSES, generator=shared)
        self.labels = (self.inputs @ self.teacher).argmax(1)
        self.data = TensorDataset(self.inputs, self.labels)
        self.own = torch.Generator().manual_seed(100 + self.rank)

    def trained(
        self, make: Callable[[], nn.Module] | None = None, lr: float = 0.05
    ) -> tuple[DistributedDataParallel, Optimizer]:
        """A model that is equal on all ranks, watched, and its optimizer. What the program draws
        from here on is each rank's own."""
        torch.manual_seed(0)
        model = DistributedDataParallel((make or network)())
        optimizer = SGD(model.parameters(), lr=lr)
        self.watch(model, optimizer)
        return model, optimizer

    def watch(self, model: nn.Module, optimizer: Optimizer, **options: Any) -> Monitor:
        torch.manual_seed(100 + self.rank)
        self.models.append(model)
        record = presum.Record(quiet=True)
        monitor = presum.attach(model, optimizer=optimizer, run=self.out, record=record, **options)
        self.monitors.append(monitor)
        return monitor

    def sampler(self, data: Dataset[Any] | None = None) -> DistributedSampler[Any]:
        data = data or self.data
        return DistributedSampler(data, self.world, self.rank, seed=0)

    def batches(
        self, sampler: Any = None, steps: int = STEPS, data: Any = None, **options: Any
    ) -> Iterator[Batch]:
        """So many, in as many passes as that takes."""
        data = data or self.data
        sampler = sampler or self.sampler(data)
        loader = DataLoader(data, **{"batch_size": 8, "sampler": sampler, **options})
        yield from first(steps, passes(loader, sampler))


def network(inputs: int = INPUTS, outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def passes(loader: DataLoader[Any], sampler: Any) -> Iterator[Batch]:
    epoch = 0
    while True:
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def first(count: int, batches: Iterable[Batch]) -> Iterator[Batch]:
    for _, batch in zip(range(count), batches, strict=False):
        yield batch


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Iterable[Batch],
    loss: Callable[[nn.Module, Batch], torch.Tensor] = loss_of,
) -> None:
    for batch in batches:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()


@dataclass(frozen=True)
class Program:
    """A training. ``kind``: the letter of its practice. ``finds``: the check that finds its
    mistake; none of a right one. ``ranks``: those that it names; any where none are said."""

    kind: str
    train: Callable[[Run], None]
    finds: str = ""
    ranks: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.train.__name__
