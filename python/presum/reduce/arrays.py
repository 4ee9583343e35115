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
from presum.devices.dtypes import CODES

Array = np.ndarray[Any, np.dtype[Any]]


def _addresses(arrays: Sequence[Array]) -> list[int]:
    return [array.ctypes.data for array in arrays]


def exact(leaves: Sequence[Array], divisor: int, out: Array, gram: Array | None = None) -> None:
    """The correctly rounded quotient of the sum; dot products are added to ``gram``."""
    _core.reduce_exact(
        _addresses(leaves),
        CODES[out.dtype.name],
        out.size,
        divisor,
        out.ctypes.data,
        0 if gram is None else gram.ctypes.data,
    )


def fixed(leaves: Sequence[Array], divisor: int, bits: int, out: Array) -> None:
    """Exponents, integers and quotient in one, with no other worker. ``out`` may be a leaf."""
    dtype = CODES[out.dtype.name]
    _core.reduce_fixed(_addresses(leaves), dtype, out.size, divisor, bits, out.ctypes.data)


def binned(leaves: Sequence[Array], divisor: int, out: Array) -> None:
    """The leaves one at a time."""
    top, digits = np.zeros(out.size, np.uint8), np.zeros((2, out.size), np.int64)
    state = top.ctypes.data, digits[0].ctypes.data, digits[1].ctypes.data
    dtype = CODES[out.dtype.name]
    for leaf in _addresses(leaves):
        _core.binned_add(*state, out.size, leaf, dtype)
    _core.binned_decode(*state, out.size, divisor, dtype, out.ctypes.data)
