# SPDX-License-Identifier: Apache-2.0
"""Parameters that an optimizer trains besides a recorded model, and that belong to no recorded
model: no reduction that presum observes takes their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from presum.devices.readable import is_distributed
from presum.torch_events.optimizers import parameters_of

PARAMETERS_MAX = 256
_MODELS: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # recorded in this process


class OutsideParameters:
    """The outside parameters of one model's optimizers."""

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self._module = weakref.ref(module)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        _MODELS.add(module)

    def __call__(self) -> dict[str, weakref.ref[nn.Parameter]]:
        """By names that ranks agree on. Excludes an optimizer that holds nothing of the model: it
        may hold copies or parts of the parameters."""
        module = self._module()
        own = set() if module is None else set(map(id, module.parameters()))
        watched = {id(parameter) for model in [*_MODELS] for parameter in model.parameters()}
        found: dict[str, weakref.ref[nn.Parameter]] = {}
        for number, held in enumerate(self._optimizers):
            optimizer = held()
            parameters = [] if optimizer is None else [*parameters_of(optimizer)]
            if own.isdisjoint(map(id, parameters)):
                continue
            for place, parameter in enumerate(parameters):
                if id(parameter) in watched or is_distributed(parameter):
                    continue
                found[_name(number, place, parameter)] = weakref.ref(parameter)
                if len(found) == PARAMETERS_MAX:
                    return found
        return found


def _name(optimizer: int, place: int, parameter: torch.Tensor) -> str:
    shape = "x".join(map(str, parameter.shape)) or "scalar"
    of = f" of optimizer {optimizer}" if optimizer else ""
    return f"parameter {place}{of} ({shape})"
