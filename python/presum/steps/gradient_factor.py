# SPDX-License-Identifier: Apache-2.0
"""The factor that a program applies to its gradient between the reduction and the optimizer's
step."""

from __future__ import annotations

import torch

from presum.fingerprints.families import KIND, LateValues, real_bits
from presum.steps.setup import RecorderSetup
from presum.steps.value_sample import LocalParameters, ValueSample
from presum.torch_events.losses import Scalar

MEASURED_FIRST, MEASURED_EVERY = 3, 10  # windows


class LocalGradients(LocalParameters):
    """The ``.grad`` of each of a model's parameters; of a sharded model this rank's parts."""

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return parameter.grad


class GradientFactor:
    """Measures the factor up to clipping, in the first three windows and in every tenth; in every
    one after a factor other than 1 (on a device the factor is not known yet)."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._gradients = LocalGradients(setup.parameters)
        self._windows = 0
        self._changes = False
        self._sample: ValueSample | None = None
        self._found: Scalar | None = None  # of this window

    @property
    def is_due(self) -> bool:
        """Whether to call ``reduced`` at the end of the current pass."""
        first = self._windows < MEASURED_FIRST
        return first or self._changes or self._windows % MEASURED_EVERY == 0

    def reduced(self) -> None:
        """A pass has ended, and its gradient is reduced if it is the last one."""
        self._sample, self._found = ValueSample.of(self._gradients), None

    def measure(self) -> None:
        """Gradients are about to be clipped, or used."""
        if self._sample is not None and self._found is None:
            self._found = self._sample.factor_to(self._gradients)

    def optimizer_begins(self, scale: Scalar) -> LateValues:
        """The factor, without that of the loss scale, as a fingerprint. Begins the next window."""
        self.measure()
        factor, self._sample, self._found = self._found, None, None
        self._windows += 1
        if factor is None:
            return []
        if isinstance(factor, torch.Tensor):
            factor = torch.where(factor == 1, factor, factor * scale)
            return [(KIND["grad_factor"], factor.reshape(1).view(torch.int64))]
        factor = factor if factor == 1 else factor * float(scale)
        self._changes = factor != 1
        return [(KIND["grad_factor"], real_bits(factor))]
