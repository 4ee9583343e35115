# SPDX-License-Identifier: Apache-2.0
"""Watching one module that ``fully_shard`` (FSDP2, HSDP) or its ``replicate`` was applied to.

FSDP2 hands each parameter group's gradients, still whole and this worker's own, to one function of
its own, ``foreach_reduce``; post-accumulate hooks see shards of the sum only, and a wrapper around
the reduce-scatter sees neither groups of one worker nor which parameters took part. So that
function is replaced while a collector listens: it reads, and calls what was there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from presum._core import canonical_name
from presum.steps.collector import Collector, CollectorSetup
from presum.torch_events.hooks import Handle, Hook
from presum.torch_events.taps import TappedFunction


class FsdpCollector(Collector):
    """A step is one backward pass in which FSDP reduces (``set_requires_gradient_sync``)."""

    def __init__(self, model: nn.Module, setup: CollectorSetup) -> None:
        super().__init__(model, model, setup)
        groups = list(parameter_groups(model))
        self._groups = [weakref.ref(group) for group in groups]
        held = [one for group in groups for one in group.fsdp_params]
        self._held = {id(one) for one in held}
        names = {id(module): name for name, module in model.named_modules()}
        places = {canonical_name(name): place for place, name in enumerate(setup.names)}
        found = ((id(one), places.get(_name_of(one, names))) for one in held)
        self._places = {one: place for one, place in found if place is not None}
        if len(self._places) < len(places):
            missed = len(places) - len(self._places)
            setup.note(f"{missed} parameters belong to no group of fully_shard: they are not read")

    def _hook_gradients(self) -> None:
        REDUCTION_LISTENERS.add(self)
        self._handles.append(Handle(partial(REDUCTION_LISTENERS.remove, self)))

    def _model(self) -> nn.Module:
        model = self._wrapper()
        assert model is not None
        return model

    def owns(self, held: Any) -> bool:
        return id(held) in self._held

    def reducing(self, held: list[Any], gradients: list[torch.Tensor]) -> None:
        """A parameter group is about to be reduced: the gradients of some of its parameters."""
        if not self.in_backward:
            self._begin_backward()
        if not self.collecting:
            return
        for one, gradient in zip(held, gradients, strict=True):
            place = self._places.get(id(one))
            if place is not None:
                self.read(place, gradient, reduced=False)

    def _begin_backward(self) -> None:
        self._end_step()
        self.in_backward = True
        self._synchronises = True
        self._begin_synchronised()
        self._queue_end()

    def _queue(self, hook: Hook) -> None:
        # Twice: FSDP reduces the last groups in a callback of its own.
        Variable._execution_engine.queue_callback(
            lambda: Variable._execution_engine.queue_callback(hook)
        )

    def _after_backward(self) -> None:
        self._end_queued = False
        if not self.in_backward and self._reduces():
            self._reached = {}
            return  # torch.autograd.grad: nothing was reduced
        if not self.in_backward:
            self._synchronises = False
        self._micro_batches += 1
        self._take_reached()

    def _reduces(self) -> bool:
        alive = (reference() for reference in self._groups)
        return any(group.reduce_grads for group in alive if group is not None)


def _name_of(held: Any, modules: dict[int, str]) -> str:
    """By where it lives: FSDP replaces the parameter itself when it is used first."""
    home = held._module_info
    prefix = modules.get(id(home.module), "")
    return canonical_name(f"{prefix}.{home.param_name}" if prefix else str(home.param_name))


class ReductionListeners:
    """Which collectors are to be told when FSDP reduces."""

    def __init__(self) -> None:
        self._collectors: weakref.WeakSet[FsdpCollector] = weakref.WeakSet()
        self._tap = TappedFunction(_fsdp_param_group, "foreach_reduce", before=self._reduce)

    def add(self, collector: FsdpCollector) -> None:
        self._tap.apply()
        self._collectors.add(collector)

    def remove(self, collector: FsdpCollector) -> None:
        self._collectors.discard(collector)
        if not self._collectors:
            self._tap.undo()

    def _reduce(self, held: list[Any], gradients: list[torch.Tensor], *_: Any, **__: Any) -> None:
        for collector in self._collectors:
            if held and collector.owns(held[0]):
                Hook(collector, collector.reducing)(held, gradients)


REDUCTION_LISTENERS = ReductionListeners()


class ReduceScatterStandIn(_fsdp_param_group.ReduceScatter):  # type: ignore[misc, name-defined]
    """What a parameter group calls in place of the one inside."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.inside.allocate(*args, **kwargs)  # type: ignore[no-any-return]


def parameter_groups(model: nn.Module) -> Iterator[Any]:
    """FSDP's parameter groups in a module."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            if groups is None:  # before torch 2.13
                one = state._fsdp_param_group
                groups = [] if one is None else [one]
            yield from groups
