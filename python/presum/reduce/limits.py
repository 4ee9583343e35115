# SPDX-License-Identifier: Apache-2.0
"""Limits of a sum. Needs neither NumPy nor torch."""

from __future__ import annotations

LEAVES_MAX = 32767
GRAM_LEAVES_MAX = 64
DIVISOR_MAX = (1 << 31) - 1
