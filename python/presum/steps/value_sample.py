# SPDX-License-Identifier: Apache-2.0
"""A few elements of a model's tensors, kept to be held against what is there later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from presum.devices.gradient_pass import dense
from presum.devices.readable import is_distributed, readable
from presum.torch_events.losses import Scalar

TENSORS = 4
VALUES = 64  # of each
SAME_DIRECTION = 1e-4  # what 16 bits may take off a squared cosine

Tensors = Sequence[torch.Tensor | None]


class ValueSample:
    """Of some of the tensors, spread over all. Where these are; nothing waits for a device."""

    def __init__(self, places: Sequence[int], values: torch.Tensor) -> None:
        self._places = places
        self._values = values

    @classmethod
    def of(cls, tensors: Tensors) -> ValueSample | None:
        """None where none can be read."""
        there = [place for place, tensor in enumerate(tensors) if tensor is not None]
        places = there[:: max(1, len(there) // TENSORS)]
        values = _values(tensors, places)
        return None if values is None else cls(places, values)

    def factor_to(self, tensors: Tensors) -> Scalar | None:
        """What multiplied them since: 1 where every bit is what it was, NaN where it is no factor,
        0 where nothing is there; None where that is not known, as of what is not finite (1 on a
        device). A number of host memory, else a tensor of one element in float64."""
        if max(self._places) >= len(tensors):
            return None
        if all(tensors[place] is None for place in self._places):
            return 0.0 if self._values.is_cpu else self._values.new_zeros(())
        now = _values(tensors, self._places)
        before = self._values
        if now is None or now.shape != before.shape or now.device != before.device:
            return None
        if before.is_cpu:
            return _factor(before, now)
        own, product, other = before @ before, before @ now, now @ now
        straight = (product >= 0) & (product * product >= (1 - SAME_DIRECTION) * own * other)
        factor = torch.where(straight & (own > 0), product / own, math.nan)
        same = (before.view(torch.int64) == now.view(torch.int64)).all()
        return torch.where(same | ~torch.isfinite(own + other), 1.0, factor)


def _factor(before: torch.Tensor, now: torch.Tensor) -> float | None:
    if torch.equal(before.view(torch.int64), now.view(torch.int64)):
        return 1.0
    own, product, other = float(before @ before), float(before @ now), float(now @ now)
    if own == 0 or not math.isfinite(own + other):
        return None
    straight = product >= 0 and product * product >= (1 - SAME_DIRECTION) * own * other
    return product / own if straight else math.nan


def _values(tensors: Tensors, places: Iterable[int]) -> torch.Tensor | None:
    parts = []
    for place in places:
        tensor = tensors[place]
        plain = None if tensor is None or is_distributed(tensor) else readable(tensor.detach())
        if plain is None:
            return None
        block = dense(plain)
        flat = block.as_strided((block.numel(),), (1,))
        parts.append(flat[:: max(1, flat.numel() // VALUES)][:VALUES].double())
    return torch.cat(parts) if parts else None
