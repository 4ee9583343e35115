# SPDX-License-Identifier: Apache-2.0
"""The training of one worker, whose packets are read back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import presum
from helpers.packets import Packets, Step, one_step


@dataclass
class Training:
    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    packets: Packets
    run: Path
    names_optimizer: bool = True  # else steps end with the next forward pass

    def of(self, module: nn.Module) -> Training:
        """Of another model, whose steps end with its next forward pass."""
        return replace(self, model=DistributedDataParallel(module), names_optimizer=False)

    def watched(self, **record: Any) -> presum.Monitor:
        optimizer = self.optimizer if self.names_optimizer else None
        options = presum.Record(quiet=True, **record)
        return presum.attach(self.model, optimizer=optimizer, run=self.run, record=options)

    def step(self, x: torch.Tensor, through: nn.Module | None = None) -> None:
        one_step(through or self.model, self.optimizer, x)

    @property
    def steps(self) -> list[Step]:
        return self.packets.steps

    def values(self, name: str) -> list[int | None]:
        """The fingerprint of this name at each step."""
        return [step.values.get(name) for step in self.steps]
