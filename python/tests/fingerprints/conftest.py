# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from helpers.packets import Model


@pytest.fixture
def model() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(Model())
