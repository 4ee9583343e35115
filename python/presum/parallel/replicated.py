# SPDX-License-Identifier: Apache-2.0
"""Modules that torch's composable ``replicate`` was applied to. A DistributedDataParallel of their
parameters, made at the first forward pass, reduces the gradients; its own forward is never called.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

MODULE = "torch.distributed._composable.replicate"


def is_replicated(model: nn.Module) -> bool:
    """Whether the composable ``replicate`` was applied to the module itself."""
    module = sys.modules.get(MODULE)
    return module is not None and isinstance(model, module.DDP)


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """What reduces the gradients of a replicated module; None before its first forward pass."""
    module: Any = sys.modules[MODULE]
    return getattr(module.replicate.state(model), "_ddp", None)
