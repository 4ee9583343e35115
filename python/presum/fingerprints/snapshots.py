# SPDX-License-Identifier: Apache-2.0
"""Snapshots of the training's state: before its first forward pass, when the program reads its
optimizer's state, as for a checkpoint, and at the end. A continued run is compared with them."""

from __future__ import annotations

import contextlib
import itertools
import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from presum._core import Observer, SnapshotKind
from presum._core import Snapshots as SnapshotsPacket
from presum.devices.blocks import DTYPES, dense, memory_of
from presum.devices.readable import is_distributed, own_part, readable
from presum.devices.torch_pass import fingerprint
from presum.fingerprints.families import WORD
from presum.fingerprints.loaders import LOADER_EVENTS
from presum.fingerprints.rng import RngStates
from presum.fingerprints.states import elements, shard_of, shards_state, states_of

AT_LOADER = 1 << 16  # added to a kind: when the first loader began
LOOKED_AT = 8  # parameters of an optimizer, for its step count
SPACING = 10  # optimizer steps per snapshot that is kept,
AT_ONCE = 4  # of which this many may come together

# Optimizers of torch that count their steps.
COUNTING = frozenset(
    ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "Adagrad", "RMSprop", "ASGD", "Rprop")
)


class Snapshots:
    """The snapshots of one model. They synchronize with its device, as a checkpoint does."""

    def __init__(
        self,
        observer: Observer,
        parameters: Sequence[weakref.ref[nn.Parameter]],
        optimizers: Sequence[weakref.ref[Optimizer]],
        device: torch.device,
        *,
        tells_whole: bool,
    ) -> None:
        """``tells_whole``: this rank reports what is not sharded, since all ranks have the same."""
        self._told = SnapshotsPacket(observer)
        self._parameters = parameters
        self._optimizers = optimizers
        self._generators = RngStates(device)
        self._tells_whole = tells_whole
        self._at_loader: list[tuple[int, int | torch.Tensor]] = []
        self._asked_at = -1
        self._askers: set[int] = set()  # optimizers whose state was read then
        self._next = 0
        self._begun = False
        LOADER_EVENTS.at_next_beginning(self._loader_begins)

    def _loader_begins(self) -> None:
        """A loader draws from the generators before the first forward pass."""
        with contextlib.suppress(Exception):  # ``begins`` reports an error
            self._at_loader = [(AT_LOADER + kind, value) for kind, value in self._generators()]

    def begins(self) -> bytes | None:
        """The packet of the first call; later calls return None."""
        if self._begun:
            return None
        self._begun = True
        return self._take(SnapshotKind.BEGUN)

    def saved(self, steps: int, optimizer: Optimizer) -> bytes | None:
        """The optimizer's state is read after this many steps. None after several snapshots in a
        few steps, since a program may read its state at each step, and for the other optimizers of
        one checkpoint."""
        others = self._askers if steps == self._asked_at else set()
        if others and id(optimizer) not in others:
            others.add(id(optimizer))
            return None
        self._asked_at, self._askers = steps, {id(optimizer)}
        if steps < self._next - (AT_ONCE - 1) * SPACING:
            return None
        self._next = max(self._next, steps) + SPACING
        return self._take(SnapshotKind.SAVED)

    def left(self) -> bytes:
        """A snapshot at the end of the recording. What the program saves afterwards is not seen."""
        return self._take(SnapshotKind.LEFT)

    def _take(self, kind: SnapshotKind) -> bytes:
        alive = [o for held in self._optimizers if (o := held()) is not None]
        self._told.begin(kind, steps_of(alive), _rate_of(alive))
        at_loader = self._at_loader if kind is SnapshotKind.BEGUN else []
        for generator, value in [*self._generators(), *at_loader]:
            self._told.generator(generator, int(value))
        stateful = [optimizer for optimizer in alive if not shards_state(optimizer)]
        for index, held in enumerate(self._parameters):
            parameter = held()
            if parameter is None or not (self._tells_whole or is_distributed(parameter)):
                continue
            self._tell(index, parameter)
            for state in states_of(parameter, stateful):
                block = None if shard_of(state) is None else elements(own_part(state))
                if block is not None:
                    self._tell_state(index, block)
        return self._told.packet()

    def _tell_state(self, index: int, block: torch.Tensor) -> None:
        if block.is_cpu:
            self._told.state_at(index, *memory_of(block), block.element_size())
        else:
            self._told.state(index, int(fingerprint(block)) & WORD)

    def _tell(self, index: int, parameter: torch.Tensor) -> None:
        shard = shard_of(parameter)
        plain = readable(own_part(parameter).detach())
        if shard is None or plain is None:
            return
        block = dense(plain)
        dtype = DTYPES.get(block.dtype)
        if dtype is None or not block.is_cpu:
            told = elements(block)
            if told is not None:
                squares = float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
                value = int(fingerprint(told)) & WORD
                formats = 0 if dtype is None else 1 << dtype.value
                self._told.sums(index, value, squares, block.numel(), formats, shard)
            return
        first = _first_of(parameter)
        in_order = first is not None and block.is_contiguous()
        self._told.parameter(index, *memory_of(block), dtype, first or 0, shard, in_order)


def _first_of(parameter: Any) -> int | None:
    """The place of this rank's first element; None if its elements are not contiguous."""
    if not is_distributed(parameter):
        return 0
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    cut = [p for p in parameter.placements if not p.is_replicate()]
    if any(type(p) is not Shard or p.dim != 0 for p in cut):
        return None
    shape, mesh = parameter.shape, parameter.device_mesh
    _, offset = compute_local_shape_and_global_offset(shape, mesh, parameter.placements)
    row = math.prod(shape[1:])
    return int(offset[0]) * row if offset else 0


def steps_of(optimizers: Sequence[Optimizer]) -> float:
    """The largest step count in the optimizers' state; 0 before the first step, NaN if none
    counts."""
    counts = [count for optimizer in optimizers for count in _counted(optimizer)]
    return max(counts, default=math.nan)


def _counted(optimizer: Optimizer) -> Iterator[float]:
    if not optimizer.state and type(optimizer).__name__ in COUNTING:
        yield 0.0
    for state in itertools.islice(optimizer.state.values(), LOOKED_AT):
        step = state.get("step") if isinstance(state, dict) else None
        if isinstance(step, (int, float)) or (isinstance(step, torch.Tensor) and step.numel() == 1):
            yield float(step)


def _rate_of(optimizers: Sequence[Optimizer]) -> float:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, (int, float, torch.Tensor)):
                return float(rate)
    return math.nan
