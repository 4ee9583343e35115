# SPDX-License-Identifier: Apache-2.0
"""Pairs of runs for `presum compare`: one training, and the same with one thing changed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import presum
from workers.launch import QUIET, main, token_rows

STEPS = 12
BATCH = 4
LAYERS = 4
FLIP_STEP = 7
BIT = 12  # of the mantissa

Change = Callable[["Training", int], None]


def nothing(_training: Training, _step: int) -> None:
    pass


@dataclass
class Plan:
    """What a run changes; the default is the training that others are compared with."""

    reversed_sum: bool | None = None  # None: DDP's own reduction
    before: Change = nothing  # a step


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dropped: torch.Tensor = self.dropout(torch.tanh(self.linear(self.norm(x))))
        return x + dropped


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 16)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(16, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(x)
        return scores


def summed_by_hand(backwards: bool, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """The mean of all workers' buckets, added in the order of the ranks or against it."""
    world = dist.get_world_size()
    parts = [torch.empty_like(bucket.buffer()) for _ in range(world)]
    dist.all_gather(parts, bucket.buffer())
    total = torch.zeros_like(bucket.buffer())
    for part in reversed(parts) if backwards else parts:
        total += part
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(total / world)
    return done


summed_by_hand.__annotations__.clear()  # torch would refuse a class that is named by text


class Training:
    def __init__(self, rank: int, world: int, plan: Plan) -> None:
        torch.manual_seed(0)
        self.rank, self.plan = rank, plan
        self.inner = Model()
        self.model = DistributedDataParallel(self.inner)
        if plan.reversed_sum is not None:
            self.model.register_comm_hook(plan.reversed_sum, summed_by_hand)
        self.optimizer = torch.optim.SGD(self.inner.parameters(), lr=0.1, momentum=0.9)
        self.rows = token_rows()[: STEPS * world * BATCH].clone()
        sampler: Any = DistributedSampler(self.rows, world, rank)
        self.loader = DataLoader(self.rows, batch_size=BATCH, sampler=sampler)
        torch.manual_seed(100 + rank)

    def run(self, folder: Path) -> None:
        with presum.attach(self.model, optimizer=self.optimizer, run=folder, record=QUIET):
            batches = iter(self.loader)  # of which a change may change what comes next
            for step in range(STEPS):
                self.plan.before(self, step)
                self.step(next(batches))

    def step(self, batch: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        scores = self.model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def flip_bit(tensor: torch.Tensor, bit: int) -> None:
    """Of the first element."""
    mask = torch.tensor(1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32)
    words = tensor.detach().view(torch.int32).view(-1)
    words[0] ^= mask


def at(step: int, change: Callable[[Training], None], *, rank: int | None = None) -> Change:
    def before(training: Training, now: int) -> None:
        if now == step and rank in (None, training.rank):
            change(training)

    return before


# ---- what is planted


def another_sample(training: Training) -> None:
    """One row of the batch that comes next becomes another sample."""
    order = list(training.loader.sampler)
    training.rows[order[5 * BATCH + 2]] = training.rows[order[-1]]


def flip_gradient(training: Training) -> None:
    """The sign of one element of one layer's gradient: every norm stays."""
    weight: Any = training.inner.layers[2].linear.weight  # type: ignore[union-attr]

    def flipped(gradient: torch.Tensor) -> torch.Tensor:
        handle.remove()
        gradient = gradient.clone()
        flip_bit(gradient, 31)
        return gradient

    handle = weight.register_hook(flipped)


def flip_parameter(training: Training) -> None:
    """Of the parameter that is hashed before step 5."""
    flip_bit(list(training.inner.parameters())[5], BIT)


PLANS = {
    "base": Plan(),
    "again": Plan(),
    "sample": Plan(before=at(5, another_sample, rank=1)),
    "gradient": Plan(before=at(FLIP_STEP, flip_gradient, rank=3)),
    "summed": Plan(reversed_sum=False),
    "summed-reversed": Plan(reversed_sum=True),
    "parameter": Plan(before=at(5, flip_parameter)),
}


def work(rank: int, world: int, out: Path) -> None:
    os.environ["PRESUM_SALT"] = "tests"
    random.seed(rank)
    for name, plan in PLANS.items():
        Training(rank, world, plan).run(out / name)


if __name__ == "__main__":
    main(work)
