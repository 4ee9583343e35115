# SPDX-License-Identifier: Apache-2.0
"""The torch operations of devices against the C++ kernels."""

from __future__ import annotations

import pytest
import torch

from helpers.sums import make, same_bits
from presum import reduce
from presum.reduce import tensors, torch_ops


def test_elements_beyond_a_chunk_are_summed_alike(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make("any bits", torch.float32, 4, 50, 0)
    whole = reduce.sum(terms)
    monkeypatch.setattr(torch_ops, "CHUNK", 7)
    same_bits(reduce.sum(terms), whole)


def test_on_a_device_nothing_waits_for_a_value() -> None:
    leaves = [torch.empty(2, 3, device="meta") for _ in range(3)]  # has shapes, no values
    assert reduce.sum(leaves, mean=True).shape == (2, 3)
    assert reduce.sum_with_gram(leaves)[1].shape == (3, 3)


ONE = torch.ones(2)


def test_what_a_device_cannot_sum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "in_host_memory", lambda device: False)
    with pytest.raises(ValueError, match="move fp64 leaves to the CPU"):
        reduce.sum([ONE.double()])
    for divisor in (0, 2**31):
        with pytest.raises(ValueError, match="divisor"):
            tensors.exact([ONE], divisor, torch.empty(2))
    with pytest.raises(ValueError, match="0 leaves"):
        tensors.exact([], 1, torch.empty(2))
