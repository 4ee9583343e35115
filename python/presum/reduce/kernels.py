# SPDX-License-Identifier: Apache-2.0
"""The sums of ``include/presum/reduce.h`` as CUDA kernels: one launch each, queued on the current
stream. Functions and arguments are those of ``torch_ops``, and so are the bits; fp64 is summed too,
by ``exact``. Addresses of more than 192 leaves are uploaded first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from presum import _core
from presum.devices.blocks import DTYPES
from presum.devices.queue import on_device, pinned, stream_of, upload


class _Leaves:
    """Where they are; keeps the list on the device until it is dropped."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self.addresses = [leaf.data_ptr() for leaf in leaves]
        self._uploaded: torch.Tensor | None = None
        if len(leaves) > _core.CUDA_NEAR_LEAVES:
            device = leaves[0].device
            room = pinned(8 * len(leaves), device)
            room.view(torch.int64).copy_(torch.tensor(self.addresses))
            self._uploaded = upload(room, device)

    @property
    def uploaded(self) -> int:
        return 0 if self._uploaded is None else self._uploaded.data_ptr()


def exact(leaves: Sequence[torch.Tensor], divisor: int, out: torch.Tensor) -> None:
    """The correctly rounded quotient of the sum. ``out`` may be one of the leaves."""
    with on_device(out.device):
        given = _Leaves(leaves)
        _core.cuda_exact(
            given.addresses,
            given.uploaded,
            DTYPES[out.dtype],
            out.numel(),
            divisor,
            out.data_ptr(),
            stream_of(out.device),
        )


def exponents(leaves: Sequence[torch.Tensor]) -> torch.Tensor:
    """The largest biased exponent of each element as fp32 has it, uint8."""
    first = leaves[0]
    found = torch.empty(first.numel(), dtype=torch.uint8, device=first.device)
    with on_device(first.device):
        given = _Leaves(leaves)
        _core.cuda_exponents(
            given.addresses,
            given.uploaded,
            DTYPES[first.dtype],
            first.numel(),
            found.data_ptr(),
            stream_of(first.device),
        )
    return found


def encode(
    leaves: Sequence[torch.Tensor], exponents: torch.Tensor, total_leaves: int, bits: int
) -> torch.Tensor:
    """The sum of the leaves as integers of the scale of ``exponents``, int32 or int64."""
    first = leaves[0]
    integer = torch.int32 if bits == 32 else torch.int64
    sums = torch.empty(first.numel(), dtype=integer, device=first.device)
    with on_device(first.device):
        given = _Leaves(leaves)
        _core.cuda_encode(
            given.addresses,
            given.uploaded,
            DTYPES[first.dtype],
            first.numel(),
            exponents.data_ptr(),
            total_leaves,
            bits,
            sums.data_ptr(),
            stream_of(first.device),
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
    with on_device(out.device):
        _core.cuda_decode(
            sums.data_ptr(),
            exponents.data_ptr(),
            out.numel(),
            total_leaves,
            divisor,
            bits,
            DTYPES[out.dtype],
            out.data_ptr(),
            stream_of(out.device),
        )


def fixed(leaves: Sequence[torch.Tensor], divisor: int, bits: int, out: torch.Tensor) -> None:
    """These three in one; leaves are read twice. ``out`` may be one of them."""
    with on_device(out.device):
        given = _Leaves(leaves)
        _core.cuda_fixed(
            given.addresses,
            given.uploaded,
            DTYPES[out.dtype],
            out.numel(),
            divisor,
            bits,
            out.data_ptr(),
            stream_of(out.device),
        )


State = Sequence[torch.Tensor]
"""Top, high and low of a binned sum."""


def _addresses(state: State) -> tuple[int, int, int]:
    top, high, low = state
    return top.data_ptr(), high.data_ptr(), low.data_ptr()


def binned_add(state: State, leaf: torch.Tensor) -> None:
    """Adds one leaf to the sum."""
    with on_device(leaf.device):
        _core.cuda_binned_add(
            *_addresses(state),
            leaf.numel(),
            leaf.data_ptr(),
            DTYPES[leaf.dtype],
            stream_of(leaf.device),
        )


def binned_raise(state: State, to: torch.Tensor) -> None:
    """Brings each element to the bin ``to`` where that is higher."""
    with on_device(to.device):
        _core.cuda_binned_raise(*_addresses(state), to.numel(), to.data_ptr(), stream_of(to.device))


def binned_merge(into: State, other: State) -> None:
    """Adds one sum to another."""
    device = into[0].device
    with on_device(device):
        _core.cuda_binned_merge(
            *_addresses(into), *_addresses(other), into[0].numel(), stream_of(device)
        )


def binned_decode(state: State, divisor: int, out: torch.Tensor) -> None:
    """Rounds the quotient of the sum to ``out``."""
    with on_device(out.device):
        _core.cuda_binned_decode(
            *_addresses(state),
            out.numel(),
            divisor,
            DTYPES[out.dtype],
            out.data_ptr(),
            stream_of(out.device),
        )
