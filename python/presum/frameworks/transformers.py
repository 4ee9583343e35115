# SPDX-License-Identifier: Apache-2.0
"""presum.TransformersCallback: for the Trainer of transformers and what builds on it, as TRL."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from presum.frameworks.auto import CONSTRUCTIONS
from presum.frameworks.callbacks import TRAINER_TAP, TrainingWatcher
from presum.monitor import Monitor


class TransformersCallback(TrainerCallback):
    """Watches a Trainer's training: ``Trainer(..., callbacks=[presum.TransformersCallback()])``.

    Make it before ``train()`` is called. Losses that the Trainer divides by the tokens of all
    workers (``num_items_in_batch``) are recorded per token of the worker itself, and a gradient's
    size is judged with its share of the tokens. Others are recorded as the Trainer logs them.

    Args:
        options: as those of :func:`presum.attach`.
    """

    def __init__(self, **options: Any) -> None:
        CONSTRUCTIONS.watch()
        TRAINER_TAP.apply()
        self._watcher = TrainingWatcher(options)

    @property
    def monitors(self) -> list[Monitor]:
        """Of each model while training is under way; empty where nothing is watched."""
        return list(self._watcher.monitors)

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """The model is wrapped, nothing is trained yet."""
        wrapper = CONSTRUCTIONS.wrapper_of(found["model"])
        self._watcher.begin(wrapper, optimizer=found.get("optimizer"))

    def on_train_end(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        """Completes the run log."""
        self._watcher.end()
