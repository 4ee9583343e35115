# SPDX-License-Identifier: Apache-2.0
"""The sum of ``include/presum/reduce.h`` for torch tensors, as communication hooks call it.

All tensors are strided, contiguous, one-dimensional, of equal length and on one device. C++ kernels
run on the CPU, CUDA kernels on a CUDA device, and torch operations on other devices; all give the
same bits. Work outside the CPU is queued on the current stream, without synchronization. dtypes:
fp32, bf16, fp16, and fp64 where there are kernels. NaN among the leaves, or infinities of both
signs, give NaN; a single sign of infinity gives that infinity; an exact zero is +0; overflow gives
an infinity. Zero elements and a single leaf are valid.

``divisor`` divides the exact sum before the only rounding: 1 for the sum, the number of leaves for
the mean; at most 2^31 - 1. Errors are ValueError. Thread-safe. Arguments are borrowed for the call
and must not overlap outputs, except where the docstring allows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from presum import _core
from presum.devices.kernel_pass import why_not
from presum.devices.readable import in_host_memory
from presum.reduce import kernels, torch_ops


def elsewhere(device: torch.device) -> Any:
    """The module that sums tensors on this device; None for host memory."""
    if in_host_memory(device):
        return None
    return kernels if why_not(device) is None else torch_ops


def exact(
    leaves: Sequence[torch.Tensor],
    divisor: int,
    out: torch.Tensor,
    gram: torch.Tensor | None = None,
) -> None:
    """Write the sum of the leaves, divided by ``divisor`` and correctly rounded, to ``out`` (which
    can be a leaf).

    The dot products of all pairs of at most 64 leaves are added to ``gram``, a float64 tensor of
    shape [leaves, leaves] on the same device. The order of these additions, and so their last bits,
    is fixed only on the CPU.
    """
    if ops := elsewhere(out.device):
        if gram is not None:
            torch_ops.add_gram(leaves, gram)
        ops.exact(leaves, divisor, out)
        return
    _core.reduce_exact(leaves, divisor, out, gram)


def sum_all(
    leaves: Sequence[torch.Tensor], divisor: int, gram: torch.Tensor | None
) -> torch.Tensor:
    """``presum.reduce.sum`` for tensors of any shape and strides."""
    flat = [leaf.detach().resolve_neg().reshape(-1).contiguous() for leaf in leaves]
    out = torch.empty_like(flat[0])
    exact(flat, divisor, out, gram)
    return out.view(leaves[0].shape)
