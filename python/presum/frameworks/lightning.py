# SPDX-License-Identifier: Apache-2.0
"""presum.LightningCallback: for the Trainer of Lightning."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from presum.frameworks.callbacks import TrainingWatcher
from presum.monitor import Monitor

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _bases() -> tuple[type, ...]:
    """The Callback classes of the packages in use: either name may be imported, or both."""
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
    """Watches a Trainer's training: ``Trainer(..., callbacks=[presum.LightningCallback()])``.

    For the DDP strategies and for FSDP2 (ModelParallelStrategy); FSDPStrategy, which is FSDP1, is
    refused in one line and training goes on.

    Args:
        options: as those of :func:`presum.attach`.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._watcher = TrainingWatcher(options)

    @property
    def monitors(self) -> list[Monitor]:
        """Of each model while training is under way; empty where nothing is watched."""
        return list(self._watcher.monitors)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is wrapped, the sanity check is over, nothing is trained yet."""
        optimizer = trainer.optimizers[0] if trainer.optimizers else None
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._watcher.begin(trainer.strategy.model, optimizer=optimizer, scaler=scaler)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Completes the run log."""
        self._watcher.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Likewise."""
        self._watcher.end()
