# SPDX-License-Identifier: Apache-2.0
"""What a monitor is told."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.loss_model import train

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


def test_a_loss_that_the_user_changes_in_place_is_recorded_as_it_was(
    model: DistributedDataParallel, tmp_path: Path
) -> None:
    with presum.attach(model, run=tmp_path):
        loss = model(torch.ones(2, 4))["loss"]
        was = loss.item()
        loss.backward()
        loss.detach().div_(8)
    assert presum.load(tmp_path).workers.loss.tolist() == [pytest.approx(was)]
