# SPDX-License-Identifier: Apache-2.0
"""The factor that a program applies to its gradient between the reduction and the optimizer's
step."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch.optim import Optimizer

from presum.fingerprints.families import KIND, LateValues, real_bits
from presum.steps.setup import RecorderSetup
from presum.steps.value_sample import LocalParameters, ValueSample
from presum.torch_events.losses import Scalar

MEASURED_FIRST = 3  # windows
ONE = (KIND["grad_factor"], real_bits(1.0))


class LocalGradients(LocalParameters):
    """The ``.grad`` of each of a model's parameters; of a sharded model this rank's parts."""

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        return parameter.grad


class GradientFactor:
    """Measures the factor up to clipping, in windows in which token weights are: by a sample of the
    gradient in the first three, and in those that follow one whose gradient was written to. In the
    others it is 1 if the first gradient was not written to, else unknown (NaN)."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._gradients = LocalGradients(setup.parameters)
        self._windows = 0
        self._follows = False
        self._sample: ValueSample | None = None
        self._version: tuple[int, int] | None = None  # of the first gradient, once it was reduced
        self._found: Scalar | None = None  # of this window

    def reduced(self) -> None:
        """A pass whose token weights are known has ended, and its gradient is reduced if it is the
        last one."""
        measured = self._follows or self._windows < MEASURED_FIRST
        self._sample = ValueSample.of(self._gradients) if measured else None
        self._version, self._found = self._setup.written(), None

    def forget(self) -> None:
        """Another pass adds to the gradient."""
        self._version = self._sample = None

    def clips(self, parameters: Iterable[torch.Tensor]) -> None:
        """Gradients of these parameters are about to be clipped."""
        own = next((parameter for _, parameter in self._setup.alive()), None)
        if any(parameter is own for parameter in parameters):
            self._measure()

    def optimizer_begins(self, scale: Scalar, optimizer: Optimizer) -> LateValues:
        """The factor, without that of the loss scale, as a fingerprint. Begins the next window."""
        self._measure()
        factor, self._found, self._version, self._sample = self._found, None, None, None
        self._windows += 1
        if factor is None or (isinstance(factor, float) and factor == 1):
            return [] if factor is None else [ONE]
        on_device = isinstance(scale, torch.Tensor) and not scale.is_cpu
        if on_device and not isinstance(factor, torch.Tensor):
            return []
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            scale = 1.0  # the optimizer takes scaled gradients
        if isinstance(factor, torch.Tensor):
            factor = torch.where(factor == 1, factor, factor * scale)
            return [(KIND["grad_factor"], factor.reshape(1).view(torch.int64))]
        return [(KIND["grad_factor"], real_bits(factor * float(scale)))]

    def _measure(self) -> None:
        if self._version is None or self._found is not None:
            return
        changed = self._setup.written() != self._version
        self._follows = changed
        factor: Scalar | None = math.nan if changed else 1.0
        if changed and self._sample is not None:
            factor = self._sample.factor_to(self._gradients)
        self._found = math.nan if factor is None else factor
