# SPDX-License-Identifier: Apache-2.0
"""The composable ``replicate``, which makes a DDP model of parameters alone: one worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._composable.replicate import replicate

import presum
from helpers.loss_model import LossModel
from helpers.packets import Packets
from presum.parallel.replicated import is_replicated

pytestmark = pytest.mark.usefixtures("one_worker")
STEPS = 4
X = torch.ones(2, 4)


def test_each_reduced_pass_is_a_step(packets: Packets, tmp_path: Path) -> None:
    model: Any = replicate(LossModel())
    model(X)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    record = presum.Record(quiet=True)
    with presum.attach(model, optimizer=optimizer, run=tmp_path, record=record):
        for index in range(2 * STEPS):
            model.set_requires_gradient_sync(index % 2 == 1)
            model(X)["loss"].backward()
            if index % 2:
                optimizer.step()
                optimizer.zero_grad()
    assert [(step.reduced, step.rows) for step in packets.steps] == [(True, 2 * len(X))] * STEPS
    assert {step.values["wrapper_forward"] for step in packets.steps} == {1}


def test_what_is_not_possible_is_said_before_training() -> None:
    model: Any = replicate(LossModel())
    assert is_replicated(model) and not is_replicated(LossModel())
    with pytest.raises(ValueError, match="first forward pass: attach after it"):
        presum.attach(model)
    model(X)
    with pytest.raises(ValueError, match=r"replicate\(\); use DistributedDataParallel"):
        presum.attach(model, reduction="exact")
