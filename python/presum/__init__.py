# SPDX-License-Identifier: Apache-2.0
"""presum shows what data-parallel workers disagree about before the sum hides it.

``presum.attach(model, optimizer=optimizer)`` records a run, ``presum.load(RUN)`` reads one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from presum._core import __version__
from presum.errors import UserError

if TYPE_CHECKING:
    from presum.attach import attach
    from presum.findings import Finding
    from presum.load import Run, load
    from presum.monitor import Monitor

__all__ = ["Finding", "Monitor", "Run", "UserError", "__version__", "attach", "load"]

_HOMES = {
    "attach": "presum.attach",
    "Finding": "presum.findings",
    "Monitor": "presum.monitor",
    "load": "presum.load",
    "Run": "presum.load",
}


def __getattr__(name: str) -> Any:
    # torch and pandas take seconds to import; commands that need neither stay quick.
    if name not in _HOMES:
        raise AttributeError(f"module 'presum' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
