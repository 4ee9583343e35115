# SPDX-License-Identifier: Apache-2.0
"""The interface through which a recorder gets the gradients of its model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd import Variable

from presum._core import AuditRecord, Observer
from presum.steps.arrivals import held_by
from presum.steps.gradient_reader import GradientPart
from presum.steps.setup import RecorderSetup
from presum.steps.value_sample import Gradients, Tensors
from presum.steps.waiting import Waiting
from presum.torch_events.hooks import EventListener, Hook
from presum.torch_events.losses import Scalar
from presum.torch_events.taps import TAPS


class AuditResult(NamedTuple):
    """The result of an audit."""

    record: AuditRecord
    repeat: bool | None  # whether the same reduction gave the same bits again


class Recorder(EventListener, Protocol):
    """Receives a model's backward passes and gradients. It is a :class:`~presum._core.PassFlags`,
    to which :class:`~presum._core.ParameterHook` reports."""

    setup: RecorderSetup
    observer: Observer
    in_backward: bool
    arrivals: int  # gradients that have arrived so far
    reads_sums: bool  # the contents of ``.grad`` are to be read
    reads_arrivals: bool  # the addends are to be read
    gathers: bool  # read() may wait for more gradients, on a device
    waiting: Waiting

    def pass_begins(self, *, reduces: bool, more_follow: bool, readable: bool = True) -> None: ...

    def pass_ends(self, *, part: bool = False) -> None: ...

    def awaits_reduction(self) -> None: ...

    def reduction(self) -> None: ...

    def shadow(self) -> None: ...

    def add_audit(self, found: AuditResult | None) -> None: ...

    @property
    def layers_due(self) -> bool: ...

    def read(self, index: int, grad: torch.Tensor | None, *, reduced: bool) -> None: ...

    def read_all(
        self, gradients: Iterable[tuple[int, torch.Tensor | None]], *, reduced: bool
    ) -> None: ...

    def read_queued(self) -> None: ...

    def read_part(self, index: int, part: GradientPart | None) -> None: ...

    def tell_layers(self, call: Callable[..., None], *args: Any) -> None: ...


class GradientSource:
    """Reports the backward passes of one model and their gradients to a recorder.

    Micro-batches enter through the forward of ``wrapper``; ``inner`` is the module inside (the same
    if there is no wrapper). Both are held weakly.
    """

    reads_grad = True  # gradients are the contents of ``.grad``, including earlier ones
    broadcasts = False  # between the wrapper's forward pass and the module's
    tells_waits = True  # time spent waiting for other ranks is known, on devices too
    sees_zeroing = True  # ``held`` shows whether accumulated gradients were zeroed since

    def __init__(self, wrapper: nn.Module, inner: nn.Module) -> None:
        self.wrapper = weakref.ref(wrapper)
        self.inner = weakref.ref(inner)
        self._recorder: Recorder | None = None

    @property
    def recorder(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    def start(self, recorder: Recorder) -> list[Any]:
        """Start to report gradients. Returns the handles to remove at the end."""
        self._recorder = recorder
        return self.hook()

    def hook(self) -> list[Any]:
        """Register the hooks that report gradients."""
        raise NotImplementedError

    def pass_is_over(self) -> None:
        """Every gradient of a backward pass has arrived. Must call ``recorder.pass_ends`` if the
        pass accumulated into this model."""
        raise NotImplementedError

    def before_pass(self) -> None:
        """The first gradient of a backward pass has arrived. Must call ``recorder.pass_begins``."""

    def forward_is_over(self) -> None:
        """A forward pass of the wrapper, of any kind, has ended."""

    def output_reached(self, forward: int) -> None:
        """A run of the engine, also one that accumulates nothing, reaches the output of the forward
        with this number."""

    def queue(self, hook: Hook) -> None:
        """Call ``hook`` at the end of the current backward pass."""
        Variable._execution_engine.queue_callback(hook)

    def accumulated(self) -> Tensors:
        """The accumulated gradient of each parameter."""
        return Gradients(self.recorder.setup.parameters)

    def held(self) -> Scalar:
        """The largest absolute value in ``.grad`` (:func:`held_by`)."""
        setup = self.recorder.setup
        return held_by(setup.alive(), on_host=setup.on_host)

    def listen_to_arrivals(self) -> None:
        """``.grad`` is not empty when a window begins."""

    def begin_reading(self) -> None:
        """A pass that is read begins."""

    def accumulates(self) -> bool:
        """Whether the current run of the engine accumulates into this model, as far as its caller
        has said. ``torch.autograd.grad`` and ``backward(inputs=)`` of other tensors do not."""
        run = TAPS.run()
        return run is None or run.may_reach(p for _, p in self.recorder.setup.alive())

    def own(self, _place: int, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's own gradient, given the contents of a parameter's ``.grad``."""
        return gradient

    def take_gram(self) -> torch.Tensor | None:
        """This rank's part of the Gram matrix, if it was computed."""
        return None


def queue_last(call: Callable[[], None]) -> None:
    """Call ``call`` at the end of the current backward pass, after the framework has reduced. It is
    queued twice: with a static graph, DDP's first callback queues another one, and FSDP reduces the
    last groups in a callback."""
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))


def in_backward() -> bool:
    """Whether a backward pass is running: activation checkpointing recomputes forward passes in
    it."""
    return bool(torch._C._current_graph_task_id() != -1)
