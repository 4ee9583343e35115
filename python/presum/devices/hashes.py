# SPDX-License-Identifier: Apache-2.0
"""Hashes of tensors outside host memory: by CUDA kernels where they can run, else by torch
operations. The hashes stay on the device, as int64, without synchronization."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from presum import _core
from presum.devices import torch_pass
from presum.devices.kernel_pass import KernelPass, why_not
from presum.devices.queue import on_device, stream_of

FINGERPRINT = 3  # its column in the kernels' results


def fingerprints(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """One fingerprint for each block of memory. All blocks are on one device, with elements of the
    same size: 2, 4 or 8 bytes."""
    if why_not(blocks[0].device) is None:
        return fingerprints_by_kernels(blocks)
    return torch_pass.fingerprints(blocks)


def fingerprints_by_kernels(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same with CUDA kernels, in two launches."""
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[blocks[0].element_size()]
    kernels = KernelPass(blocks[0].device, 0)
    flat = [block.as_strided((block.numel(),), (1,)) for block in blocks]
    kernels.read([(one.view(dtype), 0) for one in flat], sketched=False)
    return kernels.finish()[0][:, FINGERPRINT]


def row_hashes(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The row hash (docs/packet_format.md, "Row hash") of each row of a contiguous matrix."""
    if why_not(x.device) is None:
        return row_hashes_by_kernel(x, mask)
    return torch_pass.row_hashes(x, mask)


def row_hashes_by_kernel(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The same with a CUDA kernel, in one launch."""
    hashes = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
    with on_device(x.device):
        _core.cuda_hash_rows(
            x.data_ptr(),
            x.shape[0],
            x.shape[1],
            x.element_size(),
            0 if mask is None else mask.data_ptr(),
            8 if mask is None else mask.element_size(),
            hashes.data_ptr(),
            stream_of(x.device),
        )
    return hashes
