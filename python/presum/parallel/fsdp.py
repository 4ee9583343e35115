# SPDX-License-Identifier: Apache-2.0
"""Recording of a module that ``fully_shard`` (FSDP2, HSDP) or its ``replicate`` was applied to.

FSDP2 passes the gradients of each parameter group, still whole and this rank's own, to one internal
function, ``foreach_reduce``. Post-accumulate hooks see only shards of the sum, and a wrapper around
the reduce-scatter sees neither groups of one rank nor which parameters took part. Therefore presum
replaces that function during a recording: the replacement reads the gradients and calls the
original.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from presum._core import canonical_name
from presum.parallel.fsdp_shards import ShardReader
from presum.steps.gradient_source import GradientSource, queue_last
from presum.torch_events.hooks import Hook
from presum.torch_events.taps import Listeners, TappedFunction


class FsdpSource(GradientSource):
    """A pass reduces if ``set_requires_gradient_sync`` says so. ``zero_grad()`` does not clear what
    passes without synchronization have accumulated."""

    sees_zeroing = False
    tells_waits = False  # all-gathers run inside passes: on a device no event separates them

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, model)
        groups = list(parameter_groups(model))
        self._groups = [weakref.ref(group) for group in groups]
        held = [one for group in groups for one in group.fsdp_params]
        self._held = {id(one) for one in held}
        names = {id(module): name for name, module in model.named_modules()}
        self._names = {id(one): _name_of(one, names) for one in held}
        self._places: dict[int, int] = {}
        self._shards: ShardReader | None = None

    def hook(self) -> list[Any]:
        setup = self.recorder.setup
        places = {canonical_name(name): place for place, name in enumerate(setup.names)}
        found = ((one, places.get(name)) for one, name in self._names.items())
        self._places = {one: place for one, place in found if place is not None}
        self._shards = ShardReader(self.recorder, self._places, self._groups)
        read = set(self._places.values())
        missed = {name: setup.parameters[at] for name, at in places.items() if at not in read}
        if missed:
            setup.note(f"parameters outside every group of fully_shard, not read: {len(missed)}")
            setup.fingerprints.not_reduced(missed)
        return [REDUCTION_LISTENERS.add(self)]

    def model(self) -> nn.Module:
        model = self.wrapper()
        assert model is not None
        return model

    def owns(self, held: Any) -> bool:
        return id(held) in self._held

    def reducing(self, held: list[Any], gradients: list[torch.Tensor]) -> None:
        """A parameter group is about to be reduced: ``gradients`` of ``held``, some of its
        parameters."""
        recorder = self.recorder
        if not recorder.in_backward:
            recorder.pass_begins(reduces=True, more_follow=False)
        if not recorder.reads_sums:
            return
        places = (self._places.get(id(one)) for one in held)
        pairs = zip(places, gradients, strict=True)
        recorder.read_all(((p, g) for p, g in pairs if p is not None), reduced=False)
        if self._shards is not None:
            self.recorder.tell_layers(self._shards.goes_in, held, gradients)

    def reduced(self, held: list[Any], *arguments: Any, **named: Any) -> None:
        if self._shards is not None:
            self.recorder.tell_layers(self._shards.came_out, held, arguments, named)

    def queue(self, hook: Hook) -> None:
        queue_last(hook)

    def accumulated(self) -> list[torch.Tensor | None]:
        found: list[torch.Tensor | None] = [None] * len(self._places)
        for group in (reference() for reference in self._groups):
            for one in () if group is None else group.fsdp_params:
                place = self._places.get(id(one))
                if place is not None and place < len(found):
                    own = getattr(one, "_unsharded_param", None)
                    sum_ = one.unsharded_accumulated_grad
                    found[place] = sum_ if sum_ is not None or own is None else own.grad
        return found

    def pass_is_over(self) -> None:
        if not self.recorder.in_backward:
            if self._reduces() or not self.accumulates():
                return  # torch.autograd.grad
            self.recorder.pass_begins(reduces=False, more_follow=True, readable=False)
        self.recorder.pass_ends()

    def _reduces(self) -> bool:
        alive = (reference() for reference in self._groups)
        return any(group.reduce_grads for group in alive if group is not None)


def _name_of(held: Any, modules: dict[int, str]) -> str:
    """The name by the parameter's module: FSDP replaces the parameter itself on first use."""
    home = held._module_info
    prefix = modules.get(id(home.module), "")
    return canonical_name(f"{prefix}.{home.param_name}" if prefix else str(home.param_name))


def _reduce(held: list[Any], gradients: list[torch.Tensor], *_: Any, **__: Any) -> None:
    for source in REDUCTION_LISTENERS:
        if held and source.owns(held[0]):
            Hook(source.recorder, source.reducing)(held, gradients)


def _reduced(_result: Any, held: list[Any], *arguments: Any, **named: Any) -> None:
    for source in REDUCTION_LISTENERS:
        if held and source.owns(held[0]):
            Hook(source.recorder, source.reduced)(held, *arguments, **named)


REDUCTION_LISTENERS: Listeners[FsdpSource] = Listeners(
    TappedFunction(_fsdp_param_group, "foreach_reduce", before=_reduce, after=_reduced)
)


_ReduceScatter: Any = getattr(_fsdp_param_group, "ReduceScatter", None)
CAN_STAND_IN = _ReduceScatter is not None  # torch 2.9 or newer


class ReduceScatterStandIn(_ReduceScatter if CAN_STAND_IN else object):  # type: ignore[misc]
    """Takes the place of a parameter group's reduce-scatter, which is ``inside``."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def allocate(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.inside.allocate(*args, **kwargs)  # type: ignore[no-any-return]


def parameter_groups(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state = module._get_fsdp_state()
            groups = getattr(state, "_fsdp_param_groups", None)
            if groups is None:  # before torch 2.13
                one = state._fsdp_param_group
                groups = [] if one is None else [one]
            yield from groups
