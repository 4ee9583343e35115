# SPDX-License-Identifier: Apache-2.0
"""The reproducible sum of a flat buffer over the ranks of a group, with collectives of any backend.

It takes two rounds. On Gloo and MPI the second round starts when the first has arrived; on NCCL
both are queued on the stream. docs/reduction.md counts steps and bytes.
"""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.futures import Future

from presum.devices.dtypes import NAMED
from presum.devices.queue import capturing
from presum.options import Reduction
from presum.parallel.collectives import all_gather, used_here
from presum.reduce import tensors

log = logging.getLogger("presum")
# What a rank's leaves are added on top of:
LOST = 1  # a sum whose own leaves are gone
MIXED = 2  # a sum of which some parameters were zeroed
TOOK_BACK = 4  # a sum whose leaves are contributed once more
DROPPED = 8  # nothing, but the rank has given up such leaves
SUM_OF_SUMS = (
    "gradients were reduced on top of reduced gradients that zero_grad() did not clear: their sum "
    "is rounded twice, and depends on how micro-batches are distributed (run passes before the "
    "last under no_sync(), with FSDP2 after set_requires_gradient_sync(False))"
)


class Participants(NamedTuple):
    """The ranks of a sum: their group, the number of leaves of each rank, and the divisor of the
    sum."""

    group: dist.ProcessGroup | None  # None: the default one
    counts: Sequence[int]
    divisor: int

    @property
    def leaves(self) -> int:
        """The number of leaves of all ranks together."""
        return sum(self.counts)


class Scratch:
    """Memory that the next step reuses: on the host, fresh pages cost as much time as a pass. For
    one flat buffer at a time."""

    def __init__(self) -> None:
        self._held: dict[str, torch.Tensor] = {}

    def take(self, name: str, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """Uninitialized memory with the device and dtype of ``like``. On devices it is allocated
        each time: there torch caches memory, and knows which stream still reads it."""
        if not like.is_cpu:
            return like.new_empty(shape)
        held = self._held.get(name)
        if held is None or held.shape != shape or held.dtype != like.dtype:
            held = self._held[name] = like.new_empty(shape)
        return held


class ExactSum:
    """The sum of one flat buffer over the ranks: each rank receives all ranks' leaves of one chunk,
    sums them, and distributes the sum.

    ``begin``, and ``proceed`` or ``scatter``, issue collectives, so all ranks must call them in the
    same order of buffers. ``out`` can be a leaf.
    """

    def __init__(
        self,
        participants: Participants,
        leaves: Sequence[torch.Tensor],
        share: Callable[[torch.Tensor], None] | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        """``share`` gets the dot products of all pairs of leaves in this rank's chunk, a float64
        tensor of shape [leaves, leaves]; at most 64 leaves."""
        self._participants = participants
        self._group: dist.ProcessGroup | None = participants.group
        self._scratch = scratch or Scratch()
        self._world = len(participants.counts)
        self._first: Any = None  # the first round
        self._leaves = leaves
        self._share = share
        self._width = -(-leaves[0].numel() // self._world)
        self._received = self._scratch.take("received", leaves[0], participants.leaves, self._width)
        self._sums = leaves[0].new_empty(0)

    def begin(self) -> None:
        """Start the first round."""
        self._sent = self._in_chunks()
        self._first = dist.all_to_all_single(
            self._received.view(-1),
            self._sent,
            [count * self._width for count in self._participants.counts],
            [len(self._leaves) * self._width] * self._world,
            group=self._group,
            async_op=True,
        )

    def _in_chunks(self) -> torch.Tensor:
        """The leaves as (chunk, leaf, element), padded with zeros. A single leaf that needs no
        padding is not copied."""
        room = self._width * self._world - self._leaves[0].numel()
        if len(self._leaves) == 1 and room == 0:
            return self._leaves[0]
        padded = self._leaves
        if room:
            padded = [torch.nn.functional.pad(leaf, (0, room)) for leaf in self._leaves]
        return torch.stack([leaf.view(self._world, -1) for leaf in padded], 1).view(-1)

    def _sum(self, out: torch.Tensor) -> None:
        self._first.wait()
        leaves, divisor = used_here(self._received).unbind(0), self._participants.divisor
        if self._share is None:
            tensors.exact(leaves, divisor, out)
            return
        gram = out.new_zeros(len(leaves), len(leaves), dtype=torch.float64)
        tensors.exact(leaves, divisor, out, gram)
        self._share(gram)

    def proceed(self, out: torch.Tensor) -> Future[Any]:
        """Wait for the first round and start the second. The future completes with the second
        round."""
        copies = self._world if out.is_cpu else 1  # see _gather
        parts = self._scratch.take("parts", out, copies, self._width)
        self._sum(parts[0])
        whole = self._width * self._world
        self._sums = out if out.numel() == whole else self._scratch.take("sums", out, whole)
        return self._gather(parts).get_future()  # type: ignore[no-any-return]

    def _gather(self, parts: torch.Tensor) -> Any:
        """Gather every rank's first part. Gloo's all-gather passes the parts around a ring one
        after another; its all-to-all sends them at once."""
        group = self._group
        if not parts.is_cpu:
            return all_gather(self._sums, parts[0], group=group, async_op=True)
        parts[1:] = parts[0]
        return dist.all_to_all_single(self._sums, parts.view(-1), group=group, async_op=True)

    def complete(self, out: torch.Tensor) -> None:
        """After the second round: put the sum into ``out``, on every rank."""
        if self._sums is not out:
            out.copy_(used_here(self._sums)[: out.numel()])

    def scatter(self, out: torch.Tensor) -> None:
        """Instead of ``proceed`` and ``complete``: compute this rank's part, if each rank needs one
        part of the buffer. Waits."""
        self._sum(out)

    def release_group(self) -> None:
        """Drop the reference to the group after the last collective is issued. The group's own
        thread completes this object, and must not hold the last reference."""
        self._group = self._first = None
        self._participants = self._participants._replace(group=None)


def hand_over(reduction: ExactSum, buffer: torch.Tensor, future: Future[torch.Tensor]) -> None:
    """Proceed. ``future`` completes with ``buffer`` once the sum is in it, or with the error."""

    second = reduction.proceed(buffer)
    reduction.release_group()

    def complete(second: Future[Any]) -> None:
        try:
            second.value()
            reduction.complete(buffer)
            future.set_result(buffer)
        except Exception as error:
            future.set_exception(error)  # type: ignore[arg-type]

    second.add_done_callback(complete)


def divisor_of(reduction: Reduction, workers: int, leaves: int) -> int:
    """The divisor of the sum of ``leaves`` leaves of ``workers`` ranks."""
    return leaves if reduction.microbatch_mean else workers


def check_dtypes(dtypes: Collection[torch.dtype]) -> None:
    """Raises ValueError if gradients of these dtypes cannot be summed."""
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        if name not in NAMED:
            raise ValueError(f"presum.attach: reduction cannot sum {name}")


class Contribution(NamedTuple):
    """What a rank contributes to a sum."""

    leaves: int
    counted: int  # leaves that count in the divisor, if it is their number
    flags: int
    microbatch_mean: int  # must be the same on all ranks


def agree(group: dist.ProcessGroup, own: Contribution, device: torch.device) -> list[Contribution]:
    """Exchange the contributions of all ranks. Waits.

    Raises:
        RuntimeError: on every rank, if ranks differ in ``microbatch_mean``, or on a rank that is
            capturing a CUDA graph.
    """
    if capturing(device):
        raise RuntimeError(
            "presum: a pass that presum reduces cannot be captured into a CUDA graph, because "
            "ranks exchange their numbers of leaves"
        )
    mine = torch.tensor(own, dtype=torch.int64, device=device)
    found = mine.new_empty(dist.get_world_size(group) * len(own))
    all_gather(found, mine, group=group)
    contributions = [Contribution(*row) for row in found.view(-1, len(own)).tolist()]
    if any(one.microbatch_mean != own.microbatch_mean for one in contributions):
        raise RuntimeError("presum: ranks were attached with different microbatch_mean")
    return contributions


class SumsOfSums:
    """Checks for leaves that are added on top of a sum, and warns once."""

    def __init__(self, reduction: Reduction) -> None:
        self._reduction = reduction
        self._said = False

    def check(self, contributions: Sequence[Contribution]) -> None:
        """Raises RuntimeError, on every rank, if the result would be wrong."""
        flags = functools.reduce(operator.or_, (one.flags for one in contributions))
        if flags & TOOK_BACK and flags & DROPPED:
            raise RuntimeError(
                "presum: under join() a rank without input has given up leaves that other ranks "
                "sum again: call zero_grad() after each reduction, or accumulate under no_sync()"
            )
        if flags & LOST and self._reduction.microbatch_mean:
            raise RuntimeError(
                f"presum: {SUM_OF_SUMS}; with microbatch_mean there is no correct divisor"
            )
        if flags & (LOST | MIXED) and not self._said:
            self._said = True
            log.warning("presum: %s", SUM_OF_SUMS)
