# SPDX-License-Identifier: Apache-2.0
"""The sum of ``include/presum/reduce.h`` as a CUDA kernel: one launch on the current stream.

It gives the same bits as ``torch_ops``, and also sums fp64. The addresses of more than 192 leaves
are uploaded first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from presum import _core
from presum.devices.blocks import DTYPES
from presum.devices.queue import on_device, pinned, stream_of, upload


def _uploaded(addresses: list[int], device: torch.device) -> torch.Tensor:
    room = pinned(8 * len(addresses), device)
    room.view(torch.int64).copy_(torch.tensor(addresses))
    return upload(room, device)


def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The sum divided by ``divisor``, correctly rounded. ``out`` can be one of the leaves."""
    device = leaves[0].device
    addresses = [leaf.data_ptr() for leaf in leaves]
    with on_device(device):
        uploaded = _uploaded(addresses, device) if len(leaves) > _core.CUDA_NEAR_LEAVES else None
        _core.cuda_exact(
            addresses,
            0 if uploaded is None else uploaded.data_ptr(),
            DTYPES[leaves[0].dtype],
            leaves[0].numel(),
            divisor,
            out.data_ptr(),
            stream_of(device),
        )
