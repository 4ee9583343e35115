# SPDX-License-Identifier: Apache-2.0
"""Hooks that torch calls: bound methods of a listener, which never raise."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

import torch
from torch._compile import _disable_dynamo
from torch.optim import Optimizer


class EventListener(Protocol):
    """Receives torch's events as long as it is not ``off``."""

    off: bool
    failed: bool
    ended: bool

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...

    def is_captured(self) -> bool: ...

    def fail(self, error: Exception) -> None: ...

    def output_reached(self, micro_batch: Any) -> None: ...

    def count_optimizer_step(self) -> None: ...


_STEP = Optimizer.profile_hook_step(lambda *_: None).__code__


def in_optimizer_step() -> bool:
    """Whether this thread is inside the step of any optimizer."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _STEP:
            return True
        frame = frame.f_back
    return False


class Handle:
    """Like torch's hook handles: ``remove`` removes the hook."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self.remove = remove


def pickled_as_nothing() -> tuple[Any, ...]:
    """The result of ``__reduce__`` for a callable whose copies and pickles are a function of
    Python's own that does nothing, so that models that hold it load without presum installed."""
    return (getattr, (contextlib.nullcontext(), "__exit__"))


class Hook:
    """A bound method that torch calls. It never raises. Copies and pickles of it do nothing, so
    that models can still be copied and pickled, and load without presum installed."""

    __torch_unserializable__ = True  # on a tensor: suppresses a warning when it is saved

    def __init__(
        self,
        listener: EventListener | None = None,
        method: Callable[..., None] | None = None,
        *bound: object,
    ) -> None:
        self._listener = listener
        self._method = method
        self._bound = bound

    @_disable_dynamo  # a compiled wrapper calls it uncompiled
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._listener is not None and self._method is not None:
            _tell(self._listener, self._method, *self._bound, *args, **kwargs)

    def is_of_a_recording(self) -> bool:
        """Whether its listener has not ended."""
        return self._listener is not None and not self._listener.ended

    def __reduce__(self) -> tuple[Any, ...]:
        return pickled_as_nothing()


def _tell(
    listener: EventListener, method: Callable[..., None], /, *args: Any, **kwargs: Any
) -> None:
    if listener.off:
        return
    with listener:
        try:
            if not listener.is_captured():
                method(*args, **kwargs)
        except Exception as error:
            listener.fail(error)


class OutputHook(Hook):
    """The hook on a forward pass's output. A program may keep the output and its graph longer than
    the model, so the hook must not hold the listener, which holds the model."""

    def __init__(self, listener: EventListener, micro_batch: object) -> None:
        super().__init__()
        self._weak = weakref.ref(listener)
        self._micro_batch = micro_batch

    @_disable_dynamo
    def __call__(self, grad: torch.Tensor | None = None, *_args: Any, **_kwargs: Any) -> None:
        """``grad`` is None if the pass goes through another output of the same node."""
        listener = self._weak()
        if listener is not None and grad is not None:
            _tell(listener, listener.output_reached, self._micro_batch)


def belongs_to(hook: object, listener: EventListener) -> bool:
    """Whether a hook on an output belongs to a listener."""
    return isinstance(hook, OutputHook) and hook._weak() is listener


class OptimizerHook(Hook):
    """The hook after the optimizer step: a :class:`Hook` that still counts steps after recording
    has failed, so that a preflight ends."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._listener is not None and self._listener.failed:
            self._listener.count_optimizer_step()
        else:
            super().__call__(*args, **kwargs)
