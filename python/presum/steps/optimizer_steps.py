# SPDX-License-Identifier: Apache-2.0
"""Observations around optimizer steps, besides gradients. An error in one of them ends only that
one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from presum.fingerprints.families import Families, LateValues
from presum.steps.accumulation import AccumulationWindow
from presum.steps.gradient_factor import GradientFactor
from presum.steps.gradient_source import in_backward, queue_last
from presum.steps.other_optimizers import OtherOptimizers
from presum.steps.rounded import RoundedUpdates
from presum.steps.setup import RecorderSetup
from presum.steps.small_gradients import SmallGradients
from presum.steps.two_optimizers import TwoOptimizers
from presum.torch_events.hooks import EventListener, Hook, in_optimizer_step
from presum.torch_events.losses import Scalar
from presum.torch_events.optimizers import OPTIMIZER_STEPS, StepHook


class OptimizerSteps:
    """The steps of one model's optimizers, and of optimizers that hold none of its parameters."""

    def __init__(self, setup: RecorderSetup, window: AccumulationWindow, aside: Families) -> None:
        self._setup = setup
        self._observer = setup.observer
        self._window = window
        self._aside = aside
        self._rounded = RoundedUpdates()
        self._small = SmallGradients(setup.replicas)
        self._factor = GradientFactor(setup)
        self._two = TwoOptimizers(setup)
        self._others = OtherOptimizers(setup)
        self._asks_others = False
        self.training_thread = 0  # of the last training forward

    def hook_all(self, recorder: EventListener) -> list[Any]:
        """The handles of the recorder's hooks on steps of any optimizer."""
        self._asks_others = bool(self._setup.parameters) and self._others.concern
        steps: list[tuple[StepHook, StepHook]] = [
            (partial(self._tell_two, self._two.begins), partial(self._tell_two, self._two.ends))
        ]
        if self._asks_others:
            before, after = (
                Hook(recorder, self._aside.call, "other optimizers", tell)
                for tell in (self._others.begins, self._others.ends)
            )
            steps.append((before, after))
        return [OPTIMIZER_STEPS.add(one) for one in steps]

    @_disable_dynamo
    def _tell_two(self, tell: Callable[..., None], *arguments: Any) -> None:
        """Unlike a hook of the recorder, it goes on while a CUDA graph is captured: the step may be
        of another model."""
        self._aside.call("two optimizers", tell, *arguments)

    def begins(self, optimizer: Optimizer, scale: Scalar) -> None:
        """A step begins that uses the accumulated gradients; ``scale`` is the scale of the loss."""
        self._setup.fingerprints.optimizer_begins(optimizer)
        self._tell("gradient factor", self._factor.optimizer_begins, scale, optimizer)
        self._tell("lost gradients", self._window.optimizer_begins, scale, optimizer)
        self._aside.call("rounded updates", self._rounded.before, optimizer)
        self._tell("small gradients", self._small.look, optimizer, scale)

    def ends(self, optimizer: Optimizer) -> None:
        """A step has ended; the parameters are updated."""
        self._tell("lost gradients", self._window.stepped)
        self._tell("rounded updates", self._rounded.after, optimizer)

    def saves(self, optimizer: Optimizer) -> None:
        """The program reads its optimizer's state."""
        mine = self.training_thread == threading.get_ident()  # not before the first forward pass
        if not mine or in_backward() or in_optimizer_step() or self._observer.in_window:
            return
        if self._setup.snapshots is not None:
            done = self._observer.optimizer_steps_done
            self._tell_snapshot(partial(self._setup.snapshots.saved, done, optimizer))

    def recording_ends(self) -> None:
        """Take the final parameters, if they have not changed since the last step."""
        if self._setup.snapshots is not None and self._setup.fingerprints.as_stepped():
            self._tell_snapshot(self._setup.snapshots.left)

    def model_begins(self) -> None:
        """The first forward pass of a recorded step."""
        if self._setup.snapshots is not None:
            self._tell_snapshot(self._setup.snapshots.begins)

    def window_begins(self) -> None:
        """A step is about to be computed: report what optimizers have done so far."""
        self._aside.call("two optimizers", self._two.tell)
        if self._asks_others:
            self._tell("other optimizers", self._others.told)

    def clips(self, parameters: Sequence[torch.Tensor]) -> None:
        """Gradients are about to be clipped."""
        self._aside.call("gradient factor", self._factor.clips, parameters)

    def weighed(self, recorder: EventListener) -> None:
        """A backward pass has ended, and the weights of its tokens are known."""
        queue_last(Hook(recorder, self._aside.call, "gradient factor", self._factor.reduced))

    def unweighed(self) -> None:
        """A backward pass has ended, and the weights of its tokens are unknown."""
        self._aside.call("gradient factor", self._factor.forget)

    def pass_ends(self) -> None:
        """A backward pass has ended."""
        if self._asks_others:
            self._aside.call("other optimizers", self._others.pass_ends)

    def _tell(self, family: str, look: Callable[..., LateValues], *args: Any) -> None:
        """Record what an observation of the current step has found."""
        self._setup.fingerprints.tell(self._aside.call(family, look, *args) or [])

    def _tell_snapshot(self, take: Callable[[], bytes | None]) -> None:
        packet = self._aside.call("snapshots", take)
        if packet is not None:
            self._setup.send(packet)
