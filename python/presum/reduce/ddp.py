# SPDX-License-Identifier: Apache-2.0
"""A reproducible reduction in place of DistributedDataParallel's own: in its communication hook.

The hook gets a backward pass's gradients bucket by bucket, in one order on all workers. While a
bucket's first round is under way the second of the one before starts; autograd's thread waits for
first rounds only. Gradients of passes under ``no_sync()`` are leaves of their own: they are moved
out of ``.grad`` as they come.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from presum.auditing import Audits, flat_value
from presum.collector import Setup
from presum.ddp import DdpCollector, Passes
from presum.ddp_hook import COMM_HOOKS, HookState
from presum.reduce.leaves import Folded, Kept, Slice
from presum.reduce.plan import Plan
from presum.reduce.transports import (
    Bring,
    Exact,
    Fixed,
    FoldedSum,
    Reduction,
    Scratch,
    Terms,
    agree,
    hand_over,
)
from presum.taps import TAPS, Replacement

GRAM_WORKERS_MAX = 64
log = logging.getLogger("presum")


class DdpReducingCollector(DdpCollector):
    """As :class:`DdpCollector`, for a model whose gradients presum sums."""

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan,
        setup: Setup,
        audits: Audits | None = None,
    ) -> None:
        super().__init__(model, setup)
        self._plan = plan
        self._audits = audits
        self._state: ReducingState | None = None
        self._shares: list[torch.Tensor] = []
        self._had_leaves: list[int] = []

    def _hook_gradients(self) -> None:
        super()._hook_gradients()
        if self._state is None:
            state = ReducingState(self._model, self._parameters, self._plan, weakref.ref(self))
            self._state, state.audits = state, self._audits
            COMM_HOOKS.install(self._model, self._state)

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """This worker's own gradient is the sum of its leaves."""
        if not reduced and grad is not None and self._state is not None:
            grad = self._state.whole(index, grad)
        super().read(index, grad, reduced=reduced)

    def _read_left_out(self) -> None:
        """Leaves of parameters that the last micro-batch did not use are on their way by now."""
        self._skipped += sum(not self._seen[place] for place in self._had_leaves)

    def measures(self) -> bool:
        """Whether the bucket under way belongs to a step that is recorded."""
        return self.collecting and not self.off

    def add_share(self, gram: torch.Tensor) -> None:
        """A bucket's share of the Gram matrix."""
        upper = torch.triu_indices(*gram.shape, device=gram.device)
        self._shares.append(gram[upper[0], upper[1]])

    def _begin_step(self) -> None:
        super()._begin_step()
        self._shares = []
        assert self._state is not None
        self._had_leaves = self._state.leaves.places()

    def _take_gram(self) -> torch.Tensor | None:
        shares, self._shares = self._shares, []
        return torch.stack(shares).sum(0) if shares else None


class Way(NamedTuple):
    """A bucket that was handed to us and is not summed yet."""

    reduction: Reduction
    buffer: torch.Tensor
    future: Future[torch.Tensor]


class ReducingState(HookState):
    """What DDP holds of ours for as long as the model lives.

    What goes wrong here raises, and so ends the training: a sum that was asked to be reproducible
    is not replaced by one that is not.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Sequence[nn.Parameter],
        plan: Plan,
        collector: Callable[[], DdpReducingCollector | None],
    ) -> None:
        super().__init__(model.process_group, None, collector)
        self.leaves: Kept | Folded = Folded() if plan.method == "binned" else Kept()
        self._plan = plan
        self._places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._passes = Passes(weakref.proxy(model))  # type: ignore[arg-type]
        self._due = True  # whether the backward pass under way reduces
        self._pass = self._reduced_pass = TAPS.backward_passes  # its number
        self._counts: list[int] = []
        self._divisor = 1
        self._waiting: Way | None = None
        self._reduced = False  # and not zeroed since
        self._adds_up = False  # a forward pass has begun on top of it
        self._scratch: dict[int, Scratch] = {}  # by bucket
        TAPS.add()  # for good
        ZEROED.watch(self)
        self._parameters = list(parameters)
        model.register_forward_hook(_Tap(lambda *_: self._after_forward()))
        for place, parameter in enumerate(parameters):
            tap = _Tap(lambda p, place=place: self._accumulated(place, p))
            parameter.register_post_accumulate_grad_hook(tap)  # type: ignore[no-untyped-call]

    def takes_another(self) -> bool:
        return False

    def _after_forward(self) -> None:
        self._passes.after_forward()
        if self._reduced and torch.is_grad_enabled():
            self._adds_up = any(parameter.grad is not None for parameter in self._parameters)

    def zeroed(self) -> None:
        """What was reduced is gone."""
        self._reduced = self._adds_up = False

    def _look_for_sums_of_sums(self) -> None:
        if self._adds_up:
            log.warning(
                "presum: gradients were reduced again on top of reduced ones (no_sync() left out, "
                "or a pass that DDP reduced early): their sum is not the one of all leaves"
            )

    def _accumulated(self, place: int, parameter: nn.Parameter) -> None:
        self._enter()
        if self._due or parameter.grad is None:
            return
        self.leaves.add(place, _flat(parameter.grad.clone()))
        parameter.grad.zero_()  # not None: DDP would take the parameter for unused

    def _enter(self) -> None:
        """Into a backward pass, if it is a new one."""
        if self._pass != TAPS.backward_passes:
            self._pass = TAPS.backward_passes
            self.leaves.passes += not self._due
            self._due = self._passes.begin()

    def forget(self, parameters: Collection[int]) -> None:
        """The leaves of parameters, given by their ``id``."""
        ours = self._places.keys() & parameters
        for one in ours:
            self.leaves.discard(self._places[one])
        if ours:
            self.zeroed()
        if not self.leaves.places():
            self.leaves.clear()
            self._due = True

    def whole(self, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """The sum of this worker's leaves, of which ``gradient`` is the last; with
        ``microbatch_mean`` their mean."""
        self._enter()
        passes = self.leaves.passes + 1
        if passes == 1:
            return gradient
        divisor = self._plan.divisor(1, passes)
        whole = self.leaves.with_last(place, _flat(gradient), divisor)
        return torch.empty_like(gradient).copy_(whole.view(gradient.shape))

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.is_sparse:
            raise RuntimeError("presum: a sparse gradient cannot be summed reproducibly")
        if bucket.index() == 0:
            self._begin(buffer.device)
        audits = self._audit_is_due(bucket) and max(self._counts) == 1
        local = buffer.clone() if audits else buffer
        future = self._started(self._reduction(bucket), buffer)
        if audits:
            future = self._followed(local, future)
        if bucket.is_last():
            self._proceed()
            self.leaves.clear()
            self.passes += 1
            self._reduced, self._adds_up = True, False
        return future.then(flat_value)  # as it is, an error would reach DDP as a value

    def _followed(self, local: torch.Tensor, reduced: Future[torch.Tensor]) -> Future[torch.Tensor]:
        assert self.audits is not None
        return self.audits.follow(self.audits.gather(local), reduced, None, self.tell)

    def _started(self, reduction: Reduction, buffer: torch.Tensor) -> Future[torch.Tensor]:
        way = Way(reduction, buffer, _future(buffer))
        reduction.begin()
        self._proceed()
        self._waiting = way
        return way.future

    def _begin(self, device: torch.device) -> None:
        self._enter()
        fresh = self._pass != self._reduced_pass
        if fresh and not self._due:
            raise RuntimeError(
                "presum: DDP reduces in a pass under no_sync(), as it does in the first one with "
                "static_graph=True: let the first pass be one that synchronises"
            )
        self._waiting = None
        self._look_for_sums_of_sums()
        assert self.group is not None
        # Under join(), a worker without input takes part with a leaf of zeros that does not count.
        bring = Bring(self.leaves.passes + 1, self.leaves.passes + fresh, self._plan.code)
        brought = agree(self.group, bring, device)
        self._counts = [one.leaves for one in brought]
        self._reduced_pass = self._pass
        self._divisor = self._plan.divisor(len(brought), sum(one.counted for one in brought))

    def _proceed(self) -> None:
        way, self._waiting = self._waiting, None
        if way is None:
            return
        hand_over(way.reduction, way.buffer, way.future)

    def _reduction(self, bucket: GradBucket) -> Reduction:
        assert self.group is not None
        terms = Terms(self.group, self._counts, self._divisor)
        mine = self.leaves.take(self._layout(bucket), bucket.buffer())
        if not isinstance(mine, list):
            return FoldedSum(terms, mine)
        scratch = self._scratch.setdefault(bucket.index(), Scratch())
        if self._plan.method == "exact":
            return Exact(terms, mine, self._wants_gram(terms.leaves), scratch)
        return Fixed(terms, mine, int(self._plan.method.removeprefix("fixed")), scratch)

    def _layout(self, bucket: GradBucket) -> list[Slice]:
        start = int(bucket.buffer().storage_offset())
        return [
            Slice(self._place(p), int(view.storage_offset()) - start, view.shape, view.stride())
            for p, view in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]

    def _place(self, parameter: torch.Tensor) -> int:
        """One that was frozen before attach has none yet, and stays in DDP's buckets."""
        return self._places.setdefault(id(parameter), len(self._places))

    def _wants_gram(self, leaves: int) -> Callable[[torch.Tensor], None] | None:
        collector: DdpReducingCollector | None = self._collector()
        one_each = leaves == len(self._counts) <= GRAM_WORKERS_MAX
        if collector is None or not one_each or not collector.measures():
            return None
        return collector.add_share


class Zeroed:
    """Has leaves forgotten where ``zero_grad`` is called before they were reduced."""

    def __init__(self) -> None:
        self._states: weakref.WeakSet[ReducingState] = weakref.WeakSet()
        self._replacements = [
            Replacement(Optimizer, "zero_grad", self._optimizer),
            Replacement(nn.Module, "zero_grad", self._module),
        ]

    def watch(self, state: ReducingState) -> None:
        """For as long as it lives."""
        self._states.add(state)
        for replacement in self._replacements:
            replacement.apply()

    def _optimizer(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self._forget(p for group in optimizer.param_groups for p in group["params"])
        original(optimizer, *args, **kwargs)

    def _module(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        self._forget(module.parameters())
        original(module, *args, **kwargs)

    def _forget(self, parameters: Iterable[nn.Parameter]) -> None:
        zeroed = {id(parameter) for parameter in parameters}
        for state in self._states:
            state.forget(zeroed)


ZEROED = Zeroed()


class _Tap:
    """A function that torch calls for as long as the model lives; copies and pickles as nothing."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return (getattr, (contextlib.nullcontext(), "__exit__"))


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.detach().contiguous().view(-1)


def _future(buffer: torch.Tensor) -> Future[torch.Tensor]:
    return Future() if buffer.is_cpu else Future(devices=[buffer.device])
