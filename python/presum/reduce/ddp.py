# SPDX-License-Identifier: Apache-2.0
"""A reproducible reduction in place of DistributedDataParallel's own: in its communication hook.

The hook gets a backward pass's gradients bucket by bucket, in one order on all workers. While a
bucket's first round is under way the second of the one before starts; autograd's thread waits for
first rounds only. Gradients of passes under ``no_sync()`` are leaves of their own: they are moved
out of ``.grad`` as they come.
"""

from __future__ import annotations

import contextlib
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

from presum.auditing import Audits, flat_value
from presum.collector import Setup, in_backward
from presum.ddp import DdpCollector, Passes
from presum.ddp_hook import COMM_HOOKS, HookState
from presum.reduce.leaves import NO_PLACE, Folded, Kept, Slice
from presum.reduce.plan import Plan
from presum.reduce.tensors import Binned
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
    look_for_sums_of_sums,
)
from presum.taps import TAPS, Replacement

GRAM_WORKERS_MAX = 64


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
        self._pass = TAPS.backward_passes  # its number
        self._counts: list[int] = []
        self._divisor = 1
        self._waiting: Way | None = None
        self._summed: set[int] = set()  # places whose .grad is a sum, to which nothing was added
        self._retains = True  # leaves of what is reduced, in case that another pass adds to it
        self._retained = False  # leaves of the pass under way
        self._adds_up = False  # a pass has added to what was reduced
        self._lost = False  # it does, and the leaves of that were not retained
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
                state._arrives(place, parameter)

        # DDP keeps this node. A hook of the tensor would be called by autograd.grad too.
        get_gradient_edge(parameter).node.register_prehook(arrives)
        tap = _Tap(lambda p: self._accumulated(place, p))
        parameter.register_post_accumulate_grad_hook(tap)  # type: ignore[no-untyped-call]

    def takes_another(self) -> bool:
        return False

    # ---- a pass

    def _enter(self) -> None:
        """Into a backward pass, if it is a new one."""
        if self._pass == TAPS.backward_passes:
            return
        self._pass = TAPS.backward_passes
        self.leaves.passes += not self._due
        self._forget(self._zeroed_by_hand())
        if self._summed:
            self._add_up()
        self._due = self._passes.begin()
        self._retained = self._retains or self._passes.more_follow()

    def _add_up(self) -> None:
        self._retains = self._adds_up = True
        if self.leaves.passes == 0:
            self._lost = True
            self._summed.clear()

    def _zeroed_by_hand(self) -> set[int]:
        """Places whose leaves are not wanted any more, though zero_grad was not called."""
        gone = {place for place in self._held() if self._parameters[place].grad is None}
        return gone | {place for place in self._summed - gone if not self._grad(place).any()}

    def _held(self) -> set[int]:
        return self._summed.union(self.leaves.places())

    def _grad(self, place: int) -> torch.Tensor:
        gradient = self._parameters[place].grad
        assert gradient is not None
        return gradient

    def _arrives(self, place: int, parameter: nn.Parameter) -> None:
        """A gradient is about to be added to ``.grad``; what is there has its leaves kept."""
        self._enter()
        if place in self._summed:
            self._summed.discard(place)
            self._grad(place).zero_()

    def _accumulated(self, place: int, parameter: nn.Parameter) -> None:
        if self._due or parameter.grad is None:
            return
        self.leaves.add(place, _flat(parameter.grad.clone()))
        parameter.grad.zero_()  # not None: DDP would take the parameter for unused

    def forget(self, parameters: Collection[int]) -> None:
        """The leaves of parameters, given by their ``id``: they were zeroed."""
        self._forget({self._places[one] for one in self._places.keys() & parameters})

    def _forget(self, places: set[int]) -> None:
        for place in places:
            self.leaves.discard(place)
        self._summed -= places
        if self.leaves.passes and not self._held():
            self.leaves.clear()
            self._retains, self._lost, self._due = self._adds_up, False, True

    def check_step(self, parameters: Iterable[nn.Parameter]) -> None:
        """An optimizer has made a step with these."""
        if self._due:
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
        self._summed = set(range(len(self._parameters)))
        self._lost = False
        if self._unreached and in_backward():
            engine = Variable._execution_engine
            # Twice: after what DDP has queued.
            engine.queue_callback(lambda: engine.queue_callback(self._fill))
        if self._retained:
            self.leaves.passes += 1
        else:
            self.leaves.clear()
        self.passes += 1

    def _fill(self) -> None:
        """DDP leaves alone what no worker used in its last pass; the mean over leaves has changed
        there too."""
        unreached, self._unreached = self._unreached, []
        with torch.no_grad():
            for parameter, mean in unreached:
                if parameter.grad is not None:
                    parameter.grad.copy_(mean)

    def _followed(self, local: torch.Tensor, reduced: Future[torch.Tensor]) -> Future[torch.Tensor]:
        assert self.audits is not None
        return self.audits.follow(self.audits.gather(local, self.group), reduced, None, self.tell)

    def _started(self, reduction: Reduction, buffer: torch.Tensor) -> Future[torch.Tensor]:
        way = Way(reduction, buffer, _future(buffer))
        reduction.begin()
        self._proceed()
        self._waiting = way
        return way.future

    def _begin(self, device: torch.device) -> None:
        fresh = in_backward()
        if not fresh:
            self._shadow()
        if not self._due:
            raise RuntimeError(
                "presum: with static_graph=True DDP fails where the first backward pass of all is "
                "under no_sync(), with presum or without: let that one synchronise"
            )
        self._waiting = None
        self._unreached = []
        assert self.group is not None
        # Under join(), a worker without input takes part with a leaf of zeros that does not count.
        passes = self.leaves.passes
        bring = Bring(passes + 1, passes + fresh, self._lost, self._plan.code)
        brought = agree(self.group, bring, device)
        look_for_sums_of_sums(brought, self._plan)
        self._counts = [one.leaves for one in brought]
        self._divisor = self._plan.divisor(len(brought), sum(one.counted for one in brought))

    def _shadow(self) -> None:
        """The others reduce, this worker has no input left, but perhaps leaves that wait."""
        if self._due:
            self.leaves.clear()
        self.leaves.passes += not self._due
        self._due, self._retained, self._lost = True, False, False

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
            if place.parameter in self._summed:
                view = place.of(last).zero_()
                self._unreached.append((self._parameters[place.parameter], view))
        return self.leaves.take(layout, last, retain=self._retained)

    def _layout(self, bucket: GradBucket) -> list[Slice]:
        start = int(bucket.buffer().storage_offset())
        return [
            Slice(
                self._places.get(id(p), NO_PLACE),
                int(view.storage_offset()) - start,
                view.shape,
                view.stride(),
            )
            for p, view in zip(bucket.parameters(), bucket.gradients(), strict=True)
        ]

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
            Replacement(Optimizer, "zero_grad", self._optimizer),
            Replacement(nn.Module, "zero_grad", self._module),
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

    def _optimizer(self, original: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
        self._forget(_parameters_of(optimizer))
        original(optimizer, *args, **kwargs)

    def _module(self, original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        self._forget(module.parameters())
        original(module, *args, **kwargs)

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


def _future(buffer: torch.Tensor) -> Future[torch.Tensor]:
    return Future() if buffer.is_cpu else Future(devices=[buffer.device])
