# SPDX-License-Identifier: Apache-2.0
"""Steps of all of a process's optimisers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from presum.torch_events.hooks import Handle

StepHook = Callable[..., None]


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """All that it holds."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class OptimizerSteps:
    """Counts them, whoever's they are, and tells listeners of each. Its hooks of torch stay: torch
    may be walking over them when a model is attached or goes."""

    def __init__(self) -> None:
        self.total = 0
        self._listeners: list[tuple[StepHook, StepHook]] = []
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def listen(self, before: StepHook, after: StepHook) -> Handle:
        listener = before, after
        self._listeners = [*self._listeners, listener]
        return Handle(partial(self._forget, listener))

    def _forget(self, listener: tuple[StepHook, StepHook]) -> None:
        self._listeners = [one for one in self._listeners if one is not listener]

    def _before(self, *arguments: Any) -> None:
        for before, _ in self._listeners:
            before(*arguments)

    def _after(self, *arguments: Any) -> None:
        self.total += 1
        for _, after in self._listeners:
            after(*arguments)


OPTIMIZER_STEPS = OptimizerSteps()
