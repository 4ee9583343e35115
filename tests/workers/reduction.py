# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings that differ in nothing but the number of workers.

Arguments: workers, the folder for results, names of cases. Rank 0 writes ``<case>.pt``, the
parameters after the last step.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import presum
from presum.parallel.fsdp import CAN_STAND_IN
from presum.parallel.sampler import MicroBatchSampler
from workers.launch import QUIET, main

MICRO_BATCHES = 8  # a step, over all workers
STEPS = 50
SIZE = 4


class Model(nn.Module):
    """A part that only some micro-batches use, wide ranges of gradients, a convolution."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(37, 24, dtype=dtype)
        self.conv = nn.Conv2d(1, 4, 3, padding=1, dtype=dtype).to(memory_format=torch.channels_last)
        self.layers = nn.ModuleList(nn.Linear(24, 24, dtype=dtype) for _ in range(3))
        self.rare = nn.Linear(24, 24, dtype=dtype)
        self.head = nn.Linear(24, 37, dtype=dtype)

    def forward(self, tokens: torch.Tensor, *, rare: bool) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.conv(x.unsqueeze(1).to(memory_format=torch.channels_last)).mean(1)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        if rare:
            x = x + self.rare(x) * 1e-3
        logits = self.head(x[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@dataclass(frozen=True)
class Case:
    """How a training differs from a plain one."""

    divided: bool = False  # losses, by the number of micro-batches
    dtype: torch.dtype = torch.float32
    fsdp: bool = False
    policy: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    rare: bool = False
    uneven: bool = False
    always: bool = False  # reduce, in every pass
    views: bool = False
    reduction: Any = None


MEAN = presum.Reduction(microbatch_mean=True)


CASES = {
    "plain": Case(),
    "exact": Case(divided=True, reduction="exact"),
    "exact-mean": Case(reduction=MEAN),
    "exact-always": Case(reduction=MEAN, always=True),
    "exact-rare": Case(reduction=MEAN, rare=True),
    "exact-views": Case(reduction=MEAN, views=True),
    "exact-bf16": Case(reduction=MEAN, dtype=torch.bfloat16),
    "exact-fp64": Case(reduction=MEAN, dtype=torch.float64),
    "exact-uneven": Case(reduction=MEAN, uneven=True),
    "fsdp-exact": Case(divided=True, fsdp=True, reduction="exact"),
    "fsdp-exact-mixed": Case(
        fsdp=True,
        reduction=MEAN,
        policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    ),
}
if not CAN_STAND_IN:
    CASES = {name: how for name, how in CASES.items() if not how.fsdp}


def wrapped(plain: Model, how: Case) -> tuple[nn.Module, Callable[[bool], None]]:
    """The model, and how it is told that the next pass is the last of its step."""
    if how.fsdp:
        for layer in [*plain.layers, plain.rare]:
            fully_shard(layer, mp_policy=how.policy)
        fully_shard(plain, mp_policy=how.policy)
        return plain, plain.set_requires_gradient_sync  # type: ignore[operator]
    model = DistributedDataParallel(
        plain,
        bucket_cap_mb=0.01,
        find_unused_parameters=how.rare,
        gradient_as_bucket_view=how.views,
    )
    return model, lambda last: setattr(model, "require_backward_grad_sync", last)


def shares(world: int, *, uneven: bool) -> list[range]:
    """Which of a step's micro-batches each worker makes."""
    bounds = [MICRO_BATCHES * rank // world for rank in range(world + 1)]
    if uneven and world > 1:
        bounds[1] -= 1
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


def train(how: Case, run: Path, rank: int, world: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tokens = torch.randint(0, 37, (SIZE * MICRO_BATCHES * STEPS, 9))
    model, set_last = wrapped(Model(how.dtype), how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = presum.attach(
        model, optimizer=optimizer, run=run, reduction=how.reduction, record=QUIET
    )
    everything = MicroBatchSampler(
        tokens, size=SIZE, micro_batches=MICRO_BATCHES, workers=1, rank=0, shuffle=True
    )
    micro_batches = list(everything)
    own = shares(world, uneven=how.uneven)[rank]
    for step in range(STEPS):
        for place in own:
            last = place == own[-1]
            set_last(last or how.always)
            rows = tokens[micro_batches[step * MICRO_BATCHES + place]]
            loss = model(rows, rare=not how.rare or (step + place) % 3 == 0)
            (loss / len(own) if how.divided else loss).backward()
        if not how.fsdp:  # there the norm is summed in an order that depends on W
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    return {name: whole(value) for name, value in model.state_dict().items()}


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def work(rank: int, world: int, out: Path) -> None:
    for name in sys.argv[3:]:
        found = train(CASES[name], out / f"{name}-run", rank, world)
        if rank == 0:
            plain = {key.removeprefix("module."): value for key, value in found.items()}
            torch.save(plain, out / f"{name}.pt")
        dist.barrier()


if __name__ == "__main__":
    main(work)
