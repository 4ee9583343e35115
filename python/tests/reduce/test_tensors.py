# SPDX-License-Identifier: Apache-2.0
"""What communication hooks call."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.sums import (
    CASES,
    DTYPES,
    exact_sum,
    make,
    run_exact,
    same_bits,
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
def test_no_order_changes_a_bit(path: str, kind: str, dtype: torch.dtype) -> None:
    terms = make(kind, dtype, 12, 25, 4)
    expected = reduce.sum(terms, mean=True)
    for seed in range(5):
        shuffled = terms[torch.randperm(12, generator=torch.Generator().manual_seed(seed))]
        same_bits(run_exact(shuffled, 12), expected)
