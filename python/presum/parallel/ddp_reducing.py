# SPDX-License-Identifier: Apache-2.0
"""A reproducible reduction that replaces DistributedDataParallel's own, in its communication hook.

The hook gets the gradients of a backward pass bucket by bucket, in the same order on all ranks.
During the first round of a bucket, the second round of the previous bucket starts; autograd's
thread waits only for first rounds. Gradients of passes under ``no_sync()`` are separate leaves:
they are moved out of ``.grad`` as they arrive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from presum.options import Reduction
from presum.parallel.auditing import Audits, flat_value
from presum.parallel.ddp import DdpSource
from presum.parallel.ddp_hook import COMM_HOOKS, HookState
from presum.parallel.ddp_leaves import DdpLeaves
from presum.parallel.reductions import (
    ExactSum,
    Participants,
    Scratch,
    SumsOfSums,
    agree,
    divisor_of,
    hand_over,
)
from presum.reduce.limits import GRAM_LEAVES_MAX
from presum.steps.gradient_source import in_backward
from presum.torch_events.losses import Scalar


class DdpReducingSource(DdpSource):
    """A :class:`DdpSource` for a model whose gradients presum sums."""

    def __init__(
        self,
        model: DistributedDataParallel,
        reduction: Reduction,
        audits: Audits | None = None,
    ) -> None:
        super().__init__(model)
        self._reduction = reduction
        self._audits = audits
        self._state: Callable[[], ReducingState | None] = lambda: None  # the model holds it
        self._had_leaves: list[int] = []
        self._shares: list[torch.Tensor] = []  # parts of the Gram matrix, one per bucket

    def hook(self) -> list[Any]:
        if self._state() is None:
            parameters = [parameter for _, parameter in self.recorder.setup.alive()]
            state = ReducingState(self.model(), parameters, self._reduction, weakref.ref(self))
            self._state, state.audits = weakref.ref(state), self._audits
            COMM_HOOKS.install(self.model(), state)
        return super().hook()

    def own(self, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """The sum of this rank's leaves."""
        state = self._state()
        return gradient if state is None else state.leaves.whole(place, gradient)

    reads_in_place = False
    reads_grad = False  # leaves are separate from the contents of ``.grad``

    def held(self) -> Scalar:
        """Also counts leaves that wait outside ``.grad``."""
        state = self._state()
        if state is not None and state.leaves.unreduced:
            waiting = (self.recorder.setup.parameters[place]() for place in state.leaves.places())
            if any(p is not None and p.grad is not None for p in waiting):
                return 1.0
        return super().held()

    def listen_to_arrivals(self) -> None:
        """Not needed."""

    def _read_left_out(self) -> None:
        """The leaves of parameters that the last micro-batch did not use are already in transit."""
        observer = self.recorder.observer
        observer.skip(sum(not observer.seen(place) for place in self._had_leaves))

    def measures(self) -> bool:
        """Whether the current bucket belongs to a recorded step."""
        recorder = self.recorder
        return recorder.in_backward and recorder.observer.records and not recorder.off

    def add_gram(self, gram: torch.Tensor) -> None:
        """Add a bucket's part of the Gram matrix. Called by several threads."""
        upper = torch.triu_indices(*gram.shape, device=gram.device)
        self._shares.append(gram[upper[0], upper[1]])

    def take_gram(self) -> torch.Tensor | None:
        shares, self._shares = self._shares, []
        return torch.stack(shares).sum(0) if shares else None

    def begin_reading(self) -> None:
        super().begin_reading()
        self._shares = []
        state = self._state()
        assert state is not None
        self._had_leaves = state.leaves.places()


class ReducingState(HookState):
    """What DDP holds of presum for as long as the model lives.

    Errors raise and so end the training: a reduction that was requested to be reproducible is never
    replaced by one that is not.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Sequence[nn.Parameter],
        reduction: Reduction,
        source: Callable[[], DdpReducingSource | None],
    ) -> None:
        super().__init__(model.process_group, source)
        self.leaves = DdpLeaves(model, parameters, reduction)
        self._reduction = reduction
        self._counts: list[int] = []
        self._divisor = 1
        self._pending: Callable[[], None] | None = None  # sums the previous bucket
        self._sums_of_sums = SumsOfSums(reduction)
        self._scratch: dict[int, Scratch] = {}  # by bucket

    def takes_another(self) -> bool:
        return False

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        if in_backward():
            self.leaves.enter()
        buffer = bucket.buffer()
        if buffer.is_sparse:
            raise RuntimeError("presum: a sparse gradient cannot be summed reproducibly")
        if bucket.index() == 0:
            self._begin(buffer.device)
        audits = self._audit_is_due(bucket) and max(self._counts) == 1
        local = buffer.clone() if audits else buffer
        future = self._started(self._sum(bucket), buffer)
        if audits:
            future = self._followed(local, future)
        if bucket.is_last():
            self._proceed()
            self.leaves.reduced()
            self.passes += 1
        return future.then(flat_value)  # without ``then``, an error would reach DDP as a value

    def _followed(self, local: torch.Tensor, reduced: Future[torch.Tensor]) -> Future[torch.Tensor]:
        assert self.audits is not None
        gathering = self.audits.gather(local, self.group, self._divisor)
        return self.audits.follow(gathering, reduced, None, self.tell)

    def _started(self, exact: ExactSum, buffer: torch.Tensor) -> Future[torch.Tensor]:
        future = _future(buffer)
        exact.begin()
        self._proceed()
        self._pending = partial(hand_over, exact, buffer, future)
        return future

    def _begin(self, device: torch.device) -> None:
        self._pending = None
        assert self.group is not None
        contributions = agree(self.group, self.leaves.contribution(), device)
        self._sums_of_sums.check(contributions)
        self._counts = [one.leaves for one in contributions]
        self._divisor = divisor_of(
            self._reduction, len(contributions), sum(one.counted for one in contributions)
        )

    def _proceed(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    def _sum(self, bucket: GradBucket) -> ExactSum:
        assert self.group is not None
        participants = Participants(self.group, self._counts, self._divisor)
        mine = self.leaves.take(bucket.parameters(), bucket.gradients(), bucket.buffer())
        scratch = self._scratch.setdefault(bucket.index(), Scratch())
        return ExactSum(participants, mine, self._wants_gram(participants.leaves), scratch)

    def _wants_gram(self, leaves: int) -> Callable[[torch.Tensor], None] | None:
        source: DdpReducingSource | None = self._source()
        one_each = leaves == len(self._counts) <= GRAM_LEAVES_MAX
        if source is None or not one_each or not source.measures():
            return None
        return source.add_gram


def _future(buffer: torch.Tensor) -> Future[torch.Tensor]:
    return Future() if buffer.is_cpu else Future(devices=[buffer.device])
