# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers that presum was not given: one worker, its packets read back."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.packets import Packets

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 6
Update = Callable[[], None]


def run(
    model: DistributedDataParallel,
    update: Update,
    folder: Path,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=folder, record=record):
        for step in range(STEPS):
            model(torch.full((2, 4), 1.0 + step))["loss"].backward()
            update()
            model.zero_grad()


def told(packets: Packets, name: str) -> list[int]:
    """By the steps after the first, of what was seen before each."""
    return [step.values.get(name, 0) for step in packets.steps[1:]]


def of_a_copy(model: DistributedDataParallel) -> torch.optim.Optimizer:
    return torch.optim.SGD(copy.deepcopy(model.module).parameters(), lr=0.1)


def found(folder: Path) -> list[str]:
    return [one.check for one in presum.load(folder).findings if one.severity == "critical"]


@pytest.mark.parametrize("given", [False, True])
def test_an_optimizer_of_a_copy_steps_in_vain(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path, given: bool
) -> None:
    optimizer = of_a_copy(model)
    run(model, optimizer.step, tmp_path, optimizer if given else None)  # type: ignore[arg-type]
    assert told(packets, "steps_of_others") == told(packets, "steps_in_vain") == [1] * (STEPS - 1)
    assert found(tmp_path) == ["no-progress"]


@pytest.mark.parametrize("given", [False, True])
def test_an_optimizer_is_counted_that_presum_was_not_given(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path, given: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run(model, optimizer.step, tmp_path, optimizer if given else None)  # type: ignore[arg-type]
    assert told(packets, "steps_of_others") == [0 if given else 1] * (STEPS - 1)
    assert told(packets, "steps_in_vain") == [0] * (STEPS - 1)


class Discriminator:
    """Another model, whose optimizer steps while the model's own waits."""

    def __init__(self, model: nn.Module) -> None:
        self.own = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.own.parameters(), lr=0.1)
        self.waits = torch.optim.SGD(model.parameters(), lr=0.1)

    def __call__(self) -> None:
        self.own(torch.ones(4)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class MasterWeights:
    """The optimizer holds copies in more bits."""

    def __init__(self, model: nn.Module) -> None:
        self.model = list(model.parameters())
        self.masters = [nn.Parameter(p.detach().double()) for p in self.model]
        self.optimizer = torch.optim.SGD(self.masters, lr=0.1)

    def __call__(self) -> None:
        for own, master in zip(self.model, self.masters, strict=True):
            master.grad = None if own.grad is None else own.grad.double()
        self.optimizer.step()
        for own, master in zip(self.model, self.masters, strict=True):
            own.data.copy_(master.data)


class ByHand:
    """Parameters are changed by hand, and an optimizer is there for its schedule alone."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    def __call__(self) -> None:
        for parameter in self.model.parameters():
            parameter.data -= 0.1 * (0 if parameter.grad is None else parameter.grad)
        self.optimizer.step()


class Resting:
    """A warm-up that has not begun."""

    def __init__(self, model: nn.Module) -> None:
        self.optimizer = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=0.0)

    def __call__(self) -> None:
        self.optimizer.step()


class EveryThird:
    """Others are stepped as often as the model's own optimizer is not."""

    def __init__(self, model: nn.Module) -> None:
        self.own = torch.optim.SGD(model.parameters(), lr=0.1)
        self.other = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        (self.own if self.count % 3 == 0 else self.other).step()


class InBackward:
    """An optimizer for each parameter, which steps as soon as that has its gradient."""

    def __init__(self, model: nn.Module) -> None:
        self.held = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
        for parameter, optimizer in zip(model.parameters(), self.held, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda _, of=optimizer: of.step())  # type: ignore[misc]

    def __call__(self) -> None:
        pass


HEALTHY = [Discriminator, MasterWeights, ByHand, Resting, EveryThird, InBackward]


@pytest.mark.parametrize("kind", HEALTHY)
def test_nothing_is_found_where_all_is_well(
    kind: Callable[[nn.Module], Update],
    model: DistributedDataParallel,
    packets: Packets,
    tmp_path: Path,
) -> None:
    run(model, kind(model), tmp_path)
    assert not any(told(packets, "steps_in_vain"))
    assert found(tmp_path) == []


def test_a_model_that_is_only_evaluated_is_left_alone(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    other = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    record = presum.Record(quiet=True)
    with (
        presum.attach(model, run=tmp_path, record=record),
        presum.attach(other, optimizer=optimizer, run=tmp_path, record=record),
    ):
        for _ in range(STEPS):
            with torch.no_grad():
                target = model(torch.ones(2, 4))["loss"]
            (other(torch.ones(2, 4)).mean() - target).square().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert not any(told(packets, "steps_in_vain"))
