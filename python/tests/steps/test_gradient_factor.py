# SPDX-License-Identifier: Apache-2.0
"""The factor on the gradient up to the optimizer's step: one worker, its packets read back."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import LossModel
from helpers.packets import Packets

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 12
Change = Callable[[nn.Module, int], None]


def factors(
    model: DistributedDataParallel,
    packets: Packets,
    folder: Path,
    change: Change,
    scaler: torch.amp.GradScaler | None = None,
) -> list[float | None]:
    """By step; None if it was not measured."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=folder, record=record):
        for step in range(STEPS):
            scaler.scale(model(torch.full((2, 4), 1.0 + step))["loss"]).backward()
            scaler.unscale_(optimizer)
            change(model, step)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    told = [step.values.get("grad_factor") for step in packets.steps]
    return [None if bits is None else number(bits) for bits in told]


def number(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", bits))[0])


def times(factor: float) -> Change:
    def change(model: nn.Module, _: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    return change


def nothing(_model: nn.Module, _step: int) -> None:
    """Leaves gradients as they are."""


def clip(model: nn.Module, _: int) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)


def times_and_clip(model: nn.Module, step: int) -> None:
    times(2.0)(model, step)
    clip(model, step)


@pytest.mark.parametrize("change", [clip, nothing])
def test_the_factor_of_unchanged_gradients_is_one(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path, change: Change
) -> None:
    assert factors(model, packets, tmp_path, change) == [1.0] * STEPS


def test_a_factor_that_begins_later_is_unknown_first(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    def change(model: nn.Module, step: int) -> None:
        if step > 4:
            times(2.0)(model, step)

    found = factors(model, packets, tmp_path, change)
    assert found[5] is not None and math.isnan(found[5])
    assert found[:5] + found[6:] == [1.0] * 5 + [2.0] * 6


def test_the_clipping_of_another_model_ends_nothing(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    other = nn.Linear(1, 1)
    other(torch.ones(1, 1)).sum().backward()

    def change(model: nn.Module, step: int) -> None:
        nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        times(2.0)(model, step)

    assert factors(model, packets, tmp_path, change) == [2.0] * STEPS


@pytest.mark.parametrize("change", [times(2.0), times_and_clip])
def test_a_factor_is_measured_every_time(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path, change: Change
) -> None:
    assert factors(model, packets, tmp_path, change) == [2.0] * STEPS


def test_a_loss_scale_is_no_factor(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    assert factors(model, packets, tmp_path, nothing, scaler) == [1.0] * STEPS


def test_what_is_no_factor_is_not_a_number(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    def noise(model: nn.Module, _: int) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(torch.randn_like(parameter.grad))

    (first, *_) = factors(model, packets, tmp_path, noise)
    assert first is not None and math.isnan(first)


class Hidden(torch.autograd.Function):
    """A loss function of the program."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0]


def test_what_a_pass_with_a_hidden_loss_adds_is_no_factor(packets: Packets, tmp_path: Path) -> None:
    model = DistributedDataParallel(LossModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=record):
        for _ in range(STEPS):
            with model.no_sync():
                model(torch.ones(2, 4))["loss"].backward()
            Hidden.apply(model(torch.ones(2, 4))["loss"]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
    assert packets.steps
    assert not any("grad_factor" in step.values for step in packets.steps)
