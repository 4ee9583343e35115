# SPDX-License-Identifier: Apache-2.0
"""A model of two parts."""

from __future__ import annotations

import torch
from torch import nn


class TwoParts(nn.Module):
    """The second part is used on demand, the first one as often as one likes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        for layer in (self.first, self.second):
            nn.init.eye_(layer.weight)

    def forward(self, x: torch.Tensor, *, second: bool = True, times: int = 1) -> torch.Tensor:
        for _ in range(times):
            x = self.first(x)
        return self.second(x) if second else x
