# SPDX-License-Identifier: Apache-2.0
"""Decides which tensors presum can read. The extension decides the plainest ones itself
(``presum._core.read_plain``); all others are decided here.

A tensor subclass may have no memory at its address, or reading it may run a collective or
synchronize.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import torch
from torch._C import DisableTorchFunctionSubclass
from torch._C._functorch import is_functorch_wrapped_tensor

PLAIN = (torch.Tensor, torch.nn.Parameter)
# Classes that add attributes to a tensor without changing its memory, by module and name.
KNOWN = frozenset(
    ("torchvision.tv_tensors." + name)
    for name in (
        "_image.Image",
        "_mask.Mask",
        "_video.Video",
        "_bounding_boxes.BoundingBoxes",
        "_keypoints.KeyPoints",
    )
) | {"monai.data.meta_tensor.MetaTensor"}


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as a plain strided one with elements in memory; None if that is impossible.

    For a DTensor it is this rank's own part, and None if that is a partial sum.
    """
    kind = type(tensor)
    if kind not in PLAIN:
        found = _plain_part(tensor, kind)
        if found is None:
            return None
        tensor = found
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return None
    if is_functorch_wrapped_tensor(tensor) or tensor.is_meta:
        return None
    if (tensor.is_cpu or tensor.is_cuda) and not _has_memory(tensor):
        return None
    return tensor.resolve_neg() if tensor.is_neg() else tensor


def in_host_memory(device: torch.device) -> bool:
    """Whether tensors of a device are read in place."""
    return device.type == "cpu"


def own_part(tensor: Any) -> torch.Tensor:
    """The part of a DTensor on this rank; any other tensor itself."""
    if type(tensor) in PLAIN:
        return cast(torch.Tensor, tensor)
    found: torch.Tensor = tensor._local_tensor if is_distributed(tensor) else tensor
    return found


def is_distributed(tensor: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _has_memory(tensor: torch.Tensor) -> bool:
    """A view's storage may have been freed since, as FSDP and some programs do by resizing it."""
    count = tensor.numel()
    if count == 0:
        return True
    if not tensor.is_contiguous():
        sizes = zip(tensor.shape, tensor.stride(), strict=True)
        count = 1 + sum((size - 1) * stride for size, stride in sizes)
    end = (tensor.storage_offset() + count) * tensor.element_size()
    return tensor.untyped_storage().nbytes() >= end and tensor.data_ptr() != 0


def _plain_part(tensor: Any, kind: type) -> torch.Tensor | None:
    if is_distributed(tensor):
        summand = any(placement.is_partial() for placement in tensor.placements)
        local = tensor._local_tensor  # to_local() would wait for a pending one
        return local if type(local) in PLAIN and not summand else None
    if f"{kind.__module__}.{kind.__qualname__}" not in KNOWN:
        return None
    with DisableTorchFunctionSubclass():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
