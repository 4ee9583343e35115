# SPDX-License-Identifier: Apache-2.0
"""What the callbacks for training frameworks share."""

from __future__ import annotations

import os
import sys
from typing import Any

from torch import nn

from presum.losses import kept_value
from presum.monitor import Monitor
from presum.taps import TAPS, Replacement
from presum.targets import is_fsdp, is_watched


class TrainerTap:
    """Tells how the Trainer of transformers divides losses: a callback is given no trainer."""

    def __init__(self) -> None:
        self._replacement: Replacement | None = None

    def apply(self) -> None:
        """A second call does nothing."""
        if self._replacement is None:
            from transformers import Trainer

            self._replacement = Replacement(Trainer, "training_step", self._training_step)
            self._replacement.apply()

    def _training_step(
        self, original: Any, trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        items = kwargs.get("num_items_in_batch", args[0] if args else None)
        if items is not None:
            TAPS.items = kept_value(items)
            averages = getattr(trainer.args, "average_tokens_across_devices", False)
            TAPS.loss_factor = float(trainer.accelerator.num_processes) if averages else 1.0
        try:
            return original(trainer, model, inputs, *args, **kwargs)
        finally:
            TAPS.items, TAPS.loss_factor = None, 1.0


TRAINER_TAP = TrainerTap()


class Watcher:
    """Attaches the model of one training, and closes its monitor."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.monitor: Monitor | None = None

    def begin(self, model: nn.Module, **found: Any) -> None:
        """A model that nobody reduces is not watched, which is said, and no error.

        Raises:
            ValueError: as presum.attach does.
        """
        from torch.nn.parallel import DistributedDataParallel

        from presum.attach import attach

        if not isinstance(model, DistributedDataParallel):
            model = next(filter(is_fsdp, model.modules()), model)
        if is_watched(model):
            return
        if not isinstance(model, DistributedDataParallel) and not is_fsdp(model):
            self._say(f"presum: {type(model).__name__} is not trained by DDP or FSDP2; not watched")
            return
        self.monitor = attach(model, **{**found, **self._options})

    def end(self) -> None:
        monitor, self.monitor = self.monitor, None
        if monitor is not None:
            monitor.close()

    def _say(self, text: str) -> None:
        if os.environ.get("RANK", "0") == "0" and not self._options.get("quiet"):
            print(text, file=sys.stderr, flush=True)
