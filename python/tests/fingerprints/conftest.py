# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.packets import Model, Packets
from helpers.training import Training


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Model())


@pytest.fixture
def training(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    packets: Packets,
    tmp_path: Path,
) -> Training:
    return Training(model, optimizer, packets, tmp_path)
