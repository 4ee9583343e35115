# SPDX-License-Identifier: Apache-2.0
"""The sums of ``include/presum/reduce.h`` on torch tensors: what communication hooks call.

All tensors are strided, contiguous, one-dimensional, equally long and on one device. On the CPU the
C++ kernels run, on a CUDA device those of CUDA; elsewhere torch operations. What is not on the CPU
is queued on the current stream, and nothing waits for it. All three give the same bits. fp32, bf16,
fp16; fp64 for ``exact`` where there are kernels. Elements: NaN among the leaves, or infinities of
both signs, give NaN; else infinities win; an exact zero is +0; what is too large is an infinity.
Zero elements are nothing to do. One rank's one leaf is a sum too.

``divisor`` divides the exact sum before the only rounding: 1 for the sum, the number of leaves for
the mean; at most 2^31 - 1. ``total_leaves`` counts the leaves of all workers together; 32,767 at
most. Errors are ValueError. Thread-safe; arguments are borrowed for the call, and must not overlap
outputs unless said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from presum import _core
from presum.devices.kernel_pass import why_not
from presum.devices.readable import in_host_memory
from presum.reduce import kernels, torch_ops
from presum.reduce.methods import fixed_bits


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


def exponents(leaves: Sequence[torch.Tensor], room: torch.Tensor | None = None) -> torch.Tensor:
    """The largest biased fp32 exponent of each element, uint8; for an all-reduce with MAX. On the
    CPU written to ``room``, where one is given."""
    first = leaves[0]
    if ops := elsewhere(first.device):
        return ops.exponents(leaves)  # type: ignore[no-any-return]
    found = torch.empty(first.numel(), dtype=torch.uint8) if room is None else room
    _core.reduce_exponents(leaves, found)
    return found


def encode(
    leaves: Sequence[torch.Tensor],
    exponents: torch.Tensor,
    total_leaves: int,
    bits: int,
    room: torch.Tensor | None = None,
) -> torch.Tensor:
    """The sum of this worker's leaves as int32 or int64 (``bits``); for an all-reduce with SUM.
    ``exponents`` are the largest of all workers. On the CPU written to ``room``, where given."""
    first = leaves[0]
    if ops := elsewhere(first.device):
        return ops.encode(leaves, exponents, total_leaves, bits)  # type: ignore[no-any-return]
    dtype = torch.int32 if bits == 32 else torch.int64
    sums = torch.empty(first.numel(), dtype=dtype) if room is None else room
    _core.reduce_encode(leaves, exponents, total_leaves, sums)
    return sums


def decode(
    sums: torch.Tensor,
    exponents: torch.Tensor,
    total_leaves: int,
    divisor: int,
    bits: int,
    out: torch.Tensor,
) -> None:
    """The rounded quotient of the workers' sums, into ``out``."""
    if ops := elsewhere(out.device):
        ops.decode(sums, exponents, total_leaves, divisor, bits, out)
        return
    _core.reduce_decode(sums, exponents, total_leaves, divisor, out)


def fixed(leaves: Sequence[torch.Tensor], divisor: int, bits: int, out: torch.Tensor) -> None:
    """The three steps above in one, where all leaves are here; ``out`` may be a leaf."""
    if ops := elsewhere(out.device):
        ops.fixed(leaves, divisor, bits, out)
        return
    _core.reduce_fixed(leaves, divisor, bits, out)


class Binned:
    """A sum of leaves that arrive one at a time and are not kept: 17 bytes per element.

    The state is a commutative monoid: any order of ``add`` and ``merge`` gives the same. Between
    workers: all-reduce ``top`` with MAX, ``raise_to`` it, all-reduce ``high`` and ``low`` with SUM.
    Leaves must not be scaled differently; divide the sum instead. Owns its tensors; one thread at a
    time.
    """

    def __init__(self, top: torch.Tensor, high: torch.Tensor, low: torch.Tensor) -> None:
        self.top, self.high, self.low = top, high, low

    @classmethod
    def zeros(cls, count: int, device: torch.device | str = "cpu") -> Binned:
        """The empty sum of ``count`` elements."""
        return cls(
            torch.zeros(count, dtype=torch.uint8, device=device),
            torch.zeros(count, dtype=torch.int64, device=device),
            torch.zeros(count, dtype=torch.int64, device=device),
        )

    def _state(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.top, self.high, self.low

    def add(self, leaf: torch.Tensor) -> None:
        """Add one leaf. The state has no count of them: 2^22 at most, with those merged."""
        if ops := elsewhere(self.top.device):
            ops.binned_add(self._state(), leaf)
            return
        _core.binned_add(*self._state(), leaf)

    def raise_to(self, top: torch.Tensor) -> None:
        """Bring each element to the bin ``top`` where that is higher."""
        if ops := elsewhere(self.top.device):
            ops.binned_raise(self._state(), top)
        else:
            _core.binned_raise(*self._state(), top)

    def merge(self, other: Binned) -> None:
        """Add another sum, which is not changed."""
        if ops := elsewhere(self.top.device):
            ops.binned_merge(self._state(), other._state())
        else:
            _core.binned_merge(*self._state(), *other._state())

    def decode(self, divisor: int, out: torch.Tensor) -> None:
        """The rounded quotient of the sum, into ``out``."""
        if ops := elsewhere(self.top.device):
            ops.binned_decode(self._state(), divisor, out)
            return
        _core.binned_decode(*self._state(), divisor, out)


def sum_all(
    leaves: Sequence[torch.Tensor], divisor: int, method: str, gram: torch.Tensor | None
) -> torch.Tensor:
    """``presum.reduce.sum`` of tensors of any shape and strides."""
    flat = [leaf.detach().resolve_neg().reshape(-1).contiguous() for leaf in leaves]
    out = torch.empty_like(flat[0])
    if method == "exact":
        exact(flat, divisor, out, gram)
    elif method == "binned":
        total = Binned.zeros(len(out), out.device)
        for leaf in flat:
            total.add(leaf)
        total.decode(divisor, out)
    else:
        fixed(flat, divisor, fixed_bits(method), out)
    return out.view(leaves[0].shape)
