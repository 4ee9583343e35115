# SPDX-License-Identifier: Apache-2.0
"""Steps of all optimizers of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from presum.torch_events.taps import Listeners

StepHook = Callable[..., None]


def parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    """All parameters that the optimizer holds."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class OptimizerSteps(Listeners[tuple[StepHook, StepHook]]):
    """Counts all optimizer steps, and calls listeners before and after each. Its torch hooks stay
    registered: torch may be iterating over them when a model is attached or freed."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def _before(self, *arguments: Any) -> None:
        for before, _ in self:
            before(*arguments)

    def _after(self, *arguments: Any) -> None:
        self.total += 1
        for _, after in self:
            after(*arguments)


OPTIMIZER_STEPS = OptimizerSteps()
