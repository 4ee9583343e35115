# SPDX-License-Identifier: Apache-2.0
"""Collectives that torch 2.13 renamed; memory that several streams use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def _either(new: str, old: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(dist, new, None) or getattr(dist, old)
    return found


all_gather = _either("all_gather_single", "all_gather_into_tensor")
reduce_scatter = _either("reduce_scatter_single", "reduce_scatter_tensor")


def used_here(tensor: torch.Tensor) -> torch.Tensor:
    """Tells the allocator that this stream reads it."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
