# SPDX-License-Identifier: Apache-2.0
"""What communication hooks call."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.sums import exact_sum, make, same_bits
from presum.reduce import tensors


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
