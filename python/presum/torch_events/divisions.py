# SPDX-License-Identifier: Apache-2.0
"""The divisor by which a framework divides a program's loss before it calls ``backward()``."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from presum.torch_events.taps import TappedFunction


def _of_accelerate(accelerator: Any, *_: Any, **__: Any) -> float:
    own = str(accelerator.distributed_type).rpartition(".")[2] in ("DEEPSPEED", "MEGATRON_LM")
    return 1.0 if own else float(accelerator.gradient_accumulation_steps)


def _of_lightning(strategy: Any, *_: Any, **__: Any) -> float:
    module = strategy.lightning_module
    return float(module.trainer.accumulate_grad_batches) if module.automatic_optimization else 1.0


# The methods in which frameworks call ``backward()``.
PLACES = (
    ("accelerate.accelerator", "Accelerator", _of_accelerate),
    ("lightning.pytorch.strategies.strategy", "Strategy", _of_lightning),
    ("pytorch_lightning.strategies.strategy", "Strategy", _of_lightning),
)


class Divisions:
    """Shared by all recorders of a process."""

    def __init__(self) -> None:
        self.divisor = 1.0  # of the current backward pass
        self._listeners = 0
        self._taps: dict[type, TappedFunction] = {}

    def add(self) -> None:
        """Add a listener, for the frameworks imported so far."""
        self._listeners += 1
        for module, name, divisor in PLACES:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and kind not in self._taps:
                self._taps[kind] = TappedFunction(
                    kind, "backward", before=partial(self._before, divisor), always=self._over
                )
        for tap in self._taps.values():
            tap.apply()

    def remove(self) -> None:
        self._listeners -= 1
        if self._listeners == 0:
            for tap in self._taps.values():
                tap.undo()

    def _before(self, divisor: Any, /, *args: Any, **kwargs: Any) -> None:
        try:
            self.divisor = divisor(*args, **kwargs)
        except Exception:  # another version of the framework: unknown
            self.divisor = 1.0

    def _over(self) -> None:
        self.divisor = 1.0


DIVISIONS = Divisions()
