# SPDX-License-Identifier: Apache-2.0
"""Micro-batches that the optimizer's step gets nothing of: one worker, its packets read back."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import presum
from helpers.packets import Packets

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 12


def batch(step: int, micro: int) -> torch.Tensor:
    return torch.full((2, 4), 1.0 + step) + torch.arange(8.0).view(2, 4).roll(micro)


class Accumulation:
    """A training with four micro-batches; a test breaks it."""

    synchronizes = False

    def __init__(self, model: DistributedDataParallel) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def attach(self, folder: Path) -> presum.Monitor:
        record = presum.Record(quiet=True)
        return presum.attach(self.model, optimizer=self.optimizer, run=folder, record=record)

    def run(self, folder: Path) -> None:
        with self.attach(folder):
            for step in range(STEPS):
                for micro in range(4):
                    self.between(micro)
                    self.pass_of(step, micro)
                self.before_update()
                self.optimizer.step()
                self.optimizer.zero_grad()

    def pass_of(self, step: int, micro: int) -> None:
        self.model.require_backward_grad_sync = micro == 3 or self.synchronizes
        self.model(batch(step, micro))["loss"].backward()

    def between(self, micro: int) -> None:
        """Before a micro-batch."""

    def before_update(self) -> None:
        """Before the optimizer's step."""

    def gradients(self) -> Iterator[torch.Tensor]:
        return (p.grad for p in self.model.parameters() if p.grad is not None)


Trained = Callable[[Any], Packets]


@pytest.fixture
def trained(model: DistributedDataParallel, packets: Packets, tmp_path: Path) -> Trained:
    """What a training of this kind sends."""

    def train(kind: Any) -> Packets:
        kind(model).run(tmp_path)
        return packets

    return train


def told(packets: Packets, name: str) -> list[int | None]:
    """By the steps that were not cleared."""
    return [step.values.get(name) for step in packets.steps if not step.unused]


def factors(packets: Packets) -> list[float]:
    found = [x for x in told(packets, "grad_changed") if x is not None]
    return [struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in found]


def test_a_sum_that_stays_is_told_now_and_then(trained: Trained) -> None:
    packets = trained(Accumulation)
    assert factors(packets) == [1.0] * 4  # of steps 0, 1, 2 and 10
    assert told(packets, "passes_cleared") == told(packets, "forwards_detached") == [None] * STEPS


class Cleared(Accumulation):
    def between(self, micro: int) -> None:
        if micro > 0:
            self.optimizer.zero_grad()


class ClearedAndSynchronized(Cleared):
    synchronizes = True


class ClearedBetween(Accumulation):
    """Between forward and backward."""

    def pass_of(self, step: int, micro: int) -> None:
        self.model.require_backward_grad_sync = micro == 3
        loss = self.model(batch(step, micro))["loss"]
        self.optimizer.zero_grad()
        loss.backward()


@pytest.mark.parametrize("kind", [Cleared, ClearedAndSynchronized, ClearedBetween])
def test_gradients_that_are_cleared_are_counted(kind: Any, trained: Trained) -> None:
    packets = trained(kind)
    # What parameters were when the first was cleared is known from then on.
    assert told(packets, "passes_cleared") == [2, *[3] * (STEPS - 1)]
    assert all(math.isnan(x) or x == 1 for x in factors(packets))


class WithoutTargets(Accumulation):
    """The first micro-batch has no target: its gradient is 0."""

    def pass_of(self, step: int, micro: int) -> None:
        self.model.require_backward_grad_sync = micro == 3
        (self.model(batch(step, micro))["loss"] * min(micro, 1)).backward()


def test_a_gradient_of_zero_is_not_lost(trained: Trained) -> None:
    packets = trained(WithoutTargets)
    assert told(packets, "passes_cleared") == [None] * STEPS
    assert len(packets.steps) == STEPS


class Emptied(Accumulation):
    """Nothing is left for the optimizer."""

    def __init__(self, model: DistributedDataParallel, *, to_none: bool) -> None:
        super().__init__(model)
        self.to_none = to_none

    def before_update(self) -> None:
        self.optimizer.zero_grad(set_to_none=self.to_none)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_that_are_cleared_before_the_optimizer_are_lost_as_well(
    trained: Trained, tmp_path: Path, to_none: bool
) -> None:
    packets = trained(partial(Emptied, to_none=to_none))
    found = [step.values.get("passes_cleared") for step in packets.steps]
    assert found == ([4] * STEPS if to_none else [4, 4, 4, *[None] * 7, 4, None])
    (one,) = [f for f in presum.load(tmp_path).findings if f.check == "lost-gradients"]
    assert "lost the gradients of 4 of 4 micro-batches" in one.title


def test_an_optimizer_that_gets_nothing_on_purpose_has_lost_nothing(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    training = Accumulation(model)
    for group in training.optimizer.param_groups:
        group["lr"] = 0.0
    with training.attach(tmp_path):
        training.optimizer.step()  # that makes a state, as torch.distributed.checkpoint does
        for step in range(STEPS):
            training.pass_of(step, 3)
            training.optimizer.step()
            training.optimizer.step()
            training.optimizer.zero_grad()
            training.optimizer.step()
    assert [step.values.get("passes_cleared") for step in packets.steps] == [None] * STEPS


class Masters(Accumulation):
    """The optimizer's own weights get the gradients in another format."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self.masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        self.optimizer = torch.optim.SGD(self.masters, lr=1e-3)

    def before_update(self) -> None:
        for master, parameter in zip(self.masters, self.model.parameters(), strict=True):
            master.grad, parameter.grad = parameter.grad, None


class Offloading(torch.optim.SGD):
    """Takes gradients away, and moves parameters by them, behind torch's counter."""

    def take(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["taken"], parameter.grad = parameter.grad, None

    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.data -= 1e-3 * self.state[parameter]["taken"]


class Offloads(Accumulation):
    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model)
        self.offloading = Offloading(model.parameters(), lr=1e-3)
        self.optimizer = self.offloading

    def before_update(self) -> None:
        self.offloading.take()


@pytest.mark.parametrize("kind", [Masters, Offloads])
def test_gradients_that_an_optimizer_has_otherwise_are_not_lost(
    kind: Any, trained: Trained, tmp_path: Path
) -> None:
    packets = trained(kind)
    assert [step.values.get("passes_cleared") for step in packets.steps] == [None] * STEPS
    assert "lost-gradients" not in [f.check for f in presum.load(tmp_path).findings]


class OnPurpose(Cleared):
    """The parameters move, or the optimizer gets a gradient that the program has made."""

    def __init__(self, model: DistributedDataParallel, do: Callable[[Accumulation], None]) -> None:
        super().__init__(model)
        self.do = do

    def between(self, micro: int) -> None:
        super().between(micro)
        if micro > 0:
            self.do(self)


def move(training: Accumulation) -> None:
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(1e-3)


def move_behind_the_counter(training: Accumulation) -> None:
    for parameter in training.model.parameters():
        parameter.data += 1e-3


def step_another(_: Accumulation) -> None:
    other = nn.Parameter(torch.ones(1))
    other.grad = torch.ones(1)
    torch.optim.SGD([other], lr=1.0).step()


class Together(Cleared):
    """The program puts gradients together itself."""

    def between(self, micro: int) -> None:
        if micro > 0:
            self.kept += [[g.clone() for g in self.gradients()]]
        else:
            self.kept: list[list[torch.Tensor]] = []
        super().between(micro)

    def before_update(self) -> None:
        for gradient, *others in zip(self.gradients(), *self.kept, strict=True):
            gradient += torch.stack(others).sign().sum(0)


class Adversarial(Cleared):
    """Passes for the gradient of inputs."""

    def pass_of(self, step: int, micro: int) -> None:
        self.model.require_backward_grad_sync = micro == 3
        self.model(batch(step, micro).requires_grad_(micro < 3))["loss"].backward()


class Again(Cleared):
    """The same rows once more."""

    def pass_of(self, step: int, micro: int) -> None:
        super().pass_of(step, micro if micro == 3 else 3)


PURPOSES = [partial(OnPurpose, do=do) for do in (move, move_behind_the_counter, step_another)]


@pytest.mark.parametrize("kind", [*PURPOSES, Together, Adversarial, Again])
def test_what_is_cleared_on_purpose_is_not_lost(kind: Any, trained: Trained) -> None:
    assert told(trained(kind), "passes_cleared") == [None] * STEPS


class Changed(Accumulation):
    def __init__(self, model: DistributedDataParallel, factor: float) -> None:
        super().__init__(model)
        self.factor = factor

    def between(self, micro: int) -> None:
        if micro == 2:
            for gradient in self.gradients():
                gradient.mul_(self.factor)
                if math.isnan(self.factor):
                    gradient.copy_(torch.arange(float(gradient.numel())).view_as(gradient).cos())


@pytest.mark.parametrize("factor", [0.25, 3.0, math.nan])
def test_what_multiplies_a_sum_is_told(trained: Trained, factor: float) -> None:
    packets = trained(partial(Changed, factor=factor))
    assert factors(packets) == pytest.approx([factor] * 4, nan_ok=True)


class LastOnly(Accumulation):
    """The other losses have no backward pass."""

    def pass_of(self, step: int, micro: int) -> None:
        loss = self.model(batch(step, micro))["loss"]
        if micro == 3:
            loss.backward()


class Evaluates(Accumulation):
    def between(self, micro: int) -> None:
        if micro == 0:
            self.model.require_backward_grad_sync = False
            self.model.eval()
            self.model(batch(0, 0))
            self.model.train()


@pytest.mark.parametrize(("kind", "detached"), [(LastOnly, 3), (Evaluates, None)])
def test_a_loss_without_a_backward_pass_is_counted_where_it_is_trained_on(
    kind: Any, detached: int | None, trained: Trained
) -> None:
    assert told(trained(kind), "forwards_detached") == [detached] * STEPS


def test_of_outputs_without_a_loss_whole_batches_are(packets: Packets, tmp_path: Path) -> None:
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(torch.randn(64, 4), batch_size=2)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=presum.Record(quiet=True)):
        for number, x in enumerate(loader):
            ahead = model(x + 1)  # of the batch that is trained on: a target network's part
            loss = (model(x) - ahead.detach()).square().mean()
            if number % 4 == 3:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    assert told(packets, "forwards_detached") == [6] * 8
