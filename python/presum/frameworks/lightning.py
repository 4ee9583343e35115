# SPDX-License-Identifier: Apache-2.0
"""presum.LightningCallback: a callback for the Trainer of Lightning."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from presum.frameworks.callbacks import TrainingWatcher
from presum.monitor import Monitor

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    """The Callback classes of the imported packages: Lightning has two names, and both may be
    imported."""
    names = [name for name in PACKAGES if name in sys.modules] or list(PACKAGES)
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name).Callback)
        except ImportError:
            continue
    if not found:
        raise ModuleNotFoundError("no lightning, no pytorch_lightning", name="lightning")
    return tuple(dict.fromkeys(found))


class LightningCallback(*_bases()):  # type: ignore[misc]
    """Records a Trainer's training: ``Trainer(..., callbacks=[presum.LightningCallback()])``.

    It supports the DDP strategies and FSDP2 (``ModelParallelStrategy``). With ``FSDPStrategy``,
    which is FSDP1, and for any other model that cannot be recorded, it prints one line and training
    continues without presum. The optimizer and the scaler default to the Trainer's.

    Args:
        options: the keyword arguments of :func:`presum.attach`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._watcher = TrainingWatcher(options)

    @property
    def monitors(self) -> list[Monitor]:
        """The monitor of each recorded model during training; empty before and after, and if
        nothing is recorded."""
        return list(self._watcher.monitors)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attaches: the model is wrapped, the sanity check is over, and training has not begun."""
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._watcher.begin(trainer.strategy.model, optimizer=optimizer, scaler=scaler)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Closes the monitors, which completes the run log."""
        self._watcher.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the monitors, which completes the run log."""
        self._watcher.end()
