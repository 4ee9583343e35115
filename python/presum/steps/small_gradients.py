# SPDX-License-Identifier: Apache-2.0
"""Detects gradients that passed through fp16 and are too small for it."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from presum.fingerprints.families import KIND, LateValues, real_bits
from presum.steps.rounded import EVERY, some_values
from presum.torch_events.losses import Scalar
from presum.torch_events.optimizers import parameters_of

FIRST = range(2, 5)  # optimizer steps, then one in EVERY: not those that RoundedUpdates samples
GRADIENTS = 8
QUANTUM = 2.0**-24  # the smallest positive number of fp16
FEW = 4  # multiples of it
APART = 1e-3  # tolerance of a multiple, for the rounding of a mean over ranks
LEAST = 8  # nonzero values
DTYPES = (torch.float16, torch.float32)


class SmallGradients:
    """Samples the gradients that an optimizer is about to use: whether all values up to a few times
    fp16's smallest number are multiples of it, which is true of no other format."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas  # over which gradients are averaged
        self._steps: dict[int, int] = {}  # by the optimizer's id

    def look(self, optimizer: Optimizer, scale: Scalar) -> LateValues:
        """Before the optimizer's step; ``scale`` is the scale of the loss."""
        steps = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        scaled = isinstance(scale, torch.Tensor) or scale != 1
        if scaled or not (steps in FIRST or steps % EVERY == 2):
            return []
        gradients = [parameter.grad for parameter in parameters_of(optimizer)]
        held = [one for one in gradients if one is not None and one.dtype in DTYPES]
        found = (some_values(one) for one in held[:: max(1, len(held) // GRADIENTS)])
        parts = [part for part in found if part is not None]
        if not parts or len({part.device for part in parts}) > 1:
            return []
        share = self._share(torch.cat(parts).double().abs() * (self._replicas / QUANTUM))
        if not share.is_cpu:
            return [(KIND["below_fp16"], share.reshape(1).view(torch.int64))]
        return [(KIND["below_fp16"], real_bits(float(share)))]

    def _share(self, multiples: torch.Tensor) -> torch.Tensor:
        """The share of elements that are zero or nearly zero, if the format causes it and most
        nonzero elements are so small; else 0. A mean of values that cancel may miss zero too."""
        there, least = multiples > APART, multiples <= FEW * self._replicas
        few = there & least
        misses = few & ((multiples - multiples.round()).abs() > APART)
        some = there.sum()
        told = (2 * few.sum() >= some) & (some >= LEAST) & (misses.sum() == 0)
        return least.mean(dtype=torch.float64) * told
