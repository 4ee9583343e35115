# SPDX-License-Identifier: Apache-2.0
"""What the small programs of this folder train with, and what is expected of their recording.

A program runs three times: plain, watched by presum, and beside an oracle, which knows nothing of
hooks: it takes the step's losses on a bare copy of the model and differentiates them in float64
sums of that model's own dtype.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum

Loss = Callable[[nn.Module], torch.Tensor]
WIDTH = 8
LONGER = int(os.environ.get("PRESUM_SHAPES_LONGER", "1"))  # times as many steps
BACKEND = os.environ.get("PRESUM_SHAPES_BACKEND", "aot_eager")  # of torch.compile
SEED = int(os.environ.get("PRESUM_SHAPES_SEED", "0"))
EVERY = 50  # optimizer steps between two looks at a long run's memory


@dataclass(frozen=True)
class Shape:
    """A way to train."""

    name: str
    train: Callable[[Training], None]
    findings: frozenset[str] = frozenset()  # that are due, at warning or above
    ragged: bool = False  # workers leave out steps: they are numbered together all the same
    world: int = 2
    kept: int = 0  # Python objects a step that stay on purpose: rows of batches, up to 8,192


@dataclass
class Step:
    """What is to be recorded of one."""

    model: int  # in the order of wrap()
    losses: list[float]
    norm: float | None  # of this worker's own gradient; None: presum is to say that it is unknown
    use: str  # of its gradient, as the run log has it
    reduced: bool


@dataclass
class Training:
    """One run of a program on one worker."""

    shape: Shape
    rank: int
    watched: Path | None = None
    asks_oracle: bool = False
    models: list[nn.Module] = field(default_factory=list)
    expected: list[Step] = field(default_factory=list)
    monitors: list[presum.Monitor] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return 20 * LONGER

    def wrap(self, model: nn.Module, **ddp: Any) -> DistributedDataParallel:
        """In DDP; all workers begin alike."""
        self.models.append(DistributedDataParallel(model, **ddp))
        return self.models[-1]  # type: ignore[return-value]

    def watch(
        self, model: nn.Module, optimizer: Any = None, *, scaler: Any = None, **options: Any
    ) -> presum.Monitor | None:
        """As a user does, in the run that is watched."""
        if self.watched is None:
            return None
        monitor = presum.attach(
            model,
            optimizer=optimizer,
            run=self.watched,
            **options,
            record=presum.Record(quiet=True, scaler=scaler),
        )
        self.monitors.append(monitor)
        return monitor

    def trained(
        self, inside: nn.Module, **ddp: Any
    ) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
        """In DDP with its optimizer, both watched."""
        model = self.wrap(inside, **ddp)
        optimizer = sgd(model)
        self.watch(model, optimizer)
        return model, optimizer

    def batches(self, *shape: int, count: int | None = None) -> Iterator[torch.Tensor]:
        """Batches of rows that no other worker has."""
        draws = torch.Generator().manual_seed(1000 * (SEED + 1) + self.rank)
        for _ in range(count or self.steps):
            yield torch.randn(*(shape or (4, WIDTH)), generator=draws)

    def expect(
        self,
        model: nn.Module,
        losses: Sequence[Loss],
        *,
        known: bool = True,
        loss_known: bool = True,
        use: str = "used",
        reduced: bool = True,
        bare: nn.Module | None = None,
        part: Callable[[str, torch.Tensor], torch.Tensor] = lambda _name, gradient: gradient,
    ) -> None:
        """A step of these passes begins. Each loss is made as the program makes it, but with the
        module it is given; ``known=False``: its own gradient cannot be told from others.
        ``loss_known=False``: nor its losses.

        ``bare``: a copy that may be differentiated, where the model holds parts of its parameters;
        ``part`` tells what this worker's own is in a gradient.
        """
        if not self.asks_oracle:
            return
        place = self.models.index(model)
        bare = copy.deepcopy(getattr(model, "module", model)) if bare is None else bare
        bare.zero_grad()
        with torch.random.fork_rng():
            values = []
            for loss in losses:
                value = loss(bare)
                value.backward()
                values.append(value.item() if loss_known else math.nan)
        squares = sum(
            float(part(name, p.grad).double().square().sum())
            for name, p in bare.named_parameters()
            if p.grad is not None
        )
        norm = math.sqrt(squares) if known else None
        self.expected.append(Step(place, values, norm, use, reduced))

    def step(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Loss, **expected: Any
    ) -> None:
        """One pass and the update by its gradient."""
        self.expect(model, [loss], **expected)
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def network(*, dropout: float = 0.0, out: int = 1) -> nn.Sequential:
    """A small one; alike on all workers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, out))


def sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
