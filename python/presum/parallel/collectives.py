# SPDX-License-Identifier: Apache-2.0
"""A collective that torch 2.13 renamed, and memory shared between streams."""

from __future__ import annotations

import torch
import torch.distributed as dist

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def used_here(tensor: torch.Tensor) -> torch.Tensor:
    """Tell the allocator that the current stream reads the tensor."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor
