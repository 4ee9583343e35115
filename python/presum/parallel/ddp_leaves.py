# SPDX-License-Identifier: Apache-2.0
"""The leaves of a DDP model on one rank from pass to pass, and the contents of its ``.grad``.

Gradients of passes under ``no_sync()`` are separate leaves: they are moved out of ``.grad`` as they
arrive. If a sum is not zeroed before the next pass, it is taken back, and its leaves are summed
again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from presum.options import Reduction
from presum.parallel.ddp import ReducingPasses
from presum.parallel.leaves import NO_PLACE, Leaves, slices
from presum.parallel.reductions import (
    DROPPED,
    LOST,
    MIXED,
    TOOK_BACK,
    Contribution,
    divisor_of,
)
from presum.steps.gradient_source import in_backward, queue_last
from presum.torch_events.hooks import pickled_as_nothing
from presum.torch_events.optimizers import parameters_of
from presum.torch_events.taps import TAPS, TappedFunction

Version = tuple[int, int]


class DdpLeaves:
    """The leaves of one model, for as long as it lives. Errors raise."""

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: Sequence[nn.Parameter],
        reduction: Reduction,
    ) -> None:
        self._reduction = reduction
        self._leaves = Leaves()
        self._parameters = list(parameters)
        self._places = {id(parameter): place for place, parameter in enumerate(parameters)}
        self._passes = ReducingPasses(model)
        self._due = True  # whether the current backward pass reduces
        self._pass = TAPS.backward_passes  # its number
        # Places whose .grad holds a sum that has not been zeroed since.
        self._sums: dict[int, Version | None] = {}
        self._whole = True  # no other place of that sum was zeroed
        self._described = False  # its leaves are retained
        self._take_back: set[int] = set()  # its places that the current pass has not reached yet
        self._stash: dict[int, torch.Tensor] = {}  # those that it has reached, until it has reduced
        self._retains = True  # retain the leaves of a reduction, in case another pass adds to it
        self._retained = False  # leaves of the current pass
        self._adds_up = False  # a pass has added to a reduced gradient
        self._flags = 0  # of the current pass
        self._tainted = 0  # the flags of leaves since the last reduction
        self.unreduced = False  # leaves wait to be reduced
        self._reduced_in = -1  # the last pass that was reduced
        self._unreached: list[tuple[nn.Parameter, torch.Tensor]] = []  # and the place of their sum
        TAPS.add()  # permanent
        OPTIMIZER_CALLS.watch(self)
        model.register_forward_hook(_Tap(lambda *_: self._passes.after_forward()))
        for place, parameter in enumerate(parameters):
            _hook(self, place, parameter)

    # ---- a pass

    def enter(self) -> None:
        """Enter a backward pass, if it is a new one."""
        if self._pass == TAPS.backward_passes:
            return
        if self._stash:
            self._settle()  # the previous pass ended in an exception
        self._leaves.passes += not self._due
        self._look()
        self._due = self._passes.begin() or self._passes.takes_no_part
        self._retained = self._retains or self._passes.more_follow()
        self._pass = TAPS.backward_passes

    def _look(self) -> None:
        """Examine ``.grad`` before this pass adds to it."""
        self._flags = 0
        self._forget({at for at in self._held() if self._parameters[at].grad is None})
        changed = [at for at in self._sums if self._sums[at] != _version_of(self._grad(at))]
        left = [self._grad(at).any() for at in changed]
        nonzero = torch.stack(left).tolist() if left else []
        self._forget({at for at, there in zip(changed, nonzero, strict=True) if not there})
        if not self._sums:
            return
        if not self._whole:  # optimizers that zero only their own parameters
            self._flags = MIXED
            self._retains = self._adds_up
        else:
            self._retains = self._adds_up = True
            self._flags = TOOK_BACK if self._described and not any(nonzero) else LOST
        if self._flags == TOOK_BACK:
            self._tainted |= TOOK_BACK
            self._take_back = set(self._sums)
            queue_last(self._settle)
        else:
            self._give_up()

    def _give_up(self) -> None:
        """``.grad`` is no longer the sum of the leaves."""
        self._described = False
        for place in self._sums:
            self._leaves.discard(place)
        if not self._leaves.places():
            self._leaves.clear()

    def _held(self) -> set[int]:
        return self._sums.keys() | set(self._leaves.places())

    def _grad(self, place: int) -> torch.Tensor:
        gradient = self._parameters[place].grad
        assert gradient is not None
        return gradient

    def arrives(self, place: int) -> None:
        """A gradient is about to be added to ``.grad``. Clear a sum there whose leaves are
        retained."""
        self.enter()
        if place not in self._take_back:
            return
        gradient = self._grad(place)
        self._stash[place] = gradient.clone()
        gradient.zero_()
        self._take_back.discard(place)
        del self._sums[place]

    def _settle(self) -> None:
        """The pass is over. If DDP took no part in it (a penalty on parameters, a graph that is
        used again), restore the sums."""
        stash, self._stash = self._stash, {}
        self._take_back.clear()
        if self._reduced_in == self._pass:
            return
        if not self._due:  # in one bucket all views have one version
            self._sums = {place: _version_of(self._grad(place)) for place in self._sums}
            return
        with torch.no_grad():
            for place, total in stash.items():
                self._grad(place).add_(total)
                self._sums[place] = None
        self._give_up()

    def accumulated(self, place: int, parameter: torch.Tensor) -> None:
        """A gradient was added to ``.grad``. If the pass does not reduce, it becomes a leaf."""
        if self._due or parameter.grad is None:
            return
        if place in self._sums:
            self._tainted |= self._flags
            del self._sums[place]
        self._leaves.add(place, _flat(parameter.grad.clone()))
        self.unreduced = True
        parameter.grad.zero_()  # not None: DDP would consider the parameter unused

    def forget(self, parameters: Collection[int]) -> None:
        """Forget the leaves of parameters, given by their ``id``, that were zeroed."""
        self._forget({self._places[one] for one in self._places.keys() & parameters})

    def _forget(self, places: set[int]) -> None:
        gone = places & self._held()
        had_sums = bool(self._sums)
        if gone & self._sums.keys():
            self._whole = self._sums.keys() <= gone
        for place in gone:
            self._leaves.discard(place)
            self._sums.pop(place, None)
        if not gone:
            return
        if not self._held():
            self._leaves.clear()
            self._tainted, self.unreduced, self._due = 0, False, True
            if had_sums:
                self._retains = self._adds_up

    def check_step(self, parameters: Iterable[nn.Parameter]) -> None:
        """An optimizer has stepped with these parameters."""
        if not self.unreduced:
            return
        waiting = set(self._leaves.places())
        if any(self._places.get(id(one)) in waiting for one in parameters):
            raise RuntimeError(
                "presum: the optimizer stepped before the micro-batches of passes under no_sync() "
                "were reduced: run the last backward pass before each step outside no_sync()"
            )

    def whole(self, place: int, gradient: torch.Tensor) -> torch.Tensor:
        """The sum of this rank's leaves, of which ``gradient`` is the last; with
        ``microbatch_mean`` their mean."""
        self.enter()
        passes = self._leaves.passes + 1
        if passes == 1:
            return gradient
        divisor = divisor_of(self._reduction, 1, passes)
        whole = self._leaves.with_last(place, _flat(gradient), divisor)
        return torch.empty_like(gradient).copy_(whole.view(gradient.shape))

    def places(self) -> list[int]:
        return self._leaves.places()

    # ---- its reduction

    def contribution(self) -> Contribution:
        """This rank's contribution to the reduction that begins. Under join(), a rank without input
        contributes a leaf of zeros that does not count."""
        fresh = in_backward()
        dropped = not fresh and self._shadow()
        if not self._due:
            raise RuntimeError(
                "presum: with static_graph=True, DDP fails if the very first backward pass is "
                "under no_sync(), with or without presum: let the first pass synchronize"
            )
        self._unreached = []
        passes, flags = self._leaves.passes, self._flags | self._tainted | DROPPED * dropped
        return Contribution(passes + 1, passes + fresh, flags, self._reduction.microbatch_mean)

    def _shadow(self) -> bool:
        """The other ranks reduce, and this rank has no input left, but may have leaves that wait.
        Returns whether it gave up leaves of a sum that other ranks may take back."""
        dropped = not self.unreduced and self._leaves.passes > 0
        if self.unreduced:
            self._leaves.passes += not self._due
        else:
            self._leaves.clear()
        self._due, self._retained, self._flags = True, False, 0
        self._sums.clear()
        return dropped

    def take(
        self, parameters: Iterable[torch.Tensor], views: Iterable[torch.Tensor], last: torch.Tensor
    ) -> list[torch.Tensor]:
        """The leaves of a bucket, of which ``last`` is the newest; ``views`` are the places of
        ``parameters`` in it."""
        layout = slices(map(self._place, parameters), views, last)
        for place in layout:
            if place.parameter in self._take_back:
                view = place.of(last).zero_()
                self._unreached.append((self._parameters[place.parameter], view))
        return self._leaves.take(layout, last, retain=self._retained)

    def _place(self, parameter: torch.Tensor) -> int:
        place = self._places.get(id(parameter), NO_PLACE)
        if place == NO_PLACE and parameter.requires_grad and self._leaves.passes:
            raise RuntimeError(
                "presum: a parameter that was frozen at presum.attach is trained now, so its "
                "micro-batches cannot be separated: attach after it is unfrozen"
            )
        return place

    def reduced(self) -> None:
        """The reduction of the last bucket has started."""
        self._reduced_in = self._pass
        self._sums = dict.fromkeys(range(len(self._parameters)))
        self._whole, self._described = True, self._retained
        self._tainted, self.unreduced = 0, False
        if self._retained:
            self._leaves.passes += 1
        else:
            self._leaves.clear()
        if in_backward():
            queue_last(self._finish)

    def _finish(self) -> None:
        """DDP has written the sums, except for parameters that no rank used in its last pass. There
        too the mean over leaves has changed."""
        unreached, self._unreached = self._unreached, []
        with torch.no_grad():
            for parameter, mean in unreached:
                if parameter.grad is not None:
                    parameter.grad.copy_(mean)
        self._sums.clear()
        for place, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                self._leaves.discard(place)  # zeros: no rank used it
            else:
                self._sums[place] = _version_of(parameter.grad)


class OptimizerCalls:
    """Forgets leaves when ``zero_grad`` is called, and refuses steps before leaves are reduced."""

    def __init__(self) -> None:
        self._models: weakref.WeakSet[DdpLeaves] = weakref.WeakSet()
        self._watches = False
        self._replacements = [
            TappedFunction(Optimizer, "zero_grad", before=self._optimizer),
            TappedFunction(nn.Module, "zero_grad", before=self._module),
        ]

    def watch(self, leaves: DdpLeaves) -> None:
        """Watch for as long as ``leaves`` lives."""
        self._models.add(leaves)
        if self._watches:
            return
        self._watches = True
        for replacement in self._replacements:
            replacement.apply()
        # After the step, because the step may run the last backward pass itself, in a closure.
        register_optimizer_step_post_hook(self._step)

    def _optimizer(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        self._forget(parameters_of(optimizer))

    def _module(self, module: nn.Module, *_: Any, **__: Any) -> None:
        self._forget(module.parameters())

    def _forget(self, parameters: Iterable[nn.Parameter]) -> None:
        zeroed = {id(parameter) for parameter in parameters}
        for leaves in self._models:
            leaves.forget(zeroed)

    def _step(self, optimizer: Optimizer, *_: Any) -> None:
        for leaves in self._models:
            leaves.check_step(parameters_of(optimizer))


OPTIMIZER_CALLS = OptimizerCalls()


class _Tap:
    """A function that torch calls for as long as the model lives. Copies and pickles of it do
    nothing."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        self._function(*args)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled_as_nothing()


def _hook(leaves: DdpLeaves, place: int, parameter: nn.Parameter) -> None:
    ours = weakref.ref(leaves)

    def arrives(*_: object) -> None:
        leaves = ours()
        if leaves is not None:
            leaves.arrives(place)

    # DDP keeps this node. autograd.grad would call a hook of the tensor too.
    get_gradient_edge(parameter).node.register_prehook(arrives)

    def accumulated(owner: torch.Tensor) -> None:  # a self-referring parameter is never freed
        leaves = ours()
        if leaves is not None:
            leaves.accumulated(place, owner)

    tap = _Tap(accumulated)
    parameter.register_post_accumulate_grad_hook(tap)  # type: ignore[no-untyped-call]


def _flat(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.detach().contiguous().view(-1)


def _version_of(gradient: torch.Tensor) -> Version:
    """Changes if the gradient is written to or replaced."""
    return gradient.data_ptr(), gradient._version
