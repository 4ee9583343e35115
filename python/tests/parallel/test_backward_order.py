# SPDX-License-Identifier: Apache-2.0
"""Orders of forward and backward passes in which DDP does not reduce, and others: one worker, its
packets read back."""

from __future__ import annotations

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


def order(
    packets: Packets, folder: Path, of: Callable[[Any], None], *, static_graph: bool = False
) -> str | None:
    model = DistributedDataParallel(LossModel(), static_graph=static_graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=folder, record=record):
        for _ in range(STEPS):
            optimizer.zero_grad()
            of(model)
            optimizer.step()
    return packets.facts.get("backward_order")


def test_orders_with_which_ddp_does_not_reduce_are_told(packets: Packets, tmp_path: Path) -> None:
    assert order(packets, tmp_path / "1", again) == "again after one forward"
    assert order(packets, tmp_path / "2", forwards_first) == "after several forwards"
    told = order(packets, tmp_path / "3", gradient_first, static_graph=True)
    assert told == "after autograd.grad"


@pytest.mark.parametrize("of", [accumulated, evaluated, gradient_first, reduced_often])
def test_other_orders_are_fine(packets: Packets, tmp_path: Path, of: Callable[[Any], None]) -> None:
    assert order(packets, tmp_path, of) is None


@pytest.mark.parametrize("of", [evaluated, reduced_often])
def test_a_static_graph_is_fine(
    packets: Packets, tmp_path: Path, of: Callable[[Any], None]
) -> None:
    assert order(packets, tmp_path, of, static_graph=True) is None


def test_a_second_pass_of_a_forward_draws_no_samples_again(
    packets: Packets, tmp_path: Path
) -> None:
    order(packets, tmp_path, again)
    assert [step.rows for step in packets.steps] == [2, 0] * STEPS


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
    assert packets.facts["backward_order"] == "inside forward"
    read = presum.load(tmp_path).workers.reduced_norm.notna()
    assert read.tolist() == [False, True, False, False]
