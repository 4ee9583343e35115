# SPDX-License-Identifier: Apache-2.0
"""What torch calls: bound methods of a listener that never raise."""

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
    """Who is told of torch's events as long as it is not ``off``."""

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
    """Whether the step of some optimizer is under way in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _STEP:
            return True
        frame = frame.f_back
    return False


class Handle:
    """As torch's handles of hooks: ``remove`` takes something off again."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self.remove = remove


def pickled_as_nothing() -> tuple[Any, ...]:
    """What ``__reduce__`` returns of a callable that copies and pickles as one of Python's own that
    does nothing, so that models that hold it load where presum is not installed."""
    return (getattr, (contextlib.nullcontext(), "__exit__"))


class Hook:
    """A bound method that torch calls; it never raises, and copies and pickles as one of Python's
    own that does nothing, so that models still do, and load where presum is not installed."""

    __torch_unserializable__ = True  # on a tensor: saving it is no reason for a warning

    def __init__(
        self,
        listener: EventListener | None = None,
        method: Callable[..., None] | None = None,
        *bound: object,
    ) -> None:
        self._listener = listener
        self._method = method
        self._bound = bound

    @_disable_dynamo  # a compiled wrapper calls it as it is
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
    """The hook on what a forward pass gave. A program may keep that, and its graph, longer than the
    model: it must not hold the listener, which holds the model."""

    def __init__(self, listener: EventListener, micro_batch: object) -> None:
        super().__init__()
        self._weak = weakref.ref(listener)
        self._micro_batch = micro_batch

    @_disable_dynamo
    def __call__(self, grad: torch.Tensor | None = None, *_args: Any, **_kwargs: Any) -> None:
        """Without a gradient where the pass goes through another output of the same node."""
        listener = self._weak()
        if listener is not None and grad is not None:
            _tell(listener, listener.output_reached, self._micro_batch)


def belongs_to(hook: object, listener: EventListener) -> bool:
    """Whether a hook on an output is a listener's."""
    return isinstance(hook, OutputHook) and hook._weak() is listener


class OptimizerHook(Hook):
    """The hook after the optimizer's step: as :class:`Hook`, but steps count on when collecting has
    failed, so that a preflight still ends."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._listener is not None and self._listener.failed:
            self._listener.count_optimizer_step()
        else:
            super().__call__(*args, **kwargs)
