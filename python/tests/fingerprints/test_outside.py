# SPDX-License-Identifier: Apache-2.0
"""Parameters that the optimizer holds and no watched model has."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import nn

from presum._core import StateKind
from presum.fingerprints.outside import OutsideParameters
from presum.fingerprints.states import StateSchedule


def outside(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[str]:
    return [*OutsideParameters(model, optimizers)()]


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)


def test_a_head_beside_the_model_is_named_by_place_and_shape() -> None:
    model, head = nn.Linear(4, 3), nn.Linear(3, 2)
    assert outside(model, sgd(model)) == []
    assert outside(model, sgd(model, head)) == ["parameter 2 (2x3)", "parameter 3 (2)"]
    scale = nn.Parameter(torch.ones(()))
    both = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    assert outside(model, sgd(model), both) == ["parameter 2 of optimizer 1 (scalar)"]


def test_another_watched_model_s_parameters_are_none_of_them() -> None:
    model, other = nn.Linear(4, 3), nn.Linear(3, 2)
    both = sgd(model, other)
    watched = OutsideParameters(other, [both])
    assert outside(model, both) == []
    del watched, other
    both.param_groups.clear()
    gc.collect()


def test_an_optimizer_of_copies_is_not_looked_at() -> None:
    model, copies = nn.Linear(4, 3), nn.Linear(4, 3)
    assert outside(model, sgd(copies)) == []


def test_the_smallest_is_hashed_at_every_step() -> None:
    head = nn.Linear(3, 2)
    held = {name: weakref.ref(parameter) for name, parameter in head.named_parameters()}
    schedule = StateSchedule([], [], every=1)
    schedule.outside(held)
    due = [[one.name for one in schedule.due(StateKind.OUTSIDE, step)] for step in range(26)]
    assert due[0] == ["bias", "weight"]
    assert due[1] == ["bias", "weight"] and due[2:25] == [["bias"]] * 23
