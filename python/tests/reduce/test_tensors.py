# SPDX-License-Identifier: Apache-2.0
"""What communication hooks call: sums in parts, in bins, over workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from helpers.rational_sums import (
    CASES,
    DTYPES,
    KINDS,
    binned_sum,
    exact_sum,
    make,
    run_exact,
    same_bits,
    state_of,
)
from presum import reduce
from presum.reduce import tensors


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_divides_by_any_number_with_one_rounding(path: str, dtype: torch.dtype) -> None:
    for divisor in (3, 12, 1021, 2**16, 2**31 - 1):
        for kind in ("finite bits", "denormals", "ties"):
            terms = make(kind, dtype, 3, 100, divisor)
            same_bits(run_exact(terms, divisor), exact_sum(terms, divisor))


@pytest.mark.deep
def test_exact_takes_32767_leaves(path: str) -> None:
    largest = torch.finfo(torch.float32).max
    leaf = torch.tensor([largest, -largest, 2.0**-149, -(2.0**-20), -math.inf])
    found = torch.empty_like(leaf)
    tensors.exact([leaf] * 32767, 32767, found)
    same_bits(found, leaf)


def test_exact_may_write_over_a_leaf(path: str) -> None:
    terms = make("finite bits", torch.float32, 5, 50, 0)
    expected = exact_sum(terms)
    tensors.exact(list(terms), 1, terms[2])
    same_bits(terms[2], expected)


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_binned_is_the_sum_of_digits_as_defined(path: str, kind: str, dtype: torch.dtype) -> None:
    for leaves, mean in [(1, False), (3, True), (7, True), (12, False), (64, True)]:
        terms = make(kind, dtype, leaves, 40, 2)
        found = reduce.sum(terms, method="binned", mean=mean)
        same_bits(found, binned_sum(terms, leaves if mean else 1))


@pytest.mark.parametrize("kind", KINDS)
def test_binned_is_a_commutative_monoid(path: str, kind: str) -> None:
    terms = make(kind, torch.float32, 9, 60, 3)
    whole = tensors.Binned.zeros(60)
    for leaf in terms:
        whole.add(leaf)
    left, right = tensors.Binned.zeros(60), tensors.Binned.zeros(60)
    for leaf in terms.flip(0)[:4]:
        left.add(leaf)
    for leaf in terms.flip(0)[4:]:
        right.add(leaf)
    right.merge(left)
    right.merge(tensors.Binned.zeros(60))
    assert state_of(right) == state_of(whole)


def reduced_by_workers(parts: Sequence[Tensor], total: int, bits: int) -> Tensor:
    """What workers with these leaves do, with the all-reduces in place."""
    tops = [tensors.exponents(list(part)) for part in parts]
    largest = torch.stack(tops).amax(0)
    sums = [tensors.encode(list(part), largest, total, bits) for part in parts]
    out = torch.empty_like(parts[0][0])
    tensors.decode(torch.stack(sums).sum(0).to(sums[0].dtype), largest, total, total, bits, out)
    return out


def binned_by_workers(parts: Sequence[Tensor], total: int) -> Tensor:
    states = []
    for part in parts:
        states.append(tensors.Binned.zeros(part.shape[1]))
        for leaf in part:
            states[-1].add(leaf)
    top = torch.stack([state.top for state in states]).amax(0)
    for state in states:
        state.raise_to(top)
    high = torch.stack([state.high for state in states]).sum(0)
    low = torch.stack([state.low for state in states]).sum(0)
    out = torch.empty_like(parts[0][0])
    tensors.Binned(top, high, low).decode(total, out)
    return out


@pytest.mark.parametrize(("kind", "dtype"), CASES, ids=str)
def test_no_order_and_no_partition_changes_a_bit(path: str, kind: str, dtype: torch.dtype) -> None:
    terms = make(kind, dtype, 12, 25, 4)
    expected = {method: reduce.sum(terms, method=method, mean=True) for method in reduce.METHODS}
    for workers in (12, 6, 4, 3, 1):
        shuffled = terms[torch.randperm(12, generator=torch.Generator().manual_seed(workers))]
        parts = shuffled.chunk(workers)
        same_bits(run_exact(shuffled, 12), expected["exact"])
        same_bits(reduced_by_workers(parts, 12, 32), expected["fixed32"])
        same_bits(reduced_by_workers(parts, 12, 64), expected["fixed64"])
        same_bits(binned_by_workers(parts, 12), expected["binned"])
