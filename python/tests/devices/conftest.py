# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from presum import _core

collect_ignore = []
if not torch.cuda.is_available():
    collect_ignore.append("test_gradient_pass_on_gpu.py")


@pytest.fixture
def on_host() -> Iterator[None]:
    """Kernels run on the host's grid."""
    _core.cuda_on_host(True)
    yield
    _core.cuda_on_host(False)
