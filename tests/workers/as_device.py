# SPDX-License-Identifier: Apache-2.0
"""One worker of trainings whose gradients in host memory are read as on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

import presum
from presum import _core
from workers.launch import main, write_json

STEPS, PARAMETERS = 30, 6
PASSES = ("host", "torch", "kernels")
TRAININGS = ("copied", "views", "held-views", "own-hook", "nested", "fsdp2")


class HostEvent:
    """Stands in for a device's: the host's clock."""

    def __init__(self, _device: object, *, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0.0

    def record(self, _stream: object) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: HostEvent) -> float:
        return 1e3 * (later.at - self.at)


HOST_EVENTS = SimpleNamespace(
    Event=HostEvent, accelerator=SimpleNamespace(current_stream=lambda _device: None)
)


def model_of(training: str) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 1))
    if training == "fsdp2":
        return fully_shard(layers)
    if training == "own-hook":  # the program's; it runs after presum's
        return DistributedDataParallel(layers)
    views = training.endswith("views")
    return DistributedDataParallel(layers, gradient_as_bucket_view=views, bucket_cap_mb=0.01)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))


def halve(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def backward(loss: Callable[[], torch.Tensor], *, nested: bool) -> None:
    """``nested``: with its forward pass in a hook of another one, as gradient caching has it."""
    if not nested:
        loss().backward()
        return
    scale = torch.ones((), requires_grad=True)

    def again(_: torch.Tensor) -> None:
        with torch.enable_grad():
            loss().backward()

    scale.register_hook(again)
    scale.backward()


def train(training: str, run: Path, rank: int) -> None:
    model = model_of(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = presum.attach(model, optimizer=optimizer, run=run)
    if training == "own-hook":
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(halve)
    random = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        for last in (True,) if training == "views" else (False, True):
            x = torch.randn(16, 32, generator=random)
            if isinstance(model, FSDPModule):
                model.set_requires_gradient_sync(last)
            apart = not last and isinstance(model, DistributedDataParallel)
            with model.no_sync() if apart else nullcontext():
                backward(partial(loss_of, model, x), nested=training == "nested")
        optimizer.step()
        optimizer.zero_grad(set_to_none=training != "held-views")
    monitor.close()


def work(rank: int, _world: int, out: Path) -> None:
    launched: dict[str, int] = {}
    for training in TRAININGS:
        for read_by in PASSES:
            _core.cuda_on_host(read_by == "kernels")
            lacks = None if read_by == "kernels" else "not asked for"
            with (
                mock.patch("presum.attaching.in_host_memory", return_value=read_by == "host"),
                mock.patch("presum.devices.gradient_pass.why_not", return_value=lacks),
                mock.patch("presum.devices.marks.torch", HOST_EVENTS),
            ):
                train(training, out / f"{training}-{read_by}", rank)
            launched[training] = len(_core.cuda_launched())
    _core.cuda_on_host(False)
    if rank == 0:
        write_json(out / "launched.json", launched)


if __name__ == "__main__":
    main(work)
