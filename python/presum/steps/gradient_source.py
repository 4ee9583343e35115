# SPDX-License-Identifier: Apache-2.0
"""Where a recorder has the gradients of its model from."""

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
    """What was found of a reduction."""

    record: AuditRecord
    repeat: bool | None  # whether the same reduction gave the same bits again


class Recorder(EventListener, Protocol):
    """Who is told of a model's backward passes and gradients: a :class:`~presum._core.PassFlags`,
    of which a :class:`~presum._core.ParameterHook` tells."""

    setup: RecorderSetup
    observer: Observer
    in_backward: bool
    arrivals: int  # gradients that came so far
    reads_sums: bool  # what ``.grad`` holds is to be read
    reads_arrivals: bool  # what is added to it
    gathers: bool  # whether read() may wait for more gradients, on a device
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
    """Tells a recorder of the backward passes of one model and of what is in them.

    Micro-batches enter through the forward of ``wrapper``; ``inner`` is the bare module (the same
    where there is no wrapper). It holds both weakly.
    """

    reads_grad = True  # gradients are what ``.grad`` holds, with what it held before
    broadcasts = False  # between the wrapper's forward pass and the module's
    tells_waits = True  # on a device too: what waits for others is known
    sees_zeroing = True  # ``held`` tells whether what passes have accumulated was zeroed since

    def __init__(self, wrapper: nn.Module, inner: nn.Module) -> None:
        self.wrapper = weakref.ref(wrapper)
        self.inner = weakref.ref(inner)
        self._recorder: Recorder | None = None

    @property
    def recorder(self) -> Recorder:
        assert self._recorder is not None
        return self._recorder

    def start(self, recorder: Recorder) -> list[Any]:
        """Have gradients come in; the handles are what is to be undone."""
        self._recorder = recorder
        return self.hook()

    def hook(self) -> list[Any]:
        """Register what tells of gradients."""
        raise NotImplementedError

    def pass_is_over(self) -> None:
        """Every gradient of a backward pass is there. To call ``recorder.pass_ends`` if it is one
        of this model that accumulated."""
        raise NotImplementedError

    def before_pass(self) -> None:
        """A parameter's gradient is there, the first one of its backward pass. To call
        ``recorder.pass_begins``."""

    def forward_is_over(self) -> None:
        """A forward pass of the wrapper, of any kind."""

    def queue(self, hook: Hook) -> None:
        """Have it called at the end of the backward pass under way."""
        Variable._execution_engine.queue_callback(hook)

    def accumulated(self) -> Tensors:
        """What passes have left of each parameter's gradient."""
        return Gradients(self.recorder.setup.parameters)

    def held(self) -> Scalar:
        """How large what ``.grad`` holds is at most (:func:`held_by`)."""
        setup = self.recorder.setup
        return held_by(setup.alive(), on_host=setup.on_host)

    def listen_to_arrivals(self) -> None:
        """``.grad`` holds something where a window begins."""

    def begin_reading(self) -> None:
        """A pass begins that is read."""

    def accumulates(self) -> bool:
        """Whether the run of the engine under way accumulates into this model, as far as its caller
        has said: ``torch.autograd.grad`` and ``backward(inputs=)`` of others do not."""
        run = TAPS.run()
        return run is None or run.may_reach(p for _, p in self.recorder.setup.alive())

    def own(self, _place: int, gradient: torch.Tensor) -> torch.Tensor:
        """This worker's own gradient, of what a parameter's ``.grad`` holds."""
        return gradient

    def take_gram(self) -> torch.Tensor | None:
        """This worker's share of the Gram matrix, where it was taken."""
        return None


def queue_last(call: Callable[[], None]) -> None:
    """Have it called at the end of the backward pass under way, after the framework has reduced.
    Twice: with a static graph DDP's own first callback queues another one, and FSDP reduces the
    last groups in one."""
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))


def in_backward() -> bool:
    """Inside a backward pass: activation checkpointing computes forward passes again."""
    return bool(torch._C._current_graph_task_id() != -1)
