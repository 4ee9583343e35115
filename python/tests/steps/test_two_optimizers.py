# SPDX-License-Identifier: Apache-2.0
"""Parameters that two optimizers move: one worker, its packets read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer

import presum
from helpers.packets import Packets

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 6
FIRST, SECOND = "layers.0.weight", "layers.1.weight"


def run(
    model: DistributedDataParallel,
    folder: Path,
    update: Callable[[int], None],
    given: Optimizer | None = None,
) -> None:
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=given, run=folder, record=record):
        for step in range(STEPS):
            model(torch.full((2, 4), 1.0 + step))["loss"].backward()
            update(step)
            model.zero_grad()


def steps(*optimizers: Optimizer) -> Callable[[int], None]:
    def update(_: int) -> None:
        for optimizer in optimizers:
            optimizer.step()

    return update


def named(packets: Packets) -> tuple[str | None, str | None]:
    return packets.facts.get("in_two_optimizers"), packets.facts.get("two_optimizers")


def weights(model: nn.Module, *names: str) -> list[nn.Parameter]:
    return [model.get_parameter(f"module.{name}") for name in names]


@pytest.mark.parametrize("given", [False, True])
def test_a_parameter_of_both_is_named(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path, given: bool
) -> None:
    one, other = SGD(weights(model, FIRST, SECOND), lr=0.1), AdamW(weights(model, SECOND))
    run(model, tmp_path, steps(one, other), one if given else None)
    assert named(packets) == (SECOND, "AdamW and SGD")
    (found,) = [f for f in presum.load(tmp_path).findings if f.check == "shared-parameters"]
    assert found.severity == "info"


def test_optimizers_with_a_parameter_each_are_fine(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    run(model, tmp_path, steps(SGD(weights(model, FIRST)), SGD(weights(model, SECOND))))
    assert named(packets) == (None, None)


def test_an_optimizer_that_replaces_another_is_fine(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    every = [SGD(model.parameters(), lr=0.1), AdamW(model.parameters())]
    run(model, tmp_path, lambda step: every[step >= STEPS // 2].step())
    assert named(packets) == (None, None)


def test_an_optimizer_inside_another_is_fine(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    base = SGD(model.parameters(), lr=0.1)

    class Wrapped(Optimizer):
        def step(self, closure: Any = None) -> None:
            base.step(closure)

    run(model, tmp_path, steps(Wrapped(model.parameters(), {})))
    assert named(packets) == (None, None)


def test_a_forward_inside_an_outer_step_is_fine(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    """As in SAM: the closure computes the gradient again, then the inner optimizer steps."""
    base = SGD(model.parameters(), lr=0.1)

    class Sharpness(Optimizer):
        def step(self, closure: Any = None) -> None:
            base.zero_grad()
            closure()
            base.step()

    outer = Sharpness(model.parameters(), {})

    def closure() -> None:
        model(torch.ones(2, 4))["loss"].backward()

    run(model, tmp_path, lambda _: outer.step(closure))
    assert named(packets) == (None, None)


def test_a_step_without_a_gradient_does_not_count(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    one, other = SGD(model.parameters(), lr=0.1), AdamW(model.parameters())

    def update(_: int) -> None:
        one.step()
        one.zero_grad()
        other.step()

    run(model, tmp_path, update)
    assert named(packets) == (None, None)


def test_a_step_that_raises_hides_no_other(
    model: DistributedDataParallel, packets: Packets, tmp_path: Path
) -> None:
    one, other = SGD(model.parameters(), lr=0.1), AdamW(model.parameters())

    def fail() -> None:
        raise ArithmeticError

    def update(step: int) -> None:
        if step == 0:
            with pytest.raises(ArithmeticError):
                one.step(fail)  # type: ignore[arg-type]
            return
        steps(one, other)(step)

    run(model, tmp_path, update)
    parameters, optimizers = named(packets)
    assert parameters is not None and FIRST in parameters
    assert optimizers == "AdamW and SGD"
