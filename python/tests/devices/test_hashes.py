# SPDX-License-Identifier: Apache-2.0
"""Hashes by the kernels, on the host's grid."""

from __future__ import annotations

import pytest
import torch

from helpers.operations import CountedOperations
from presum import _core
from presum.devices import torch_pass
from presum.devices.hashes import fingerprints, fingerprints_by_kernels, row_hashes_by_kernel

pytestmark = pytest.mark.usefixtures("on_host")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.int16])
def test_fingerprints_take_two_launches(dtype: torch.dtype) -> None:
    blocks = [torch.arange(7 * i).to(dtype) for i in range(200)]
    found = fingerprints_by_kernels(blocks)
    assert found.tolist() == [int(torch_pass.fingerprint(block)) for block in blocks]
    assert len(_core.cuda_launched()) == 2
    assert torch.equal(fingerprints(blocks), found)  # the host has no kernels of its own


def test_blocks_of_one_width_may_have_other_dtypes() -> None:
    blocks = [torch.randn(5000), torch.arange(3000, dtype=torch.int32), torch.randn(60, 50).T]
    alone = [int(torch_pass.fingerprint(block)) for block in blocks]
    assert torch_pass.fingerprints(blocks).tolist() == alone
    assert fingerprints_by_kernels(blocks).tolist() == alone


def test_fingerprints_in_torch_operations_take_as_many_for_any_number() -> None:
    def count(tensors: list[torch.Tensor]) -> int:
        with CountedOperations() as counted:
            torch_pass.fingerprints(tensors)
        return counted.total

    tensors = [torch.ones(100 + i) for i in range(200)]
    count(tensors[:1])  # what is kept is made
    assert count(tensors) == count(tensors[:1]) < 80


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64])
@pytest.mark.parametrize("masked", [False, True])
def test_row_hashes_are_those_of_torch_operations_in_one_launch(
    dtype: torch.dtype, masked: bool
) -> None:
    x = torch.randint(3, (11, 5000), generator=torch.Generator().manual_seed(1)).to(dtype)
    mask = (x > 0) if masked else None
    assert torch.equal(row_hashes_by_kernel(x, mask), torch_pass.row_hashes(x, mask))
    assert len(_core.cuda_launched()) == 1
