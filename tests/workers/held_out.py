# SPDX-License-Identifier: Apache-2.0
"""Six shapes of training and one model that nothing of presum was tuned on: without a fault, with
one rank's loss tripled, and with two ranks that read the same data."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import QUIET, main

STEPS = 160
BEGINS = 60  # the tripled loss
WIDTH = 12
FAULTS = ("none", "tripled-loss", "same-data")


@dataclass
class Run:
    """One training on one rank."""

    rank: int
    fault: str
    folder: Path
    step: int = 0

    def trained(self, model: nn.Module, **ddp: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        """In DDP, with its optimizer, watched. From here on each rank draws for itself."""
        torch.manual_seed(100 + self.rank)
        wrapped = DistributedDataParallel(model, **ddp)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        self.monitor = presum.attach(wrapped, optimizer=optimizer, run=self.folder, record=QUIET)
        return wrapped, optimizer

    def batches(self, *shape: int) -> Iterator[torch.Tensor]:
        """One a step, of this rank's own data."""
        reader = 0 if self.fault == "same-data" and self.rank == 1 else self.rank
        draws = torch.Generator().manual_seed(77 + reader)
        for self.step in range(STEPS):
            yield torch.randn(*(shape or (8, WIDTH)), generator=draws)

    def backward(self, loss: torch.Tensor) -> None:
        broken = self.fault == "tripled-loss" and self.rank == 2 and self.step >= BEGINS
        (3 * loss if broken else loss).backward()


def target_of(x: torch.Tensor) -> torch.Tensor:
    return (x[..., ::2].sum(-1) > 0).long()


def layers(*widths: int) -> nn.Sequential:
    pairs = itertools.pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.GELU())))


class Variational(nn.Module):
    """Draws in its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = layers(WIDTH, 24, 8), layers(4, 24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, spread = self.encode(x).chunk(2, 1)
        made = self.decode(mean + torch.randn_like(mean) * spread.exp())
        prior = (mean.square() + (2 * spread).exp() - 2 * spread - 1).mean()
        return functional.mse_loss(made, x) + 0.1 * prior


def variational(run: Run) -> None:
    model, optimizer = run.trained(Variational())
    for x in run.batches():
        optimizer.zero_grad()
        run.backward(model(x))
        optimizer.step()


def triplets(run: Run) -> None:
    """Three forward passes, one margin loss, one backward pass."""
    model, optimizer = run.trained(layers(WIDTH, 24, 8))
    for x in run.batches(24, WIDTH):
        anchor, near, far = model(x[:8]), model(x[:8] + 0.1 * x[8:16]), model(x[16:])
        optimizer.zero_grad()
        run.backward(functional.triplet_margin_loss(anchor, near, far))
        optimizer.step()


class TwoTasks(nn.Module):
    """The head of the task, and not the other's, has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 24, 16)
        self.heads = nn.ModuleList([nn.Linear(16, 2), nn.Linear(16, 1)])

    def forward(self, x: torch.Tensor, task: int) -> torch.Tensor:
        out = self.heads[task](self.body(x))
        if task == 0:
            return functional.cross_entropy(out, target_of(x))
        return functional.mse_loss(out[:, 0], x.sum(1))


def two_tasks(run: Run) -> None:
    model, optimizer = run.trained(TwoTasks(), find_unused_parameters=True)
    for x in run.batches():
        optimizer.zero_grad()
        run.backward(model(x, run.step % 3 == 0))
        optimizer.step()


class StochasticDepth(nn.Module):
    """Layers are left out at random, alike on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([layers(WIDTH, WIDTH) for _ in range(4)])
        self.head = nn.Linear(WIDTH, 2)
        self.draws = torch.Generator().manual_seed(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x
        for part in self.parts:
            if torch.rand((), generator=self.draws) > 0.3:
                hidden = hidden + part(hidden)
        return functional.cross_entropy(self.head(hidden), target_of(x))


def stochastic_depth(run: Run) -> None:
    model, optimizer = run.trained(StochasticDepth(), find_unused_parameters=True)
    for x in run.batches():
        optimizer.zero_grad()
        run.backward(model(x))
        optimizer.step()


def mean_teacher(run: Run) -> None:
    """A teacher that follows the student by a moving average."""
    student = nn.Sequential(layers(WIDTH, 24), nn.Linear(24, 2))
    teacher = copy.deepcopy(student).requires_grad_(False)
    model, optimizer = run.trained(student)
    for x in run.batches():
        out = model(x)
        apart = functional.mse_loss(out, teacher(x + 0.1 * torch.randn_like(x)))
        optimizer.zero_grad()
        run.backward(functional.cross_entropy(out, target_of(x)) + apart)
        optimizer.step()
        for kept, now in zip(teacher.parameters(), student.parameters(), strict=True):
            kept.lerp_(now.detach(), 0.01)


def curriculum(run: Run) -> None:
    """Batches grow, and so does the number of micro-batches."""
    model, optimizer = run.trained(nn.Sequential(layers(WIDTH, 24), nn.Linear(24, 2)))
    for x in run.batches(16, WIDTH):
        stage = min(run.step // 50, 2)
        parts = x[: 4 << stage].chunk(1 << stage)
        optimizer.zero_grad()
        for part in parts[:-1]:
            with model.no_sync():  # type: ignore[operator]
                run.backward(functional.cross_entropy(model(part), target_of(part)) / len(parts))
        run.backward(functional.cross_entropy(model(parts[-1]), target_of(parts[-1])) / len(parts))
        optimizer.step()


class Recurrent(nn.Module):
    """A gated recurrent network over sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(WIDTH, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(x)[0])  # type: ignore[no-any-return]


def recurrent(run: Run) -> None:
    model, optimizer = run.trained(Recurrent())
    for x in run.batches(4, 10, WIDTH):
        optimizer.zero_grad()
        run.backward(functional.cross_entropy(model(x).flatten(0, 1), target_of(x).flatten()))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


PROGRAMS: dict[str, Callable[[Run], None]] = {
    "variational": variational,
    "triplets": triplets,
    "two-tasks": two_tasks,
    "stochastic-depth": stochastic_depth,
    "mean-teacher": mean_teacher,
    "curriculum": curriculum,
    "recurrent": recurrent,
}


def work(rank: int, _world: int, out: Path) -> None:
    for name, train in PROGRAMS.items():
        for fault in FAULTS:
            torch.manual_seed(1)
            run = Run(rank, fault, out / name / fault)
            train(run)
            run.monitor.close()
            dist.barrier()


if __name__ == "__main__":
    main(work)
