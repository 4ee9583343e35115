# SPDX-License-Identifier: Apache-2.0
"""Watching one DistributedDataParallel module without touching its synchronisation.

Gradients are read in post-accumulate hooks, where they are still this worker's own.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DDPJoinHook

from presum.parallel.arrivals import Arrivals, as_parameter, held_by
from presum.steps.gradient_source import GradientSource, in_backward
from presum.torch_events.hooks import Handle, Hook, ParameterHook
from presum.torch_events.losses import Scalar
from presum.torch_events.taps import TappedFunction


class ReducingPasses:
    """Which backward passes of a DDP model reduce.

    DDP decides in the forward pass, unless it is told otherwise afterwards, as Accelerate's
    ``trigger_sync_in_backward`` does. A forward around the wrapper decides nothing.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        """Holds it weakly."""
        self._model = weakref.proxy(model)
        self._armed = False  # by a forward pass since the last pass that reduced
        self._seen = False  # a forward pass since then
        self._inside = False  # one is under way
        # No forward pass prepared DDP for the pass under way, and none asked it to leave it out.
        self.takes_no_part = False

    def before_forward(self) -> None:
        """To be called before each training forward of the wrapper. A backward pass within it
        reduces if the program prepares DDP for it, as Lightning does where optimisation is manual;
        that is taken for granted."""
        self._inside = True

    def after_forward(self) -> None:
        """To be called after each forward of the wrapper."""
        self._inside = False
        if torch.is_grad_enabled() and not in_backward():
            # A later forward under no_sync() does not take it back.
            self._armed = bool(self._armed or self._model.require_backward_grad_sync)
            self._seen = True

    def begin(self) -> bool:
        """Whether the backward pass that begins now is due to reduce."""
        model = self._model
        told = model.require_backward_grad_sync and model.require_forward_param_sync
        due = bool(self._armed or ((self._seen or self._inside) and told))
        self.takes_no_part = not self._seen and bool(model.require_backward_grad_sync)
        if due:
            self._armed = self._seen = False
        return due

    def more_follow(self) -> bool:
        """Whether the program is under no_sync(), even where DDP reduces all the same."""
        return not self._model.require_backward_grad_sync


class DdpSource(GradientSource):
    """Gradients are read in post-accumulate hooks, where they are still this worker's own."""

    def __init__(self, model: DistributedDataParallel) -> None:
        super().__init__(model, model.module)
        self._views = model.gradient_as_bucket_view
        self._passes = ReducingPasses(model)
        self._arrivals = Arrivals(self._gradient_arrives)

    def hook(self) -> list[Any]:
        handles: list[Any] = [self._arrivals]
        handles += [
            parameter.register_post_accumulate_grad_hook(ParameterHook(self.recorder, place))  # type: ignore[no-untyped-call]
            for place, parameter in self.recorder.setup.alive()
        ]
        JOIN_LISTENERS.add(self.model(), self)
        return [*handles, Handle(partial(JOIN_LISTENERS.remove, self))]

    def model(self) -> DistributedDataParallel:
        model = self.wrapper()
        assert isinstance(model, DistributedDataParallel)
        return model

    def held(self) -> Scalar:
        return held_by(self.recorder.setup.alive())

    def listen_to_arrivals(self) -> None:
        self._arrivals.listen(self.recorder.setup.alive())

    def _gradient_arrives(self, place: int, gradient: torch.Tensor) -> None:
        if not self.recorder.off:
            Hook(self.recorder, self._arrive)(place, gradient)

    def _arrive(self, place: int, gradient: torch.Tensor) -> None:
        recorder = self.recorder
        if not recorder.in_backward:
            self.before_pass()
        if not recorder.reads_arrivals:
            return
        recorder.observer.arrives(place)
        parameter = recorder.setup.parameters[place]()
        if parameter is not None:
            recorder.read(place, as_parameter(gradient, parameter), reduced=False)

    def before_pass(self) -> None:
        more_follow = self._passes.more_follow()
        self.recorder.pass_begins(reduces=self._passes.begin(), more_follow=more_follow)

    def forward_begins(self) -> None:
        self._passes.before_forward()

    def forward_is_over(self) -> None:
        self._passes.after_forward()

    def pass_is_over(self) -> None:
        """Every gradient is still local, but in view mode: DDP puts the sums in place later."""
        recorder = self.recorder
        if not recorder.in_backward:
            return  # torch.autograd.grad: no parameter took part
        sums = recorder.reads_sums
        recorder.pass_ends()
        if sums:
            self._read_left_out()
        if recorder.observer.reduced_is_due():
            # Twice: with a static graph DDP's own first callback queues another one.
            hook = Hook(recorder, self._after_reduction)
            Variable._execution_engine.queue_callback(
                lambda: Variable._execution_engine.queue_callback(hook)
            )

    def _read_left_out(self) -> None:
        """Parameters that only earlier micro-batches used hold a gradient that is summed too; in
        view mode it may be reduced already, so it is counted as not read."""
        recorder = self.recorder
        if recorder.observer.passes == 1:
            return
        for place in recorder.observer.unseen:
            parameter = recorder.setup.parameters[place]()
            if parameter is None or parameter.grad is None:
                continue
            if self._views:
                recorder.observer.skip(1)
            else:
                recorder.read(place, parameter.grad, reduced=False)

    def _after_reduction(self) -> None:
        for place, parameter in self.recorder.setup.alive():
            self.recorder.read(place, parameter.grad, reduced=True)

    def step_without_input(self) -> None:
        """Under ``join()``: the others have reduced once more, this worker had no batch left."""
        if self.model().require_forward_param_sync:  # DDP keeps here whether they synchronised
            self.recorder.shadow()


class JoinListeners:
    """Which recordings are to be told of steps that their worker shadows under ``join()``."""

    def __init__(self) -> None:
        self._sources: weakref.WeakKeyDictionary[DistributedDataParallel, DdpSource] = (
            weakref.WeakKeyDictionary()
        )
        self._tap = TappedFunction(_DDPJoinHook, "main_hook", after=self._main_hook)

    def add(self, model: DistributedDataParallel, source: DdpSource) -> None:
        self._tap.apply()
        self._sources[model] = source

    def remove(self, source: DdpSource) -> None:
        for model in [model for model, its in self._sources.items() if its is source]:
            del self._sources[model]
        if not self._sources:
            self._tap.undo()

    def _main_hook(self, _result: None, hook: Any) -> None:
        source = self._sources.get(hook.ddp)
        if source is not None:
            Hook(source.recorder, source.step_without_input)()


JOIN_LISTENERS = JoinListeners()
