# SPDX-License-Identifier: Apache-2.0
"""What a node of autograd's graph has saved."""

from __future__ import annotations

from typing import Any


def is_elsewhere(raw: Any) -> bool:
    """Whether a saved tensor (a ``_raw_saved_...``) is stored elsewhere: reading it would fetch or
    compute it."""
    return getattr(raw, "unpack_hook", raw) is not None


def signed(value: int) -> int:
    """A saved integer, which torch may store unsigned."""
    return value - (1 << 64) if value >= 1 << 63 else value
