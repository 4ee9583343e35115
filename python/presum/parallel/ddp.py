# SPDX-License-Identifier: Apache-2.0
"""Recording of a DistributedDataParallel module without a change of its synchronization.

Gradients are read in post-accumulate hooks, where they are still this rank's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Reducer
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _DDPJoinHook

from presum._core import ParameterHook
from presum.steps.arrivals import Arrivals, as_parameter
from presum.steps.gradient_source import GradientSource, in_backward, queue_last
from presum.torch_events.hooks import Hook
from presum.torch_events.taps import Listeners, TappedFunction


class BackwardOrder(IntEnum):
    """Orders of forward and backward passes with which DDP does not reduce."""

    INSIDE = 1  # the backward pass is inside the wrapper's forward
    AGAIN = 2  # it is the second one of a forward
    FORWARDS_FIRST = 3  # several forwards came before it and another one
    AFTER_GRAD = 4  # torch.autograd.grad went through a static graph first


class ReducingPasses:
    """Predicts which backward passes of a DDP model reduce.

    DDP decides in the forward pass, unless its flag is set afterwards, as Accelerate's
    ``trigger_sync_in_backward`` does. A forward pass that bypasses the wrapper decides nothing. A
    backward pass inside the wrapper's forward reduces if the program prepares DDP for it, as
    Lightning does with manual optimization.
    """

    def __init__(self, model: DistributedDataParallel, *, sees_preparation: bool = False) -> None:
        """Holds the model weakly. ``sees_preparation``: ``prepares`` is called; otherwise DDP is
        assumed to be prepared for each pass inside the forward."""
        self._reference = weakref.ref(model)
        self._armed = False  # by a forward pass since the last pass that reduced
        self._seen = False  # a forward pass since then
        self._before = bool(model._lazy_init_ran)  # forward passes before the recording; none since
        self._waiting = False  # the pass was to reduce, and not all gradients have arrived
        self._waits_for = _waits_for(model)
        self._reduced = False  # some pass was due to reduce
        self._prepared = not sees_preparation  # in the wrapper's current forward
        self._sees_preparation = sees_preparation
        self._reached: set[int] = set()  # forwards of the passes since the last forward
        self._of_pass: set[int] = set()  # those of the current pass
        self._inside = False  # the current pass is inside the wrapper's forward
        self._too_early = False  # a static graph was differentiated before its first backward pass
        self.is_late = False  # the current pass, inside the forward, is not reduced when it ends
        # No forward pass prepared DDP for the current backward pass, and none asked DDP to skip it.
        self.takes_no_part = False

    @property
    def _model(self) -> DistributedDataParallel:
        model = self._reference()
        assert model is not None
        return model

    def after_forward(self) -> bool:
        """Call it after each forward of the wrapper. Returns whether that forward armed DDP; a
        forward inside a backward pass can too."""
        self._prepared = not self._sees_preparation
        if not torch.is_grad_enabled():
            return False
        self._before = False
        self._seen = True
        self._reached.clear()
        if not self._model.require_backward_grad_sync:
            return False  # DDP stays armed from an earlier forward
        if self._waiting:  # in vain: DDP would have refused this forward pass
            self._waits_for = 0
        self._armed, self._waiting = True, False
        return True

    def begin(self) -> bool:
        """Whether the backward pass that begins now is expected to reduce."""
        model = self._model
        told = bool(model.require_backward_grad_sync and model.require_forward_param_sync)
        inside = DistributedDataParallel._active_ddp_module is model
        prepared = inside and self._prepared
        due = bool(self._armed or (told and (self._seen or prepared or self._before)))
        self.takes_no_part = not self._seen and bool(model.require_backward_grad_sync)
        self._inside = inside
        self.is_late = prepared and bool(model.static_graph) and not self._reduced
        self._reduced |= due
        if due:
            self._prepared = not self._sees_preparation
        self._before = False
        if due:
            self._armed = self._seen = False
        return due

    def end(self, *, due: bool) -> BackwardOrder | None:
        """The order of the pass that ends now, if DDP may not reduce with it. ``due``: what
        ``begin`` has returned."""
        through, before = self._of_pass, self._reached
        self._of_pass, self._reached = set(), before | through
        if self._inside and (not due or self._model.static_graph):
            return BackwardOrder.INSIDE
        if self._too_early:
            return BackwardOrder.AFTER_GRAD
        if due or not (self.takes_no_part and through and before):
            return None
        return BackwardOrder.AGAIN if through <= before else BackwardOrder.FORWARDS_FIRST

    def prepares(self) -> None:
        """DDP is prepared for a backward pass: at the end of a forward, or by the program."""
        self._prepared = True

    def reaches(self, forward: int, *, accumulates: bool) -> None:
        """A run of the engine reaches the output of the forward with this number. DDP's first
        backward pass of a static graph ends with that run, even if it accumulates nothing."""
        if accumulates:
            self._of_pass.add(forward)
        elif self._model.static_graph and not self._reduced:
            self._too_early = True

    def waits(self, arrivals: int) -> bool:
        """Whether the expected reduction did not happen, because DDP still waits for gradients of a
        later pass. ``arrivals``: the gradients that have arrived since DDP was armed."""
        self._waiting = arrivals < self._waits_for
        self._armed = self._armed or self._waiting
        return self._waiting

    def more_follow(self) -> bool:
        """Whether the program is under no_sync(), even if DDP reduces anyway."""
        return not self._model.require_backward_grad_sync


def _waits_for(model: DistributedDataParallel) -> int:
    """How many parameters' gradients DDP reduces together; 0 if unknown, because DDP finds unused
    parameters itself."""
    if model.find_unused_parameters or model.static_graph:
        return 0
    later = set(model._delay_all_reduce_params)
    trained = {p for p in model._module_parameters if p.requires_grad}
    return len(trained - later)


class HoldsHook:
    """The state of a communication hook of presum's, inside which a hook of the program's can
    run."""

    inner: tuple[Callable[..., Any], Any] | None = None


def name_of_hook(hook: Any, state: Any) -> str:
    """The name of the program's hook that reduces; "" if only presum's own does."""
    if isinstance(state, HoldsHook):
        return "" if state.inner is None else name_of_hook(*state.inner)
    return str(getattr(hook, "__qualname__", type(hook).__name__))


class DdpSource(GradientSource):
    """Reads gradients in post-accumulate hooks, where they are still this rank's own."""

    reads_in_place = True  # ``.grad`` holds exactly this rank's own gradient

    def __init__(self, model: DistributedDataParallel, entry: nn.Module | None = None) -> None:
        """``entry``: the module whose forward pass micro-batches enter, if it is not ``model``."""
        super().__init__(entry or model, entry or model.module)
        self._model = weakref.ref(model)
        self.broadcasts = entry is None
        self._views = model.gradient_as_bucket_view
        self._passes = ReducingPasses(model, sees_preparation=True)
        self._reduces = False  # the current pass is expected to reduce
        self._fresh = False  # the current pass creates gradients and adds to none
        self._arrivals = Arrivals(self._gradient_arrives)
        self._hook_told = ""

    def begin_reading(self) -> None:
        hooks = self.model()._comm_hooks
        name = name_of_hook(*hooks[-1]) if hooks else ""
        if name != self._hook_told:
            self._hook_told = name
            self.recorder.observer.fact("communication_hook", name)
            self.recorder.setup.hello()

    def hook(self) -> list[Any]:
        setup = self.recorder.setup
        direct = setup.observer if setup.on_host and self.reads_in_place else None
        handles: list[Any] = [self._arrivals]
        for place, parameter in setup.alive():
            hook = ParameterHook(self.recorder, place, direct)
            handles.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        return [*handles, JOIN_LISTENERS.add(self), PREPARATIONS.add(self)]

    def model(self) -> DistributedDataParallel:
        model = self._model()
        assert model is not None
        return model

    def is_of(self, ddp: object) -> bool:
        return self._model() is ddp

    def listen_to_arrivals(self) -> None:
        setup = self.recorder.setup
        if len(self._arrivals) < len(setup.parameters):
            self._arrivals.listen(setup.alive())

    def _gradient_arrives(self, place: int, gradient: torch.Tensor) -> None:
        if self.recorder.off:
            return
        with self.recorder:
            try:
                self._arrive(place, gradient)
            except Exception as error:
                self.recorder.fail(error)

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
        self._reduces = self._passes.begin()
        more_follow = self._passes.more_follow()
        if self._passes.is_late:
            self.recorder.observer.postpone_reduced()
        self.recorder.pass_begins(reduces=self._reduces, more_follow=more_follow)
        if not self.recorder.setup.on_host:
            self.recorder.gathers = self.recorder.reads_sums and self._stay_own()

    def output_reached(self, forward: int) -> None:
        self._passes.reaches(forward, accumulates=self.accumulates())

    def _stay_own(self) -> bool:
        """Whether gradients keep the values that their hooks see until the pass is over: DDP
        reduces a copy, or replaces gradients that the pass creates with the sums; and no hook of
        the program runs after presum's."""
        return (self._fresh or not self._views) and all(
            len(parameter._post_accumulate_grad_hooks or ()) <= 1
            for _, parameter in self.recorder.setup.alive()
        )

    def forward_is_over(self) -> None:
        if self.recorder.in_backward and in_backward() and not self._reduces:
            self.pass_is_over()  # under no_sync(), inside a backward pass: another one follows
        if self._passes.after_forward():
            self.recorder.arrivals = 0
        setup = self.recorder.setup
        if self._views and not setup.on_host:
            self._fresh = all(parameter.grad is None for _, parameter in setup.alive())

    def pass_is_over(self) -> None:
        """Every gradient is still local, except in view mode, where DDP writes the sums later."""
        recorder = self.recorder
        if not recorder.in_backward:
            return  # torch.autograd.grad: no parameter took part
        sums = recorder.reads_sums
        recorder.read_queued()
        self._fresh = False
        order = self._passes.end(due=self._reduces)
        if order is not None:
            recorder.setup.fingerprints.tell_once("backward_order", order)
        recorder.pass_ends(part=self._reduces and self._passes.waits(recorder.arrivals))
        if sums:
            self._read_left_out()
        if recorder.observer.open:
            recorder.awaits_reduction()
        if recorder.observer.reduced_is_due():
            queue_last(Hook(recorder, self._after_reduction))

    def _read_left_out(self) -> None:
        """Read parameters that only earlier micro-batches used: their gradients are summed too. In
        view mode they may be reduced already, so they count as not read."""
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
        reduced = ((place, parameter.grad) for place, parameter in self.recorder.setup.alive())
        self.recorder.read_all(reduced, reduced=True)

    def prepares(self, reducer: object) -> None:
        """A reducer of the process is prepared for a backward pass."""
        if getattr(self._model(), "reducer", None) is reducer:
            self._passes.prepares()

    def step_without_input(self) -> None:
        """Under ``join()``: the other ranks reduced once more, and this rank had no batch left."""
        if self.model().require_forward_param_sync:  # DDP stores here whether they synchronized
            self.recorder.shadow()


def _main_hook(_result: None, hook: Any) -> None:
    for source in JOIN_LISTENERS:
        if source.is_of(hook.ddp):
            Hook(source.recorder, source.step_without_input)()


# Sources whose ranks may shadow steps under ``join()``.
JOIN_LISTENERS: Listeners[DdpSource] = Listeners(
    TappedFunction(_DDPJoinHook, "main_hook", after=_main_hook)
)


def _prepared(reducer: object, *_: object, **__: object) -> None:
    for source in PREPARATIONS:
        source.prepares(reducer)


# Sources that are told when DDP is prepared for a backward pass.
PREPARATIONS: Listeners[DdpSource] = Listeners(
    TappedFunction(Reducer, "prepare_for_backward", before=_prepared)
)
