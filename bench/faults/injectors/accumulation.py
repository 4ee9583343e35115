# SPDX-License-Identifier: Apache-2.0
"""Micro-batches whose gradient does not reach the optimizer, or is changed on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader

from faults.training import Batch, Training


class ClearedBetweenMicroBatches(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        self._between(micro)
        return super().prepare(batch, micro)

    def _between(self, micro: int) -> None:
        everywhere = not self.case.settings.get("on_culprit_alone")
        if micro > 0 and (everywhere or self.at_fault):
            self.optimizer.zero_grad()


class ClearedAfterEachReduction(ClearedBetweenMicroBatches):
    def synchronizes(self, micro: int) -> bool:
        return True


class LastLossOnly(Training):
    """``backward()`` is after the loop over the micro-batches."""

    def synchronizes(self, micro: int) -> bool:
        self._is_last = super().synchronizes(micro)
        return self._is_last

    def backward(self, loss: Tensor) -> None:
        if self._is_last:
            super().backward(loss)


class OverwrittenGradient(ClearedBetweenMicroBatches):
    """Before each later micro-batch, the gradient of the first is restored."""

    def _between(self, micro: int) -> None:
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if micro == 1:
            self._first = [gradient.clone() for gradient in gradients]
        elif micro > 1:
            for gradient, first in zip(gradients, self._first, strict=True):
                gradient.copy_(first)


class ClippedBetweenMicroBatches(ClearedBetweenMicroBatches):
    def _between(self, micro: int) -> None:
        clip_grad_norm_(self.model.parameters(), 0.1)

    def update(self) -> None:
        clip_grad_norm_(self.model.parameters(), 0.1)
        super().update()


class AveragedAsItGoes(ClearedBetweenMicroBatches):
    """The sum is halved after every micro-batch, as if there were two."""

    def _between(self, micro: int) -> None:
        with torch.no_grad():
            for gradient in (p.grad for p in self.model.parameters()):
                if gradient is not None and micro > 0:
                    gradient.mul_(0.5)


class FewerMicroBatches(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        self._left_out = self.is_culprit and micro % 2 == 1
        return super().prepare(batch, micro)

    def synchronizes(self, micro: int) -> bool:
        last = self.configuration.micro_batches - 1
        return micro == (last - 1 if self.is_culprit else last)

    def forward(self, batch: Batch) -> Tensor:
        return torch.zeros((), requires_grad=True) if self._left_out else super().forward(batch)


class LargerBatches(Training):
    def loader_of(self, dataset: Any, sampler: Any) -> DataLoader[Any]:
        size = self.configuration.batch * (4 if self.is_culprit else 1)
        return DataLoader(dataset, size, sampler=sampler, collate_fn=self.collate, drop_last=True)
