# SPDX-License-Identifier: Apache-2.0
"""A small model that returns its loss, and its training."""

from __future__ import annotations

import torch
from torch import nn


class LossModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, object]:
        for layer in self.layers:
            x = layer(x)
        return {"loss": x.square().mean()}


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.full((2, 4), 1.0 + step)
        model(x, labels=torch.tensor([[1, -100], [2, 3]]))["loss"].backward()
