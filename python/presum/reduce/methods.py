# SPDX-License-Identifier: Apache-2.0
"""Which sums there are, and of what. Needs neither NumPy nor torch."""

from __future__ import annotations

from typing import Literal, get_args

from presum.devices.dtypes import NAMED

Method = Literal["exact", "binned", "fixed32", "fixed64"]

METHODS: tuple[Method, ...] = get_args(Method)
LEAVES_MAX = 32767
BINNED_LEAVES_MAX = 1 << 22
GRAM_LEAVES_MAX = 64
DIVISOR_MAX = (1 << 31) - 1


def takes(method: str, dtype: str) -> bool:
    """Whether a method sums numbers of a format, given by its name."""
    return dtype in NAMED and (method == "exact" or dtype != "float64")


def fixed_bits(method: str) -> int:
    """How wide the integers of "fixed32" and "fixed64" are."""
    return int(method.removeprefix("fixed"))
