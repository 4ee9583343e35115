# SPDX-License-Identifier: Apache-2.0
"""Keeps a few elements of a model's tensors, to compare them with later values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Protocol

import torch
from torch import nn

from presum._core import HostValues
from presum.devices.blocks import DTYPES, block_of
from presum.devices.readable import is_distributed, readable
from presum.torch_events.losses import Scalar

TENSORS = 4
VALUES = 64  # per tensor
SAME_DIRECTION = 1 - 5e-5  # the cosine that remains after rounding to 16 bits


class Tensors(Protocol):
    """A sequence of tensors, some of which can be missing. Each is looked up when it is
    requested."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> torch.Tensor | None: ...


class Parameters:
    """The parameters of a model."""

    def __init__(self, held: Sequence[weakref.ref[nn.Parameter]]) -> None:
        self._held = held

    def __len__(self) -> int:
        return len(self._held)

    def __getitem__(self, place: int) -> torch.Tensor | None:
        return self._held[place]()


class LocalParameters(Parameters):
    """The parameters of a model; of a sharded model this rank's parts."""

    def __getitem__(self, place: int) -> torch.Tensor | None:
        parameter = super().__getitem__(place)
        tensor = None if parameter is None else self.of(parameter)
        local = None if tensor is None else readable(tensor.detach())
        return None if local is None or local.numel() == 0 else local

    def of(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """What is wanted of a parameter."""
        return parameter


class Gradients(Parameters):
    """The ``.grad`` of each of a model's parameters."""

    def __getitem__(self, place: int) -> torch.Tensor | None:
        parameter = self._held[place]()
        return None if parameter is None else parameter.grad


class ValueSample:
    """A sample of some tensors, spread over all of them, in their own memory. It never synchronizes
    with a device."""

    def __init__(self, places: Sequence[int], values: HostValues | torch.Tensor) -> None:
        self._places = places
        self._values = values

    @classmethod
    def of(cls, tensors: Tensors) -> ValueSample | None:
        """None if no tensor can be read."""
        chosen = list(_chosen(tensors))
        if not chosen:
            return None
        return cls([place for place, _ in chosen], _of_blocks([block for _, block in chosen]))

    def factor_to(self, tensors: Tensors) -> Scalar | None:
        """The factor by which the values have changed: 1 if every bit is unchanged, NaN if no
        single factor fits, 0 if there are no tensors now, None if it is unknown, as for non-finite
        values (1 on a device). A number for host memory, otherwise a float64 tensor with one
        element."""
        if max(self._places) >= len(tensors):
            return None
        before = self._values
        if all(tensors[place] is None for place in self._places):
            return 0.0 if isinstance(before, HostValues) else before.new_zeros(())
        now = _values(tensors, self._places)
        if isinstance(before, HostValues):
            return before.factor_to(now) if isinstance(now, HostValues) else None
        return tensor_factor(before, now) if isinstance(now, torch.Tensor) else None


def _chosen(tensors: Tensors) -> Iterator[tuple[int, torch.Tensor]]:
    """The first readable tensor of each of TENSORS equal parts."""
    parts = min(TENSORS, len(tensors))
    ends = [len(tensors) * (part + 1) // parts for part in range(parts)]
    for first, end in zip([0, *ends], ends, strict=False):
        blocks = ((place, _block(tensors[place])) for place in range(first, end))
        yield from islice(((at, block) for at, block in blocks if block is not None), 1)


def tensor_factor(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor | None:
    """The result of :meth:`HostValues.factor_to` for float64 tensors on one device, as a tensor
    there, with 1 in place of None. None if shapes or devices differ."""
    if now.shape != before.shape or now.device != before.device:
        return None
    own, product, other = before @ before, before @ now, now @ now
    straight = product >= SAME_DIRECTION * own.sqrt() * other.sqrt()
    factor = product / own
    factor = torch.where(factor == 1, math.nextafter(1, 2), factor)
    same = (before.view(torch.int64) == now.view(torch.int64)).all()
    unknown = ~torch.isfinite(own + other) | (own == 0)
    return torch.where(same | unknown, 1.0, torch.where(straight, factor, math.nan))


def _values(tensors: Tensors, places: Sequence[int]) -> HostValues | torch.Tensor | None:
    blocks = [block for place in places if (block := _block(tensors[place])) is not None]
    return _of_blocks(blocks) if len(blocks) == len(places) else None


def _block(tensor: torch.Tensor | None) -> torch.Tensor | None:
    block = None if tensor is None or is_distributed(tensor) else block_of(tensor)
    known = block is not None and (block.dtype in DTYPES or not block.is_cpu)
    return block if known else None


def _of_blocks(blocks: list[torch.Tensor]) -> HostValues | torch.Tensor:
    flat = [block.as_strided((block.numel(),), (1,)) for block in blocks]
    if all(block.is_cpu for block in blocks):
        return HostValues(flat, VALUES)
    parts = [one[:: max(1, len(one) // VALUES)][:VALUES].double() for one in flat]
    return torch.cat(parts)
