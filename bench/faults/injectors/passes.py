# SPDX-License-Identifier: Apache-2.0
"""Orders of forward and backward passes in which DistributedDataParallel does not reduce."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from faults.training import Batch, Training

if TYPE_CHECKING:
    from accelerate import Accelerator


class OfDdp(Training):
    """FSDP2 reduces after every backward pass; by hand, the program decides."""

    right_in = ("fsdp2", "hsdp", "by-hand")


class StaticGraph(OfDdp):
    def wrap(self, model: nn.Module) -> DistributedDataParallel:
        if self.configuration.way == "accelerate":
            return super().wrap(model)
        return DistributedDataParallel(model, static_graph=True)

    @cached_property
    def accelerator(self) -> Accelerator:
        from accelerate import Accelerator, DistributedDataParallelKwargs

        static = DistributedDataParallelKwargs(static_graph=True)
        return Accelerator(cpu=True, kwargs_handlers=[static])


class SecondBackward(OfDdp):
    """The loss is differentiated in two halves."""

    def backward(self, loss: Tensor) -> None:
        (loss / 2).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        super().backward(loss / 2)


class BackwardAtTheEnd(OfDdp):
    """All micro-batches' forward passes come before their backward passes."""

    _losses: tuple[Tensor, ...] = ()

    def synchronizes(self, micro: int) -> bool:
        self._is_last = super().synchronizes(micro)
        return True

    def backward(self, loss: Tensor) -> None:
        self._losses = (*self._losses, loss)
        if self._is_last:
            for each in self._losses:
                super().backward(each)
            self._losses = ()


class Differentiating(nn.Module):
    """Calls ``backward()`` in its forward."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **batch: Tensor) -> dict[str, Tensor]:
        """The loss, already differentiated."""
        loss: Tensor = self.model(**batch)["loss"]
        loss.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.detach()}


class BackwardInForward(StaticGraph):
    def build(self) -> nn.Module:
        return Differentiating(super().build())

    def backward(self, loss: Tensor) -> None:
        pass


class GradientInTheLoss(StaticGraph):
    """The loss is weighted by the norm of a layer's gradient, as VQGAN's is."""

    def forward(self, batch: Batch) -> Tensor:
        loss = super().forward(batch)
        weight = next(self.model.get_submodule(self.part).parameters())
        (gradient,) = torch.autograd.grad(loss, weight, retain_graph=True)
        weighted: Tensor = loss / (1 + gradient.norm())
        return weighted
