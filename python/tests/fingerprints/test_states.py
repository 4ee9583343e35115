# SPDX-License-Identifier: Apache-2.0
"""Hashes of parameters and buffers."""

from __future__ import annotations

import pytest
import torch

from observers import make_observer
from presum.devices.blocks import dense
from presum.devices.torch_pass import fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.states import elements

DTYPES = [torch.bool, torch.uint8, torch.int16, torch.bfloat16, torch.int32, torch.float32]


def state_bytes(tensor: torch.Tensor, *, on_host: bool) -> bytes:
    observer = make_observer([("a.weight", tensor.numel(), "")])
    block = elements(tensor)
    assert block is not None
    observer.begin_states()
    if on_host:
        observer.state(1, 0, block.data_ptr(), block.numel(), block.element_size())
    else:
        observer.state_sum(1, 0, int(fingerprint(block)) & WORD)
    return observer.goodbye(0)


@pytest.mark.parametrize(
    "dtype",
    [*DTYPES, torch.int8, torch.int64, torch.float64, torch.complex64, torch.complex128],
)
@pytest.mark.parametrize("count", [0, 1, 5, 1024, 1025, 3001])
def test_states_are_hashed_alike_on_the_host_and_on_a_device(
    dtype: torch.dtype, count: int
) -> None:
    tensor = torch.randint(0, 90, (count,)).to(dtype)
    assert state_bytes(tensor, on_host=True) == state_bytes(tensor, on_host=False)


def test_tensors_without_one_block_of_values_have_no_state() -> None:
    assert elements(torch.eye(3).to_sparse()) is None
    assert elements(torch.ones(3, device="meta")) is None
    turned = torch.randn(4, 6).t()
    found = elements(turned)
    assert found is not None and torch.equal(found, turned) and found.is_contiguous()
    last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert dense(last) is last
    assert state_bytes(last, on_host=True) == state_bytes(last, on_host=False)
