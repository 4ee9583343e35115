# SPDX-License-Identifier: Apache-2.0
"""The sum of ``include/presum/reduce.h`` of torch tensors: what communication hooks call.

All tensors are strided, contiguous, one-dimensional, equally long and on one device. On the CPU the
C++ kernels run, on a CUDA device those of CUDA; elsewhere torch operations. What is not on the CPU
is queued on the current stream, and nothing waits for it. All three give the same bits. fp32, bf16,
fp16; fp64 where there are kernels. Elements: NaN among the leaves, or infinities of both signs,
give NaN; else infinities win; an exact zero is +0; what is too large is an infinity. Zero elements
are nothing to do. One rank's one leaf is a sum too.

``divisor`` divides the exact sum before the only rounding: 1 for the sum, the number of leaves for
the mean; at most 2^31 - 1. Errors are ValueError. Thread-safe; arguments are borrowed for the call,
and must not overlap outputs unless said.
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
    """What sums tensors that are not in host memory; None for those that are."""
    if in_host_memory(device):
        return None
    return kernels if why_not(device) is None else torch_ops


def exact(
    leaves: Sequence[torch.Tensor],
    divisor: int,
    out: torch.Tensor,
    gram: torch.Tensor | None = None,
) -> None:
    """The correctly rounded quotient of the leaves' sum, into ``out`` (which may be a leaf).

    The dot products of all pairs of at most 64 leaves are added to ``gram``, float64 of
    [leaves, leaves] on the same device. Their order of additions, so their last bits, is fixed on
    the CPU only.
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
    """``presum.reduce.sum`` of tensors of any shape and strides."""
    flat = [leaf.detach().resolve_neg().reshape(-1).contiguous() for leaf in leaves]
    out = torch.empty_like(flat[0])
    exact(flat, divisor, out, gram)
    return out.view(leaves[0].shape)
