# SPDX-License-Identifier: Apache-2.0
"""Tensors as blocks of memory."""

from __future__ import annotations

import torch

from presum.devices.dtypes import NAMED
from presum.devices.readable import readable

DTYPES = {getattr(torch, name): dtype for name, dtype in NAMED.items()}


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if its elements fill one block of memory, else a contiguous copy."""
    if tensor.is_contiguous():
        return tensor
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    channels_last = formats.get(tensor.dim())
    if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
        return tensor
    return tensor.contiguous()


def block_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Its values in one block of memory, complex ones as pairs; None if it cannot be read."""
    plain = readable(tensor)
    if plain is None:
        return None
    plain = plain.detach()
    return dense(torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain)


def memory_of(block: torch.Tensor) -> tuple[int, int]:
    """The address and number of elements of a dense tensor in host memory. Used where the call is
    made once per parameter; other code passes arrays. The caller must keep the tensor alive.

    Raises:
        RuntimeError: the tensor is elsewhere.
    """
    if not block.is_cpu:
        raise RuntimeError(f"a tensor moved to {block.device} after attach")
    return block.data_ptr(), block.numel()
