# SPDX-License-Identifier: Apache-2.0
"""presum shows what the ranks of a data-parallel training disagree about before the all-reduce.

``presum.attach(model, optimizer=optimizer)`` records a run, and ``presum.load(RUN)`` reads one.
``python -m presum.run train.py`` attaches without a change of the program.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from presum.errors import StallError, UserError, missing

try:
    from presum._core import __version__
except ImportError as error:
    raise ImportError(
        f"presum: {__path__[0]} has no extension module for Python "
        f"{sys.version_info[0]}.{sys.version_info[1]}: install the wheel for this Python version, "
        f"or build presum ({error})"
    ) from None

if TYPE_CHECKING:
    from presum import reduce
    from presum.attaching import attach
    from presum.findings import Finding
    from presum.frameworks.lightning import LightningCallback
    from presum.frameworks.transformers import TransformersCallback
    from presum.loading import Run, load
    from presum.monitor import Monitor
    from presum.options import Audit, Record, Reduction
    from presum.parallel.sampler import MicroBatchSampler

__all__ = [
    "Audit",
    "Finding",
    "LightningCallback",
    "MicroBatchSampler",
    "Monitor",
    "Record",
    "Reduction",
    "Run",
    "StallError",
    "TransformersCallback",
    "UserError",
    "__version__",
    "attach",
    "load",
    "reduce",
]

_HOMES = {
    "Audit": "presum.options",
    "Record": "presum.options",
    "Reduction": "presum.options",
    "attach": "presum.attaching",
    "Finding": "presum.findings",
    "LightningCallback": "presum.frameworks.lightning",
    "MicroBatchSampler": "presum.parallel.sampler",
    "Monitor": "presum.monitor",
    "load": "presum.loading",
    "Run": "presum.loading",
    "TransformersCallback": "presum.frameworks.transformers",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # Importing torch and pandas takes seconds, and they may not be installed.
    import importlib

    if name not in _HOMES and name != "reduce":
        raise AttributeError(f"module 'presum' has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES.get(name, "presum.reduce"))
    except ModuleNotFoundError as error:
        raise missing(f"presum.{name}", error) from None
    value = home if name == "reduce" else getattr(home, name)
    globals()[name] = value
    return value


def _is_told_otherwise() -> bool:
    command = os.path.basename(sys.argv[0]) == "presum" if sys.argv else False  # noqa: PTH119
    runs = "presum.run", f"{__path__[0]}{os.sep}run.py"
    return command or any(word in runs for word in sys.orig_argv)


if os.environ.get("PRESUM") == "1" and not _is_told_otherwise():
    from presum.run import start_from_environment

    start_from_environment()
