# SPDX-License-Identifier: Apache-2.0
"""The formats of numbers that presum reads and sums. Needs neither NumPy nor torch."""

from __future__ import annotations

CODES = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""Those of the extension module, by the names that NumPy and torch use."""
