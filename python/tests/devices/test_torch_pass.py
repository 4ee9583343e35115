# SPDX-License-Identifier: Apache-2.0
"""What the pass takes without kernels: the table of docs/devices.md."""

from __future__ import annotations

import pytest
import torch

from helpers.operations import CountedOperations
from presum.devices.torch_pass import sums_of

SKETCH, OPERATIONS = 4096, 141
LONG, SHORT = [4_000_000], [2_000] * 1_000


@pytest.mark.parametrize(
    ("dtype", "lengths", "memory"),
    [
        (torch.float32, LONG, 36),
        (torch.float32, SHORT, 71),
        (torch.bfloat16, LONG, 60),
        (torch.bfloat16, SHORT, 121),
    ],
)
def test_operations_and_memory(dtype: torch.dtype, lengths: list[int], memory: int) -> None:
    gradients = [torch.ones(length, dtype=dtype) for length in lengths]
    sums_of(gradients[:1], [0], torch.float64, SKETCH)  # what is kept is made
    with CountedOperations() as counted:
        sums_of(gradients, [0] * len(gradients), torch.float64, SKETCH)
    assert counted.total <= OPERATIONS
    assert counted.bytes <= 1.01 * memory * sum(one.nbytes for one in gradients)
