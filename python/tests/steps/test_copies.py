# SPDX-License-Identifier: Apache-2.0
"""Copies of parameters that a program keeps elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.packets import Packets
from presum.steps.copies import differing

pytestmark = pytest.mark.usefixtures("one_worker")


def test_a_copy_is_held_against_its_parameter_bit_for_bit() -> None:
    own = {"w": torch.tensor([0.0, 1.5, float("nan")]), "z": torch.tensor([1 + 2j])}
    assert differing(own, [("w", own["w"].clone()), ("z", own["z"].clone())]) == []
    assert differing(own, [("w", torch.tensor([-0.0, 1.5, float("nan")]))]) == ["w"]
    assert differing(own, [("w", torch.tensor([0.0, 1.5, 2.0]))]) == ["w"]
    assert differing(own, [("w", own["w"].bfloat16())]) == []
    for wrong in ([], [("v", own["w"])], [("w", torch.zeros(2))]):
        with pytest.raises(ValueError, match="compare"):
            differing(own, wrong)


def test_several_comparisons_of_a_step_add_up(packets: Packets, tmp_path: Path) -> None:
    inside = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    inside[0].requires_grad_(False)
    model = DistributedDataParallel(inside)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with presum.attach(
        model, optimizer=optimizer, run=tmp_path, record=presum.Record(quiet=True)
    ) as monitor:
        for step in range(3):
            if step == 1:
                moved = {name: p.detach() + 1 for name, p in inside.named_parameters()}
                assert len(monitor.compare("rollout", moved)) == 4, "frozen ones too"
                assert monitor.compare("checkpoint", inside.state_dict()) == []
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    told = [step.values.get("compared_different") for step in packets.steps]
    assert told == [None, 4, None]
