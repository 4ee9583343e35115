# SPDX-License-Identifier: Apache-2.0
"""Hashes of tensors that are not in host memory: by CUDA kernels where they can run, else by torch
operations. They stay on the device, as int64; nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from presum import _core
from presum.devices import torch_pass
from presum.devices.kernel_pass import KernelPass, why_not
from presum.devices.queue import on_device, stream_of

FINGERPRINT = 3  # the column of what the kernels find


def fingerprints(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of blocks of memory on one device, elements of 2, 4 or 8 bytes, the same for all: one number
    each."""
    if why_not(blocks[0].device) is None:
        return fingerprints_by_kernels(blocks)
    return torch_pass.fingerprints(blocks)


def fingerprints_by_kernels(blocks: Sequence[torch.Tensor]) -> torch.Tensor:
    """Two launches."""
    dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[blocks[0].element_size()]
    kernels = KernelPass(blocks[0].device, 0)
    flat = [block.as_strided((block.numel(),), (1,)) for block in blocks]
    kernels.read([(one.view(dtype), 0) for one in flat], sketched=False)
    return kernels.finish()[0][:, FINGERPRINT]


def row_hashes(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """docs/packet_format.md, "Row hash", of each row of a contiguous matrix."""
    if why_not(x.device) is None:
        return row_hashes_by_kernel(x, mask)
    return torch_pass.row_hashes(x, mask)


def row_hashes_by_kernel(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """One launch."""
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
