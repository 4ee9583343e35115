# SPDX-License-Identifier: Apache-2.0
"""What a monitor is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import train
from helpers.packets import Packets

pytestmark = pytest.mark.usefixtures("one_worker")


def test_explicit_losses_replace_the_model_s_and_are_weighted(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path) as monitor:
        train(model, 1)
        monitor.loss(1.0, weight=3)
        monitor.loss(torch.tensor([5.0]), weight=1)
    workers = presum.load(tmp_path).workers
    assert workers.loss.tolist() == [2.0]
    assert workers.weight.tolist() == [4.0]


def test_a_reported_token_weight_is_that_of_the_next_backward_pass_only(tmp_path: Path) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with presum.attach(model, optimizer=optimizer, run=tmp_path) as monitor:
        for step in range(3):
            loss = torch.nn.functional.mse_loss(model(torch.ones(2, 4)), torch.ones(2, 2))
            if step == 1:
                monitor.token_weight(40, torch.tensor(0.025))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    workers = presum.load(tmp_path).workers
    assert workers.targets.tolist() == [4, 40, 4]
    assert workers.token_weight.tolist() == pytest.approx([0.25, 0.025, 0.25])


@pytest.mark.parametrize(
    ("tokens", "weight"), [(-1, 1), (5, float("nan")), (float("inf"), 1), (torch.ones(2), 1)]
)
def test_a_token_weight_that_is_none_is_refused(
    model: DistributedDataParallel, tmp_path: Path, tokens: float, weight: float
) -> None:
    with presum.attach(model, run=tmp_path) as monitor, pytest.raises(ValueError, match="finite"):
        monitor.token_weight(tokens, weight)


def test_a_loss_with_several_terms_now_and_then_has_several(
    packets: Packets, tmp_path: Path
) -> None:
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    with presum.attach(model, run=tmp_path, record=presum.Record(quiet=True)):
        for step in range(6):
            found = model(torch.ones(2, 4))
            loss = torch.nn.functional.mse_loss(found, torch.ones(2, 2))
            (loss + (found.abs().sum() if step % 3 == 1 else 0)).backward()
    assert packets.facts["loss_terms"] == "several"


def test_a_loss_that_the_user_changes_in_place_is_recorded_as_it_was(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        loss = model(torch.ones(2, 4))["loss"]
        was = loss.item()
        loss.backward()
        loss.detach().div_(8)
    assert presum.load(tmp_path).workers.loss.tolist() == [pytest.approx(was)]
