# SPDX-License-Identifier: Apache-2.0
"""Settings that differ on one rank: optimizer, modes, precision, environment."""

from __future__ import annotations

import os
from copy import deepcopy
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from faults.training import LEARNING_RATE, Batch, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path


class OtherSetting(Training):
    """One rank's optimizer has a different setting."""

    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        settings = self.case.settings if self.is_culprit else {}
        return torch.optim.AdamW(trained, **{"lr": LEARNING_RATE} | settings)


class OtherOptimizer(Training):
    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        kind = torch.optim.Adam if self.is_culprit else torch.optim.AdamW
        return kind(trained, lr=LEARNING_RATE)


class OtherModelsParameters(Training):
    """The optimizer was built for another copy of the model, and steps on equal gradients."""

    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        self.held = list(trained)
        self.copies = [nn.Parameter(p.detach().clone()) for p in self.held]
        return super().optimizer_of(self.copies)

    def update(self) -> None:
        for own, copy in zip(self.held, self.copies, strict=True):
            copy.grad = own.grad
        super().update()
        for own in self.held:
            own.grad = None


class OptimizerOfBefore(Training):
    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        held = model if self.configuration.shards else deepcopy(model)
        self.early = super().optimizer_of(p for p in held.parameters() if p.requires_grad)
        return super().wrap(model)

    def optimizer_of(self, trained: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.early


class SchedulerOfItsOwn(Training):
    def update(self) -> None:
        super().update()
        if self.begun:
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.99 ** (1 + self.is_culprit)


class WarmedUpAgain(Training):
    def before_step(self) -> None:
        for group in self.optimizer.param_groups:
            since = self.step - self.case.begins if self.at_fault else self.step
            group["lr"] = LEARNING_RATE * min(1.0, (1 + since) / 20)


class OtherDropout(Training):
    def build(self) -> nn.Module:
        model = super().build()
        for part in model.modules():
            if isinstance(part, nn.Dropout) and self.is_culprit:
                part.p = 0.5
        return model


class PartInEvaluationMode(Training):
    def before_step(self) -> None:
        if self.at_fault:
            for part in self.model.modules():
                if isinstance(part, nn.modules.batchnorm._BatchNorm):
                    part.eval()


class ValidationInTrainingMode(Training):
    def before_step(self) -> None:
        if self.step == self.case.begins and self.rank == 0:
            for batch in islice(self.batches(), 8):
                self.model(**batch)


class OtherAutocast(Training):
    def forward(self, batch: Batch) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.at_fault):
            return super().forward(batch)


class Flag(Training):
    """A process-wide setting of one rank, reset at the end."""

    def run(self, folder: Path, *, tick: Callable[[], None]) -> None:
        try:
            if self.is_culprit:
                self.switch(on=True)
            super().run(folder, tick=tick)
        finally:
            if self.is_culprit:
                self.switch(on=False)

    def switch(self, *, on: bool) -> None:
        """Change it, or reset it."""


class OtherPrecision(Flag):
    def switch(self, *, on: bool) -> None:
        torch.set_float32_matmul_precision("medium" if on else "highest")


class OtherDeterminism(Flag):
    def switch(self, *, on: bool) -> None:
        torch.use_deterministic_algorithms(on, warn_only=True)


class OtherEnvironment(Flag):
    def switch(self, *, on: bool) -> None:
        if on:
            os.environ["NCCL_ALGO"] = "Tree"
        else:
            del os.environ["NCCL_ALGO"]
