# SPDX-License-Identifier: Apache-2.0
"""One rank that is slow in one place. No number changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from faults.training import Batch, Training

SLEEP_SECONDS = 0.06


class _Slow(Training):
    def sleeps(self) -> None:
        """On the rank at fault."""
        if self.at_fault:
            time.sleep(SLEEP_SECONDS)


class SlowLoader(_Slow):
    def batches(self) -> Iterator[Batch]:
        for batch in super().batches():
            self.sleeps()
            yield batch


class SlowForward(_Slow):
    """The forward pass does more."""

    def build(self) -> nn.Module:
        """The sleep is inside the module: what comes before its forward pass is loading."""
        model = super().build()
        model.register_forward_pre_hook(lambda *_: self.sleeps())
        return model


class SlowLayer(_Slow):
    def build(self) -> nn.Module:
        """With a hook on what the layer gives."""
        model = super().build()

        def gave(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if output.requires_grad:
                output.register_hook(lambda _: self.sleeps())  # type: ignore[no-untyped-call]

        model.get_submodule(self.part).register_forward_hook(gave)
        return model


class SlowUpdate(_Slow):
    def begin(self) -> None:
        """A hook of the optimizer's own, after the one that tells of its beginning."""
        self.optimizer.register_step_pre_hook(lambda *_: self.sleeps())
