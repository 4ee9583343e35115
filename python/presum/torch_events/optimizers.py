# SPDX-License-Identifier: Apache-2.0
"""Steps of all of a process's optimisers."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class OptimizerSteps:
    """Counts them, whoever's they are, once somebody has asked."""

    def __init__(self) -> None:
        self.total = 0
        self._handle: Any = None

    def watch(self) -> None:
        """From now on, for good."""
        if self._handle is None:
            self._handle = register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, *_: Any) -> None:
        self.total += 1


OPTIMIZER_STEPS = OptimizerSteps()
