# SPDX-License-Identifier: Apache-2.0
"""The number formats that presum reads and sums. Needs neither NumPy nor torch."""

from __future__ import annotations

from presum._core import Dtype

NAMED = {dtype.name.lower(): dtype for dtype in Dtype}
"""By the names that NumPy and torch use."""
