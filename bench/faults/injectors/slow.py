# SPDX-License-Identifier: Apache-2.0
"""One rank is slow in one place. No number changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from faults.training import Batch, Training

SLEEP_SECONDS = 0.06


class _Slow(Training):
    def sleeps(self) -> None:
        """Sleep on the rank at fault."""
        if self.at_fault:
            time.sleep(SLEEP_SECONDS)


class SlowLoader(_Slow):
    def batches(self) -> Iterator[Batch]:
        for batch in super().batches():
            self.sleeps()
            yield batch


class SlowForward(_Slow):
    """The forward pass takes longer."""

    def build(self) -> nn.Module:
        """The sleep is inside the module: time before its forward pass counts as loading, and
        other hooks of the module itself may come before presum's."""
        model = super().build()
        next(model.children()).register_forward_pre_hook(lambda *_: self.sleeps())
        return model


class SlowLayer(_Slow):
    def build(self) -> nn.Module:
        """Uses a hook on the layer's output."""
        model = super().build()

        def gave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda _: self.sleeps())  # type: ignore[no-untyped-call]

        model.get_submodule(self.part).register_forward_hook(gave)
        return model


class SlowUpdate(_Slow):
    def begin(self) -> None:
        """Uses a hook of the optimizer, after the one that reports the beginning of the step."""
        self.optimizer.register_step_pre_hook(lambda *_: self.sleeps())
