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
from presum.steps.collector import Collector, CollectorSetup, MicroBatch, in_backward
from presum.torch_events.hooks import Handle, Hook, ParameterHook
from presum.torch_events.losses import Scalar
from presum.torch_events.taps import TAPS, TappedFunction


class ReducingPasses:
    """Which backward passes of a DDP model reduce.

    DDP decides in the forward pass, unless it is told otherwise afterwards, as Accelerate's
    ``trigger_sync_in_backward`` does. A forward around the wrapper decides nothing.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        """Holds it weakly."""
        self._model = weakref.proxy(model)
        self._prepared: bool | None = None

    def after_forward(self) -> None:
        """To be called after each forward of the wrapper."""
        if torch.is_grad_enabled() and not in_backward():
            # A later forward under no_sync() does not take it back.
            self._prepared = bool(self._prepared or self._model.require_backward_grad_sync)

    def begin(self) -> bool:
        """Whether the backward pass that begins now is due to reduce."""
        due = bool(self._model.require_backward_grad_sync)
        if self._prepared is not None:
            due = self._prepared or (due and self._model.require_forward_param_sync)
        if due:
            self._prepared = None
        return due

    def more_follow(self) -> bool:
        """Whether the program is under no_sync(), even where DDP reduces all the same."""
        return not self._model.require_backward_grad_sync


class DdpCollector(Collector):
    """A step is one backward pass that is due to synchronise, whether or not a reduction runs."""

    def __init__(self, model: DistributedDataParallel, setup: CollectorSetup) -> None:
        super().__init__(model, model.module, setup)
        self._views = model.gradient_as_bucket_view
        self._passes = ReducingPasses(model)
        self._arrivals = Arrivals(self._gradient_arrives)
        self._over_next: Scalar = 0.0

    def _hook_gradients(self) -> None:
        self._handles += [TAPS.at_beginnings(self._pass_begins), self._arrivals]
        self._handles += [
            parameter.register_post_accumulate_grad_hook(ParameterHook(self, place))  # type: ignore[no-untyped-call]
            for place, parameter in self._alive()
        ]
        JOIN_LISTENERS.add(self._model(), self)
        self._handles.append(Handle(partial(JOIN_LISTENERS.remove, self)))

    def _model(self) -> DistributedDataParallel:
        model = self._wrapper()
        assert isinstance(model, DistributedDataParallel)
        return model

    def _pass_begins(self) -> None:
        """Before each backward pass, of this model or another."""
        begins = self._open or self._micro_batches == 0
        if not self.off and begins and self._next_is_recorded():
            Hook(self, self._look)()

    def _look(self) -> None:
        """At what ``.grad`` holds where a step begins."""
        self._over_next = held_by(self._alive())
        if isinstance(self._over_next, torch.Tensor) or self._over_next:
            self._arrivals.listen(self._alive())

    def _sums_are_own(self) -> bool:
        if isinstance(self._over, torch.Tensor):  # not known yet; an arrival is own in any case
            return self._micro_batches > 1
        return not self._over

    def _gradient_arrives(self, place: int, gradient: torch.Tensor) -> None:
        if not self.off:
            Hook(self, self._arrive)(place, gradient)

    def _arrive(self, place: int, gradient: torch.Tensor) -> None:
        if not self.in_backward:
            self.before_backward()
        if not self.collecting or self.reads_sums or self._micro_batches > 1:
            return
        self._owns_known = self._owns_known and not self._seen[place]
        parameter = self._parameters[place]()
        if parameter is not None:
            self.read(place, as_parameter(gradient, parameter), reduced=False)

    def before_backward(self) -> None:
        """The first parameter of a backward pass has its gradient."""
        self._end_step()
        self.in_backward = True
        self._micro_batches += 1
        if self._micro_batches == 1:
            self._over = self._over_next
        self._queue_end()
        if not self._reached:
            self._reach_unseen()
        self._synchronises = self._passes.begin()
        if self._synchronises:
            self._begin_synchronised()

    def _after_forward(
        self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._passes.after_forward()
        super()._after_forward(module, args, kwargs, output)

    def _reach_unseen(self) -> None:
        """A backward pass within the forward (Lightning's manual optimisation), or from an output
        in which no tensor was found."""
        rows = () if self._rows is None else (self._rows,)
        self._reached[0] = MicroBatch(0, None, 0, None, rows)

    def _after_backward(self) -> None:
        """Every gradient is still local, but in view mode: DDP puts the sums in place later."""
        self._end_queued = False
        if not self.in_backward:
            self._reached = {}
            return  # torch.autograd.grad: no parameter took part
        if not self._take_reached():
            return
        self._read_left_out()
        if self._wants_reduction():
            # Twice: with a static graph DDP's own first callback queues another one.
            hook = Hook(self, self._after_reduction)
            Variable._execution_engine.queue_callback(
                lambda: Variable._execution_engine.queue_callback(hook)
            )

    def _wants_reduction(self) -> bool:
        """Not of a sum to which the reduced gradient was added."""
        over = self._over and not isinstance(self._over, torch.Tensor)
        return not over and self._reduced_is_due()

    def _read_left_out(self) -> None:
        """Parameters that only earlier micro-batches used hold a gradient that is summed too; in
        view mode it may be reduced already, so it is counted as not read."""
        if self._micro_batches == 1 or all(self._seen) or not self._sums_are_own():
            return
        for place, parameter in self._alive():
            if self._seen[place] or parameter.grad is None:
                continue
            if self._views:
                self._skipped += 1
            else:
                self.read(place, parameter.grad, reduced=False)

    def _after_reduction(self) -> None:
        for place, parameter in self._alive():
            self.read(place, parameter.grad, reduced=True)

    def step_without_input(self) -> None:
        """Under ``join()``: the others have reduced once more, this worker had no batch left."""
        if self._model().require_forward_param_sync:  # DDP keeps here whether they synchronised
            self._end_step()
            self._synchronises = True
            self._begin_synchronised()
            self._take_reached()
            self._end_step()


class JoinListeners:
    """Which collectors are to be told of steps that their worker shadows under ``join()``."""

    def __init__(self) -> None:
        self._collectors: weakref.WeakKeyDictionary[DistributedDataParallel, DdpCollector] = (
            weakref.WeakKeyDictionary()
        )
        self._tap = TappedFunction(_DDPJoinHook, "main_hook", after=self._main_hook)

    def add(self, model: DistributedDataParallel, collector: DdpCollector) -> None:
        self._tap.apply()
        self._collectors[model] = collector

    def remove(self, collector: DdpCollector) -> None:
        for model in [model for model, its in self._collectors.items() if its is collector]:
            del self._collectors[model]
        if not self._collectors:
            self._tap.undo()

    def _main_hook(self, _result: None, hook: Any) -> None:
        collector = self._collectors.get(hook.ddp)
        if collector is not None:
            Hook(collector, collector.step_without_input)()


JOIN_LISTENERS = JoinListeners()
