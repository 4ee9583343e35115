# SPDX-License-Identifier: Apache-2.0
"""Gradients that have passed through fp16 and are too small for it."""

from __future__ import annotations

import torch
from torch.optim import Optimizer

from presum.fingerprints.families import KIND, LateValues, real_bits
from presum.steps.rounded import EVERY, some_values
from presum.torch_events.losses import Scalar
from presum.torch_events.optimizers import parameters_of

FIRST = range(2, 5)  # optimizer steps, then one in EVERY: not those in which RoundedUpdates looks
GRADIENTS = 8
QUANTUM = 2.0**-24  # the smallest number of fp16
FEW = 4  # of them
APART = 1e-3  # by which a multiple may miss, as a mean over workers rounds
LEAST = 8  # values that are not zero
DTYPES = (torch.float16, torch.float32)


class SmallGradients:
    """Looks at a sample of what an optimizer is about to use: whether all that is at most a few
    times fp16's smallest number is a multiple of that, as no gradient in another format is."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas  # over which gradients are averaged
        self._steps: dict[int, int] = {}  # by the optimizer's id

    def look(self, optimizer: Optimizer, scale: Scalar) -> LateValues:
        """Before its step; ``scale`` is that of the loss."""
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
        """Of elements of which nothing or next to nothing is left, where that is the format's doing
        and so of most that are not zero; else 0. A mean of what cancels may miss zero as well."""
        there, least = multiples > APART, multiples <= FEW * self._replicas
        few = there & least
        misses = few & ((multiples - multiples.round()).abs() > APART)
        some = there.sum()
        told = (2 * few.sum() >= some) & (some >= LEAST) & (misses.sum() == 0)
        return least.mean(dtype=torch.float64) * told
