# SPDX-License-Identifier: Apache-2.0
"""Trainings in which rank 1 sleeps at a planted place of every step, each with a run of its own.

The sleep is long beside what steps take on this machine, with whatever else it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from workers.launch import main, write_json

SLEEP = 0.04  # at least
TIMES_A_STEP = 4  # at least, of what a step takes
STEPS = 25
SLOW = 1  # the rank
TEXTS = 8  # a batch
LONGEST = 400  # tokens


class Sleeper(nn.Module):
    """Sleeps in its forward pass, or in one layer's backward pass."""

    def __init__(self, place: str, *, norm: bool = False) -> None:
        super().__init__()
        middle = [nn.BatchNorm1d(16)] if norm else []
        self.layers = nn.ModuleList([nn.Linear(16, 16), *middle, nn.Linear(16, 16)])
        self.place = place if dist.get_rank() == SLOW else ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.place == "forward":
            time.sleep(SLEEP)
        for layer in self.layers:
            x = torch.relu(layer(x))
        if self.place == "backward" and x.requires_grad:
            x.register_hook(lambda _: time.sleep(SLEEP))
        return x


class SleepyOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(SLEEP)
        return super().step(closure)


def sleep_at(place: str, planted: str) -> None:
    if place == planted and dist.get_rank() == SLOW:
        time.sleep(SLEEP)


def optimizer_of(model: nn.Module, place: str) -> torch.optim.Optimizer:
    slow = place == "optimizer" and dist.get_rank() == SLOW
    return (SleepyOptimizer if slow else torch.optim.SGD)(model.parameters(), lr=1e-3)


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, place: str, *, micro: int = 1
) -> None:
    for k in range(micro):
        sleep_at("data", place)
        last = k == micro - 1
        with nullcontext() if last else model.no_sync():  # type: ignore[operator]
            model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def watched(
    model: nn.Module, run: Path, step: Callable[[torch.optim.Optimizer], None], place: str = ""
) -> None:
    """Trains it with this step."""
    optimizer = optimizer_of(model, place)
    with presum.attach(model, optimizer=optimizer, run=run):
        for _ in range(STEPS):
            step(optimizer)


def ddp(place: str, run: Path, *, norm: bool = False, micro: int = 1) -> None:
    model = DistributedDataParallel(Sleeper(place, norm=norm))
    watched(model, run, lambda optimizer: step_of(model, optimizer, place, micro=micro), place)


def joined(run: Path) -> None:
    """DDP's join(): before each step all ranks exchange who is still there."""
    model = DistributedDataParallel(Sleeper("forward"))
    with model.join():
        watched(model, run, lambda optimizer: step_of(model, optimizer, ""))


def logged(run: Path) -> None:
    """Every rank waits in a collective of the program's own, after rank 1 slept before it."""
    model = DistributedDataParallel(Sleeper(""))

    def step(optimizer: torch.optim.Optimizer) -> None:
        step_of(model, optimizer, "")
        sleep_at("log", "log")
        dist.all_reduce(torch.ones(1))

    watched(model, run, step)


def evaluated(run: Path) -> None:
    """Rank 1 alone evaluates before each step."""
    model = DistributedDataParallel(Sleeper(""))

    def step(optimizer: torch.optim.Optimizer) -> None:
        if dist.get_rank() == SLOW:
            with torch.no_grad():
                model.module(torch.randn(8, 16))
                with model.no_sync():
                    model(torch.randn(8, 16))
            time.sleep(SLEEP)
        step_of(model, optimizer, "")

    watched(model, run, step)


def sharded(place: str, run: Path) -> None:
    model = Sleeper(place)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    watched(model, run, lambda optimizer: step_of(model, optimizer, place), place)


def by_hand(run: Path) -> None:
    model = Sleeper("forward")
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = optimizer_of(model, "")
    with presum.attach(model, optimizer=optimizer, run=run, mode="manual") as monitor:
        for _ in range(STEPS):
            model(torch.randn(8, 16)).sum().backward()
            monitor.before_reduction((n, p.grad) for n, p in model.named_parameters())
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            optimizer.zero_grad()


def adversarial(run: Path) -> None:
    """Two models in turn; rank 1 is slow in the second one's pass, and the first one's next step is
    not its fault."""
    first = DistributedDataParallel(Sleeper(""))
    second = DistributedDataParallel(Sleeper("backward"))
    other = optimizer_of(second, "")

    def step(optimizer: torch.optim.Optimizer) -> None:
        step_of(first, optimizer, "")
        step_of(second, other, "")

    with presum.attach(second, optimizer=other, run=run):
        watched(first, run, step)


class Reader(nn.Module):
    """Computes for as long as its tokens are many, and sleeps this long for each."""

    def __init__(self, seconds_a_token: float) -> None:
        super().__init__()
        self.seconds_a_token = seconds_a_token
        self.embedding = nn.Embedding(32, 64)
        self.layer = nn.Linear(64, 64)
        self.head = nn.Linear(64, 32)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        time.sleep(input_ids.numel() * self.seconds_a_token)
        x = self.embedding(input_ids)
        for _ in range(8):
            x = torch.relu(self.layer(x))
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())
        return {"loss": loss}


def uneven(run: Path) -> None:
    """Texts of any length on every rank. The longest take far longer than what else this machine
    may do in a step."""
    model = DistributedDataParallel(Reader(SLEEP / (TEXTS * LONGEST)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with presum.attach(model, optimizer=optimizer, run=run):
        for _ in range(50):
            length = int(torch.randint(LONGEST // 20, LONGEST, ()))
            tokens = torch.randint(32, (TEXTS, length))
            model(input_ids=tokens, labels=tokens)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()


PLACES = ("none", "data", "forward", "backward", "optimizer")
CASES: dict[str, Callable[[Path], None]] = {
    "ddp-none-again": lambda run: ddp("none", run),
    **{f"ddp-{place}": lambda run, place=place: ddp(place, run) for place in PLACES},  # type: ignore[misc]
    "micro-batches": lambda run: ddp("forward", run, micro=3),
    "norm": lambda run: ddp("forward", run, norm=True),
    "joined": joined,
    "logged": logged,
    "evaluated": evaluated,
    "fsdp-forward": lambda run: sharded("forward", run),
    "fsdp-backward": lambda run: sharded("backward", run),
    "by-hand": by_hand,
    "adversarial": adversarial,
    "uneven": uneven,
}


def set_sleep() -> None:
    """Of the longest step of a few that nobody watches, on any rank."""
    global SLEEP
    model = DistributedDataParallel(Sleeper(""))
    optimizer = optimizer_of(model, "")
    longest = torch.zeros(1)
    for step in range(STEPS):
        began = time.monotonic()
        step_of(model, optimizer, "")
        if step > 2:  # but for what is loaded in the first ones
            longest = longest.clamp(min=time.monotonic() - began)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    SLEEP = max(SLEEP, TIMES_A_STEP * float(longest))


def work(rank: int, _world: int, out: Path) -> None:
    torch.manual_seed(rank)
    set_sleep()
    seconds = {}
    for name, case in CASES.items():
        began = time.monotonic()
        case(out / name)
        seconds[name] = time.monotonic() - began
        dist.barrier()
    if rank == 0:
        write_json(out / "seconds.json", {"cases": seconds, "sleep": SLEEP})


if __name__ == "__main__":
    main(work)
