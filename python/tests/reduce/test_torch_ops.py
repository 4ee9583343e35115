# SPDX-License-Identifier: Apache-2.0
"""The torch operations of devices against the C++ kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from helpers.rational_sums import CASES, PATHS, bits_of, make, on_path, same_bits, state_of
from presum import reduce
from presum.reduce import tensors, torch_ops


def test_elements_beyond_a_chunk_are_summed_alike(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = make("any bits", torch.float32, 4, 50, 0)
    expected = {method: reduce.sum(terms, method=method) for method in reduce.METHODS}
    monkeypatch.setattr(torch_ops, "CHUNK", 7)
    for method, whole in expected.items():
        same_bits(reduce.sum(terms, method=method), whole)


def each() -> Iterator[str]:
    for name in PATHS:
        with on_path(name):
            yield name


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_devices_give_the_bits_of_the_host(kind: str, dtype: torch.dtype) -> None:
    for leaves in (1, 8, 200):
        terms = make(kind, dtype, leaves, 6_000 // leaves, 5)
        found = []
        for _ in each():
            total = tensors.Binned.zeros(terms.shape[1])
            for leaf in terms:
                total.add(leaf)
            top = tensors.exponents(list(terms))
            codes = [tensors.encode(list(terms), top, 2 * leaves, b).tolist() for b in (32, 64)]
            sums = [bits_of(reduce.sum(terms, method=m, mean=True)) for m in reduce.METHODS]
            found.append((state_of(total), top.tolist(), codes, sums))
        for host, operations, kernels in zip(*found, strict=True):
            assert host == operations
            assert host == kernels


def test_on_a_device_nothing_waits_for_a_value() -> None:
    leaves = [torch.empty(2, 3, device="meta") for _ in range(3)]  # has shapes, no values
    for method in reduce.METHODS:
        assert reduce.sum(leaves, method=method, mean=True).shape == (2, 3)
    assert reduce.sum_with_gram(leaves)[1].shape == (3, 3)
    total = tensors.Binned.zeros(6, "meta")
    total.merge(total)


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
