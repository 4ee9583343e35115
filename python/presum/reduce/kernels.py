# SPDX-License-Identifier: Apache-2.0
"""The sums of ``include/presum/reduce.h`` as CUDA kernels: one launch each, queued on the current
stream. Functions and arguments are those of ``torch_ops``, and so are the bits; fp64 is summed too,
by ``exact``. Addresses of more than 192 leaves are uploaded first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from presum import _core
from presum._core import Dtype
from presum.devices.blocks import DTYPES
from presum.devices.queue import on_device, pinned, stream_of, upload
from presum.reduce.torch_ops import State


def _launch(sum_: Callable[..., None], device: torch.device, *arguments: int | Dtype) -> None:
    with on_device(device):
        sum_(*arguments, stream_of(device))


def _launch_over(
    leaves: Sequence[torch.Tensor], sum_: Callable[..., None], *arguments: int
) -> None:
    device = leaves[0].device
    addresses = [leaf.data_ptr() for leaf in leaves]
    with on_device(device):
        uploaded = _uploaded(addresses, device) if len(leaves) > _core.CUDA_NEAR_LEAVES else None
        sum_(
            addresses,
            0 if uploaded is None else uploaded.data_ptr(),
            DTYPES[leaves[0].dtype],
            leaves[0].numel(),
            *arguments,
            stream_of(device),
        )


def _uploaded(addresses: list[int], device: torch.device) -> torch.Tensor:
    room = pinned(8 * len(addresses), device)
    room.view(torch.int64).copy_(torch.tensor(addresses))
    return upload(room, device)


def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The correctly rounded quotient of the sum. ``out`` may be one of the leaves."""
    _launch_over(leaves, _core.cuda_exact, divisor, out.data_ptr())


def exponents(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest biased exponent of each element as fp32 has it, uint8."""
    found = torch.empty_like(leaves[0], dtype=torch.uint8)
    _launch_over(leaves, _core.cuda_exponents, found.data_ptr())
    return found


def encode(
    leaves: Sequence[torch.Tensor], exponents: torch.Tensor, total_leaves: int, bits: int
) -> torch.Tensor:
    """The sum of the leaves as integers of the scale of ``exponents``, int32 or int64."""
    sums = torch.empty_like(leaves[0], dtype=torch.int32 if bits == 32 else torch.int64)
    _launch_over(
        leaves, _core.cuda_encode, exponents.data_ptr(), total_leaves, bits, sums.data_ptr()
    )
    return sums


def decode(
    sums: torch.Tensor,
    exponents: torch.Tensor,
    total_leaves: int,
    divisor: int,
    bits: int,
    out: torch.Tensor,
) -> None:
    """Rounds the quotient of the integer sums of ``encode`` to ``out``."""
    _launch(
        _core.cuda_decode,
        out.device,
        sums.data_ptr(),
        exponents.data_ptr(),
        out.numel(),
        total_leaves,
        divisor,
        bits,
        DTYPES[out.dtype],
        out.data_ptr(),
    )


def fixed(leaves: Sequence[torch.Tensor], divisor: int, bits: int, out: torch.Tensor) -> None:
    """These three in one; leaves are read twice. ``out`` may be one of them."""
    _launch_over(leaves, _core.cuda_fixed, divisor, bits, out.data_ptr())


def _addresses(state: State) -> tuple[int, int, int]:
    top, high, low = state
    return top.data_ptr(), high.data_ptr(), low.data_ptr()


def binned_add(state: State, leaf: torch.Tensor) -> None:
    """Adds one leaf to the sum."""
    _launch(
        _core.cuda_binned_add,
        leaf.device,
        *_addresses(state),
        leaf.numel(),
        leaf.data_ptr(),
        DTYPES[leaf.dtype],
    )


def binned_raise(state: State, to: torch.Tensor) -> None:
    """Brings each element to the bin ``to`` where that is higher."""
    _launch(_core.cuda_binned_raise, to.device, *_addresses(state), to.numel(), to.data_ptr())


def binned_merge(into: State, other: State) -> None:
    """Adds one sum to another."""
    first = into[0]
    addresses = (*_addresses(into), *_addresses(other))
    _launch(_core.cuda_binned_merge, first.device, *addresses, first.numel())


def binned_decode(state: State, divisor: int, out: torch.Tensor) -> None:
    """Rounds the quotient of the sum to ``out``."""
    _launch(
        _core.cuda_binned_decode,
        out.device,
        *_addresses(state),
        out.numel(),
        divisor,
        DTYPES[out.dtype],
        out.data_ptr(),
    )
