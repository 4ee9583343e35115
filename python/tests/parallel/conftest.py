# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(3, 2))
