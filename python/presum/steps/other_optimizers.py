# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers that presum was not given: optimizers that do train the model, and optimizers
that train nothing because they were built before the model was copied, sharded or replaced."""

from __future__ import annotations

import gc
import weakref

import torch
from torch.optim import Optimizer

from presum.fingerprints.families import KIND, LateValues
from presum.steps.setup import RecorderSetup
from presum.steps.value_sample import LocalParameters, ValueSample
from presum.torch_events.optimizers import parameters_of


class OtherOptimizers:
    """The other optimizers of one model. An optimizer that holds none of the model is ignored as
    long as another optimizer holds some of it, or as it trains another recorded model."""

    def __init__(self, setup: RecorderSetup) -> None:
        self._setup = setup
        self._held: weakref.WeakKeyDictionary[Optimizer, tuple[object, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self._holder: weakref.ref[Optimizer] | None = None
        self._astray = 0  # steps of optimizers that hold no recorded parameter
        self._empty = False  # the optimizer that is about to step has no gradient
        self._begin()
        _MODELS.add(self)

    def _begin(self) -> None:
        self._steps = self._in_vain = 0  # since the last report
        self._sample: ValueSample | None = None  # of the parameters, after the first pass since

    @property
    def concern(self) -> bool:
        """Whether presum was given no optimizer that holds some of the model."""
        given = (reference() for reference in self._setup.optimizers)
        return not any(self.is_held_by(one) for one in given if one is not None)

    def pass_ends(self) -> None:
        """A backward pass has ended, so the model has a gradient."""
        if self._sample is None:
            self._sample = ValueSample.of(LocalParameters(self._setup.parameters))

    def begins(self, optimizer: Optimizer, *_: object) -> None:
        """A step of any optimizer of this process begins."""
        self._empty = _has_no_gradient(optimizer)

    def ends(self, optimizer: Optimizer, *_: object) -> None:
        """The step has ended."""
        if not _moves(optimizer) or self._sample is None:
            return
        if self.is_held_by(optimizer):
            self._holder = weakref.ref(optimizer)
        elif any(model.is_held_by(optimizer) for model in _MODELS) or self._has_a_holder():
            return
        elif self._empty and _has_no_gradient(optimizer):
            self._in_vain += 1
        self._steps += 1

    def told(self) -> LateValues:
        """The observations since the last call, as fingerprints. Called before a forward pass: a
        program that moves parameters by hand has done so by then."""
        steps, in_vain, sample = self._steps, self._in_vain, self._sample
        self._begin()
        values: LateValues = [(KIND["steps_of_others"], steps)] if steps else []
        factor = None
        if in_vain and sample is not None:
            factor = sample.factor_to(LocalParameters(self._setup.parameters))
        if isinstance(factor, torch.Tensor):
            vain = (factor == 1).reshape(1).to(torch.int64) * in_vain
            return [*values, (KIND["steps_in_vain"], vain)]
        return [*values, (KIND["steps_in_vain"], in_vain)] if factor == 1 else values

    def is_held_by(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds some of the model's parameters. Cached until the first
        parameters of its groups change."""
        groups = [group["params"] for group in optimizer.param_groups]
        beginnings = [(len(group), id(group[0])) for group in groups if group]
        known = self._held.get(optimizer)
        if known is None or known[0] != beginnings:
            own = {id(parameter) for _, parameter in self._setup.alive()}
            known = (beginnings, any(id(one) in own for group in groups for one in group))
            self._held[optimizer] = known
        return known[1]

    def _has_a_holder(self) -> bool:
        """Whether some optimizer of the process holds some of the model. Searching all objects
        takes a while, so it is done less and less often."""
        holder = None if self._holder is None else self._holder()
        if holder is not None and self.is_held_by(holder):
            return True
        self._astray += 1
        if self._astray & (self._astray - 1):
            return False
        found = (one for one in gc.get_objects() if issubclass(type(one), Optimizer))
        holder = next(filter(self.is_held_by, found), None)
        self._holder = None if holder is None else weakref.ref(holder)
        return holder is not None


_MODELS: weakref.WeakSet[OtherOptimizers] = weakref.WeakSet()  # the recorded models


def _has_no_gradient(optimizer: Optimizer) -> bool:
    return not any(map(_has_gradient, parameters_of(optimizer)))


def _has_gradient(parameter: torch.Tensor) -> bool:
    """Includes the attributes in which Megatron and Transformer Engine keep gradients with mixed
    precision."""
    names = ("grad", "main_grad", "decoupled_grad")
    return any(getattr(parameter, name, None) is not None for name in names)


def _moves(optimizer: Optimizer) -> bool:
    """Whether one of its learning rates is above 0 or unknown."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return any(not isinstance(rate, (int, float)) or rate > 0 for rate in rates)
