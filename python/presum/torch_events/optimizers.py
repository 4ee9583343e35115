# SPDX-License-Identifier: Apache-2.0
"""Steps of all optimizers of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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


def optimizers_for(
    parameters: Iterable[nn.Parameter], optimizers: Sequence[Optimizer]
) -> list[Optimizer]:
    """Those that hold these parameters, in their order. One is left out if others hold all of its
    share; of optimizers with equal shares, the last one stays."""
    wanted = {id(parameter) for parameter in parameters}
    shares = [wanted.intersection(map(id, parameters_of(optimizer))) for optimizer in optimizers]
    chosen: list[int] = []
    for place in sorted(range(len(shares)), key=lambda at: (-len(shares[at]), -at)):
        if shares[place] & wanted:
            chosen.append(place)
            wanted -= shares[place]
    return [optimizers[place] for place in sorted(chosen)]


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
