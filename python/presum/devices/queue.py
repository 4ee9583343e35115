# SPDX-License-Identifier: Apache-2.0
"""Work for a device: its current stream, and uploads without waiting.

In tests the "device" is the host, whose stream is 0.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def on_device(device: torch.device) -> AbstractContextManager[None]:
    """A context in which this device is current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def stream_of(device: torch.device) -> int:
    """The address of the device's current stream."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(device).cuda_stream)


def capturing(device: torch.device) -> bool:
    """Whether a CUDA graph is being captured on the device's current stream."""
    if device.type != "cuda":
        return False
    with on_device(device):
        return torch.cuda.is_current_stream_capturing()


def pinned(count: int, device: torch.device) -> torch.Tensor:
    """Bytes of host memory that a device can read."""
    return torch.empty(count, dtype=torch.uint8, pin_memory=device.type == "cuda")


def upload(written: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on the device, queued on the current stream."""
    return written.to(device, non_blocking=True)
