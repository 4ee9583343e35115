# SPDX-License-Identifier: Apache-2.0
"""presum.TransformersCallback: a callback for the Trainer of transformers and its subclasses, such
as TRL's."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from presum.frameworks.auto import CONSTRUCTIONS
from presum.frameworks.callbacks import TRAINER_TAP, TrainingWatcher
from presum.monitor import Monitor


class TransformersCallback(TrainerCallback):
    """Records a Trainer's training: ``Trainer(..., callbacks=[presum.TransformersCallback()])``.

    Construct it before ``train()`` is called. If the Trainer divides losses by the number of tokens
    on all ranks (``num_items_in_batch``), the recorded loss is per token of the rank itself, and
    the checks of gradient size account for the rank's share of the tokens. Other losses are
    recorded as the Trainer logs them. If the model cannot be recorded, the callback prints one line
    and training continues without presum. The optimizer defaults to the Trainer's.

    Args:
        options: the keyword arguments of :func:`presum.attach`.
    """

    def __init__(self, **options: Any) -> None:
        CONSTRUCTIONS.watch()
        TRAINER_TAP.apply()
        self._watcher = TrainingWatcher(options)

    @property
    def monitors(self) -> list[Monitor]:
        """The monitor of each recorded model during training; empty before and after, and if
        nothing is recorded."""
        return list(self._watcher.monitors)

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Attaches: the model is wrapped, and training has not begun."""
        wrapper = CONSTRUCTIONS.wrapper_of(found["model"])
        self._watcher.begin(wrapper, optimizer=found.get("optimizer"))

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Closes the monitors, which completes the run log."""
        self._watcher.end()
