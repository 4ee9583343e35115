# SPDX-License-Identifier: Apache-2.0
"""Which optimizers train a model."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD, Adam

from presum.torch_events.optimizers import optimizers_for


def parameters(count: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(1)) for _ in range(count)]


def test_all_optimizers_that_divide_a_model_train_it() -> None:
    model, other = parameters(5), parameters(9)
    every = [SGD(model[:1]), Adam(model[1:4]), SGD([*model[4:], *other[:2]]), SGD(other[2:])]
    assert optimizers_for(model, every) == every[:3]
    assert optimizers_for(other, every) == every[2:]
    assert optimizers_for(parameters(1), every) == []
    assert optimizers_for(model, []) == []


def test_an_optimizer_that_others_replace_is_left_out() -> None:
    model = parameters(4)
    before, part, now = SGD(model), SGD(model[:2]), Adam(model)
    assert optimizers_for(model, [before, part, now]) == [now]
    assert optimizers_for(model, [now, part]) == [now]
    assert optimizers_for(model, [SGD(model[:3]), now, part]) == [now]
