# SPDX-License-Identifier: Apache-2.0
"""Follows the micro-batches between two optimizer steps: which of their gradients the second step
does not get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch.optim import Optimizer

from presum.fingerprints.families import KIND, LateValues, real_bits
from presum.fingerprints.step import MicroBatchSamples
from presum.steps.gradient_source import GradientSource
from presum.steps.setup import RecorderSetup
from presum.steps.value_sample import Parameters, Tensors, ValueSample
from presum.torch_events.losses import Scalar
from presum.torch_events.optimizers import OPTIMIZER_STEPS, parameters_of

FORWARDS_MAX = 1024  # forward passes followed between two optimizer steps
SAMPLED_FIRST, SAMPLED_EVERY = 3, 10  # windows in which sums are verified


class TrainingForward(NamedTuple):
    """A forward pass in training mode whose output can be differentiated."""

    has_loss: bool  # the output has a field for the loss
    differentiates_input: bool  # the program may want the gradient of an input
    rows: MicroBatchSamples | None

    @property
    def batch(self) -> int | None:
        """The number of batches that loaders have yielded: forwards with the same number may be of
        one batch."""
        return None if self.rows is None else self.rows.state.offered


@dataclass
class WaitingPasses:
    """Backward passes whose gradients are in ``.grad`` and not used yet."""

    count: int = 0
    versions: int = 0  # of the parameters
    parameters: ValueSample | None = None
    for_inputs: bool = False
    rows: list[MicroBatchSamples] = field(default_factory=list)


class ClearedPasses(NamedTuple):
    """Backward passes whose gradients were cleared before use."""

    passes: int
    scale: Scalar
    moved: Scalar | None  # the factor that the parameters changed by since
    rows: list[MicroBatchSamples]


class EmptiedPasses(NamedTuple):
    """Passes whose gradients the optimizer does not get."""

    passes: int
    factor: Scalar  # 0, once it is known
    parameters: ValueSample | None  # before the step, if there is no gradient at all


class AccumulationWindow:
    """The passes of one model between two optimizer steps. Forward passes that are not recorded are
    not followed.

    Programs also clear gradients on purpose, and these do not count as lost: after they moved
    parameters (sharpness-aware training), gradients of an input (adversarial examples), parts of a
    loss that the program adds up itself, gradients of another model that steps in between, and
    after a loss scaler found infinities.
    """

    def __init__(self, setup: RecorderSetup, source: GradientSource) -> None:
        self._setup = setup
        self._source = source
        self._number = 0
        self._follows = bool(setup.optimizers)
        self._clears = False  # has ever cleared gradients
        self._emptied: EmptiedPasses | None = None
        self._own_steps = OPTIMIZER_STEPS.total
        self._begin()

    def _begin(self) -> None:
        self._forwards: dict[int, TrainingForward] = {}
        self._reached: set[int] = set()
        self._unknown = False  # some pass went through none of them
        self._of_pass: set[int] = set()
        self._waiting = WaitingPasses()
        self._cleared: list[ClearedPasses] = []
        self._others = self._steps_of_others()
        self._sample: ValueSample | None = None  # of gradients, as the last pass left them
        self._factor: Scalar | None = None
        self._found: LateValues = []

    def _steps_of_others(self) -> int:
        return OPTIMIZER_STEPS.total - self._own_steps

    # ---- passes

    def forward(self, number: int, forward: TrainingForward) -> None:
        """A forward pass that can be differentiated has ended."""
        if len(self._forwards) >= FORWARDS_MAX:
            self._unknown = True
        elif self._follows:
            self._forwards[number] = forward

    def reached(self, number: int) -> None:
        """A backward pass goes through a forward."""
        self._of_pass.add(number)

    def pass_begins(self) -> None:
        """Before a backward pass adds to ``.grad``."""
        sample, self._sample = self._sample, None
        self._of_pass = set()
        if sample is None or self._versions() != self._waiting.versions:
            return
        factor = sample.factor_to(self._source.accumulated())
        if factor is not None and self._source.sees_zeroing:
            factor = _one_for_zero(factor)  # ``zeroed`` reports that
        if factor is not None:
            self._factor = factor if self._factor is None else _first_change(self._factor, factor)

    def pass_ends(self, rows: Iterable[MicroBatchSamples | None]) -> None:
        """A backward pass has accumulated."""
        self._sample = None
        if not self._follows:
            return
        waiting = self._waiting
        waiting.count += 1
        waiting.versions = self._versions()
        waiting.parameters = ValueSample.of(self._parameters()) if self._clears else None
        if waiting.count <= FORWARDS_MAX:
            waiting.rows += [one for one in rows if one is not None]
        through = [self._forwards[n] for n in self._of_pass if n in self._forwards]
        waiting.for_inputs |= any(forward.differentiates_input for forward in through)
        self._unknown |= not self._of_pass
        self._reached |= self._of_pass & self._forwards.keys()
        if self._is_sampled and self._setup.observer.in_window:
            self.keep()

    @property
    def _is_sampled(self) -> bool:
        return self._number < SAMPLED_FIRST or self._number % SAMPLED_EVERY == 0

    @property
    def asks_for_the_last(self) -> bool:
        """Whether the optimizer's input matters: call ``keep`` once the gradients of the last pass
        are reduced."""
        return bool(self._cleared) or (self._follows and self._is_sampled)

    def keep(self) -> None:
        """Remember the gradients, which the optimizer or the next pass should find unchanged."""
        self._sample = ValueSample.of(self._source.accumulated())

    def zeroed(self, scale: Scalar) -> None:
        """``.grad`` is empty; ``scale`` is the scale of the loss in the last pass."""
        waiting = self._waiting
        if not waiting.count:
            return
        self._waiting = WaitingPasses()
        meant = waiting.for_inputs or waiting.versions != self._versions()
        many = len(self._cleared) >= FORWARDS_MAX
        if meant or many or self._setup.observer.in_optimizer_step:
            return
        self._clears = True
        before = waiting.parameters
        moved = None if before is None else before.factor_to(self._parameters())
        self._cleared.append(ClearedPasses(waiting.count, scale, moved, waiting.rows))

    # ---- the optimizer

    def hands_over(self, scale: Scalar) -> None:
        """Gradients go to the optimizer, or to a reduction in the program."""
        if self._cleared and self._steps_of_others() == self._others:
            self._found += self._lost_passes(scale)
        self._cleared = []

    def optimizer_begins(self, scale: Scalar, optimizer: Optimizer) -> LateValues:
        """The passes that this window has lost, as fingerprints. Begins the next window."""
        self._emptied = self._look_for_nothing(optimizer)
        self.hands_over(scale)
        found = self._found
        if self._factor is not None and self._emptied is None:
            found.append((KIND["grad_changed"], _bits(self._factor)))
        if self._steps_of_others() == self._others:
            found += _counted("forwards_detached", self._detached())
        self._number += 1
        self._begin()
        return found

    def _look_for_nothing(self, optimizer: Optimizer) -> EmptiedPasses | None:
        """Whether the optimizer gets nothing although passes have accumulated gradients."""
        waiting = self._waiting
        if not waiting.count or not self._source.sees_zeroing or self._holds_some():
            return None
        meant = waiting.for_inputs or waiting.versions != self._versions()
        if meant or self._steps_of_others() != self._others or not self._is_of(optimizer):
            return None
        now = self._source.accumulated()
        passes = waiting.count + sum(one.passes for one in self._cleared)
        if all(now[place] is None for place in range(len(now))):
            self._cleared = []
            return EmptiedPasses(passes, 0.0, ValueSample.of(self._parameters()))
        factor = self._sample.factor_to(now) if self._sample else None
        if factor is None or (isinstance(factor, float) and factor != 0):
            return None
        self._cleared = []
        return EmptiedPasses(passes, factor, None)

    def _is_of(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer holds the model's parameters: master weights get their gradients in
        another way."""
        held = {id(parameter) for parameter in parameters_of(optimizer)}
        return any(id(parameter()) in held for parameter in self._setup.parameters)

    def stepped(self) -> LateValues:
        """An optimizer of this model has stepped. Returns what its step lacked. If parameters moved
        without a gradient, the optimizer has taken it from elsewhere."""
        self._own_steps += 1
        emptied, self._emptied = self._emptied, None
        if emptied is None:
            return []
        still: bool | torch.Tensor = True
        if emptied.parameters is not None:
            moved = emptied.parameters.factor_to(self._parameters())
            still = moved == 1 if moved is not None else False
        gone = _and(emptied.factor == 0, still)
        if gone is False:
            return []
        left = torch.where(gone, 0.0, 1.0).double() if isinstance(gone, torch.Tensor) else 0.0
        return [
            *_counted("passes_cleared", gone * emptied.passes),
            (KIND["grad_changed"], _bits(left)),
        ]

    def _holds_some(self) -> bool:
        """Whether there is some gradient, if no sample of values is needed to decide."""
        if self._sample is not None:
            return False
        held = (parameter() for parameter in self._setup.parameters)
        return any(parameter is not None and parameter.grad is not None for parameter in held)

    def _lost_passes(self, scale: Scalar) -> LateValues:
        """Lost passes, if the optimizer gets exactly the gradients of the last passes, perhaps
        scaled. Otherwise the program may have combined the gradients that it had cleared."""
        factor = self._sample.factor_to(self._source.accumulated()) if self._sample else None
        if factor is None:
            return []
        count: int | torch.Tensor = sum(
            _and(
                factor > 0,
                one.scale == scale,
                one.moved == 1,
                _disjoint(self._waiting.rows, one.rows),
            )
            * one.passes
            for one in self._cleared
        )
        return _counted("passes_cleared", count)

    def _detached(self) -> int | torch.Tensor:
        """The number of forwards that became part of no gradient although others did: a loss, or
        all forwards of a batch."""
        if self._unknown or not self._reached or len(self._reached) == len(self._forwards):
            return 0
        followed = self._forwards.items()
        used = [forward for number, forward in followed if number in self._reached]
        left = [forward for number, forward in followed if number not in self._reached]
        batches = {forward.batch for forward in used}
        rows = [forward.rows for forward in used if forward.rows]
        count: int | torch.Tensor = sum(
            _and(_disjoint(rows, [forward.rows] if forward.rows else [])) * 1
            for forward in left
            if forward.has_loss or not batches & {forward.batch, None}
        )
        return count

    def _parameters(self) -> Tensors:
        return Parameters(self._setup.parameters)

    def _versions(self) -> int:
        """The versions of some parameters: optimizer steps change all parameters."""
        first, last = self._setup.parameters[0](), self._setup.parameters[-1]()
        return (0 if first is None else first._version) + (0 if last is None else last._version)


def _disjoint(
    some: Sequence[MicroBatchSamples], others: Sequence[MicroBatchSamples]
) -> bool | torch.Tensor:
    """Whether no row is in both; a tensor if the hashes are on a device."""
    a, b = ([of.hashes for of in rows if len(of.hashes)] for rows in (some, others))
    late = [[one for one in of if isinstance(one, torch.Tensor)] for of in (a, b)]
    if late[0] and late[1]:
        return ~torch.isin(torch.cat(late[0]), torch.cat(late[1])).any()
    return {one for of in a for one in of}.isdisjoint(one for of in b for one in of)


def _counted(name: str, count: int | torch.Tensor) -> LateValues:
    if isinstance(count, torch.Tensor):
        return [(KIND[name], count.to(torch.int64).reshape(1))]
    return [(KIND[name], count)] if count else []


def _one_for_zero(factor: Scalar) -> Scalar:
    if isinstance(factor, torch.Tensor):
        return torch.where(factor == 0, 1.0, factor)
    return factor or 1.0


def _first_change(before: Scalar, now: Scalar) -> Scalar:
    if isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor):
        return torch.where(before == 1, now, before)
    return now if before == 1 else before


def _and(*conditions: bool | torch.Tensor) -> bool | torch.Tensor:
    """A tensor if one of the conditions is a tensor."""
    late = [one for one in conditions if isinstance(one, torch.Tensor)]
    known = all(one for one in conditions if not isinstance(one, torch.Tensor))
    return torch.stack([one.reshape(()) for one in late]).all() & known if late else known


def _bits(factor: Scalar) -> int | torch.Tensor:
    if isinstance(factor, torch.Tensor):
        return factor.reshape(1).view(torch.int64)
    return real_bits(factor)
