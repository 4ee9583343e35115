# SPDX-License-Identifier: Apache-2.0
"""Stands in for a loader in a framework's training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from faults.training import Batch, Training


class Batches:
    """The batches of one training. Work that the training's own loop does before each micro-batch
    is done here, unless the framework requests all micro-batches of a step before the first forward
    pass (``ahead``)."""

    def __init__(
        self, training: Training, attached: Callable[[], tuple[Any, Any]], *, ahead: bool = False
    ) -> None:
        """``attached`` returns the wrapped model and its monitor once the framework has started."""
        self._training = training
        self._attached = attached
        self._ahead = ahead

    def __len__(self) -> int:
        configuration = self._training.configuration
        return configuration.steps * configuration.micro_batches

    def __iter__(self) -> Iterator[Batch]:
        training = self._training
        training.ddp, training.monitor = self._attached()
        with torch.no_grad():
            training.begin()
        batches = training.batches()
        for step in range(training.configuration.steps):
            training.step = step
            with torch.no_grad():
                training.before_step()
            for micro in range(training.configuration.micro_batches):
                batch = next(batches)
                yield batch if self._ahead else training.prepare(batch, micro)
