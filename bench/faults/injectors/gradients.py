# SPDX-License-Identifier: Apache-2.0
"""Faults of one rank's loss, gradient or mode."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from faults import models
from faults.methods import unsharded
from faults.training import Batch, Training

LEAST_FP16 = 2.0**-24


class ScaledLoss(Training):
    """One rank's loss is multiplied by a factor before its backward pass."""

    def backward(self, loss: Tensor) -> None:
        super().backward(loss * self.case.settings["factor"] if self.at_fault else loss)


class ScaledGradient(Training):
    """One rank's backward pass starts with a factor; its loss is unchanged."""

    def backward(self, loss: Tensor) -> None:
        if self.at_fault:
            factor = self.case.settings["factor"]
            loss.register_hook(lambda gradient: factor * gradient)  # type: ignore[no-untyped-call]
        super().backward(loss)


class ChangedGradient(Training):
    """One rank's gradients are changed as they arrive."""

    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        ddp = super().wrap(model)
        with unsharded(model):
            for parameter in self.changed(model):
                hook = partial(self._changed, parameter)
                parameter.register_hook(hook)  # type: ignore[no-untyped-call]
        return ddp

    def changed(self, model: nn.Module) -> Iterable[nn.Parameter]:
        """The parameters whose gradients are changed."""
        return model.parameters() if self.is_culprit else ()

    def _changed(self, parameter: nn.Parameter, gradient: Tensor) -> Tensor:
        return self.change(gradient, parameter) if self.begun else gradient

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        """The gradient to reduce instead."""
        return gradient


class Underflow(ChangedGradient):
    """Gradients pass through fp16, scaled down so far that most elements underflow."""

    def changed(self, model: nn.Module) -> Iterable[nn.Parameter]:
        return model.parameters()

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        small = LEAST_FP16 / (3 * float(gradient.square().mean().sqrt()) + 1e-30)
        return (gradient * small).half().float() / small


class UnderflowFromTheStart(Underflow):
    """The loss is divided by so much that most of its gradient underflows in fp16."""

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        small = LEAST_FP16 / (float(gradient.square().mean().sqrt()) + 1e-30)
        return (gradient * small).half().float()


class FrozenGradient(ChangedGradient):
    """One rank's gradient stays as it was when the fault began."""

    def begin(self) -> None:
        self._kept: dict[nn.Parameter, Tensor] = {}

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        return self._kept.setdefault(parameter, gradient.clone())


class UnshiftedLabels(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            batch["labels"] = batch["labels"].roll(1, dims=1)
        return super().prepare(batch, micro)


class PromptInLoss(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            padding = batch["attention_mask"] == 0
            batch["labels"] = batch["input_ids"].masked_fill(padding, models.IGNORED)
        return super().prepare(batch, micro)


class PaddingInMean(Training):
    def before_step(self) -> None:
        if self.at_fault:
            self.model.counts_padding = True  # type: ignore[assignment]


class SmoothedLabels(Training):
    def before_step(self) -> None:
        if self.at_fault:
            self.model.smoothing = 0.2  # type: ignore[assignment]


class MeanOfMeans(Training):
    """Every rank's mean has the same weight, regardless of its number of tokens."""

    def weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        return loss


class TokensOfAllRanks(Training):
    """The loss is divided by the tokens of all ranks, and DDP divides by their number once more."""

    def weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        return super().weigh(loss, batch) / self.workers


class EvaluationMode(Training):
    def before_step(self) -> None:
        if self.at_fault:
            self.ddp.eval()


class ShuffledLabels(Training):
    def prepare(self, batch: Batch, micro: int) -> Batch:
        if self.at_fault:
            labels = batch["labels"]
            order = torch.randperm(labels.numel())
            batch["labels"] = labels.flatten()[order].view_as(labels)
        return super().prepare(batch, micro)


class RaisedLoss(Training):
    """One rank's model returns another loss, with an added term that has no gradient."""

    def build(self) -> nn.Module:
        model = super().build()
        if self.configuration.way != "trl":  # TRL computes the loss from the model's output
            model.register_forward_hook(self._changed)
        return model

    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        return self._other(loss) if self.configuration.way == "trl" and self.at_fault else loss

    def _changed(self, _model: nn.Module, _args: Any, output: dict[str, Tensor]) -> Any:
        if not self.at_fault:
            return output
        return output | {"loss": self._other(output["loss"])}

    def _other(self, loss: Tensor) -> Tensor:
        """The loss to return instead."""
        return loss + 1.0


class NoisyGradient(ChangedGradient):
    """Noise as large as the gradient is added."""

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        size: Tensor = gradient.norm() / max(1, gradient.numel()) ** 0.5
        return gradient + 2 * size * torch.randn_like(gradient)


class LargeElement(ChangedGradient):
    """An exponent bit is set in one element of each gradient."""

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        changed = gradient.clone()
        changed.view(-1)[0] = 4 * gradient.norm()
        return changed


class InfiniteElement(ChangedGradient):
    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        if self.step != self.case.begins:
            return gradient
        changed = gradient.clone()
        changed.view(-1)[0] = math.inf
        return changed


class EmptiedLayer(ChangedGradient):
    def changed(self, model: nn.Module) -> Iterable[nn.Parameter]:
        return super().changed(model.get_submodule("head"))

    def change(self, gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        return torch.zeros_like(gradient)


class Spike(Training):
    def weigh(self, loss: Tensor, batch: Batch) -> Tensor:
        loss = super().weigh(loss, batch)
        return loss * 100 if self.step == self.case.begins and self.is_culprit else loss


class NanLoss(RaisedLoss):
    """The loss is NaN; its gradient is zero."""

    def _other(self, loss: Tensor) -> Tensor:
        return torch.where(torch.tensor(True), torch.tensor(math.nan), loss)
