# SPDX-License-Identifier: Apache-2.0
"""Orders of forward and backward passes in which DDP does not reduce, and others: one worker, its
packets read back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

import presum
from helpers.loss_model import LossModel
from helpers.packets import Packets
from presum.parallel.ddp import BackwardOrder

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 4
X = torch.ones(2, 4)


class Inside(LossModel):
    """Calls ``backward()`` in its forward, between two other calls."""

    before: Callable[[torch.Tensor], None] = staticmethod(lambda _: None)
    after: Callable[[], None] = staticmethod(lambda: None)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
        loss: Any = super().forward(x)["loss"]
        self.before(loss)
        loss.backward()
        self.after()
        return {"loss": loss.detach()}


def again(model: nn.Module) -> None:
    loss = model(X)["loss"]
    loss.backward(retain_graph=True)
    loss.backward()


class TwoHeads(LossModel):
    """Returns two losses; DDP's hooks see the first one only."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:  # type: ignore[override]
        hidden = self.layers[0](x)
        return hidden.square().mean(), self.layers[1](hidden).square().mean()


def forwards_first(model: nn.Module) -> None:
    for loss in [model(X)["loss"] for _ in range(2)]:
        loss.backward()


def gradient_first(model: nn.Module) -> None:
    loss = model(X)["loss"]
    torch.autograd.grad(loss, [*model.parameters()], retain_graph=True)
    loss.backward()


def accumulated(model: Any) -> None:
    with model.no_sync():
        model(X)["loss"].backward()
    model(X)["loss"].backward()


def reduced_often(model: nn.Module) -> None:
    for _ in range(2):
        model(X)["loss"].backward()


def evaluated(model: nn.Module) -> None:
    with torch.no_grad():
        model(X)
    model(X)["loss"].backward()


def orders(
    packets: Packets,
    folder: Path,
    of: Callable[[Any], None],
    *,
    static_graph: bool = False,
    model: nn.Module | None = None,
) -> list[int]:
    """Of each recorded step; 0: one with which DDP reduces."""
    model = DistributedDataParallel(model or LossModel(), static_graph=static_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=folder, record=record):
        for _ in range(STEPS):
            optimizer.zero_grad()
            of(model)
            optimizer.step()
    assert packets.steps
    return [step.values.get("backward_order", 0) for step in packets.steps]


def test_orders_with_which_ddp_does_not_reduce(packets: Packets, tmp_path: Path) -> None:
    assert orders(packets, tmp_path, again) == [0, BackwardOrder.AGAIN] * STEPS


def test_an_output_that_is_reached_late(packets: Packets, tmp_path: Path) -> None:
    def twice(model: nn.Module) -> None:
        first, second = model(X)
        (first + second).backward(retain_graph=True)
        (second + 0 * first).backward()

    found = orders(packets, tmp_path, twice, model=TwoHeads())
    assert found == [0, BackwardOrder.AGAIN] * STEPS


def test_forwards_before_their_backward_passes(packets: Packets, tmp_path: Path) -> None:
    assert orders(packets, tmp_path, forwards_first) == [0, BackwardOrder.FORWARDS_FIRST] * STEPS


def test_a_static_graph_that_is_differentiated_first(packets: Packets, tmp_path: Path) -> None:
    found = orders(packets, tmp_path, gradient_first, static_graph=True)
    assert found == [BackwardOrder.AFTER_GRAD] * STEPS


def around(model: Any) -> None:
    model(X)["loss"].backward()
    model.module(X)["loss"].backward()


def penalty(model: nn.Module) -> None:
    model(X)["loss"].backward()
    sum(parameter.square().sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]


OTHERS = [accumulated, around, evaluated, gradient_first, penalty, reduced_often]


@pytest.mark.parametrize("of", OTHERS)
def test_other_orders(packets: Packets, tmp_path: Path, of: Callable[[Any], None]) -> None:
    assert not any(orders(packets, tmp_path, of))


@pytest.mark.parametrize("of", [evaluated, reduced_often])
def test_other_orders_of_a_static_graph(
    packets: Packets, tmp_path: Path, of: Callable[[Any], None]
) -> None:
    assert not any(orders(packets, tmp_path, of, static_graph=True))


def test_a_loss_inside_the_forward_and_one_after_it_are_one_step(
    packets: Packets, tmp_path: Path
) -> None:
    """DDP reduces both at the second."""

    class Auxiliary(LossModel):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
            super().forward(x)["loss"].backward()  # type: ignore[attr-defined]
            return super().forward(x)

    model = DistributedDataParallel(Auxiliary())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=record):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(X)["loss"].backward()
            optimizer.step()
    assert [step.reduced for step in packets.steps] == [True] * STEPS


class Parts(LossModel):
    """Two backward passes inside the forward; DDP is prepared for some of them, as Lightning does
    with manual optimization."""

    ddp: Any = None
    prepared: tuple[bool, bool] = (True, True)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
        loss: Any = super().forward(x)["loss"]
        for prepare in self.prepared:
            if prepare:
                self.ddp().require_forward_param_sync = True
                self.ddp().reducer._rebuild_buckets()
                self.ddp().reducer.prepare_for_backward([])
            (loss / 2).backward(retain_graph=True)
        self.ddp().require_backward_grad_sync = False
        return {"loss": loss.detach()}


@pytest.mark.parametrize("second", [False, True])
def test_one_preparation_serves_one_pass(packets: Packets, tmp_path: Path, second: bool) -> None:
    inner = Parts()
    inner.prepared = (True, second)
    model = DistributedDataParallel(inner)
    inner.ddp = weakref.ref(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=record):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model.require_backward_grad_sync = True
            model(X)
            optimizer.step()
    found = [(step.reduced, step.values.get("backward_order", 0)) for step in packets.steps]
    assert found == [(True, 0), (True, 0) if second else (False, BackwardOrder.INSIDE)] * STEPS


@pytest.mark.parametrize("reduces", [False, True])
def test_a_static_graph_s_first_pass_inside_the_forward_reduces_later_or_never(
    packets: Packets, tmp_path: Path, reduces: bool
) -> None:
    """Lightning prepares DDP before such a pass, so that the forward does not, and makes it reduce
    after the first."""
    inner = Inside()
    model = DistributedDataParallel(inner, static_graph=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if reduces:

        def prepare(loss: torch.Tensor) -> None:
            model.require_forward_param_sync = True
            model.reducer.prepare_for_backward([*_find_tensors(loss)])

        inner.before = prepare
        inner.after = lambda: setattr(model, "require_backward_grad_sync", False)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=record):
        for step in range(STEPS):
            optimizer.zero_grad()
            model.require_backward_grad_sync = True
            model(X)
            if reduces and step == 0:
                model.reducer._delay_all_reduce()
            optimizer.step()
    assert packets.steps[0].values["backward_order"] == BackwardOrder.INSIDE
    read = presum.load(tmp_path).workers.reduced_norm.notna()
    assert read.tolist() == [False, True, False, False]
