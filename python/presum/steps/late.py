# SPDX-License-Identifier: Apache-2.0
"""Numbers of one step that are still on a device when the step records them."""

from __future__ import annotations

import torch

from presum._core import Late

CHUNK = 512  # this many scalars become one tensor, which takes no more memory than one of them
NUMBERS_MAX = 1 << 18
Number = float | Late


class LateNumbers:
    """Collects the numbers, which go to the host together once the step has ended."""

    def __init__(self) -> None:
        self._count = 0
        self._chunks: list[torch.Tensor] = []
        self._scalars: list[torch.Tensor] = []

    def number(self, value: float | torch.Tensor) -> Number:
        """The number, or the place of a number that follows. NaN if there are too many."""
        if not isinstance(value, torch.Tensor):
            return float(value)
        if self._count == NUMBERS_MAX:
            return float("nan")
        self._scalars.append(value.detach().reshape(()))
        if len(self._scalars) == CHUNK:
            device = self._scalars[0].device
            wide = torch.float32 if device.type == "mps" else torch.float64
            self._chunks.append(torch.stack([x.to(device, wide) for x in self._scalars]))
            self._scalars = []
        self._count += 1
        return Late(self._count - 1)

    def tensors(self) -> list[torch.Tensor]:
        """All numbers, in the order of their places."""
        return [*self._chunks, *self._scalars]
