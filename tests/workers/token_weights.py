# SPDX-License-Identifier: Apache-2.0
"""Trainings that differ in what their losses are divided by, each with a run of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import main

STEPS = 26
WORDS, LONGEST, IGNORED = 32, 24, -100
SMALLER = 10  # the step whose window has one micro-batch


@dataclass(frozen=True, kw_only=True)
class Step:
    """One micro-batch of a step."""

    number: int
    rank: int
    micro: int
    micro_batches: int
    world: int

    def count(self, rank: int, micro: int, number: int | None = None) -> int:
        number = self.number if number is None else number
        return 3 + (7 * number + 5 * rank + 11 * micro) % (LONGEST - 3)

    def of_rank(self, rank: int, number: int | None = None) -> int:
        return sum(self.count(rank, micro, number) for micro in range(self.micro_batches))

    @property
    def own(self) -> int:
        return self.count(self.rank, self.micro)

    @property
    def of_all(self) -> int:
        return sum(map(self.of_rank, range(self.world)))

    @property
    def before(self) -> int:
        return self.of_rank(self.rank, max(0, self.number - 1))


Divisor = Callable[[Step], float]


def one_rank_undivided(step: Step) -> float:
    return step.own * (1 if step.rank == 1 else step.micro_batches)


@dataclass(frozen=True, kw_only=True)
class Case:
    divisor: Divisor  # of the summed loss
    micro_batches: int = 2
    model: str = "words"
    way: str = "ddp"
    smaller: bool = False
    syncs: bool = False  # DDP reduces after every micro-batch
    sums: bool = False  # FSDP2 does not divide
    distills: bool = False  # half of the loss is of another kind
    hidden: bool = False
    reported: bool = False
    scaled: bool = False
    later: Divisor | None = None  # a factor on the reduced gradient
    clips: bool = False


def of_micro_batch(step: Step) -> float:
    return step.own * step.micro_batches


def of_all_ranks(step: Step) -> float:
    return step.of_all / step.world


TWICE: Divisor = lambda step: step.of_all  # noqa: E731
CASES = {
    "all-tokens": Case(divisor=of_all_ranks),
    "all-tokens-pixels": Case(divisor=of_all_ranks, model="pixels"),
    "all-tokens-fsdp2": Case(divisor=of_all_ranks, way="fsdp2"),
    "sum": Case(divisor=lambda _: 1),
    "scaled": Case(divisor=of_all_ranks, scaled=True),
    "means": Case(divisor=of_micro_batch),
    "means-fsdp2": Case(divisor=of_micro_batch, way="fsdp2"),
    "undivided": Case(divisor=lambda step: step.own),
    "own-tokens": Case(divisor=lambda step: step.of_rank(step.rank)),
    "all-tokens-summed": Case(divisor=TWICE, way="fsdp2", sums=True),
    "half-of-all-tokens": Case(divisor=lambda step: 2 * of_all_ranks(step), distills=True),
    "divided-twice": Case(divisor=TWICE),
    "all-tokens-reduced-often": Case(divisor=of_all_ranks, syncs=True),
    "divided-twice-reduced-often": Case(divisor=TWICE, syncs=True),
    "divided-twice-pixels": Case(divisor=TWICE, model="pixels"),
    "divided-twice-fsdp2": Case(divisor=TWICE, way="fsdp2"),
    "last-micro-batch": Case(divisor=lambda step: step.count(step.rank, step.micro_batches - 1)),
    "step-before": Case(divisor=lambda step: step.before, micro_batches=1),
    "smaller-window": Case(divisor=lambda step: 4 * step.own, micro_batches=4, smaller=True),
    "smaller-window-by-its-size": Case(divisor=of_micro_batch, micro_batches=4, smaller=True),
    "one-rank-undivided": Case(divisor=one_rank_undivided),
    "times-ranks-later": Case(divisor=TWICE, later=lambda step: step.world),
    "times-ranks-later-fsdp2": Case(divisor=TWICE, later=lambda step: step.world, way="fsdp2"),
    "times-ranks-later-scaled": Case(divisor=TWICE, later=lambda step: step.world, scaled=True),
    "divided-later": Case(divisor=lambda _: 1, later=lambda step: 1 / of_all_ranks(step)),
    "divided-later-fsdp2": Case(
        divisor=lambda _: 1, later=lambda step: 1 / of_all_ranks(step), way="fsdp2", clips=True
    ),
    "clipped": Case(divisor=of_all_ranks, clips=True),
    "hidden": Case(divisor=of_all_ranks, hidden=True),
    "reported": Case(divisor=TWICE, hidden=True, reported=True),
}


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(x)))  # type: ignore[no-any-return]


class Pixels(nn.Module):
    """A class for each place, with classes in the second dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 16), nn.Conv1d(16, WORDS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x).transpose(1, 2))  # type: ignore[no-any-return]


class Hidden(torch.autograd.Function):
    """A cross entropy with a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.logits = logits.detach().requires_grad_()
            ctx.loss = summed(ctx.logits, targets)
        return ctx.loss.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (found,) = torch.autograd.grad(ctx.loss, ctx.logits)
        return found * grads[0], None


def summed(logits: Tensor, targets: Tensor) -> Tensor:
    by_place = logits if logits.shape[1] == WORDS else logits.movedim(-1, 1)
    return functional.cross_entropy(by_place, targets, ignore_index=IGNORED, reduction="sum")


def batch_of(case: Case, step: Step) -> tuple[Tensor, Tensor]:
    seed = 1 + step.number * 1000 + step.rank * 10 + step.micro
    inputs = torch.randint(0, WORDS, (1, LONGEST), generator=torch.Generator().manual_seed(seed))
    targets = inputs.roll(-1, 1)
    targets[:, step.own :] = IGNORED
    return inputs, targets


def train(case: Case, out: Path, name: str) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    module = Words() if case.model == "words" else Pixels()
    model = fully_shard(module) if case.way == "fsdp2" else DistributedDataParallel(module)
    if case.sums:
        model.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        model.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=case.scaled)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=out / name, record=record) as monitor:
        for number in range(STEPS):
            size = 1 if case.smaller and number == SMALLER else case.micro_batches
            for micro in range(size):
                step = Step(number=number, rank=rank, micro=micro, micro_batches=size, world=world)
                inputs, targets = batch_of(case, step)
                last = micro == size - 1
                waits = not (last or case.syncs) and isinstance(model, DistributedDataParallel)
                with model.no_sync() if waits else nullcontext():
                    function = Hidden.apply if case.hidden else summed
                    logits = model(inputs)
                    loss = function(logits, targets) / case.divisor(step)  # type: ignore[no-untyped-call]
                    if case.distills:
                        loss = loss + logits.log_softmax(-1).square().sum() / case.divisor(step)
                    if case.reported:
                        monitor.token_weight(step.own, 1 / case.divisor(step))
                    scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            for parameter in model.parameters():
                if case.later is not None and parameter.grad is not None:
                    parameter.grad.mul_(case.later(step))
            if case.clips:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def accelerate_loop(out: Path) -> None:
    """As its documentation accumulates gradients, over two epochs with a smaller last window."""
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    torch.manual_seed(1)
    rows = torch.randint(0, WORDS, (14 * dist.get_world_size(), LONGEST))
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=1)  # type: ignore[arg-type]
    model: Any = Words()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer.optimizer, run=out / "accelerate", record=record):
        for _ in range(2):
            for x in loader:
                with accelerator.accumulate(model):
                    logits = model(x)[:, :-1].flatten(0, 1)
                    loss = functional.cross_entropy(logits, x[:, 1:].flatten())
                    accelerator.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()


def work(_rank: int, _world: int, out: Path) -> None:
    for name, case in CASES.items():
        train(case, out, name)
    accelerate_loop(out)


if __name__ == "__main__":
    main(work)
