# SPDX-License-Identifier: Apache-2.0
"""The sums of ``include/presum/reduce.h`` on NumPy arrays; torch is not needed.

All arrays are contiguous, in the machine's byte order and equally large. ``divisor`` is 1 for the
sum, the number of leaves for the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from presum import _core

Array = np.ndarray[Any, np.dtype[Any]]


def exact(leaves: Sequence[Array], divisor: int, out: Array, gram: Array | None = None) -> None:
    """The correctly rounded quotient of the sum; dot products are added to ``gram``."""
    _core.reduce_exact(leaves, divisor, out, gram)


def fixed(leaves: Sequence[Array], divisor: int, bits: int, out: Array) -> None:
    """Exponents, integers and quotient in one, with no other worker. ``out`` may be a leaf."""
    _core.reduce_fixed(leaves, divisor, bits, out)


def binned(leaves: Sequence[Array], divisor: int, out: Array) -> None:
    """The leaves one at a time."""
    top, (high, low) = np.zeros(out.size, np.uint8), np.zeros((2, out.size), np.int64)
    for leaf in leaves:
        _core.binned_add(top, high, low, leaf)
    _core.binned_decode(top, high, low, divisor, out)
