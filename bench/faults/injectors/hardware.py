# SPDX-License-Identifier: Apache-2.0
"""Single errors of memory and arithmetic, which recomputing a micro-batch shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from faults.training import Batch, Training

BIT = 64  # of a byte


class Flips(torch.autograd.Function):
    """One of the values, or of their gradients, is wrong."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, backward: bool) -> Tensor:
        """``backward``: the gradient is wrong instead."""
        ctx.backward_too = backward
        return values.clone() if backward else _wrong(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """The gradient with respect to the values."""
        return (_wrong(gradient) if ctx.backward_too else gradient), None


def _wrong(values: Tensor) -> Tensor:
    wrong = values.clone()
    wrong.view(-1)[3] += 1.0
    return wrong


@dataclass(slots=True)
class Processor:
    """State outside the program, which is not restored."""

    flips: bool = False


class Flipping(nn.Module):
    """Returns its input, wrong on request."""

    def __init__(self) -> None:
        super().__init__()
        self.state = Processor()
        self.of_gradient = False

    def forward(self, values: Tensor) -> Tensor:
        """Same shape as ``values``."""
        if not self.state.flips:
            return values
        self.state.flips = False
        flipped: Tensor = Flips.apply(values, self.of_gradient)  # type: ignore[no-untyped-call]
        return flipped


class FlippedActivation(Training):
    """One rank's processor produces a wrong activation or gradient in some steps."""

    def build(self) -> nn.Module:
        model = super().build()
        self.flipping = Flipping()
        self.flipping.of_gradient = self.case.settings.get("of_gradient", False)
        setattr(model, self.part, nn.Sequential(model.get_submodule(self.part), self.flipping))
        return model

    def before_step(self) -> None:
        self.flipping.state.flips = self.at_fault


class ChangedByItself(Training):
    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if self.step == self.case.begins and self.is_culprit:
            parameter = next(self.model.get_submodule(self.part).parameters())
            parameter.detach().numpy().view(np.uint8).reshape(-1)[2] ^= BIT


class InputChangedByItself(Training):
    """One bit of one rank's batch flips."""

    def forward(self, batch: Batch) -> Tensor:
        self._batch = batch
        return super().forward(batch)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if self.step == self.case.begins and self.is_culprit:
            inputs = next(iter(self._batch.values()))
            inputs.numpy().view(np.uint8).reshape(-1)[2] ^= BIT


class NotDeterministic(FlippedActivation):
    """Every rank adds noise from a generator that torch does not know."""

    def build(self) -> nn.Module:
        model = super().build()
        self.noise = np.random.default_rng(self.rank)
        self.flipping.register_buffer("one", torch.ones(()))
        self.flipping.forward = self._noisy  # type: ignore[method-assign]
        return model

    def _noisy(self, values: Tensor) -> Tensor:
        return values * float(1 + 1e-3 * self.noise.standard_normal())

    def before_step(self) -> None:
        """Does nothing: the noise is always on."""
