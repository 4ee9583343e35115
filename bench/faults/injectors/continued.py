# SPDX-License-Identifier: Apache-2.0
"""Trainings that are interrupted and continue from something other than their checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from faults.training import Batch, Training

LOST = 3  # steps after the checkpoint


class Continued(Training):
    """Saves a checkpoint a few steps before the end, and continues from it in a second training in
    the same folder."""

    saved: dict[str, Any] | None = None
    _loaded = False  # this is the second training

    def run(self, folder: Path, *, tick: Callable[[], None]) -> None:
        super().run(folder, tick=tick)
        super().run(folder, tick=lambda: None)

    def begin(self) -> None:
        if self.saved is not None:
            self._loaded = True
            self.load(self.saved)

    def before_step(self) -> None:
        if self.step == self._saved_at and not self._loaded:
            self.saved = self.checkpoint()

    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.saved is not None and self._loaded and self.step == 0:
            self.set_generator(self.saved)  # after the loader has drawn from it
        return super().prepare(batch, micro)

    @property
    def _saved_at(self) -> int:
        return self.configuration.steps - LOST

    def checkpoint(self) -> dict[str, Any]:
        """The checkpoint."""
        return {
            "model": copy.deepcopy(self.model.state_dict()),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "generator": torch.get_rng_state(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])

    def set_generator(self, saved: dict[str, Any]) -> None:
        """Restore this rank's generator."""
        torch.set_rng_state(saved["generator"])

    def skipped(self) -> int:
        """The number of batches that the second training skips, because the first one used them."""
        return self._saved_at

    def batches(self) -> Iterator[Batch]:
        """The batches after the skipped ones."""
        if not self._loaded:
            yield from super().batches()
            return
        whole = self.configuration.epoch_steps
        passes, within = divmod(self.skipped(), whole)
        dataset = self.dataset()
        sampler: Any = self.sampler_of(dataset)
        for epoch in range(passes, passes + self.configuration.steps):
            self.begin_epoch(sampler, epoch)
            first = within * self.configuration.batch if epoch == passes else 0
            yield from self.loader_of(dataset, list(sampler)[first:])


class ResumedWithOtherWeights(Continued):
    def load(self, saved: dict[str, Any]) -> None:
        super().load(saved)
        for parameter in self.model.get_submodule(self.part).parameters():
            parameter.mul_(1.01)


class ResumedWithOtherMoments(Continued):
    """The optimizer's moments are lost, but not its step count."""

    def load(self, saved: dict[str, Any]) -> None:
        super().load(saved)
        for state in self.optimizer.state.values():
            state["exp_avg"].zero_()


class ResumedWithAnothersGenerator(Continued):
    def set_generator(self, saved: dict[str, Any]) -> None:
        super().set_generator(saved)
        if self.is_culprit:
            torch.manual_seed(self.seed)


class ResumedInAnotherOrder(Continued):
    """The order of the samples differs; the number of skipped samples is right."""

    def sampler_settings(self) -> dict[str, Any]:
        return super().sampler_settings() | {"seed": self.seed + self._loaded}


class ResumedFromTheBeginning(Continued):
    """No batch is skipped: the interrupted pass starts again."""

    def skipped(self) -> int:
        whole = self.configuration.epoch_steps
        return self._saved_at // whole * whole
