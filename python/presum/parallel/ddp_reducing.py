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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from presum.parallel.auditing import Audits, flat_value
from presum.parallel.ddp import DdpCollector, Passes
from presum.parallel.ddp_hook import COMM_HOOKS, HookState
from presum.parallel.leaves import NO_PLACE, Folded, Kept, Slice
from presum.parallel.plan import Plan
from presum.parallel.reductions import (
    DROPPED,
    LOST,
    MIXED,
    TOOK_BACK,
    Bring,
    Exact,
    Fixed,
    FoldedSum,
    Reduction,
    Scratch,
    Terms,
    agree,
    hand_over,
    look_for_sums_of_sums,
)
from presum.reduce.tensors import Binned
from presum.steps.collector import Setup, in_backward
from presum.torch_events.taps import TAPS, Tapped

GRAM_WORKERS_MAX = 64
Mark = tuple[int, int]
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
        self._state: Callable[[], ReducingState | None] = lambda: None  # the model holds it
        self._shares: list[torch.Tensor] = []
        self._had_leaves: list[int] = []

    def _hook_gradients(self) -> None:
        super()._hook_gradients()
        if self._state() is None:
            parameters = [parameter for _, parameter in self._alive()]
            state = ReducingState(self._model(), parameters, self._plan, weakref.ref(self))
            self._state, state.audits = weakref.ref(state), self._audits
            COMM_HOOKS.install(self._model(), state)

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None:
        """This worker's own gradient is the sum of its leaves."""
        state = self._state()
        if not reduced and grad is not None and state is not None:
            grad = state.whole(index, grad)
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
        state = self._state()
        assert state is not None
        self._had_leaves = state.leaves.places()

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
        self._passes = Passes(model)
        self._due = True  # whether the backward pass under way reduces
        self._pass = TAPS.backward_passes  # its number
        self._counts: list[int] = []
        self._divisor = 1
        self._waiting: Way | None = None
        self._sums: dict[int, Mark | None] = {}  # places whose .grad holds a sum not zeroed since
        self._whole = True  # none of that sum's other places were zeroed
        self._described = False  # its leaves are retained
        self._take_back: set[int] = set()  # of it, what the pass under way did not reach yet
        self._stash: dict[int, torch.Tensor] = {}  # and what it did, until the pass has reduced
        self._retains = True  # leaves of what is reduced, in case that another pass adds to it
        self._retained = False  # leaves of the pass under way
        self._adds_up = False  # a pass has added to what was reduced
        self._flags = 0  # of the pass under way
        self._tainted = 0  # the flags of leaves since the last reduction
        self._unreduced = False  # leaves wait
        self._reduced_in = -1  # the last pass that was reduced
        self._said = False
        self._unreached: list[tuple[nn.Parameter, torch.Tensor]] = []  # and where their sums come
        self._scratch: dict[int, Scratch] = {}  # by bucket
        self._parameters = list(parameters)
        TAPS.add()  # for good
        OPTIMIZERS.watch(self)
        model.register_forward_hook(_Tap(lambda *_: self._passes.after_forward()))
        for place, parameter in enumerate(parameters):
            self._hook(place, parameter)

    def _hook(self, place: int, parameter: nn.Parameter) -> None:
        ours = weakref.ref(self)

        def arrives(*_: object) -> None:
            state = ours()
            if state is not None:
                state._arrives(place)

        # DDP keeps this node. A hook of the tensor would be called by autograd.grad too.
        get_gradient_edge(parameter).node.register_prehook(arrives)

        def arrived(owner: torch.Tensor) -> None:  # a parameter that holds itself is never freed
            state = ours()
            if state is not None:
                state._accumulated(place, owner)

        tap = _Tap(arrived)
        parameter.register_post_accumulate_grad_hook(tap)  # type: ignore[no-untyped-call]

    def takes_another(self) -> bool:
        return False

    # ---- a pass

    def _enter(self) -> None:
        """Into a backward pass, if it is a new one."""
        if self._pass == TAPS.backward_passes:
            return
        if self._stash:
            self._settle()  # the pass before ended in an exception
        self.leaves.passes += not self._due
        self._look()
        self._due = self._passes.begin()
        self._retained = self._retains or self._passes.more_follow()
        self._pass = TAPS.backward_passes

    def _look(self) -> None:
        """At what is in ``.grad`` before this pass adds to it."""
        self._flags = 0
        self._forget({at for at in self._held() if self._parameters[at].grad is None})
        changed = [at for at, mark in self._sums.items() if mark != _mark(self._grad(at))]
        left = [self._grad(at).any() for at in changed]
        nonzero = torch.stack(left).tolist() if left else []
        self._forget({at for at, there in zip(changed, nonzero, strict=True) if not there})
        if not self._sums:
            return
        if not self._whole:  # optimizers that zero their parameters at times of their own
            self._flags = MIXED
            self._retains = self._adds_up
        else:
            self._retains = self._adds_up = True
            self._flags = TOOK_BACK if self._described and not any(nonzero) else LOST
        if self._flags == TOOK_BACK:
            self._tainted |= TOOK_BACK
            self._take_back = set(self._sums)
            _after_ddp(self._settle)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """What is in ``.grad`` is not the sum of leaves any more."""
        self._described = False
        for place in self._sums:
            self.leaves.discard(place)
        if not self.leaves.places():
            self.leaves.clear()

    def _held(self) -> set[int]:
        return self._sums.keys() | set(self.leaves.places())

    def _grad(self, place: int) -> torch.Tensor:
        gradient = self._parameters[place].grad
        assert gradient is not None
        return gradient

    def _arrives(self, place: int) -> None:
        """A gradient is about to be added to ``.grad``; what is there has its leaves kept."""
        self._enter()
        if place not in self._take_back:
            return
        gradient = self._grad(place)
        self._stash[place] = gradient.clone()
        gradient.zero_()
        self._take_back.discard(place)
        del self._sums[place]

    def _settle(self) -> None:
        """The pass is over. Where DDP did not take part in it (a penalty on parameters, a graph
        that is used again), the sum is still wanted."""
        stash, self._stash = self._stash, {}
        self._take_back.clear()
        if self._reduced_in == self._pass:
            return
        if not self._due:  # in one bucket all views have one version
            self._sums = {place: _mark(self._grad(place)) for place in self._sums}
            return
        with torch.no_grad():
            for place, total in stash.items():
                self._grad(place).add_(total)
                self._sums[place] = None
        self._give_up()

    def _accumulated(self, place: int, parameter: torch.Tensor) -> None:
        if self._due or parameter.grad is None:
            return
        if place in self._sums:
            self._tainted |= self._flags
            del self._sums[place]
        self.leaves.add(place, _flat(parameter.grad.clone()))
        self._unreduced = True
        parameter.grad.zero_()  # not None: DDP would take the parameter for unused

    def forget(self, parameters: Collection[int]) -> None:
        """The leaves of parameters, given by their ``id``: they were zeroed."""
        self._forget({self._places[one] for one in self._places.keys() & parameters})

    def _forget(self, places: set[int]) -> None:
        gone = places & self._held()
        had_sums = bool(self._sums)
        if gone & self._sums.keys():
            self._whole = self._sums.keys() <= gone
        for place in gone:
            self.leaves.discard(place)
            self._sums.pop(place, None)
        if not gone:
            return
        if not self._held():
            self.leaves.clear()
            self._tainted, self._unreduced, self._due = 0, False, True
            if had_sums:
                self._retains = self._adds_up

    def check_step(self, parameters: Iterable[nn.Parameter]) -> None:
        """An optimizer has made a step with these."""
        if not self._unreduced:
            return
        waiting = set(self.leaves.places())
        if any(self._places.get(id(one)) in waiting for one in parameters):
            raise RuntimeError(
                "presum: the optimizer made a step while micro-batches of passes under no_sync() "
                "were not reduced yet: let the last backward pass before a step be outside of it"
            )

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

    # ---- its reduction

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        if in_backward():
            self._enter()
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
            self._end()
        return future.then(flat_value)  # as it is, an error would reach DDP as a value

    def _end(self) -> None:
        self._proceed()
        self._reduced_in = self._pass
        self._sums = dict.fromkeys(range(len(self._parameters)))
        self._whole, self._described = True, self._retained
        self._tainted, self._unreduced = 0, False
        if self._retained:
            self.leaves.passes += 1
        else:
            self.leaves.clear()
        self.passes += 1
        if in_backward():
            _after_ddp(self._finish)

    def _finish(self) -> None:
        """DDP has put the sums in place, but for what no worker used in its last pass: there too
        the mean over leaves has changed."""
        unreached, self._unreached = self._unreached, []
        with torch.no_grad():
            for parameter, mean in unreached:
                if parameter.grad is not None:
                    parameter.grad.copy_(mean)
        self._sums.clear()
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                self.leaves.discard(place)  # zeros: nobody used it
            else:
                self._sums[place] = _mark(parameter.grad)

    def _followed(self, local: torch.Tensor, reduced: Future[torch.Tensor]) -> Future[torch.Tensor]:
        assert self.audits is not None
        gathering = self.audits.gather(local, self.group, self._divisor)
        return self.audits.follow(gathering, reduced, None, self.tell)

    def _started(self, reduction: Reduction, buffer: torch.Tensor) -> Future[torch.Tensor]:
        way = Way(reduction, buffer, _future(buffer))
        reduction.begin()
        self._proceed()
        self._waiting = way
        return way.future

    def _begin(self, device: torch.device) -> None:
        fresh = in_backward()
        dropped = not fresh and self._shadow()
        if not self._due:
            raise RuntimeError(
                "presum: with static_graph=True DDP fails where the first backward pass of all is "
                "under no_sync(), with presum or without: let that one synchronise"
            )
        self._waiting = None
        self._unreached = []
        assert self.group is not None
        # Under join(), a worker without input takes part with a leaf of zeros that does not count.
        passes, flags = self.leaves.passes, self._flags | self._tainted | DROPPED * dropped
        bring = Bring(passes + 1, passes + fresh, flags, self._plan.code)
        brought = agree(self.group, bring, device)
        self._say(look_for_sums_of_sums(brought, self._plan))
        self._counts = [one.leaves for one in brought]
        self._divisor = self._plan.divisor(len(brought), sum(one.counted for one in brought))

    def _say(self, text: str | None) -> None:
        if text is not None and not self._said:
            self._said = True
            log.warning("presum: %s", text)

    def _shadow(self) -> bool:
        """The others reduce, this worker has no input left, but perhaps leaves that wait. Whether
        leaves of a sum were given up that others may take back."""
        dropped = not self._unreduced and self.leaves.passes > 0
        if self._unreduced:
            self.leaves.passes += not self._due
        else:
            self.leaves.clear()
        self._due, self._retained, self._flags = True, False, 0
        self._sums.clear()
        return dropped

    def _proceed(self) -> None:
        way, self._waiting = self._waiting, None
        if way is None:
            return
        hand_over(way.reduction, way.buffer, way.future)

    def _reduction(self, bucket: GradBucket) -> Reduction:
        assert self.group is not None
        terms = Terms(self.group, self._counts, self._divisor)
        mine = self._leaves_of(bucket)
        if not isinstance(mine, list):
            return FoldedSum(terms, mine)
        scratch = self._scratch.setdefault(bucket.index(), Scratch())
        if self._plan.method == "exact":
            return Exact(terms, mine, self._wants_gram(terms.leaves), scratch)
        return Fixed(terms, mine, int(self._plan.method.removeprefix("fixed")), scratch)

    def _leaves_of(self, bucket: GradBucket) -> list[torch.Tensor] | Binned:
        layout, last = self._layout(bucket), bucket.buffer()
        for place in layout:
            if place.parameter in self._take_back:
                view = place.of(last).zero_()
                self._unreached.append((self._parameters[place.parameter], view))
        return self.leaves.take(layout, last, retain=self._retained)

    def _layout(self, bucket: GradBucket) -> list[Slice]:
        start = int(bucket.buffer().storage_offset())
        places = [self._place(parameter) for parameter in bucket.parameters()]
        views = [(int(g.storage_offset()) - start, g.shape, g.stride()) for g in bucket.gradients()]
        return [Slice(place, *view) for place, view in zip(places, views, strict=True)]

    def _place(self, parameter: torch.Tensor) -> int:
        place = self._places.get(id(parameter), NO_PLACE)
        if place == NO_PLACE and parameter.requires_grad and self.leaves.passes:
            raise RuntimeError(
                "presum: a parameter that was frozen at presum.attach is trained now, and its "
                "micro-batches cannot be told apart: attach once it is not frozen"
            )
        return place

    def _wants_gram(self, leaves: int) -> Callable[[torch.Tensor], None] | None:
        collector: DdpReducingCollector | None = self._collector()
        one_each = leaves == len(self._counts) <= GRAM_WORKERS_MAX
        if collector is None or not one_each or not collector.measures():
            return None
        return collector.add_share


class Optimizers:
    """Has leaves forgotten where ``zero_grad`` is called, and steps without them refused."""

    def __init__(self) -> None:
        self._states: weakref.WeakSet[ReducingState] = weakref.WeakSet()
        self._watches = False
        self._replacements = [
            Tapped(Optimizer, "zero_grad", before=self._optimizer),
            Tapped(nn.Module, "zero_grad", before=self._module),
        ]

    def watch(self, state: ReducingState) -> None:
        """For as long as it lives."""
        self._states.add(state)
        if self._watches:
            return
        self._watches = True
        for replacement in self._replacements:
            replacement.apply()
        # After the step: it may run the last backward pass itself, in a closure.
        register_optimizer_step_post_hook(self._step)

    def _optimizer(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._forget(_parameters_of(optimizer))

    def _module(self, module: nn.Module, *_: Any, **__: Any) -> None:
        self._forget(module.parameters())

    def _forget(self, parameters: Iterable[nn.Parameter]) -> None:
        zeroed = {id(parameter) for parameter in parameters}
        for state in self._states:
            state.forget(zeroed)

    def _step(self, optimizer: Optimizer, *_: Any) -> None:
        for state in self._states:
            state.check_step(_parameters_of(optimizer))


OPTIMIZERS = Optimizers()


def _parameters_of(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    return (p for group in optimizer.param_groups for p in group["params"])


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


def _mark(gradient: torch.Tensor) -> Mark:
    """By which it is seen whether it was written to, or another one put in its place."""
    return gradient.data_ptr(), gradient._version


def _after_ddp(call: Callable[[], None]) -> None:
    """At the end of the backward pass under way, after what DDP has queued for then."""
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))


def _future(buffer: torch.Tensor) -> Future[torch.Tensor]:
    return Future() if buffer.is_cpu else Future(devices=[buffer.device])
